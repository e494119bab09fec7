package verify

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
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
	b       bounds
	natural bool // order of a capped collection
	digest  bool // the whole collection by digests
}

func newCollection(e *Engine, p Pair) *collection { return &collection{e: e, pair: p} }

// maxRanges bounds the boundaries held in memory and the sample that gives them.
const maxRanges = 2048

// samplesPerRange evens out what a random sample gives as boundaries.
const samplesPerRange = 10

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
	c.e.c.estDocs.Add(c.src.docs + c.dst.docs)
	c.e.c.estBytes.Add(c.src.bytes + c.dst.bytes)
	var tasks []task
	if c.digestible() {
		tasks = []task{{c: c, digest: true}}
		c.method, c.ranges = Digest, 1
	} else if tasks, err = c.rangeTasks(ctx); err != nil {
		return nil, err
	}
	if c.e.o.CapOrder && c.src.capped && c.dst.capped {
		tasks = append(tasks, task{c: c, natural: true})
	}
	return tasks, nil
}

// rangeTasks cuts the collection into ranges of _id.
func (c *collection) rangeTasks(ctx context.Context) ([]task, error) {
	cuts, err := c.cuts(ctx)
	if err != nil {
		return nil, err
	}
	tasks := make([]task, 0, len(cuts)+2)
	var prev *bson.RawValue
	for i := range cuts {
		tasks = append(tasks, task{c: c, b: bounds{min: prev, max: &cuts[i]}})
		prev = &cuts[i]
	}
	if prev == nil {
		tasks = append(tasks, task{c: c})
	} else {
		last := maxKey()
		tasks = append(tasks, task{c: c, b: bounds{min: prev, max: &last}}, task{c: c, b: bounds{maxKey: true}})
	}
	c.method, c.ranges = Ranges, len(tasks)
	return tasks, nil
}

// cuts are the boundaries between ranges, ascending in the server's order.
// They come from the larger side and hold on both, provided that both order
// alike; if not, there is one range.
func (c *collection) cuts(ctx context.Context) ([]bson.RawValue, error) {
	from := &c.src
	if c.dst.bytes > c.src.bytes {
		from = &c.dst
	}
	n := min(from.bytes/c.e.o.RangeBytes+1, maxRanges, from.docs/2)
	if n < 2 || c.src.access == bySort || c.dst.access == bySort {
		return nil, nil
	}
	if c.src.exists && c.dst.exists && !sameCollation(&c.src, &c.dst) {
		return nil, nil
	}
	var ids []bson.RawValue
	err := retry(ctx, c.e.o.Log, "sample "+from.ns, func() (err error) {
		ids, err = sample(ctx, from, int(n)*samplesPerRange)
		return err
	})
	if err != nil {
		return nil, err
	}
	return choose(ids, int(n)), nil
}

// sample returns random _ids in the server's order, none where the server does
// not succeed in drawing them.
func sample(ctx context.Context, s *side, n int) ([]bson.RawValue, error) {
	const patience = 5
	for range patience {
		ids, err := draw(ctx, s, n)
		if !mongo.IsCode(err, mongo.CodeSampleFailed) {
			return ids, err
		}
	}
	return nil, nil
}

func draw(ctx context.Context, s *side, n int) ([]bson.RawValue, error) {
	conn, err := s.checkout(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	cur, err := openCursor(ctx, conn, s, bson.D{{Key: "aggregate", Value: s.coll},
		{Key: "pipeline", Value: bson.A{
			bson.D{{Key: "$sample", Value: bson.D{{Key: "size", Value: n}}}},
			bson.D{{Key: "$project", Value: bson.D{{Key: "_id", Value: 1}}}},
			bson.D{{Key: "$sort", Value: bson.D{{Key: "_id", Value: 1}}}},
		}},
		{Key: "allowDiskUse", Value: true},
		{Key: "cursor", Value: bson.D{}}}, 0)
	if err != nil {
		return nil, err
	}
	defer closeCursor(ctx, cur)
	ids := make([]bson.RawValue, 0, n)
	for {
		b, err := cur.Next(ctx)
		if err != nil {
			return nil, fmt.Errorf("sample %s on %s: %w", s.ns, s.cluster.Address(), err)
		}
		err = b.Each(func(doc []byte) error {
			v, ok := bsonraw.Field(doc, "_id")
			if !ok {
				return errMalformed(s.ns)
			}
			ids = append(ids, bson.RawValue{Type: v.Type, Value: bytes.Clone(v.Value)})
			return nil
		})
		if err != nil || b.Done {
			return ids, err
		}
	}
}

// choose picks n-1 evenly spaced, distinct boundaries from sorted samples.
func choose(ids []bson.RawValue, n int) []bson.RawValue {
	cuts := make([]bson.RawValue, 0, n)
	for i := 1; i < n && len(ids) > 0; i++ {
		v := ids[i*len(ids)/n]
		if v.Type == bson.TypeMaxKey || len(cuts) > 0 && sameValue(cuts[len(cuts)-1], v) {
			continue // a range of its own; a sample may hold a document twice
		}
		cuts = append(cuts, v)
	}
	return cuts
}

func sameValue(a, b bson.RawValue) bool {
	return a.Type == b.Type && bytes.Equal(a.Value, b.Value)
}
