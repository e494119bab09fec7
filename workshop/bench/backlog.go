package bench

import (
	"context"
	"fmt"
	"sync/atomic"
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
	next := uint32(markEvery)
	_, err = w.spread(ctx, to, writing{loadConnections, loadChunk, func(ctx context.Context, o op) (bool, error) {
		if o.n < next {
			return true, nil
		}
		next += markEvery
		at, err := to.position(ctx)
		if n := len(s.marks); n == 0 || s.marks[n-1].Before(at) {
			s.marks = append(s.marks, at)
		}
		return true, err
	}})
	if err != nil {
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

// writing is how operations are written one by one.
type writing struct {
	connections int
	chunk       int // operations of a connection that go together
	// more is asked before a chunk is handed out, with its last operation, and
	// may wait; false ends the writing.
	more func(ctx context.Context, o op) (bool, error)
}

// spread writes the operations over several connections, by document, until
// there are no more of them, and returns how many were done.
func (w workload) spread(ctx context.Context, to *side, how writing) (int, error) {
	g, ctx := errgroup.WithContext(ctx)
	var done atomic.Int64
	queues := make([]chan []op, how.connections)
	for i := range queues {
		queues[i] = make(chan []op, 1)
		g.Go(func() error {
			wr, err := newWriter(ctx, to, 1)
			if err != nil {
				return err
			}
			defer wr.conn.Release()
			for chunk := range queues[i] {
				if err := w.writeChunk(ctx, wr, chunk); err != nil {
					return err
				}
				done.Add(int64(len(chunk)))
			}
			return nil
		})
	}
	g.Go(func() error {
		defer func() {
			for _, q := range queues {
				close(q)
			}
		}()
		return w.handOut(ctx, queues, how)
	})
	err := g.Wait()
	return int(done.Load()), err
}

// handOut hands chunks of operations to the connections.
func (w workload) handOut(ctx context.Context, queues []chan []op, how writing) error {
	chunks := make([][]op, len(queues))
	for o := range w.ops() {
		i := int(mix(uint64(o.key)) % uint64(len(queues)))
		if chunks[i] = append(chunks[i], o); len(chunks[i]) < how.chunk {
			continue
		}
		if more, err := how.more(ctx, o); err != nil || !more {
			return err
		}
		if err := hand(ctx, queues[i], chunks[i]); err != nil {
			return err
		}
		chunks[i] = nil
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

func (w workload) writeChunk(ctx context.Context, wr *writer, chunk []op) error {
	changes := make([]change, len(chunk))
	for i, o := range chunk {
		changes[i] = change{kind: o.kind, key: o.key}
		changes[i].take(o)
	}
	return w.window(ctx, wr, changes, 4<<20)
}
