package bench

import (
	"fmt"
	"time"
)

// link is the way to a target: the zero value is that of this machine.
type link struct {
	rtt     time.Duration // round trip
	megabit int           // a second in each direction, for all connections together; 0 for no limit
}

// far reports that a proxy makes the way.
func (l link) far() bool { return l != link{} }

// notes are what a report says of the link.
func (l link) notes() []string {
	if !l.far() {
		return nil
	}
	bandwidth := "its bandwidth is not limited"
	if l.megabit > 0 {
		bandwidth = fmt.Sprintf("all connections together carry %d Mbit/s in each direction", l.megabit)
	}
	return []string{fmt.Sprintf("each answer of the target is held back for %d ms by a proxy in the bench's own process; %s", l.rtt.Milliseconds(), bandwidth)}
}

// farConnections are how many connections are tried to a target that is far away.
func farConnections() []int { return []int{8, 16, 32, 64} }

// moveAway puts a link before a cluster with proxies.
func (s *side) moveAway(l link) {
	const kilobytes = 1000 / 8 // of a megabit
	for _, m := range s.lab.Members() {
		m.Proxy().Latency(l.rtt, 0)
		m.Proxy().Link(l.megabit * kilobytes)
	}
}
