package pace

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// longestRest bounds the pause after one operation, for one that took long.
const longestRest = 5 * time.Second

// Gate bounds how many operations are under way at once on one side, first come first served. Between Enter and Leave
// there is one exchange with the server and no other wait. It is safe for concurrent use; nil bounds nothing.
type Gate struct {
	wide  atomic.Bool // nothing is bounded: the usual case costs no lock
	queue Queue

	mu       sync.Mutex
	load     Load
	limit    int           // of operations under way, 0 for none
	held     bool          // nothing begins
	under    int           // operations that are counted
	rested   time.Time     // under Low: when the next may begin
	changed  chan struct{} // closed and replaced with each change
	steering steering
	done     work
}

// work is the operations that have left the gate while it bounded something.
type work struct {
	ops, bytes int64
	busy       time.Duration // sum over operations
}

// Pass is the permission for one operation.
type Pass struct{ began time.Time }

// NewGate makes a gate; an empty load is Normal.
func NewGate(l Load) *Gate {
	if l == "" {
		l = Normal
	}
	g := &Gate{queue: NewQueue(), changed: make(chan struct{})}
	g.SetLoad(l)
	return g
}

// SetLoad changes the load at once; operations under way end as they began.
func (g *Gate) SetLoad(l Load) { g.change(func() { g.load = l }) }

// Hold stops further operations from beginning, or ends that. Operations under way end as they began.
func (g *Gate) Hold(held bool) {
	if g != nil {
		g.change(func() { g.held = held })
	}
}

func (g *Gate) change(do func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	do()
	g.adjust()
}

// Unheld waits until operations may begin, or ctx ends.
func (g *Gate) Unheld(ctx context.Context) error {
	if g == nil || g.await(ctx, nil, func() bool { return !g.held }) {
		return nil
	}
	return ctx.Err()
}

// Load returns the load, and how many operations it lets be under way at once; 0 is not bounded.
func (g *Gate) Load() (l Load, limit int) {
	if g == nil {
		return Normal, 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.load, g.limit
}

// Low reports whether one operation at a time may be under way.
func (g *Gate) Low() bool {
	l, _ := g.Load()
	return l == Low
}

// adjust sets the limit by load and steering. g.mu is locked.
func (g *Gate) adjust() {
	switch g.load {
	case Low:
		g.limit = 1
	case Max:
		g.limit = g.steering.limit
	default:
		g.limit = 0
		if g.steering.grown { // there are more workers than Normal has
			g.limit = g.steering.base
		}
	}
	if g.load != Low {
		g.rested = time.Time{}
	}
	g.wide.Store(g.limit == 0 && !g.held)
	g.queue.Freed()
	close(g.changed)
	g.changed = make(chan struct{})
}

// Enter waits for the turn of an operation, which Leave ends. The only error is ctx's.
func (g *Gate) Enter(ctx context.Context) (Pass, error) {
	if g == nil || g.wide.Load() {
		return Pass{}, nil
	}
	if err := g.queue.Wait(ctx, 0, g.begin); err != nil {
		return Pass{}, err
	}
	if err := g.rest(ctx); err != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.release()
		return Pass{}, err
	}
	return Pass{began: time.Now()}, nil
}

// Leave ends an operation that moved so many bytes.
func (g *Gate) Leave(p Pass, bytes int64) {
	if p.began.IsZero() {
		return
	}
	now := time.Now()
	took := now.Sub(p.began)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.done.ops++
	g.done.bytes += bytes
	g.done.busy += took
	if g.load == Low {
		g.rested = now.Add(min(took, longestRest))
	}
	g.release()
}

// Do makes one exchange with the server, of so many bytes, in its turn.
func (g *Gate) Do(ctx context.Context, exchange func() (bytes int, err error)) error {
	pass, err := g.Enter(ctx)
	if err != nil {
		return err
	}
	bytes, err := exchange()
	g.Leave(pass, int64(bytes))
	return err
}

func (g *Gate) begin() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	room := !g.held && (g.limit == 0 || g.under < g.limit)
	if room {
		g.under++
	}
	return room
}

// rest waits out the pause after the last operation under Low.
func (g *Gate) rest(ctx context.Context) error {
	for {
		g.mu.Lock()
		until, changed := g.rested, g.changed
		g.mu.Unlock()
		pause := time.Until(until)
		if pause <= 0 {
			return nil
		}
		if err := await(ctx, pause, changed); err != nil {
			return err
		}
	}
}

// release is called with g.mu locked.
func (g *Gate) release() {
	g.under--
	g.queue.Freed()
}
