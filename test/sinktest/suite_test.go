package sinktest_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/sinktest"
	"github.com/millrace/millrace/test/testseed"
)

// kept is a target in memory; broken changes its sinks.
type kept struct {
	store  memoryStore
	broken func(k *kept, s *memorySink, pos stream.Position, overlap mongo.OpTime) stream.Sink
}

func (k *kept) Open(pos stream.Position, overlap mongo.OpTime) (stream.Sink, error) {
	s := newMemory(&k.store, pos, overlap)
	if k.broken != nil {
		return k.broken(k, s, pos, overlap), nil
	}
	return s, nil
}

func (k *kept) Documents(_ context.Context, ns string) ([]bson.Raw, error) {
	return k.store.Documents(ns), nil
}

// TestMemorySink: the sink in memory is one.
func TestMemorySink(t *testing.T) {
	for range 20 {
		sinktest.Run(t, func(*testing.T) sinktest.Target { return &kept{} })
	}
}

// feeding changes what a sink is fed.
type feeding struct {
	*memorySink
	feed func(ctx context.Context, b *stream.Batch) error
}

func (f *feeding) Feed(ctx context.Context, b *stream.Batch) error { return f.feed(ctx, b) }

// telling changes what a sink tells.
type telling struct {
	*feeding
	applied func() stream.Position
}

func (s *telling) Applied() stream.Position { return s.applied() }

// late applies in the background, a little later, and drains never.
type late struct {
	*memorySink
	in       chan *stream.Batch
	mu       sync.Mutex
	reported stream.Position
	lies     bool // tells positions before they are applied
	wait     bool // Drain waits

	forever bool // Drain never fails
	left    atomic.Int64
}

func (l *late) Run(ctx context.Context) error {
	for {
		select {
		case b := <-l.in:
			select {
			case <-time.After(100 * time.Microsecond):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			if err := l.memorySink.Feed(ctx, b); err != nil {
				return err
			}
			l.left.Add(-1)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (l *late) Feed(ctx context.Context, b *stream.Batch) error {
	l.left.Add(1)
	select {
	case l.in <- b:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reported = b.Resume()
	return nil
}

func (l *late) Drain(ctx context.Context) error {
	for l.wait && l.left.Load() > 0 && ctx.Err() == nil {
		time.Sleep(50 * time.Microsecond)
	}
	if l.forever {
		return nil
	}
	return ctx.Err()
}

func (l *late) Applied() stream.Position {
	if !l.lies {
		return l.memorySink.Applied()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reported
}

// TestBrokenSinks: for each property there is a sink that lacks it, and the suite
// says so.
func TestBrokenSinks(t *testing.T) {
	change := func(edit func(b *stream.Batch)) func(*kept, *memorySink, stream.Position, mongo.OpTime) stream.Sink {
		return func(_ *kept, s *memorySink, _ stream.Position, _ mongo.OpTime) stream.Sink {
			return &feeding{s, func(ctx context.Context, b *stream.Batch) error {
				c := *b
				c.Events = slices.Clone(b.Events)
				edit(&c)
				return s.Feed(ctx, &c)
			}}
		}
	}
	cases := []struct {
		name   string
		broken func(*kept, *memorySink, stream.Position, mongo.OpTime) stream.Sink
		lacks  string
	}{
		{"loses the last event of a full batch", change(func(b *stream.Batch) {
			if n := len(b.Events); n > 20 {
				b.Events = b.Events[:n-1]
			}
		}), "order"},
		{"loses the second part of a transaction", change(func(b *stream.Batch) {
			for len(b.Events) > 0 && b.Partial && b.End.Before(b.Events[len(b.Events)-1].At) {
				b.Events = b.Events[:len(b.Events)-1]
			}
		}), "order"},
		{"swaps two changes of a document", change(func(b *stream.Batch) {
			for i := len(b.Events) - 1; i > 0; i-- {
				a, z := &b.Events[i-1], &b.Events[i]
				if a.Kind != z.Kind && a.NS == z.NS && a.Key.ID.Equal(z.Key.ID) {
					*a, *z = *z, *a
				}
			}
		}), "order"},
		{"does not wait when drained", func(_ *kept, s *memorySink, _ stream.Position, _ mongo.OpTime) stream.Sink {
			return &late{memorySink: s, in: make(chan *stream.Batch, 100)}
		}, "drains"},
		{"tells what is only under way", func(_ *kept, s *memorySink, pos stream.Position, _ mongo.OpTime) stream.Sink {
			return &late{memorySink: s, in: make(chan *stream.Batch, 100), lies: true, wait: true, reported: pos}
		}, "applied"},
		{"tells the middle of a transaction", func(_ *kept, s *memorySink, pos stream.Position, _ mongo.OpTime) stream.Sink {
			reported := pos
			f := &feeding{s, func(ctx context.Context, b *stream.Batch) error {
				if n := len(b.Events); n > 0 {
					reported.At = b.Events[n-1].At
				}
				return s.Feed(ctx, b)
			}}
			return &telling{f, func() stream.Position { return reported }}
		}, "restarts"},
		{"goes back", func(_ *kept, s *memorySink, pos stream.Position, _ mongo.OpTime) stream.Sink {
			n := 0
			f := &feeding{s, s.Feed}
			return &telling{f, func() stream.Position {
				if n++; n%20 == 0 {
					return pos
				}
				return s.Applied()
			}}
		}, "restarts"},
		{"knows no overlap", func(k *kept, _ *memorySink, pos stream.Position, _ mongo.OpTime) stream.Sink {
			return newMemory(&k.store, pos, mongo.OpTime{})
		}, "restarts"},
		{"leaves out inserts of what is there", func(k *kept, s *memorySink, _ stream.Position, _ mongo.OpTime) stream.Sink {
			return &feeding{s, func(ctx context.Context, b *stream.Batch) error {
				c := *b
				c.Events = slices.DeleteFunc(slices.Clone(b.Events), func(ev stream.Event) bool {
					return ev.Kind == stream.Insert && slices.ContainsFunc(k.store.Documents(ev.NS), func(d bson.Raw) bool {
						return ev.Doc.Lookup("_id").Equal(d.Lookup("_id"))
					})
				})
				return s.Feed(ctx, &c)
			}}
		}, "repeats"},
		{"says that it is drained after the end",
			func(_ *kept, s *memorySink, _ stream.Position, _ mongo.OpTime) stream.Sink {
				return &late{memorySink: s, in: make(chan *stream.Batch, 100), forever: true}
			}, "ends"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			seed := testseed.Of(t)
			for try := range uint64(30) { // not each history shows each defect
				for _, p := range sinktest.Properties() {
					if p.Name != c.lacks {
						continue
					}
					if err := p.Check(t.Context(), &kept{broken: c.broken}, sinktest.NewHistory(seed+try, 400)); err != nil {
						t.Logf("found with seed %d: %v", seed+try, err)
						return
					}
				}
			}
			t.Errorf("thirty histories from seed %d on do not show it", seed)
		})
	}
}
