package schema

import (
	"context"
	"fmt"
	"slices"

	"github.com/dustin/go-humanize"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// room is what a target has for an index that is kept up while documents come.
type room struct {
	processors int
	cacheBytes int64
}

// BuildEarly builds, on collections that are still empty, the index that is ready
// sooner if it is kept up while the documents are copied. They have the target's
// names and the source's sizes.
func (b *builder) BuildEarly(ctx context.Context, colls []Collection) error {
	var r room
	if indexed := func(c Collection) bool { return len(c.Indexes) > 0 }; b.c.Info.Kind == mongo.KindReplicaSet &&
		slices.ContainsFunc(colls, indexed) {
		r = roomOf(ctx, b.c)
	}
	c, why := earlyIndex(colls, r)
	if c == nil {
		b.o.Log.Info("indexes are built after the documents are copied", "why", why)
		return nil
	}
	b.o.Log.Info("the index is built before the documents are copied", "ns", c.NS, "index", c.Indexes[0].Name, "why", why)
	return b.Build(ctx, c.NS, c.Indexes, BeforeConsistent)
}

// smallWork is how many bytes of documents, times indexes, a collection may have to get indexes while
// it is empty. A build on documents takes servers tens of milliseconds, however few they are.
const smallWork = 4 << 20

// SmallIndexes returns the indexes of a source's collection that are built before its documents are
// copied because it is small: those that refuse no document.
func SmallIndexes(c Collection) []stream.Index {
	if c.Type != TypeCollection || (Build{Bytes: c.Bytes, Indexes: c.Indexes}).Work() > smallWork {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(c.Indexes), func(ix stream.Index) bool { return !TakesAll(ix) })
}

// earlyIndex finds the collection whose only index is better built first, or returns why there
// is none. Keeping an index up costs the servers about twice what building it costs. But all
// their processors share that cost, while one build uses one. With one index, 300,000 documents
// took 3.6 s when it was there before and 4.3 s when it was built after. From three indexes on,
// which are built side by side, built after was faster (8.1 and 6.1 s with five, 13.4 and 8.4 s
// with ten). An index that does not stay in the cache would be read from disk for each
// document.
func earlyIndex(colls []Collection, r room) (*Collection, string) {
	const (
		processors = 4 // fewer have nothing to spare while documents come
		most       = 2. / 3
		inCache    = 2 // documents and index, of the cache
	)
	var largest *Collection
	var work, all int64
	for i := range colls {
		c := &colls[i]
		if c.Type == TypeView || len(c.Indexes) == 0 {
			continue
		}
		w := Build{Bytes: c.Bytes, Indexes: c.Indexes}.Work()
		if all += w; w > work {
			largest, work = c, w
		}
	}
	switch {
	case largest == nil:
		return nil, "there are none"
	case len(largest.Indexes) > 1 || float64(work) < most*float64(all):
		return nil, "they are built side by side, each by a processor"
	case largest.Type != TypeCollection || !TakesAll(largest.Indexes[0]):
		return nil, fmt.Sprintf("%q of %s might refuse documents that are ahead of their indexes", largest.Indexes[0].Name,
			largest.NS)
	case r.processors < processors:
		return nil, fmt.Sprintf("the target has fewer than %d processors to spare, or does not tell", processors)
	case largest.Bytes > r.cacheBytes/inCache:
		return nil, fmt.Sprintf("%s of %s do not stay in half of the target's cache of %s",
			humanize.Bytes(uint64(largest.Bytes)), largest.NS, humanize.Bytes(uint64(r.cacheBytes)))
	}
	return largest, "it is the only one of most of the data, and one build would use one of the target's processors"
}

// roomOf asks the target's primary; what it does not say is 0.
func roomOf(ctx context.Context, c *mongo.Cluster) (r room) {
	if raw, err := c.Command(ctx, "admin", bson.D{{Key: "hostInfo", Value: 1}}); err == nil {
		n, _ := raw.Lookup("system", "numCores").AsInt64OK()
		r.processors = int(n)
	}
	only := bson.D{{Key: "serverStatus", Value: 1}, {Key: "repl", Value: 0}, {Key: "metrics", Value: 0},
		{Key: "locks", Value: 0}}
	if raw, err := c.Command(ctx, "admin", only); err == nil {
		r.cacheBytes, _ = raw.Lookup("wiredTiger", "cache", "maximum bytes configured").AsInt64OK()
	}
	return r
}
