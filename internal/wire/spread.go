package wire

import (
	"maps"
	"math"
	"slices"
	"sync"

	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/description"
)

// spread shares exchanges out over the routers of a sharded cluster: each goes to
// the one that was sent the fewest bytes. It is safe for concurrent use.
type spread struct {
	mu    sync.Mutex
	sent  map[string]int64 // by address
	among []string         // that were chosen from the last time, sorted
	total map[string]*Sent // by address; of those beyond mostRouters by ""
}

// Sent is what one of the routers was sent.
type Sent struct {
	// Router is its address, "" for those of which there were too many to tell them apart.
	Router          string
	Messages, Bytes int64
}

// mostRouters bounds the routers that are counted separately: addresses may change for ever.
const mostRouters = 64

// checkoutBytes is what a connection that is taken counts for, before it is known
// what is sent over it.
const checkoutBytes = 4 << 10

// least chooses one of the routers. Where others are there than the last time, all
// begin again with nothing: one that has come back is not to get all until it has
// caught up.
func (s *spread) least(routers []description.Server) []description.Server {
	if len(routers) < 2 {
		return routers
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var among []string
	for _, r := range routers {
		among = append(among, r.Addr.String())
	}
	slices.Sort(among)
	if !slices.Equal(among, s.among) {
		s.among, s.sent = among, map[string]int64{}
	}
	best, least := 0, int64(math.MaxInt64)
	for i, r := range routers {
		if n := s.sent[r.Addr.String()]; n < least {
			best, least = i, n
		}
	}
	return routers[best : best+1]
}

// add notes what was sent to a router.
func (s *spread) add(addr string, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count(addr, bytes)
}

// count is called with mu locked.
func (s *spread) count(addr string, bytes int64) {
	if s.sent == nil {
		s.sent = map[string]int64{}
	}
	s.sent[addr] += bytes
}

// message is add for a message, which Sent counts.
func (s *spread) message(addr string, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count(addr, bytes)
	one := s.total[addr]
	if one == nil && len(s.total) >= mostRouters {
		addr = ""
		one = s.total[addr]
	}
	if one == nil {
		if s.total == nil {
			s.total = map[string]*Sent{}
		}
		one = &Sent{Router: addr}
		s.total[addr] = one
	}
	one.Messages, one.Bytes = one.Messages+1, one.Bytes+bytes
}

// Sent is what routers were sent since the pool was opened, by their addresses; none where
// there is no router.
func (p *Pool) Sent() []Sent {
	p.over.mu.Lock()
	defer p.over.mu.Unlock()
	list := make([]Sent, 0, len(p.over.total))
	for _, addr := range slices.Sorted(maps.Keys(p.over.total)) {
		list = append(list, *p.over.total[addr])
	}
	return list
}
