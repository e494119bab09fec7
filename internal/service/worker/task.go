package worker

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
)

// task is work under a lease: a job's run, or a verification.
type task struct {
	worker *Worker
	lease  service.Lease
	held   *hub.Held
	log    *slog.Logger
	ctx    context.Context
	cancel context.CancelCauseFunc
}

var (
	errLost    = errors.New("the lease was lost")
	errDrained = errors.New("the worker is drained")
)

// begin returns nil if it cannot take the lease.
func (w *Worker) begin(ctx context.Context, key string, log *slog.Logger) *task {
	t := &task{worker: w, log: log, lease: service.Lease{Worker: w.Name, Run: rand.Text(), Since: time.Now().UTC()}}
	var err error
	if t.held, err = w.Hub.Leases.Take(ctx, key, t.lease); err != nil {
		if !errors.Is(err, hub.ErrHeld) {
			log.Warn("a job or its verification cannot be taken", "error", err)
		}
		return nil
	}
	t.ctx, t.cancel = context.WithCancelCause(ctx)
	return t
}

// lead works in a goroutine, has one in all meanwhile, then looks for other work.
func lead[T any](w *Worker, all map[string]T, job string, one T, work func()) {
	w.mu.Lock()
	all[job] = one
	w.mu.Unlock()
	w.group.Go(func() error {
		work()
		w.mu.Lock()
		delete(all, job)
		w.mu.Unlock()
		select {
		case w.ended <- struct{}{}:
		default:
		}
		return nil
	})
}

// keeping renews the lease during work, also after ctx has ended, and releases it after last.
func (t *task) keeping(work func(), last func(context.Context)) {
	defer t.cancel(nil)
	var keeping sync.WaitGroup
	keep, done := context.WithCancel(context.WithoutCancel(t.ctx))
	keeping.Go(func() { t.keep(keep) })
	work()
	done()
	keeping.Wait()
	ctx, cancel := t.beyond(5 * time.Second)
	defer cancel()
	last(ctx)
	if err := t.held.Release(ctx); err != nil {
		t.log.Warn("the lease could not be given back; it ends by itself", "error", err)
	}
}

// keep ends the task when the lease is lost.
func (t *task) keep(ctx context.Context) {
	every := t.worker.Hub.Lease() / 5
	for pace.Pause(ctx, every) == nil {
		try, cancel := context.WithTimeout(ctx, every)
		err := t.held.Renew(try)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			t.log.Warn("the lease could not be renewed", "error", err)
		}
		if errors.Is(err, hub.ErrHeld) || time.Until(t.held.Until()) < every {
			t.cancel(errLost)
			return
		}
	}
}

// store writes a report, unless the lease has ended.
func (t *task) store(write func(context.Context) error) error {
	if !t.owned() {
		return errLost
	}
	ctx, cancel := t.beyond(3 * time.Second)
	defer cancel()
	return write(ctx)
}

// owned reports whether the lease lasts. Without it, another worker may report.
func (t *task) owned() bool { return time.Now().Before(t.held.Until()) }

// beyond returns a context that outlives the task.
func (t *task) beyond(time time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(t.ctx), time)
}
