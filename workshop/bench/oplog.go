package bench

import (
	"context"
	"fmt"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
)

// oplogReading are the settings of a read of the oplog.
type oplogReading struct {
	cursors   int
	batchDocs int // 0 lets the server fill 16 MB
}

func (r oplogReading) String() string {
	batch := "16 MB replies"
	if r.batchDocs > 0 {
		batch = itoa(r.batchDocs) + " entries a reply"
	}
	return fmt.Sprintf("%d cursors, %s", r.cursors, batch)
}

// oplogReadings are the settings to try.
func oplogReadings() []oplogReading {
	return []oplogReading{{1, 0}, {1, 5000}, {2, 0}, {2, 5000}, {4, 0}}
}

// span is a part of a source's oplog: after from, up to and including to.
// Marks lie in between, about evenly.
type span struct {
	from, to mongo.OpTime
	marks    []mongo.OpTime
}

// head is about that share of the span, from its beginning.
func (s span) head(share float64) span {
	n := int(share * float64(len(s.marks)))
	if n >= len(s.marks) {
		return s
	}
	return span{from: s.from, to: s.marks[n], marks: s.marks[:n]}
}

// cut divides the span into n parts, fewer if there are not enough marks.
func (s span) cut(n int) []span {
	var parts []span
	from := s.from
	for i := 1; i < n && len(s.marks) >= n; i++ {
		m := s.marks[i*len(s.marks)/n]
		parts = append(parts, span{from: from, to: m})
		from = m
	}
	return append(parts, span{from: from, to: s.to})
}

// readOplog reads a span to its end, keeps nothing, and counts the entries.
func readOplog(ctx context.Context, from *side, s span, r oplogReading) (int64, error) {
	var entries atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for _, part := range s.cut(r.cursors) {
		g.Go(func() error {
			conn, err := from.Pool.Checkout(ctx, wire.Primary())
			if err != nil {
				return err
			}
			defer conn.Release()
			cmd := bson.D{
				{Key: "find", Value: "oplog.rs"},
				{Key: "filter", Value: bson.D{{Key: "ts", Value: bson.D{{Key: "$gt", Value: part.from.TS}, {Key: "$lte", Value: part.to.TS}}}}},
				{Key: "batchSize", Value: 1 << 20},
			}
			n, err := drain(ctx, conn, "local", cmd, wire.CursorOptions{BatchSize: r.batchDocs})
			entries.Add(n)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return 0, fmt.Errorf("read the oplog: %w", err)
	}
	return entries.Load(), nil
}
