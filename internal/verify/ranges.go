package verify

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/internal/scan"
)

// collection is a pair at work.
type collection struct {
	e        *Engine
	pair     Pair
	src, dst side
	began    time.Time
	open     atomic.Int64 // tasks not finished
	ended    atomic.Int64 // when the last one finished, as UnixNano

	sourceDocs, targetDocs   atomic.Int64
	sourceBytes, targetBytes atomic.Int64
	method                   Method
	ranges                   int
}

// task is one range of a collection, or its natural order.
type task struct {
	c       *collection
	slice   scan.Slice // its bounds
	natural bool       // order of a capped collection
	digest  bool       // the whole collection by digests
}

func newCollection(e *Engine, p Pair) *collection { return &collection{e: e, pair: p} }

// maxRanges bounds the boundaries held in memory.
const maxRanges = 2048

// tasks describes both sides and cuts them.
func (c *collection) tasks(ctx context.Context) ([]task, error) {
	c.began = time.Now()
	err := retry(ctx, c.e.o.Log, "describe "+c.pair.SourceNS, func() (err error) {
		if c.src, err = c.e.side(ctx, c.e.src, &c.e.srcAt, c.pair.SourceNS); err != nil {
			return err
		}
		c.dst, err = c.e.side(ctx, c.e.dst, &c.e.dstAt, c.pair.TargetNS)
		return err
	})
	if err != nil {
		return nil, err
	}
	c.e.c.estDocs.Add(c.src.Count + c.dst.Count)
	c.e.c.estBytes.Add(c.src.Bytes + c.dst.Bytes)
	var tasks []task
	if c.digestible() {
		tasks = []task{{c: c, digest: true}}
		c.method, c.ranges = Digest, 1
	} else if tasks, err = c.rangeTasks(ctx); err != nil {
		return nil, err
	}
	if c.e.o.CapOrder && c.src.Capped() && c.dst.Capped() {
		tasks = append(tasks, task{c: c, natural: true})
	}
	return tasks, nil
}

// rangeTasks cuts the collection into ranges of _id.
func (c *collection) rangeTasks(ctx context.Context) ([]task, error) {
	bounds, err := c.bounds(ctx)
	if err != nil {
		return nil, err
	}
	var tasks []task
	for _, sl := range scan.Slices(scan.Slice{}, bounds) {
		tasks = append(tasks, task{c: c, slice: sl})
	}
	c.method, c.ranges = Ranges, len(tasks)
	return tasks, nil
}

// bounds are those between ranges, ascending in the server's order. They come
// from the larger side, or the one that takes bounds of one type only, and hold on
// both, provided that both order alike; if not, there is one range.
func (c *collection) bounds(ctx context.Context) (bounds []scan.Bound, err error) {
	from, other := &c.src, &c.dst
	if from.order != scan.ByKey && (other.order == scan.ByKey || other.Bytes > from.Bytes) {
		from, other = other, from
	}
	n := min(from.Bytes/c.e.o.RangeBytes+1, maxRanges, from.Count/2)
	if n < 2 || other.order == scan.Sorted || from.exists && other.exists && !sameCollation(from, other) {
		return nil, nil
	}
	err = retry(ctx, c.e.o.Log, "sample "+from.NS, func() error {
		return from.read(ctx, scan.Member{}, func(r *scan.Reader) (err error) {
			bounds, _, err = r.Cut(ctx, &from.Collection, from.order, int(n))
			return err
		})
	})
	return bounds, err
}
