package oplog

import (
	"context"
	"time"

	"github.com/millrace/millrace/internal/mongo"
)

// Jobs look at their source once a second, and at its oplog's window every five. A reply serves all jobs that
// share the oplog until the next look.
const (
	positionsFor = 900 * time.Millisecond
	windowFor    = 4500 * time.Millisecond
)

// Positions returns the positions of a cluster, at most a second old where others share its oplog.
func (s *Shared) Positions(ctx context.Context, c *mongo.Cluster) (mongo.Positions, error) {
	if f := s.feed(c); f != nil {
		return f.positions.get(ctx, positionsFor, c.Positions)
	}
	return c.Positions(ctx)
}

// Window is ReadWindow, at most five seconds old where others share the oplog.
func (s *Shared) Window(ctx context.Context, c *mongo.Cluster) (Window, error) {
	read := func(ctx context.Context) (Window, error) { return ReadWindow(ctx, c) }
	if f := s.feed(c); f != nil {
		return f.window.get(ctx, windowFor, read)
	}
	return read(ctx)
}

// feed returns the feed of a cluster's oplog, nil if nobody reads it.
func (s *Shared) feed(c *mongo.Cluster) *feed {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.feeds[c.Access()]
}

// recent keeps a value that several readers want. One at a time reads it anew.
type recent[T any] struct {
	turn  chan struct{} // holds one token while somebody reads or looks
	at    time.Time     // when reading of the value began; zero for none
	value T
}

func newRecent[T any]() recent[T] { return recent[T]{turn: make(chan struct{}, 1)} }

func (r *recent[T]) get(ctx context.Context, age time.Duration, read func(context.Context) (T, error)) (T, error) {
	var none T
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return none, ctx.Err()
	}
	defer func() { <-r.turn }()
	if !r.at.IsZero() && time.Since(r.at) < age {
		return r.value, nil
	}
	began := time.Now()
	v, err := read(ctx)
	if err != nil {
		return none, err
	}
	r.at, r.value = began, v
	return v, nil
}
