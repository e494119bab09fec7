package bench

import (
	"context"
	"fmt"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/wire"
)

// reading are the settings of a read in record order.
type reading struct {
	slices    int // of each collection
	parallel  int // slices read at once
	batchDocs int // of a reply; 0 lets the server fill 16 MB
}

func (r reading) String() string {
	batch := "16 MB replies"
	if r.batchDocs > 0 {
		batch = itoa(r.batchDocs) + " documents a reply"
	}
	return fmt.Sprintf("%d slices at once, %s", r.parallel, batch)
}

// readings are the settings to try.
func readings(d dataset, version4point4 bool) []reading {
	parallel := []int{1, 2, 4, 8}
	if !version4point4 { // cannot begin in the middle
		parallel = []int{min(d.collections, 4)}
	}
	var all []reading
	for _, p := range parallel {
		slices := (p + d.collections - 1) / d.collections
		for _, batch := range []int{0, (1 << 20) / d.shape.size} {
			all = append(all, reading{slices, p, batch})
		}
	}
	return all
}

// readAll reads a dataset to its last byte and keeps nothing. Collections are
// read in record order, cut at record ids: the bench has inserted the documents
// itself, so they are numbered from 1 without gaps. It fails unless it has seen
// each document once.
func readAll(ctx context.Context, from *side, d dataset, r reading) error {
	type part struct {
		coll        int
		after, docs int64
	}
	var parts []part
	for s := range r.slices {
		for c := range d.collections {
			n := (d.docs - c + d.collections - 1) / d.collections
			lo, hi := n*s/r.slices, n*(s+1)/r.slices
			parts = append(parts, part{c, int64(lo), int64(hi - lo)})
		}
	}
	var next, docs atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for range min(r.parallel, len(parts)) {
		g.Go(func() error {
			conn, err := from.Pool.Checkout(ctx, wire.Primary())
			if err != nil {
				return err
			}
			defer conn.Release()
			for {
				i := int(next.Add(1)) - 1
				if i >= len(parts) {
					return nil
				}
				p := parts[i]
				n, err := readPart(ctx, conn, p.coll, p.after, p.docs, r.batchDocs)
				if err != nil {
					return fmt.Errorf("read %s: %w", collection(p.coll), err)
				}
				docs.Add(n)
			}
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if docs.Load() != int64(d.docs) {
		return fmt.Errorf("read %d of %d documents", docs.Load(), d.docs)
	}
	return nil
}

func readPart(ctx context.Context, conn *wire.Conn, coll int, after, docs int64, batch int) (int64, error) {
	cmd := bson.D{{Key: "find", Value: collection(coll)}, {Key: "hint", Value: bson.D{{Key: "$natural", Value: 1}}}, {Key: "limit", Value: docs}}
	if after > 0 {
		cmd = append(cmd, bson.E{Key: "$_requestResumeToken", Value: true},
			bson.E{Key: "$_resumeAfter", Value: bson.D{{Key: "$recordId", Value: after}}})
	}
	first := batch
	if batch == 0 {
		first = 1 << 20 // else the first reply has 101 documents
	}
	cmd = append(cmd, bson.E{Key: "batchSize", Value: first})
	return drain(ctx, conn, dataDB, cmd, wire.CursorOptions{BatchSize: batch})
}

// drain reads a cursor to its end and counts the documents.
func drain(ctx context.Context, conn *wire.Conn, db string, cmd bson.D, o wire.CursorOptions) (n int64, err error) {
	cur, err := conn.OpenCursor(ctx, db, cmd, o)
	if err != nil {
		return 0, err
	}
	for {
		b, err := cur.Next(ctx)
		if err != nil {
			return n, err
		}
		if err := b.Each(func([]byte) error { n++; return nil }); err != nil || b.Done {
			return n, err
		}
	}
}
