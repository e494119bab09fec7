package pace

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestWaitBooksTime(t *testing.T) {
	l := New(Rates{Docs: 10})
	ctx, cancel := context.WithCancel(t.Context())
	if err := l.Wait(ctx, 10, 1); err != nil { // a second's worth passes at once
		t.Fatal(err)
	}
	cancel()
	if err := l.Wait(ctx, 1_000_000, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("a day's worth passed: %v", err)
	}
}

func TestSetLetsPass(t *testing.T) {
	l := New(Rates{Bytes: 1})
	_, _, changed := l.book(1, 1_000_000)
	waited := make(chan error, 1)
	go func() { waited <- l.Wait(t.Context(), 1, 1) }()
	l.Set(Rates{})
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
	select {
	case <-changed:
	default:
		t.Error("who waited before was not told")
	}
	if l.Limited() {
		t.Error("no rate, but limited")
	}
	if err := l.Wait(t.Context(), 1<<40, 1<<40); err != nil {
		t.Fatal(err)
	}
}

func TestNilLimitsNothing(t *testing.T) {
	var l *Limiter
	if err := l.Wait(t.Context(), 1, 1); err != nil || l.Limited() {
		t.Error(err)
	}
}

func TestCostIsTheSlowerOfBoth(t *testing.T) {
	l := New(Rates{Docs: 100, Bytes: 1000})
	l.book(1, 100_000) // 10 ms of documents, 100 s of bytes
	if delay, _, _ := l.book(1, 1); delay.Seconds() < 90 {
		t.Errorf("the next waits %v, want 100 s", delay)
	}
}

// TestGivesBack: work that was called off takes nothing from what comes next.
func TestGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Rates{Bytes: 1000})
		began := time.Now()
		for range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			if err := l.Wait(ctx, 1, 60_000); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("a minute's work passed in a millisecond: %v", err)
			}
			cancel()
		}
		if err := l.Wait(t.Context(), 1, 2000); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("waited %s behind work that was called off", took)
		}
	})
}

// TestBatch: half a second of the stricter rate, and something in any case.
func TestBatch(t *testing.T) {
	for _, c := range []struct {
		rates      Rates
		most       int
		size, want int64
	}{
		{Rates{}, 50_000, 100, 50_000}, {Rates{Docs: 1000}, 50_000, 100, 500}, {Rates{Bytes: 1000}, 50_000, 100, 5},
		{Rates{Docs: 6, Bytes: 1000}, 50_000, 100, 3}, {Rates{Docs: 1}, 50_000, 100, 1}, {Rates{Bytes: 10}, 50_000, 100, 1},
		{Rates{Bytes: 1000}, 50_000, 0, 500}, {Rates{Docs: 1000}, 20, 0, 20},
	} {
		if got := New(c.rates).Batch(c.most, c.size); int64(got) != c.want {
			t.Errorf("%+v: %d, want %d", c, got, c.want)
		}
	}
	if got := New(Rates{Docs: 10, Bytes: 100}).Takes(50, 1000); got != 10*time.Second {
		t.Errorf("it takes %v", got)
	}
}
