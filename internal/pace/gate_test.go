package pace

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// pass enters and leaves, with work of a span in between.
func pass(t testing.TB, g *Gate, span time.Duration) {
	p, err := g.Enter(t.Context())
	if err != nil {
		t.Error(err)
		return
	}
	time.Sleep(span)
	g.Leave(p, 1)
}

// TestLowIsOneAndAPause: four workers under Low take turns, and each operation
// of 100 ms is followed by a pause of 100 ms, or a multiple of it.
func TestLowIsOneAndAPause(t *testing.T) {
	for _, pauses := range []int{1, 3} {
		lowIsOneAndAPause(t, pauses)
	}
}

func lowIsOneAndAPause(t *testing.T, pauses int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(Low).Spare(pauses)
		began := time.Now()
		var under, turns atomic.Int64
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for range 5 {
					p, err := g.Enter(t.Context())
					if err != nil || under.Add(1) != 1 {
						t.Errorf("%d under way, %v", under.Load(), err)
					}
					turns.Add(1)
					time.Sleep(100 * time.Millisecond)
					under.Add(-1)
					g.Leave(p, 1)
				}
			})
		}
		all.Wait()
		want := time.Duration(20+19*pauses) * 100 * time.Millisecond
		if took := time.Since(began); took != want || turns.Load() != 20 {
			t.Errorf("%d turns took %s, want 20 in %s", turns.Load(), took, want)
		}
	})
}

// TestRestIsBounded: after a stall of a minute the pause is shorter than that.
func TestRestIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(Low)
		pass(t, g, time.Minute)
		began := time.Now()
		pass(t, g, 0)
		if took := time.Since(began); took != longestRest {
			t.Errorf("paused %s", took)
		}
	})
}

// TestFirstComeFirstServed: nobody overtakes who waits.
func TestFirstComeFirstServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := limited(1)
		held, err := g.Enter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var order []int
		var all sync.WaitGroup
		for i := range 10 {
			all.Go(func() {
				p, err := g.Enter(t.Context())
				if err != nil {
					t.Error(err)
				}
				order = append(order, i) // one at a time
				g.Leave(p, 1)
			})
			synctest.Wait()
		}
		g.Leave(held, 1)
		all.Wait()
		for i, n := range order {
			if n != i {
				t.Fatalf("served in the order %v", order)
			}
		}
	})
}

// limited is a gate with room for n.
func limited(n int) *Gate {
	g := NewGate(Max)
	g.change(func() { g.steering = steering{base: n, limit: n} })
	return g
}

// TestChangesAtOnce: who waits or pauses under Low goes on when it ends, and
// what began before counts for it when it comes back.
func TestChangesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(Low)
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() { pass(t, g, time.Second) })
		}
		time.Sleep(1500 * time.Millisecond) // in the first pause
		began := time.Now()
		g.SetLoad(Normal)
		all.Wait()
		if took := time.Since(began); took != time.Second {
			t.Errorf("the others took %s side by side, want 1s", took)
		}
		g.SetLoad(Low)
		began = time.Now()
		pass(t, g, 0)
		if time.Since(began) != 0 {
			t.Error("a pause of the time before")
		}
		if l, n := g.Load(); l != Low || n != 1 || g.under != 0 {
			t.Errorf("%s, %d, %d under way", l, n, g.under)
		}
	})
}

// TestCalledOff: who waits or pauses ends with its context and leaves the place
// to others.
func TestCalledOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(Low)
		ctx, cancel := context.WithCancel(t.Context())
		held, err := g.Enter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				if _, err := g.Enter(ctx); !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
		}
		all.Go(func() { pass(t, g, time.Second) })
		synctest.Wait()
		time.Sleep(time.Second)
		g.Leave(held, 1)
		synctest.Wait() // one pauses, two wait
		cancel()
		all.Wait()
		if g.under != 0 || len(g.queue.turn) != 0 {
			t.Errorf("%d under way, somebody waits: %v", g.under, len(g.queue.turn) != 0)
		}
	})
}

// TestHeavyUse has many enter, leave and give up while loads change.
func TestHeavyUse(t *testing.T) {
	g := NewGate(Low)
	ctx, stop := context.WithCancel(t.Context())
	var all, steered sync.WaitGroup
	steered.Go(func() { g.Steer(ctx, 4, 16) })
	for i := range 16 {
		all.Go(func() {
			for n := range 500 {
				ctx, cancel := context.WithCancel(t.Context())
				if (n+i)%7 == 0 {
					cancel()
				}
				if p, err := g.Enter(ctx); err == nil {
					g.Leave(p, 1)
				}
				cancel()
				if i == 0 && n%20 == 0 {
					g.SetLoad([]Load{Low, Normal, Max}[n/20%3])
				}
			}
		})
	}
	all.Wait()
	stop()
	steered.Wait()
	if g.under != 0 || len(g.queue.turn) != 0 {
		t.Errorf("%d under way, somebody waits: %v", g.under, len(g.queue.turn) != 0)
	}
}

func TestNilGate(t *testing.T) {
	var g *Gate
	p, err := g.Enter(t.Context())
	g.Leave(p, 1)
	if l, n := g.Load(); err != nil || l != Normal || n != 0 || g.Reaches(t.Context(), 1, nil) {
		t.Error(l, n, err)
	}
	g.Steer(t.Context(), 1, 2)
}

// TestNormalHoldsTheGrown: workers that Max called for are not all used by Normal.
func TestNormalHoldsTheGrown(t *testing.T) {
	g := limited(8)
	g.steering.base = 4
	if !g.Reaches(t.Context(), 8, nil) || g.wide.Load() {
		t.Fatal("not reached")
	}
	g.SetLoad(Normal)
	if _, n := g.Load(); n != 4 {
		t.Errorf("%d at once", n)
	}
}

func TestLoadsAreChecked(t *testing.T) {
	if err := (Loads{Source: Low, Target: Normal}).Check(); err != nil {
		t.Error(err)
	}
	if err := (Loads{Source: Low}).Check(); err == nil {
		t.Error("an empty load was taken")
	}
}

// TestGateAllocatesNothing: neither open nor with room.
func TestGateAllocatesNothing(t *testing.T) {
	for _, g := range []*Gate{NewGate(Normal), limited(2)} {
		if n := testing.AllocsPerRun(100, func() { pass(t, g, 0) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}
}

func BenchmarkGate(b *testing.B) {
	for name, g := range map[string]*Gate{"wide": NewGate(Normal), "limited": limited(32)} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				p, _ := g.Enter(b.Context())
				g.Leave(p, 1)
			}
		})
	}
}

// TestHold: nothing begins while a gate is held, under each load, and what waited
// begins when it is let go.
func TestHold(t *testing.T) {
	for _, load := range []Load{Low, Normal, Max} {
		synctest.Test(t, func(t *testing.T) {
			g := NewGate(load)
			under, err := g.Enter(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			g.Hold(true)
			g.Leave(under, 1) // it ends as it began
			began := time.Now()
			var all sync.WaitGroup
			for range 3 {
				all.Go(func() {
					pass(t, g, 0)
					if time.Since(began) < time.Minute {
						t.Errorf("%s: an operation began after %s", load, time.Since(began))
					}
				})
			}
			time.Sleep(time.Minute)
			g.Hold(false)
			all.Wait()
		})
	}
	var none *Gate
	none.Hold(true)
}
