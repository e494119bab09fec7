package worker

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
)

// task is what a worker does under a lease: it runs a job, or verifies one.
type task struct {
	worker *Worker
	lease  service.Lease
	held   *hub.Held
	log    *slog.Logger
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// Why a task ends before its work does.
var (
	errLost    = errors.New("the lease was lost")
	errDrained = errors.New("the worker is drained")
)

// begin takes a lease, nil if that fails or if somebody else was faster.
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

// run does a task's work in a goroutine, then calls ended with mu locked, and looks for other work.
func (w *Worker) run(g *errgroup.Group, work, ended func()) {
	g.Go(func() error {
		work()
		w.mu.Lock()
		ended()
		w.mu.Unlock()
		w.lookAgain()
		return nil
	})
}

// keeping renews the lease during work, also after the end of ctx, and releases it after last.
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

// keep renews the lease until ctx ends, and ends the task when it is lost.
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

// owned reports that the lease has not ended: else it is for another one to speak of the task.
func (t *task) owned() bool { return time.Now().Before(t.held.Until()) }

// beyond is a time for what is to be done although the task may have ended.
func (t *task) beyond(time time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(t.ctx), time)
}
