package pace

import "time"

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
