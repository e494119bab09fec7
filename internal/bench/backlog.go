package bench

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
)

const (
	loadConnections = 4
	// loadChunk is how many operations of a connection go together. The oplog
	// mixes kinds and documents in runs no longer than this.
	loadChunk = 250
	// markEvery is how many operations lie between marks of a span.
	markEvery = 10_000
)

// write does the operations on a cluster, each for itself, those of one
// document in order, and returns the part of the oplog that they made.
func (w workload) write(ctx context.Context, to *side) (span, error) {
	from, err := to.position(ctx)
	if err != nil {
		return span{}, err
	}
	// Some tools begin at a second: it must not hold anything from before.
	if !tick(ctx, time.Until(from.Time().Add(time.Second))) {
		return span{}, ctx.Err()
	}
	s := span{from: from}
	g, gctx := errgroup.WithContext(ctx)
	var queues []chan []op
	for range loadConnections {
		q := make(chan []op, 2)
		queues = append(queues, q)
		g.Go(func() error { return w.writeFrom(gctx, to, q) })
	}
	g.Go(func() error {
		defer func() {
			for _, q := range queues {
				close(q)
			}
		}()
		return w.distribute(gctx, queues, func() error {
			at, err := to.position(gctx)
			if n := len(s.marks); n == 0 || s.marks[n-1].Before(at) {
				s.marks = append(s.marks, at)
			}
			return err
		})
	})
	if err := g.Wait(); err != nil {
		return s, fmt.Errorf("write the backlog: %w", err)
	}
	s.to, err = to.position(ctx)
	return s, err
}

// position is the newest entry of a cluster's oplog.
func (s *side) position(ctx context.Context) (mongo.OpTime, error) {
	p, err := s.direct.Positions(ctx)
	return p.Last, err
}

// distribute hands the operations to the connections by document.
func (w workload) distribute(ctx context.Context, queues []chan []op, mark func() error) error {
	chunks := make([][]op, len(queues))
	for o := range w.ops() {
		if o.n%markEvery == 0 {
			if err := mark(); err != nil {
				return err
			}
		}
		i := int(mix(uint64(o.key)) % uint64(len(queues)))
		if chunks[i] = append(chunks[i], o); len(chunks[i]) == loadChunk {
			if err := hand(ctx, queues[i], chunks[i]); err != nil {
				return err
			}
			chunks[i] = nil
		}
	}
	for i, c := range chunks {
		if err := hand(ctx, queues[i], c); err != nil {
			return err
		}
	}
	return nil
}

func hand(ctx context.Context, to chan<- []op, chunk []op) error {
	select {
	case to <- chunk:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// writeFrom writes chunks over one connection.
func (w workload) writeFrom(ctx context.Context, to *side, chunks <-chan []op) error {
	wr, err := newWriter(ctx, to, 1)
	if err != nil {
		return err
	}
	defer wr.conn.Release()
	for {
		select {
		case chunk, ok := <-chunks:
			if !ok {
				return nil
			}
			if err := w.writeChunk(ctx, wr, chunk); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (w workload) writeChunk(ctx context.Context, wr *writer, chunk []op) error {
	changes := make([]change, len(chunk))
	for i, o := range chunk {
		changes[i] = change{kind: o.kind, key: o.key}
		changes[i].take(o)
	}
	return w.window(ctx, wr, changes, 4<<20)
}
