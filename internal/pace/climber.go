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

// sample is what was measured over one interval; none has throughput 0.
type sample struct {
	throughput float64       // bytes a second
	latency    time.Duration // of one operation, mean
}

const (
	gain        = 1.05 // less is noise
	surge       = 1.2  // of throughput without a step of ours: things have changed
	firstHold   = 4    // intervals between a step in vain and the next
	longestHold = 60
)

// climber looks for the fewest operations at once with the most throughput. It takes a step up or down, and takes it
// back if that gained nothing; then it holds for a while.
type climber struct {
	least, most int

	limit  int
	usual  sample // at limit, or, during a step, at from
	from   int    // where the step under way began; 0: none is
	coarse bool   // until a step was in vain
	down   bool   // the next step tries fewer
	hold   int    // intervals left until the next step
	pause  int    // the length of the next hold
}

func newClimber(least, most int) *climber {
	return &climber{least: least, most: max(least, most), limit: least, coarse: true, pause: firstHold}
}

// next returns the limit of the next interval, after one that s was measured in.
func (c *climber) next(s sample) int {
	switch {
	case s.throughput <= 0:
		c.takeBack() // nothing to tell by
	case c.from != 0:
		c.judge(s)
	default:
		c.watch(s)
	}
	return c.limit
}

func (c *climber) judge(s sample) {
	up := c.limit > c.from
	least := c.usual.throughput * gain
	if !up {
		least = c.usual.throughput / gain
	}
	if s.throughput <= least {
		c.takeBack()
		c.rest()
		c.coarse, c.down = false, up
		return
	}
	c.from, c.usual = 0, s
	if up {
		c.pause = firstHold
	}
	c.down = !up
	c.step()
}

func (c *climber) takeBack() {
	if c.from != 0 {
		c.limit, c.from = c.from, 0
	}
}

func (c *climber) watch(s sample) {
	before := c.usual
	c.usual = s
	if before.throughput > 0 {
		c.usual = sample{throughput: (3*before.throughput + s.throughput) / 4, latency: (3*before.latency + s.latency) / 4}
		switch {
		case s.latency > 2*before.latency && s.throughput <= before.throughput*gain && c.limit > c.least:
			c.limit, c.usual = c.fewer(), s
			c.hold = c.pause
			return
		case s.throughput > before.throughput*surge:
			c.hold, c.pause, c.down = 0, firstHold, false
		}
	}
	if c.hold > 0 {
		c.hold--
		return
	}
	c.step()
}

func (c *climber) step() {
	to := c.more()
	if c.down {
		to = c.fewer()
	}
	if to == c.limit {
		c.down = !c.down
		c.rest()
		return
	}
	c.from, c.limit = c.limit, to
}

// rest delays the next step, longer each time.
func (c *climber) rest() { c.hold, c.pause = c.pause, min(c.pause*2, longestHold) }

func (c *climber) more() int {
	by := c.limit / 4
	if c.coarse {
		by = c.limit / 2
	}
	return min(c.limit+max(by, 1), c.most)
}

func (c *climber) fewer() int { return max(c.limit-max(c.limit/4, 1), c.least) }
