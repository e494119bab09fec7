package pace

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// server says what so many operations at once bring.
type server func(n int) sample

// saturating does the work of `at` operations at once, however many there are.
func saturating(at float64, latency time.Duration) server {
	return func(n int) sample {
		busy := max(float64(n)/at, 1)
		return sample{throughput: min(float64(n), at) * 1e6 / latency.Seconds(),
			latency: time.Duration(float64(latency) * busy)}
	}
}

// collapsing gets worse with each operation beyond `at`.
func collapsing(at float64) server {
	flat := saturating(at, 100*time.Millisecond)
	return func(n int) sample {
		s := flat(n)
		if over := float64(n)/at - 1; over > 0 {
			s.throughput /= 1 + over
		}
		return s
	}
}

// noisy varies by so much to either side.
func noisy(s server, by float64, r *rand.Rand) server {
	return func(n int) sample {
		out := s(n)
		out.throughput *= 1 + by*(2*r.Float64()-1)
		return out
	}
}

// run lets a climber work with a server for so many intervals and gives the
// mean of throughput over the last half.
func (c *climber) run(t *testing.T, s server, intervals int) (mean float64) {
	t.Helper()
	for i := range intervals {
		now := s(c.limit)
		c.next(now)
		if c.limit < c.least || c.limit > c.most {
			t.Fatalf("%d is not in %d … %d", c.limit, c.least, c.most)
		}
		if i >= intervals/2 {
			mean += now.throughput / float64(intervals-intervals/2)
		}
	}
	return mean
}

func TestClimb(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	link := saturating(1000, 300*time.Millisecond) // latency is all there is
	for _, tc := range []struct {
		name      string
		s         server
		intervals int
		low, high int     // where it has to be
		share     float64 // of the best that is had at least
	}{
		{"a slow link", link, 30, 24, 32, 0.9},
		{"a slow link with noise", noisy(link, 0.05, r), 200, 20, 32, 0.8},
		{"a server that has enough with four", saturating(4, 10*time.Millisecond), 100, 4, 6, 0.95},
		{"a server for twelve", saturating(12, 10*time.Millisecond), 100, 9, 19, 0.9},
		{"a server for twelve with noise", noisy(saturating(12, 10*time.Millisecond), 0.05, r), 300, 8, 32, 0.8},
		{"a server that collapses beyond eight", collapsing(8), 100, 6, 13, 0.85},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newClimber(4, MostAtOnce)
			got := c.run(t, tc.s, tc.intervals)
			var best float64
			for n := 4; n <= MostAtOnce; n++ {
				best = max(best, tc.s(n).throughput)
			}
			if c.limit < tc.low || c.limit > tc.high || got < best*tc.share {
				t.Errorf("stands at %d with %.2f of the best", c.limit, got/best)
			}
		})
	}
}

// TestClimbsFast: a link that bears all is used within ten seconds.
func TestClimbsFast(t *testing.T) {
	c := newClimber(4, MostAtOnce)
	c.run(t, saturating(1000, time.Second), 10)
	if c.limit != MostAtOnce {
		t.Errorf("at %d", c.limit)
	}
}

// TestGivesWay: operations that suddenly take long without bringing more make it
// ask for less, and come back when that is over.
func TestGivesWay(t *testing.T) {
	c := newClimber(4, MostAtOnce)
	good := saturating(16, 100*time.Millisecond)
	c.run(t, good, 60)
	high := c.limit
	c.run(t, saturating(4, 100*time.Millisecond), 60)
	if c.limit >= high {
		t.Errorf("stays at %d", c.limit)
	}
	c.run(t, good, 150)
	if c.limit < 12 {
		t.Errorf("comes back to %d", c.limit)
	}
}

// TestNothingToTell: while nothing is done nothing is changed.
func TestNothingToTell(t *testing.T) {
	c := newClimber(4, MostAtOnce)
	for range 100 {
		if n := c.next(sample{}); n != 4 {
			t.Fatalf("at %d", n)
		}
	}
	if c = newClimber(20, 20); c.next(sample{throughput: 1}) != 20 {
		t.Error("leaves its bounds")
	}
}

// TestSteer: under Max more workers are called for until the link is full;
// under Normal and after the end there are as many as at the begin.
func TestSteer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(Normal)
		ended := make(chan struct{})
		var under, hired, peak atomic.Int64
		var all, steered sync.WaitGroup
		worker := func() {
			for {
				select {
				case <-ended:
					return
				default:
				}
				p, err := g.Enter(t.Context())
				if err != nil {
					return
				}
				if n := under.Add(1); n > peak.Load() {
					peak.Store(n)
				}
				time.Sleep(40 * time.Millisecond)
				under.Add(-1)
				g.Leave(p, 1<<20)
			}
		}
		for range 4 {
			all.Go(worker)
		}
		all.Go(func() {
			for n := 5; n <= MostAtOnce && g.Reaches(t.Context(), n, ended); n++ {
				hired.Add(1)
				all.Go(worker)
			}
		})
		ctx, stop := context.WithCancel(t.Context())
		steered.Go(func() { g.Steer(ctx, 4, MostAtOnce) })
		time.Sleep(5 * time.Second)
		if hired.Load() != 0 || peak.Load() != 4 {
			t.Errorf("normal: %d hired, %d at once", hired.Load(), peak.Load())
		}
		g.SetLoad(Max)
		time.Sleep(20 * time.Second)
		if hired.Load() != MostAtOnce-4 || peak.Load() != MostAtOnce {
			t.Errorf("max: %d hired, %d at once", hired.Load(), peak.Load())
		}
		for _, c := range []struct {
			load Load
			most int64
		}{{Normal, 4}, {Low, 1}} {
			g.SetLoad(c.load)
			time.Sleep(time.Second)
			peak.Store(0)
			time.Sleep(time.Second)
			if peak.Load() != c.most {
				t.Errorf("%s: %d at once", c.load, peak.Load())
			}
		}
		close(ended)
		all.Wait()
		stop()
		steered.Wait()
		g.SetLoad(Normal)
		if _, n := g.Load(); n != 0 || g.under != 0 {
			t.Errorf("%d at once, %d under way", n, g.under)
		}
	})
}
