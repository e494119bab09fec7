package sinktest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/testseed"
)

// Target is what sinks write to, one after the other.
type Target interface {
	// Open makes a sink that starts at a position. The target may be ahead of
	// events up to overlap.
	Open(pos stream.Position, overlap mongo.OpTime) (stream.Sink, error)
	// Documents are those of a namespace, in any order.
	Documents(ctx context.Context, ns string) ([]bson.Raw, error)
}

// Property is something that every sink has. Check returns an error that says
// what is not so; the target is empty before.
type Property struct {
	Name  string
	Check func(ctx context.Context, target Target, h *History) error
}

// Properties are those of all sinks.
func Properties() []Property {
	return []Property{
		{"order", order}, {"drains", drains}, {"applied", applied}, {"restarts", restarts}, {"repeats", repeats},
		{"ends", ends},
	}
}

// events is how long the histories of Run are.
const events = 400

// Run checks that the sinks of empty targets have all properties, by the seeds of the test.
func Run(t *testing.T, empty func(t *testing.T) Target) {
	testseed.Each(t, func(t *testing.T, seed uint64) { run(t, empty, seed) })
}

func run(t *testing.T, empty func(t *testing.T) Target, seed uint64) {
	for _, p := range Properties() {
		t.Run(p.Name, func(t *testing.T) {
			if err := p.Check(t.Context(), empty(t), NewHistory(seed, events)); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		})
	}
}

// waitLimit bounds one call of a sink that should return at once.
const waitLimit = 30 * time.Second

// running is a sink while it runs.
type running struct {
	stream.Sink
	ctx  context.Context
	stop context.CancelCauseFunc
	g    *errgroup.Group
}

var errStop = errors.New("stopped by the test")

func start(ctx context.Context, target Target, pos stream.Position, overlap mongo.OpTime) (*running, error) {
	s, err := target.Open(pos, overlap)
	if err != nil {
		return nil, err
	}
	r := &running{Sink: s}
	cctx, stop := context.WithCancelCause(ctx)
	r.stop = stop
	r.g, r.ctx = errgroup.WithContext(cctx)
	r.g.Go(func() error { return s.Run(r.ctx) })
	return r, nil
}

// end stops the sink as a crash would; a sink that failed by itself is an error.
func (r *running) end() error {
	r.stop(errStop)
	if err := r.g.Wait(); err != nil && !errors.Is(err, errStop) && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("run: %w", err)
	}
	return nil
}

// feed feeds batches and watches what the sink says is applied.
func (r *running) feed(batches []*stream.Batch, seen func(stream.Position)) error {
	last := r.Applied()
	look := func(most mongo.OpTime) error {
		p := r.Applied()
		switch {
		case p.At.Before(last.At):
			return fmt.Errorf("applied went back from %s to %s", last.At, p.At)
		case most.Before(p.At):
			return fmt.Errorf("applied is %s, but no more than %s was fed", p.At, most)
		}
		if last = p; seen != nil {
			seen(p)
		}
		return nil
	}
	for _, b := range batches {
		most := b.End
		if n := len(b.Events); n > 0 { // a schema change is applied when Feed returns
			most = mongo.MaxOpTime(most, b.Events[n-1].At)
		}
		if b.Partial {
			most = b.End
		}
		if err := r.Feed(r.ctx, b); err != nil {
			return fmt.Errorf("feed a batch up to %s: %w", b.End, err)
		}
		if err := look(most); err != nil {
			return err
		}
	}
	return nil
}

// compare finds where the target is not as the history has it at a position.
func compare(ctx context.Context, target Target, h *History, at mongo.OpTime) error {
	want := h.after(at)
	for _, ns := range Namespaces() {
		docs, err := target.Documents(ctx, ns)
		if err != nil {
			return err
		}
		if d := want.differs(ns, docs); d != "" {
			return fmt.Errorf("the target is not as the source at %s: %s", at, d)
		}
	}
	return nil
}

// through feeds all from a position, drains and compares.
func through(ctx context.Context, target Target, h *History, from stream.Position, overlap mongo.OpTime) error {
	r, err := start(ctx, target, from, overlap)
	if err != nil {
		return err
	}
	err = r.feed(h.batches(from.At), nil)
	if err == nil {
		err = r.drained(h.end())
	}
	if err := errors.Join(err, r.end()); err != nil {
		return err
	}
	return compare(ctx, target, h, h.end())
}

