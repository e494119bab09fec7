package retry

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestGivesUpThoughEachAttemptTakesLong: a member is waited for for half a
// minute; that does not count as work.
func TestGivesUpThoughEachAttemptTakesLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shown, began := false, time.Now()
		p := &Patience{Waiting: func(err error, _ time.Duration) { shown = err != nil }}
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
		p, n := &Patience{Waiting: func(error, time.Duration) {}}, 0
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
