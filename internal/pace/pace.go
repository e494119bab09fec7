// Package pace holds work to rates that an operator may change at any time.
package pace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Rates are what may pass in a second; 0 is unlimited.
type Rates struct {
	Docs  int64 `json:"docsPerSecond"`
	Bytes int64 `json:"bytesPerSecond"`
}

// Limiter bounds work to its rates. It is safe for concurrent use; nil limits nothing.
type Limiter struct {
	limited atomic.Bool // so that the usual case costs no lock

	mu      sync.Mutex
	rates   Rates
	next    time.Time     // until when the rates are used up
	changed chan struct{} // closed and replaced by Set
}

func New(r Rates) *Limiter {
	l := &Limiter{changed: make(chan struct{})}
	l.Set(r)
	return l
}

// Set changes the rates at once; what waits at the old rates passes.
func (l *Limiter) Set(r Rates) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rates, l.next = r, time.Time{}
	l.limited.Store(r != Rates{})
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *Limiter) Rates() Rates {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rates
}

// Limited reports whether Wait may wait.
func (l *Limiter) Limited() bool { return l != nil && l.limited.Load() }

// Wait returns when the present rates allow a piece of work, less a burst of a second. The only error is ctx's.
func (l *Limiter) Wait(ctx context.Context, docs, bytes int64) error {
	if !l.Limited() {
		return nil
	}
	delay, price, changed := l.book(docs, bytes)
	if delay <= 0 {
		return nil
	}
	err := await(ctx, delay, changed)
	if err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		if changed == l.changed { // else Set has returned all time that was taken
			l.next = l.next.Add(-price) // the next attempt at this does not wait for it
		}
	}
	return err
}

// Batch returns how many items of a mean size in bytes should pass at once: up to most, and half a second of the
// present rates.
func (l *Limiter) Batch(most int, size int64) int {
	if !l.Limited() {
		return most
	}
	half := int64(most)
	r := l.Rates()
	if r.Docs > 0 {
		half = min(half, r.Docs/2)
	}
	if r.Bytes > 0 {
		half = min(half, r.Bytes/2/max(size, 1))
	}
	return int(max(half, 1))
}

// Takes returns how long work takes at the present rates, 0 without a limit.
func (l *Limiter) Takes(docs, bytes int64) time.Duration {
	r := l.Rates()
	return max(cost(docs, r.Docs), cost(bytes, r.Bytes))
}

// Pause waits for d. Its error is the cause of ctx's end.
func Pause(ctx context.Context, d time.Duration) error {
	if await(ctx, d, nil) != nil {
		return context.Cause(ctx)
	}
	return nil
}

// Queue lets callers wait for a place, first come first served. Its owner knows the places.
type Queue struct{ turn, freed chan struct{} }

// NewQueue returns an empty queue.
func NewQueue() Queue { return Queue{turn: make(chan struct{}, 1), freed: make(chan struct{}, 1)} }

// Wait calls enter until it takes a place: in the caller's turn, after each Freed, and at an interval; 0 is none. The
// only error is ctx's.
func (q Queue) Wait(ctx context.Context, every time.Duration, enter func() bool) error {
	select {
	case q.turn <- struct{}{}: // others wait for that
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-q.turn }()
	if enter() {
		return nil
	}
	var tick <-chan time.Time
	if every > 0 {
		tick = time.Tick(every)
	}
	for {
		select {
		case <-q.freed:
		case <-tick:
		case <-ctx.Done():
			return ctx.Err()
		}
		if enter() {
			return nil
		}
	}
}

// Freed reports that there may be a place.
func (q Queue) Freed() {
	select {
	case q.freed <- struct{}{}:
	default: // nobody has looked since the last one
	}
}

// Until calls check at an interval until it returns true or an error, or ctx ends.
func Until(ctx context.Context, every time.Duration, check func() (bool, error)) error {
	for {
		if done, err := check(); done || err != nil {
			return err
		}
		if err := Pause(ctx, every); err != nil {
			return err
		}
	}
}

func await(ctx context.Context, d time.Duration, changed <-chan struct{}) error {
	select {
	case <-time.After(d):
		return nil
	case <-changed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// book takes the time that work needs. It returns how long that has to wait, the time, and a channel that is closed
// when the rates change.
func (l *Limiter) book(docs, bytes int64) (delay, price time.Duration, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.next.Before(now) {
		l.next = now
	}
	price = max(cost(docs, l.rates.Docs), cost(bytes, l.rates.Bytes))
	l.next = l.next.Add(price)
	return l.next.Sub(now) - time.Second, price, l.changed
}

func cost(n, rate int64) time.Duration {
	if rate <= 0 {
		return 0
	}
	return time.Duration(float64(n) / float64(rate) * float64(time.Second))
}

// Load is how much a job may use one of its sides.
type Load string

// The loads, from the least to the most.
const (
	Low    Load = "low"    // one operation at a time, and a pause after each (Gate.Spare)
	Normal Load = "normal" // as many at once as there are workers
	Max    Load = "max"    // more workers, as far as that brings more
)

func (l Load) check() error {
	if slices.Contains([]Load{Low, Normal, Max}, l) {
		return nil
	}
	return fmt.Errorf("load %q is unknown; use %s, %s or %s", string(l), Low, Normal, Max)
}

// Loads are those of both sides of a job.
type Loads struct {
	Source Load `json:"sourceLoad"`
	Target Load `json:"targetLoad"`
}

// Check returns what is wrong with requested loads.
func (l Loads) Check() error { return errors.Join(l.Source.check(), l.Target.check()) }
