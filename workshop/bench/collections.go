package bench

import (
	"context"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/wire"
)

// fillers is how many connections create and read many collections.
const fillers = 8

// fillCeiling is what copying many collections asks of a target at least.
const fillCeiling = "8 connections create each collection, its indexes in one command while it is empty, and insert " +
	"its documents from memory, until a majority of the target's members has it"

// shareOut runs fillers goroutines, which take the numbers below n from next.
func shareOut(ctx context.Context, n int, work func(ctx context.Context, next func() (i int, ok bool)) error) error {
	var taken atomic.Int64
	next := func() (int, bool) {
		i := int(taken.Add(1)) - 1
		return i, i < n && ctx.Err() == nil
	}
	g, gctx := errgroup.WithContext(ctx)
	for range fillers {
		g.Go(func() error { return work(gctx, next) })
	}
	return g.Wait()
}

// fill creates the collections of a dataset, each with its indexes while it is empty and then its documents. So many
// members have each write.
func (s *side) fill(ctx context.Context, d dataset, indexes []index, members int) error {
	return shareOut(ctx, d.collections, func(ctx context.Context, next func() (int, bool)) error {
		w, err := newWriter(ctx, s, max(members, 1))
		if err != nil {
			return err
		}
		defer w.conn.Release()
		for c, ok := next(); ok; c, ok = next() {
			if err := s.createOne(ctx, collection(c)); err != nil {
				return err
			}
			if len(indexes) > 0 {
				if err := s.createIndexes(ctx, c, indexes); err != nil {
					return err
				}
			}
			if err := w.insert(ctx, d, c, 0, (d.docs+d.collections-1)/d.collections); err != nil {
				return err
			}
		}
		return nil
	})
}

// refill is fill of a cleared cluster, on all members and on disk.
func (s *side) refill(ctx context.Context, d dataset, indexes []index) error {
	if err := s.clear(ctx); err != nil {
		return err
	}
	if err := s.fill(ctx, d, indexes, s.copies()); err != nil {
		return err
	}
	return s.settle(ctx)
}

// fills is the lean way to copy many collections.
func (w *fullWork) fills(c copyWay) contender {
	return contender{
		name: c.name, kind: c.kind, how: "create, createIndexes, insert: 8 connections",
		prepare: w.cleared, check: w.complete,
		run: func(ctx context.Context, m *meter) error {
			if err := m.part("fill", func() error { return w.target.fill(ctx, w.data, w.indexes, 1) }); err != nil {
				return err
			}
			return m.part(partMajority, func() error { return w.target.majority(ctx) })
		},
	}
}

// scanEach reads the collections of clusters and the lists of their indexes, a collection at a time on each connection.
func scanEach(ctx context.Context, d dataset, from ...*side) error {
	return shareOut(ctx, d.collections*len(from), func(ctx context.Context, next func() (int, bool)) error {
		for i, ok := next(); ok; i, ok = next() {
			if err := from[i%len(from)].scan(ctx, collection(i/len(from))); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *side) scan(ctx context.Context, coll string) error {
	conn, err := s.Pool.Checkout(ctx, wire.Primary())
	if err != nil {
		return err
	}
	defer conn.Release()
	if _, err := drain(ctx, conn, dataDB, bson.D{{Key: "listIndexes", Value: coll}}, wire.CursorOptions{}); err != nil {
		return err
	}
	find := bson.D{{Key: "find", Value: coll}, {Key: "batchSize", Value: 1 << 20}}
	_, err = drain(ctx, conn, dataDB, find, wire.CursorOptions{})
	return err
}
