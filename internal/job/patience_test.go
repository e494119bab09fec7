package job

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/source/oplog"
)

func quiet() *patience {
	return &patience{log: slog.New(slog.DiscardHandler), progress: progress.New(progress.Options{ReadFrom: oplog.ReadFrom})}
}

// waiting is what the status says.
func waiting(p *patience) string {
	return p.progress.Status(func(at mongo.OpTime) mongo.OpTime { return at }).Waiting
}

// TestGivesUpThoughEachAttemptTakesLong: a member is waited for for half a
// minute; that does not count as work.
func TestGivesUpThoughEachAttemptTakesLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, began := quiet(), time.Now()
		err := p.try(t.Context(), 10*time.Minute, func() error {
			time.Sleep(time.Minute)
			if waiting(p) == "" && time.Since(began) > time.Minute {
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
		p, n := quiet(), 0
		err := p.try(t.Context(), time.Minute, func() error {
			p.worked()
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