// drained drains, and everything up to a position has to be applied.
func (r *running) drained(at mongo.OpTime) error {
	if err := r.Drain(r.ctx); err != nil {
		return fmt.Errorf("drain at %s: %w", at, err)
	}
	if p := r.Applied(); p.At.Before(at) {
		return fmt.Errorf("drained at %s, but applied is %s", at, p.At)
	}
	return nil
}

// order: a history that is fed once is on the target, the events of each document
// in their order.
func order(ctx context.Context, target Target, h *History) error {
	return through(ctx, target, h, stream.Position{}, mongo.OpTime{})
}

// drains: after each Drain the target is as the source was there.
func drains(ctx context.Context, target Target, h *History) error {
	r, err := start(ctx, target, stream.Position{}, mongo.OpTime{})
	if err != nil {
		return err
	}
	check := func() error {
		for _, b := range h.batches(mongo.OpTime{}) {
			if err := r.feed([]*stream.Batch{b}, nil); err != nil {
				return err
			}
			if b.Partial || h.IntN(4) > 0 {
				continue
			}
			if err := r.drained(b.End); err != nil {
				return err
			}
			if err := compare(ctx, target, h, b.End); err != nil {
				return err
			}
		}
		return nil
	}
	return errors.Join(check(), r.end())
}

// applied: a position that the sink tells is one at which the target has all that
// came before, whatever happens to the sink then.
func applied(ctx context.Context, target Target, h *History) error {
	pos, fed := stream.Position{}, mongo.OpTime{}
	for round := 0; pos.At.Before(h.end()); round++ {
		if round > 10*events {
			return fmt.Errorf("after %d runs applied is %s", round, pos.At)
		}
		batches := h.batches(pos.At)
		batches = batches[:min(len(batches), 1+h.IntN(12))]
		r, err := start(ctx, target, pos, fed)
		if err != nil {
			return err
		}
		err = r.feed(batches, nil)
		time.Sleep(time.Duration(h.IntN(3)) * time.Millisecond)
		next := r.Applied() // what is kept when it crashes now
		if h.IntN(3) == 0 && err == nil && !batches[len(batches)-1].Partial {
			err = r.Drain(r.ctx) // else a slow sink never comes to the end
			next = r.Applied()
		}
		if err := errors.Join(err, r.end()); err != nil {
			return err
		}
		for _, b := range batches {
			if n := len(b.Events); n > 0 {
				fed = mongo.MaxOpTime(fed, b.Events[n-1].At)
			}
		}
		pos = next
	}
	return compare(ctx, target, h, h.end())
}

// restarts: from every position that the sink ever reported, it comes to the same end.
func restarts(ctx context.Context, target Target, h *History) error {
	reported := []stream.Position{{}}
	r, err := start(ctx, target, stream.Position{}, mongo.OpTime{})
	if err != nil {
		return err
	}
	err = r.feed(h.batches(mongo.OpTime{}), func(p stream.Position) {
		if reported[len(reported)-1].At.Before(p.At) {
			reported = append(reported, p)
		}
	})
	if err == nil {
		err = r.drained(h.end())
	}
	if err := errors.Join(err, r.end()); err != nil {
		return err
	}
	reported = append(reported, r.Applied())
	for range 8 {
		from := reported[h.IntN(len(reported))]
		if err := through(ctx, target, h, from, h.end()); err != nil {
			return fmt.Errorf("again from %s: %w", from.At, err)
		}
	}
	return nil
}

// repeats: events that come again change nothing in the end.
func repeats(ctx context.Context, target Target, h *History) error {
	if err := through(ctx, target, h, stream.Position{}, mongo.OpTime{}); err != nil {
		return err
	}
	return through(ctx, target, h, stream.Position{}, h.end())
}

// ends: a sink that ends lets nobody wait.
func ends(ctx context.Context, target Target, h *History) error {
	r, err := start(ctx, target, stream.Position{}, mongo.OpTime{})
	if err != nil {
		return err
	}
	batches := h.batches(mongo.OpTime{})
	if err := r.feed(batches[:len(batches)/2], nil); err != nil {
		return errors.Join(err, r.end())
	}
	if err := within("run", r.end); err != nil {
		return err
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := within("feed", func() error { _ = r.Feed(ended, batches[len(batches)/2]); return nil }); err != nil {
		return err
	}
	return within("drain", func() error {
		if r.Drain(ended) == nil {
			return errors.New("no error after the end")
		}
		return nil
	})
}

func within(what string, fn func() error) error {
	done := make(chan error, 1)
	go func() { done <- fn() }()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	case <-time.After(waitLimit):
		return fmt.Errorf("%s does not return", what)
	}
}
