package pace

import (
	"context"
	"time"
)

// MostAtOnce is how many operations Max lets be under way at once on a side.
const MostAtOnce = 32

type steering struct {
	base  int  // workers of Normal; 0: nobody steers
	limit int  // of Max
	grown bool // there are more workers than base
}

// Steer looks for the number of operations at once with the most throughput while the load is Max, from base, the
// workers of Normal, up to most. It returns when ctx ends. One may steer a gate at a time.
func (g *Gate) Steer(ctx context.Context, base, most int) {
	if g == nil {
		return
	}
	g.change(func() { g.steering = steering{base: base, limit: base} })
	defer g.change(func() { g.steering = steering{} })
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var c *climber
	var before work
	at := time.Now()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		g.mu.Lock()
		load, now := g.load, g.done
		g.mu.Unlock()
		s := measure(before, now, time.Since(at))
		before, at = now, time.Now()
		switch {
		case load != Max:
			c = nil
			g.open(base)
		case c == nil: // what was measured began under another load
			c = newClimber(base, most)
		default:
			g.open(c.next(s))
		}
	}
}

func measure(from, to work, span time.Duration) sample {
	ops := to.ops - from.ops
	if ops <= 0 || span <= 0 {
		return sample{}
	}
	bytes := float64(to.bytes - from.bytes)
	return sample{throughput: bytes / span.Seconds(), latency: (to.busy - from.busy) / time.Duration(ops)}
}

func (g *Gate) open(limit int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.steering.limit != limit {
		g.steering.limit = limit
		g.adjust()
	}
}

// Reaches waits until Max lets n operations be under way at once; false if over was closed, or ctx ended, before.
func (g *Gate) Reaches(ctx context.Context, n int, over <-chan struct{}) bool {
	return g != nil && g.await(ctx, over, func() bool {
		reached := g.load == Max && g.steering.limit >= n
		g.steering.grown = g.steering.grown || reached && n > g.steering.base
		return reached
	})
}

// Employs waits while the load is Low, which one worker serves; false if over was closed, or ctx ended, before.
func (g *Gate) Employs(ctx context.Context, over <-chan struct{}) bool {
	return g == nil || g.await(ctx, over, func() bool { return g.load != Low })
}

// await calls reached with g.mu locked until it is true; false if over was closed, or ctx ended, before.
func (g *Gate) await(ctx context.Context, over <-chan struct{}, reached func() bool) bool {
	for {
		g.mu.Lock()
		yes, changed := reached(), g.changed
		g.mu.Unlock()
		if yes {
			return true
		}
		select {
		case <-changed:
		case <-over:
			return false
		case <-ctx.Done():
			return false
		}
	}
}
