package wire

import (
	"sync"
	"sync/atomic"
	"time"
)

// Compression says how a pool's messages and the replies are compressed.
type Compression struct {
	// On says that they are compressed now, Measured that a measurement decides it.
	On, Measured bool
	// Gain is how many times as much the last measurement moved with compression as without, 0 before the first.
	Gain float64
}

// farAway is the round trip from which compression is measured: it pays on slow links, which are long.
const farAway = 2 * time.Millisecond

const (
	legTime     = 500 * time.Millisecond // how long each of its legs is measured
	legMessages = 8                      // and how many exchanges it takes at least
	legMost     = 20 * time.Second       // a leg that takes longer says nothing
	worthwhile  = 1.1                    // the gain from which on messages are compressed
	leastRate   = 1 << 20                // bytes a second below which nobody waits for the link
	firstRest   = 30 * time.Second       // to the next trial; it doubles while the outcome stays
	longestRest = 10 * time.Minute
)

// chooser measures whether compression moves more. A trial has four legs, without and with compression in turn, so
// that other changes do not decide. It is safe for concurrent use.
type chooser struct {
	rtt     func() time.Duration
	changed func(Compression)

	on   atomic.Bool
	wake atomic.Int64 // when the next trial may begin, or the leg under way may end

	mu    sync.Mutex
	rest  time.Duration
	gain  float64
	was   bool // before the trial
	leg   int  // 1 to 4, 0 between trials
	from  time.Time
	first time.Time // when the first exchange of the leg ended
	count int
	bytes int64
	rates [4]float64
}

func (c *chooser) compression() Compression {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Compression{On: c.was, Measured: true, Gain: c.gain}
}

// moved counts an exchange, by its bytes before compression.
func (c *chooser) moved(bytes int, began, ended time.Time) {
	if ended.UnixNano() < c.wake.Load() || c.rtt() < farAway {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.leg == 0:
		if ended.UnixNano() >= c.wake.Load() {
			c.was = c.on.Load()
			c.next(ended)
		}
	case ended.Sub(c.from) > legMost:
		c.end(ended, c.was)
	case began.Before(c.from): // it was sent as those of the leg before
	case c.first.IsZero():
		c.first = ended
	default:
		c.count++
		c.bytes += int64(bytes)
		if took := ended.Sub(c.first); took >= legTime && c.count >= legMessages {
			c.rates[c.leg-1] = float64(c.bytes) / took.Seconds()
			c.measured(ended)
		}
	}
}

func (c *chooser) measured(now time.Time) {
	if c.rates[c.leg-1] < leastRate {
		c.end(now, c.was)
		return
	}
	if c.leg < len(c.rates) {
		c.next(now)
		return
	}
	r := c.rates
	c.gain = (r[1] + r[3]) / (r[0] + r[2])
	c.end(now, c.gain >= worthwhile && r[1] > r[0] && r[3] > r[2])
}

// next begins a leg. Every second leg compresses.
func (c *chooser) next(now time.Time) {
	c.leg++
	c.on.Store(c.leg%2 == 0)
	c.from, c.first, c.count, c.bytes = now, time.Time{}, 0, 0
}

func (c *chooser) end(now time.Time, on bool) {
	changed := on != c.was
	if c.leg = 0; changed {
		c.rest = 0
	}
	c.rest = min(max(2*c.rest, firstRest), longestRest)
	c.wake.Store(now.Add(c.rest).UnixNano())
	c.was = on
	c.on.Store(on)
	if changed && c.changed != nil {
		c.changed(Compression{On: on, Measured: true, Gain: c.gain})
	}
}
