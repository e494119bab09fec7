package wire

import (
	"maps"
	"math"
	"slices"
	"sync"

	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/description"
)

// spread sends each exchange to the router that was sent the fewest bytes. It is safe for concurrent use.
type spread struct {
	mu    sync.Mutex
	sent  map[string]int64 // by address
	among []string         // that were chosen from the last time, sorted
	total map[string]*Sent // by address; of those beyond mostRouters by ""
}

// Sent is what one of the routers was sent.
type Sent struct {
	Router          string // its address, "" for all beyond mostRouters
	Messages, Bytes int64
}

// mostRouters bounds the routers that are counted separately.
const mostRouters = 64

// checkoutBytes is what a connection counts for before anything is sent.
const checkoutBytes = 4 << 10

// least chooses a router. When the list changes, all begin with nothing: a router that is back must not get all.
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

func (s *spread) add(addr string, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent == nil {
		s.sent = map[string]int64{}
	}
	s.sent[addr] += bytes
}

// message counts a message that was sent.
func (s *spread) message(addr string, bytes int64) {
	s.add(addr, bytes)
	s.mu.Lock()
	defer s.mu.Unlock()
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

// Sent is what each router was sent since the pool was opened, by address.
func (p *Pool) Sent() []Sent {
	p.over.mu.Lock()
	defer p.over.mu.Unlock()
	list := make([]Sent, 0, len(p.over.total))
	for _, addr := range slices.Sorted(maps.Keys(p.over.total)) {
		list = append(list, *p.over.total[addr])
	}
	return list
}
