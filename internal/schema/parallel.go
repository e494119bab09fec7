package schema

import (
	"cmp"
	"context"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/millrace/millrace/internal/stream"
)

// One createIndexes command uses one processor of the server, however many indexes it builds.
// Several commands at once on one collection each scan it, and are still done sooner. Ten
// indexes of 300,000 documents took 11.9 s in one command, 7.4 s in two and 5.9 s in three.
// Five took 7.2, 3.9 and 2.8 s (6.0.5, four processors).
const (
	// mostParts is how many builds a server works on by default
	// (maxNumActiveUserIndexBuilds); others wait.
	mostParts = 3
	// DefaultBuilds is how many commands are under way for a whole job: one more,
	// so that a server has one waiting.
	DefaultBuilds = mostParts + 1
	// partBytes is the least size of a collection, in bytes, that is worth more
	// than one command: each ends with writes that wait for the members.
	partBytes = 16 << 20
)

// Build is what BuildAll builds of a collection.
type Build struct {
	NS      string // on the target
	Indexes []stream.Index
	Bytes   int64 // of its documents, roughly; 0 is unknown
	// Built, when set, is called when all of them are there.
	Built  func()
	dataNS string
	yields bool // see Deferred.Yields
}

// Work is what builds are compared by.
func (b Build) Work() int64 { return max(b.Bytes, 1) * int64(len(b.Indexes)) }

// BuildAll builds indexes as Build does, of many collections, at most so
// many commands at once. The largest begin; one that is most of the work gets
// several commands.
func (b *builder) BuildAll(ctx context.Context, builds []Build, p Phase, commands int) error {
	return eachBuild(ctx, builds, commands, func(ctx context.Context, what Build, commands int) error {
		err := b.build(ctx, what, p, commands)
		if err == nil && what.Built != nil {
			what.Built()
		}
		return err
	})
}

// eachBuild calls build for each, with its share of the commands.
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

// shares are how many of the commands each collection gets: its part of the
// work, one at least.
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

// parts is how many commands, of so many that it may have, build the indexes of a
// collection.
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

// inParts runs build for the indexes that are built now, in so many parts at
// once as they are worth. A part that fails does not end the others: what they
// built stays. Of a collection whose indexes yield, a part with an index that clashes is
// built index by index.
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
