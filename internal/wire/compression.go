package wire

import (
	"sync"
	"sync/atomic"
	"time"
)

// Compression says how a pool's messages, and with them the answers, are compressed.
type Compression struct {
	// On says that they are compressed now, Measured that measuring decides it and not
	// the connection string.
	On, Measured bool
	// Gain is how many times as much the last measurement moved with compression as
	// without, 0 before the first.
	Gain float64
}

// Of a link that is nearer than this no bandwidth is expected for which compressing
// pays, and it is not measured: what it takes of the processors is needed elsewhere.
const farAway = 2 * time.Millisecond

// A trial compares moving data with and without compression.
const (
	legTime     = 500 * time.Millisecond // how long each of its legs is measured
	legMessages = 8                      // and how many exchanges it takes at least
	legMost     = 20 * time.Second       // a leg that takes longer says nothing
	worthwhile  = 1.1                    // the gain from which on messages are compressed
	leastRate   = 1 << 20                // bytes a second below which nobody waits for the link
	firstRest   = 30 * time.Second       // to the next trial; it doubles while the outcome stays
	longestRest = 10 * time.Minute
)

// chooser measures whether the messages of a pool had better be compressed. A trial
// has four legs, without and with compression in turn, so that what changes in
// between does not decide. It is safe for concurrent use.
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

// compression is what the chooser has chosen.
func (c *chooser) compression() Compression {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Compression{On: c.was, Measured: true, Gain: c.gain}
}

// moved notes an exchange of so many bytes, before they were compressed.
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

// measured goes on to the next leg, or decides.
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

// next begins a leg: every second one compresses.
func (c *chooser) next(now time.Time) {
	c.leg++
	c.on.Store(c.leg%2 == 0)
	c.from, c.first, c.count, c.bytes = now, time.Time{}, 0, 0
}

// end ends the trial with a decision.
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
