package wire

import (
	"math/rand/v2"
	"testing"

	"go.mongodb.org/mongo-driver/v2/mongo/address"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/description"
)

// TestSpread: what goes to routers is shared out evenly, whatever the sizes; one that
// has come back gets no more than its share.
func TestSpread(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	routers := []description.Server{{Addr: address.Address("a:1")}, {Addr: address.Address("b:1")},
		{Addr: address.Address("c:1")}}
	var s spread
	send := func(among []description.Server) map[string]int64 {
		got := map[string]int64{}
		for range 1000 {
			one := s.least(among)[0].Addr.String()
			n := r.Int64N(1 << 20)
			got[one] += n
			s.add(one, n)
		}
		return got
	}
	even := func(got map[string]int64, parts int64) {
		t.Helper()
		var sum int64
		for _, n := range got {
			sum += n
		}
		for addr, n := range got {
			if share := sum / parts; n < share*95/100 || n > share*105/100 {
				t.Errorf("%s got %d of %d", addr, n, sum)
			}
		}
		if int64(len(got)) != parts {
			t.Errorf("%d of %d routers got something", len(got), parts)
		}
	}
	even(send(routers), 3)
	even(send(routers[:2]), 2)
	even(send(routers), 3)
}
