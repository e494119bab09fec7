package job

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

func quiet() *Job {
	j := &Job{log: slog.New(slog.DiscardHandler)}
	j.progress.errors = map[string]int64{}
	return j
}

// TestGivesUpThoughEachAttemptTakesLong: a member is waited for for half a
// minute; that does not count as work.
func TestGivesUpThoughEachAttemptTakesLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j, began := quiet(), time.Now()
		err := j.patiently(t.Context(), 10*time.Minute, func() error {
			time.Sleep(time.Minute)
			if j.progress.waiting == "" && time.Since(began) > time.Minute {
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
		j, n := quiet(), 0
		err := j.patiently(t.Context(), time.Minute, func() error {
			j.answeredAt = time.Now()
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
