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
	pauses   int           // under Low: how many times as long as an operation the pause after it is
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
	g := &Gate{queue: NewQueue(), changed: make(chan struct{}), pauses: 1}
	g.SetLoad(l)
	return g
}

// Spare sets how many times as long as an operation the pause after it is under Low, 1 by default. It returns g, and
// must be called before the first operation.
func (g *Gate) Spare(pauses int) *Gate {
	g.pauses = pauses
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
		g.rested = now.Add(min(time.Duration(g.pauses)*took, longestRest))
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
