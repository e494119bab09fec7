package verify

import (
	"bytes"
	"context"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/scan"
)

type collection struct {
	e     *Engine
	pair  Pair
	sides [2]side
	began time.Time
	open  atomic.Int64 // tasks not finished

	docs, bytes [2]atomic.Int64
	row         Collection      // of the report, but for these
	seen        map[string]bool // ids that differ, as row.Differences with the lock of the findings held
}

type task struct {
	what  string // it does, in words
	slots int64  // of Options.Workers
	run   func(ctx context.Context) error
	// digest: ranges do it where digests do not work out.
	digest bool
}

func newCollection(e *Engine, p Pair) *collection {
	return &collection{e: e, pair: p, row: Collection{NS: p.Source, TargetNS: p.Target}, seen: map[string]bool{}}
}

const maxRanges = 2048

func (c *collection) tasks(ctx context.Context) ([]task, error) {
	c.began = time.Now()
	err := again(ctx, c.e.o.Log, "describe "+c.pair.Source, func() (err error) {
		if c.sides[source], err = c.e.side(ctx, source, c.pair.Source); err == nil {
			c.sides[target], err = c.e.side(ctx, target, c.pair.Target)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	src, dst := &c.sides[source], &c.sides[target]
	src.choose(&c.pair)
	dst.choose(&c.pair)
	if c.e.o.Documents != nil {
		return c.documents(), nil
	}
	c.e.c.estDocs.Add(src.Count + dst.Count)
	var tasks []task
	if c.digestible() {
		readers := max(src.readers(), dst.readers())
		c.row.Method, c.row.Ranges = Digest, 1
		run := func(ctx context.Context) error { return c.digest(ctx, readers) }
		tasks = []task{{what: "compare " + c.pair.Source, slots: int64(readers), run: run, digest: true}}
	} else if tasks, err = c.rangeTasks(ctx); err != nil {
		return nil, err
	}
	if src.Capped() && dst.Capped() && !c.e.o.sampled() {
		tasks = append(tasks, task{what: "compare the order of " + c.pair.Source, slots: 1, run: c.order})
	}
	return tasks, nil
}

func (c *collection) start(ctx context.Context, g *errgroup.Group, tasks []task) error {
	c.open.Add(int64(len(tasks)))
	c.e.c.ranges.Add(int64(len(tasks)))
	for _, t := range tasks {
		if err := c.e.slots.Acquire(ctx, t.slots); err != nil {
			return err
		}
		g.Go(func() error {
			err := again(ctx, c.e.o.Log, t.what, func() error { return t.run(ctx) })
			c.e.slots.Release(t.slots)
			if err != nil && t.digest && ctx.Err() == nil && mongo.Classify(err) == mongo.ClassFatal {
				c.e.o.Log.Info("compare by ranges of _id", "ns", c.pair.Source, "why", err)
				var ranges []task
				if ranges, err = c.rangeTasks(ctx); err == nil {
					err = c.start(ctx, g, ranges)
				}
			}
			if err != nil {
				return err
			}
			if c.open.Add(-1) == 0 {
				c.finish()
			}
			return nil
		})
	}
	return nil
}

func (c *collection) rangeTasks(ctx context.Context) ([]task, error) {
	bounds, err := c.bounds(ctx)
	if err != nil {
		return nil, err
	}
	var tasks []task
	for _, sl := range c.e.o.sample(scan.Slices(scan.Slice{}, bounds)) {
		run := func(ctx context.Context) error { return c.compare(ctx, sl) }
		tasks = append(tasks, task{what: "compare a range of " + c.pair.Source, slots: 1, run: run})
	}
	c.row.Method, c.row.Ranges = Ranges, len(tasks)
	return tasks, nil
}

// bounds returns the bounds between ranges, in the server's order, from the larger side, or from
// the one that takes bounds of one type only. Sides of different orders have one range.
func (c *collection) bounds(ctx context.Context) (bounds []scan.Bound, err error) {
	from, other := &c.sides[source], &c.sides[target]
	if !c.pair.History && from.order != scan.ByKey && (other.order == scan.ByKey || other.Bytes > from.Bytes) {
		from, other = other, from
	}
	n := from.Bytes/c.e.o.RangeBytes + 1
	if c.e.o.sampled() { // a share of them is to be close to the desired one
		n = max(n, int64(math.Ceil(2/c.e.o.Share)))
	}
	n = min(n, maxRanges, from.Count/2)
	collation := func(s *side) []byte { return s.Options.Lookup("collation").Value }
	if n < 2 || other.order == scan.Sorted ||
		from.exists && other.exists && !bytes.Equal(collation(from), collation(other)) {
		return nil, nil
	}
	err = again(ctx, c.e.o.Log, "sample "+from.NS, func() error {
		return from.read(ctx, scan.Member{}, func(r *scan.Reader) (err error) {
			bounds, _, err = r.Cut(ctx, &from.Collection, from.order, int(n))
			return err
		})
	})
	return bounds, err
}

func (o *Options) sampled() bool { return o.Share > 0 && o.Share < 1 }

// sample draws the share of ranges that are compared, at least one.
func (o *Options) sample(all []scan.Slice) []scan.Slice {
	if !o.sampled() {
		return all
	}
	n := max(int(math.Round(o.Share*float64(len(all)))), min(1, len(all)))
	some := make([]scan.Slice, 0, n)
	for _, i := range rand.Perm(len(all))[:n] {
		some = append(some, all[i])
	}
	return some
}
