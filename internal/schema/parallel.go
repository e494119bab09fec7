package schema

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/dustin/go-humanize"
	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// A createIndexes command uses one processor, however many indexes it builds. Several commands at
// once each scan the collection, and are still faster. Ten indexes of 300,000 documents took 11.9 s
// in one command, 7.4 s in two and 5.9 s in three. Five took 7.2, 3.9 and 2.8 s (6.0.5, four
// processors).
const (
	// mostParts is how many builds a server runs by default (maxNumActiveUserIndexBuilds).
	mostParts = 3
	// DefaultBuilds is how many commands a job runs: one more, which waits.
	DefaultBuilds = mostParts + 1
	// partBytes is the smallest collection worth several commands: each waits for the members at its
	// end.
	partBytes = 16 << 20
)

// Build is a build of indexes of a collection.
type Build struct {
	NS      string // on the target
	Indexes []stream.Index
	Bytes   int64 // of documents, roughly; 0 is unknown
	// Plain says that NS is a collection that exists, and no time series.
	Plain bool
	// Built, if set, is called when all are built.
	Built  func()
	dataNS string
	yields bool // see Deferred.Yields
}

// Work is the relative cost of a build.
func (b Build) Work() int64 { return max(b.Bytes, 1) * int64(len(b.Indexes)) }

// BuildAll builds as Build does, for many collections, largest first, with at most so many commands
// at once. One with most of the work gets several commands.
func (b *builder) BuildAll(ctx context.Context, builds []Build, p Phase, commands int) error {
	return eachBuild(ctx, builds, commands, func(ctx context.Context, what Build, commands int) error {
		err := b.build(ctx, what, p, commands)
		if err == nil && what.Built != nil {
			what.Built()
		}
		return err
	})
}

func eachBuild(ctx context.Context, builds []Build, commands int, build func(context.Context, Build, int) error) error {
	builds = slices.Clone(builds)
	slices.SortStableFunc(builds, func(a, b Build) int { return cmp.Compare(b.Work(), a.Work()) })
	shares := shares(builds, commands)
	slots := semaphore.NewWeighted(int64(commands))
	g, gctx := errgroup.WithContext(ctx)
	for i, b := range builds {
		n := int64(shares[i])
		if slots.Acquire(gctx, n) != nil {
			break
		}
		g.Go(func() error {
			defer slots.Release(n)
			return build(gctx, b, int(n))
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

func shares(builds []Build, commands int) []int {
	var all float64
	for _, b := range builds {
		all += float64(b.Work())
	}
	out := make([]int, len(builds))
	for i, b := range builds {
		share := int(float64(commands)*float64(b.Work())/all + 0.5)
		out[i] = max(min(share, mostParts, commands, len(b.Indexes)), 1)
	}
	return out
}

func (b *builder) parts(ctx context.Context, what Build, indexes, most int) (n int, err error) {
	n = min(indexes, most, mostParts)
	if n < 2 || !b.c.Info.Version.AtLeast(4, 4) { // older ones build under locks
		return 1, nil
	}
	if what.Bytes == 0 { // unknown
		_, what.Bytes, err = size(ctx, b.c, what.dataNS)
	}
	if err != nil || what.Bytes < partBytes {
		return 1, err
	}
	return n, nil
}

// inParts runs build for the indexes in several parts at once. A failing part does not end the
// others. Where indexes yield, a clashing part is built index by index.
func (b *builder) inParts(ctx context.Context, what Build, now []planned, commands int,
	build func([]Deferred, []bson.Raw) error) error {
	n, err := b.parts(ctx, what, len(now), commands)
	if err != nil {
		return err
	}
	var g errgroup.Group
	for first := range n {
		var later []Deferred
		var specs []bson.Raw
		for i := first; i < len(now); i += n {
			later, specs = append(later, now[i].Deferred), append(specs, now[i].spec)
		}
		g.Go(func() error {
			err := build(later, specs)
			if what.yields && clashes(err) {
				return b.eachBeside(ctx, later, specs, build)
			}
			return err
		})
	}
	return g.Wait()
}

// room is what a target has for an index that is kept up during the copy.
type room struct {
	processors int
	cacheBytes int64
}

// BuildEarly builds, on empty collections, the index that is ready sooner if it is kept up during the
// copy. The collections have the target's names and the source's sizes.
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
// copied because it is small. They take all documents but odd ones, such as with arrays in two fields.
func SmallIndexes(c Collection) []stream.Index {
	if c.Type != TypeCollection || (Build{Bytes: c.Bytes, Indexes: c.Indexes}).Work() > smallWork {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(c.Indexes), func(ix stream.Index) bool { return !takesMost(ix) })
}

// earlyIndex finds the collection whose only index is better built first, or returns why there is
// none. Keeping an index up costs about twice as much as building it, but all processors share it,
// while one build uses one. 300,000 documents with one index took 3.6 s when it was built before,
// 4.3 s after. From three indexes on, building side by side was faster (8.1 and 6.1 s with five,
// 13.4 and 8.4 s with ten). An index larger than the cache would be read from disk for each document.
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
	case largest.Type != TypeCollection || !takesAll(largest.Indexes[0]):
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
