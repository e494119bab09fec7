package job

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/pace"
)

// TestNotFarAhead: writes go on while a majority of the target is a little behind,
// wait while it is far behind, and go on when it has caught up.
func TestNotFarAhead(t *testing.T) {
	const write = mostAhead + time.Second // when somebody wants to
	for behind, begins := range map[time.Duration]time.Duration{
		0: write, mostAhead / 2: write, write + time.Second: write + time.Second,
	} {
		synctest.Test(t, func(t *testing.T) {
			l := &lease{gate: pace.NewGate(pace.Normal)}
			began, failed := time.Now(), errors.New("no majority")
			done := make(chan struct{})
			go func() {
				defer close(done)
				time.Sleep(write)
				pass, err := l.gate.Enter(t.Context())
				l.gate.Leave(pass, 1)
				if took := time.Since(began); err != nil || took != begins {
					t.Errorf("behind by %s: the write began after %s, want %s; %v", behind, took, begins, err)
				}
			}()
			err := l.notFarAhead(func() error {
				time.Sleep(behind)
				return failed
			})
			if !errors.Is(err, failed) {
				t.Errorf("behind by %s: %v", behind, err)
			}
			<-done
		})
	}
}
