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

// TestCrewGrows: where more at once bring more, the reserve is called in, and
// all end with the work.
func TestCrewGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tc := range []struct {
			load pace.Load
			most int
			want int64 // of the reserve
		}{{pace.Max, 8, 6}, {pace.Max, 2, 0}, {pace.Normal, 8, 0}, {pace.Low, 8, 0}} {
			var left, reserve atomic.Int64
			left.Store(5000)
			gate := pace.NewGate(tc.load)
			work := func(ctx context.Context, more bool) error {
				if more {
					reserve.Add(1)
				}
				for left.Add(-1) >= 0 {
					pass, err := gate.Enter(ctx)
					if err != nil {
						return err
					}
					time.Sleep(10 * time.Millisecond)
					gate.Leave(pass, 1<<20)
				}
				return nil
			}
			err := crew{gate: gate, base: 2, most: tc.most, work: work}.run(t.Context())
			if err != nil || reserve.Load() != tc.want {
				t.Errorf("%s up to %d: %d of the reserve, %v", tc.load, tc.most, reserve.Load(), err)
			}
		}
	})
}

// TestCrewFails: an error ends all, who waits at the gate included.
func TestCrewFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		gate := pace.NewGate(pace.Low)
		held, err := gate.Enter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer gate.Leave(held, 0)
		var workers atomic.Int64
		err = crew{gate: gate, base: 3, most: 8, work: func(ctx context.Context, _ bool) error {
			if workers.Add(1) == 1 {
				time.Sleep(time.Minute)
				return broken
			}
			_, err := gate.Enter(ctx)
			return err
		}}.run(t.Context())
		if !errors.Is(err, broken) {
			t.Error(err)
		}
	})
}
