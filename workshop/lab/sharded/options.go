package sharded

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/millrace/millrace/workshop/lab"
)

const (
	defaultTopology = "sharded:2x1"
	// maxShards keeps a slip of the finger from filling the machine.
	maxShards = 16
)

// Options describes one cluster.
type Options struct {
	// Options are those of each set, with these that differ: Topology is
	// "sharded:SxM" for S shards of M members, by default "sharded:2x1". Name is
	// that of the whole cluster. Dir holds a folder for each set. Port is the first
	// router's, or else config server's, and the others follow. Role and Secrets
	// are not for callers to set.
	lab.Options
	// ConfigMembers is how many members the config servers' set has; 0 means 1.
	ConfigMembers int

	// Routers is how many routers of the lab take clients; 0 is none. The first one
	// listens on Port, and the servers' ports follow.
	Routers int

	// part changes the options of a set, set by Up.
	part func(lab.Options) lab.Options
}

// topology is the parsed form of Options.Topology.
type topology struct{ shards, members int }

// Is reports whether a topology is that of a sharded cluster.
func Is(topology string) bool { return strings.HasPrefix(topology, "sharded:") }

// Members is how many servers have data in a cluster of a topology, 0 when that is
// none of a sharded cluster.
func Members(topology string) int {
	t, _ := parseTopology(topology)
	return t.shards * t.members
}

// parseTopology reads "sharded:SxM".
func parseTopology(s string) (topology, error) {
	counts, ok := strings.CutPrefix(s, "sharded:")
	left, right, x := strings.Cut(counts, "x")
	shards, err1 := strconv.Atoi(left)
	members, err2 := strconv.Atoi(right)
	if !ok || !x || err1 != nil || err2 != nil || shards < 1 || shards > maxShards || members < 1 {
		return topology{}, fmt.Errorf("lab: topology %q is unknown; use sharded:SxM for S shards (at most %d) of M members", s, maxShards)
	}
	return topology{shards, members}, nil
}

// check refuses what the options do not mean here, and sets the defaults.
func (o Options) check() (Options, topology, error) {
	o.Topology = cmp.Or(o.Topology, defaultTopology)
	o.ConfigMembers = cmp.Or(o.ConfigMembers, 1)
	topo, err := parseTopology(o.Topology)
	if err != nil {
		return o, topo, err
	}
	if o.Role != "" || o.Secrets != "" {
		return o, topo, errors.New("lab: a sharded cluster sets the roles and the key file of its sets itself")
	}
	return o, topo, nil
}
