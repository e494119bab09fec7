package job

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
)

// control carries an operator's wishes to the running job.
type control struct {
	finalize atomic.Bool

	mu      sync.Mutex
	paused  bool
	told    bool                    // an operator has paused or resumed since the start
	changed chan struct{}           // closed and replaced at each change
	cancel  context.CancelCauseFunc // ends the phase under way
	done    chan struct{}           // closed when Run returns
	err     error                   // of Run
}

func (c *control) init() {
	c.changed = make(chan struct{})
	c.done = make(chan struct{})
}

// inherit takes over what the checkpoint says, unless an operator has spoken
// since.
func (c *control) inherit(paused bool) {
	c.mu.Lock()
	told := c.told
	c.mu.Unlock()
	if !told && paused {
		c.set(true)
	}
}

// tell is set by an operator.
func (c *control) tell(paused bool) {
	c.mu.Lock()
	c.told = true
	c.mu.Unlock()
	c.set(paused)
}

func (c *control) set(paused bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paused = paused
	close(c.changed)
	c.changed = make(chan struct{})
	if paused && c.cancel != nil {
		c.cancel(errPaused)
	}
}

// phase gives a context for one run of the phases that a pause cancels.
func (c *control) phase(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	pctx, cancel := context.WithCancelCause(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cancel = cancel
	if c.paused {
		cancel(errPaused)
	}
	return pctx, cancel
}

// whilePaused waits until the job is not paused.
func (c *control) whilePaused(ctx context.Context) error {
	for {
		c.mu.Lock()
		paused, ch := c.paused, c.changed
		c.mu.Unlock()
		if !paused {
			return nil
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (c *control) isPaused() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.paused
}

func (c *control) finish(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
	close(c.done)
}

// Pause stops reading and writing after a checkpoint; the job stays owned. The
// wish survives a restart.
func (j *Job) Pause(ctx context.Context) error {
	j.control.tell(true)
	j.log.Info("paused by operator")
	return ctx.Err()
}

// Resume goes on after Pause.
func (j *Job) Resume(ctx context.Context) error {
	j.control.tell(false)
	j.log.Info("resumed by operator")
	return ctx.Err()
}

// SetLimits changes how fast the job copies and applies, at once. They last
// as long as this process.
func (j *Job) SetLimits(_ context.Context, r pace.Rates) error {
	if r.Docs < 0 || r.Bytes < 0 {
		return mongo.WithHint(fmt.Errorf("limits: %d documents and %d bytes a second are no rates", r.Docs, r.Bytes), "0 is unlimited")
	}
	j.limit.Set(r)
	j.log.Info("limits changed by operator", "docs_per_second", r.Docs, "bytes_per_second", r.Bytes)
	return nil
}

// SetLoads changes how much the job asks of each side, at once. They last as
// long as this process.
func (j *Job) SetLoads(_ context.Context, l pace.Loads) error {
	if err := l.Check(); err != nil {
		return err
	}
	j.srcGate.SetLoad(l.Source)
	j.dstGate.SetLoad(l.Target)
	j.log.Info("loads changed by operator", "source", l.Source, "target", l.Target)
	return nil
}

func (j *Job) loadStatus() (s LoadStatus) {
	s.Source, s.SourceAtOnce = j.srcGate.Load()
	s.Target, s.TargetAtOnce = j.dstGate.Load()
	return s
}

// Finalize asks for the cut-over and waits for it: the job drains to the
// source's newest position, restores what was held back, compares the catalogs
// and ends. When ctx ends first the finalization goes on.
func (j *Job) Finalize(ctx context.Context) error {
	if j.control.isPaused() {
		return mongo.WithHint(errors.New("finalize: the job is paused"), "resume it first (millrace resume)")
	}
	j.control.finalize.Store(true)
	j.log.Info("finalize requested by operator")
	select {
	case <-j.control.done:
		j.control.mu.Lock()
		defer j.control.mu.Unlock()
		return j.control.err
	case <-ctx.Done():
		return ctx.Err()
	}
}
