package wire

import (
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
}

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
	if s.sent == nil {
		s.sent = map[string]int64{}
	}
	s.sent[addr] += bytes
}
