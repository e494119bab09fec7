package retry

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestGivesUpThoughEachAttemptTakesLong: a member is waited for for half a
// minute; that does not count as work.
func TestGivesUpThoughEachAttemptTakesLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shown, began := false, time.Now()
		p := &Backoff{Waiting: func(err error, _ time.Duration) { shown = err != nil }}
		err := p.Try(t.Context(), 10*time.Minute, func() error {
			time.Sleep(time.Minute)
			if !shown && time.Since(began) > time.Minute {
				t.Error("the status names nothing that is waited for")
			}
			return context.DeadlineExceeded
		})
		if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took > 15*time.Minute {
			t.Errorf("after %s: %v", took, err)
		}
	})
}

// TestDoesNotGiveUpOnWhatWorks: failures between which work goes on are not one.
func TestDoesNotGiveUpOnWhatWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, n := &Backoff{Waiting: func(error, time.Duration) {}}, 0
		err := p.Try(t.Context(), time.Minute, func() error {
			p.Worked()
			time.Sleep(time.Hour)
			if n++; n < 10 {
				return context.DeadlineExceeded
			}
			return nil
		})
		if err != nil || n != 10 {
			t.Errorf("after %d attempts: %v", n, err)
		}
	})
}

// TestAgain: pauses double up to the longest, and what does not pass ends it.
func TestAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pauses []time.Duration
		last, n := errors.New("for good"), 0
		err := Again(t.Context(), time.Second, 3*time.Second, func(failure error, pause time.Duration) bool {
			pauses = append(pauses, pause)
			return !errors.Is(failure, last)
		}, func() error {
			if n++; n == 4 {
				return last
			}
			return context.DeadlineExceeded
		})
		if want := []time.Duration{time.Second, 2 * time.Second, 3 * time.Second, 3 * time.Second}; !errors.Is(err, last) ||
			!slices.Equal(pauses, want) {
			t.Errorf("%v after %v", err, pauses)
		}
	})
}
