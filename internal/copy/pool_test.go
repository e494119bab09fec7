package copy

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/pace"
)

// TestPoolGrows: where more at once bring more, the reserve is called in, and
// all end with the work.
func TestPoolGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tc := range []struct {
			load pace.Load
			most int
			want int64 // of the reserve
		}{{pace.Max, 8, 6}, {pace.Max, 2, 0}, {pace.Normal, 8, 0}, {pace.Low, 8, 0}} {
			var left, reserve atomic.Int64
			left.Store(5000)
			gate := pace.NewGate(tc.load)
			work := func(ctx context.Context, w worker) (bool, error) {
				if w.reserve {
					reserve.Add(1)
				}
				for left.Add(-1) >= 0 {
					pass, err := gate.Enter(ctx)
					if err != nil {
						return false, err
					}
					time.Sleep(10 * time.Millisecond)
					gate.Leave(pass, 1<<20)
				}
				return false, nil
			}
			err := pool{gate: gate, base: 2, most: tc.most, work: work}.run(t.Context())
			if err != nil || reserve.Load() != tc.want {
				t.Errorf("%s up to %d: %d of the reserve, %v", tc.load, tc.most, reserve.Load(), err)
			}
		}
	})
}

// TestPoolFails: an error ends all, who waits at the gate included.
func TestPoolFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		gate := pace.NewGate(pace.Low)
		held, err := gate.Enter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer gate.Leave(held, 0)
		var workers atomic.Int64
		err = pool{gate: gate, base: 3, most: 8, work: func(ctx context.Context, _ worker) (bool, error) {
			if workers.Add(1) == 1 {
				time.Sleep(time.Minute)
				return false, broken
			}
			_, err := gate.Enter(ctx)
			return false, err
		}}.run(t.Context())
		if !errors.Is(err, broken) {
			t.Error(err)
		}
	})
}

// TestPoolUnderLow: one works while the load is low, all while it is not, and each job is done.
func TestPoolUnderLow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := pace.NewGate(pace.Low)
		var left, connected atomic.Int64
		left.Store(3000)
		work := func(_ context.Context, w worker) (bool, error) {
			connected.Add(1)
			defer connected.Add(-1)
			for w.stays() {
				if left.Add(-1) < 0 {
					return false, nil
				}
				time.Sleep(10 * time.Millisecond)
			}
			return true, nil
		}
		ended := make(chan error, 1)
		go func() { ended <- pool{gate: gate, base: 8, most: 16, work: work}.run(t.Context()) }()
		for _, tc := range []struct {
			load pace.Load
			want int64
		}{{pace.Low, 1}, {pace.Normal, 8}, {pace.Low, 1}, {pace.Max, 8}, {pace.Low, 1}} {
			gate.SetLoad(tc.load)
			time.Sleep(100 * time.Millisecond) // of the bubble: what is under way ends
			synctest.Wait()
			if got := connected.Load(); got != tc.want {
				t.Errorf("%s: %d work, want %d", tc.load, got, tc.want)
			}
		}
		if err := <-ended; err != nil || left.Load() > -1 {
			t.Errorf("%d left, %v", left.Load(), err)
		}
	})
}
