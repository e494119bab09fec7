package bench

import (
	"fmt"
	"slices"
	"strings"
)

// Peer is another tool that takes part.
type Peer struct {
	Name    string
	Command string // the tool's program
}

// ParsePeer reads name=command.
func ParsePeer(s string) (Peer, error) {
	name, command, _ := strings.Cut(s, "=")
	p := Peer{Name: name, Command: command}
	return p, checkPeers([]Peer{p})
}

func checkPeers(peers []Peer) error {
	for _, p := range peers {
		if !slices.Contains([]string{"secondary"}, p.Name) {
			return fmt.Errorf("peer %q is unknown", p.Name)
		}
	}
	return nil
}

func (b *bench) hasPeer(name string) bool {
	return slices.ContainsFunc(b.o.Peers, func(p Peer) bool { return p.Name == name })
}

// PeerNames lists the tools that are known.
func PeerNames() string { return "known: secondary" }

func (b *bench) peerFollower(*site, Peer) (follower, bool) { return follower{}, false }
