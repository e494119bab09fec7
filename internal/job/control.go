package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/follow"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/sink/mongo/resolve"
	"github.com/millrace/millrace/internal/state"
)

type control struct {
	*follow.Finalize
	noted bool // the checkpoint may say paused; phases only

	mu      sync.Mutex
	paused  bool
	asked   bool                    // an operator has paused or resumed since the start
	changed chan struct{}           // closed and replaced at each change
	cancel  context.CancelCauseFunc // ends the phase under way
	done    chan struct{}           // closed when Run returns
	err     error                   // of Run
}

func newControl(spec Spec) (*control, error) {
	var at time.Time
	wanted := spec.Until == UntilCaughtUp || spec.Mode.EndsByItself()
	if spec.Until != "" && spec.Until != "never" && spec.Until != UntilCaughtUp {
		var err error
		if at, err = time.Parse(time.RFC3339, spec.Until); err != nil {
			return nil, fmt.Errorf("--until %q: want never, caught-up or a time (2026-01-02T15:04:05Z)", spec.Until)
		}
	}
	return &control{Finalize: follow.NewFinalize(spec.Now, wanted, at, spec.FinalizeLogged),
		changed: make(chan struct{}), done: make(chan struct{})}, nil
}

// inherit takes over the pause of the checkpoint, unless an operator has spoken since.
func (c *control) inherit(paused bool) {
	c.noted = paused // if it was resumed meanwhile, the checkpoint has to say so
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.asked && paused {
		c.set(true)
	}
}

// ask records an operator's request, and reports whether it changes the last one.
func (c *control) ask(paused bool) (other bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked, other = true, c.paused != paused
	c.set(paused)
	return other
}

// set is called with mu held.
func (c *control) set(paused bool) {
	c.paused = paused
	close(c.changed)
	c.changed = make(chan struct{})
	if paused && c.cancel != nil {
		c.cancel(errPaused)
	}
}

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

// state is whether the job is paused, and what is closed when that changes.
func (c *control) state() (paused bool, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.paused, c.changed
}

func (c *control) whilePaused(ctx context.Context) error {
	for {
		paused, changed := c.state()
		if !paused {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (c *control) isPaused() bool {
	paused, _ := c.state()
	return paused
}

func (c *control) finish(err error) {
	c.err = err
	close(c.done)
}

// Pause stops after a checkpoint. The job stays owned. The request survives a restart.
func (j *Job) Pause(ctx context.Context) error {
	if j.control.ask(true) {
		j.log.Info("paused by operator")
	}
	return ctx.Err()
}

// Resume ends a pause. Before Run it overrides the pause that the checkpoint remembers.
func (j *Job) Resume(ctx context.Context) error {
	if j.control.ask(false) {
		j.log.Info("resumed by operator")
	}
	return ctx.Err()
}

// RetryLetters is RetryLetter for all open dead letters.
func (j *Job) RetryLetters(ctx context.Context) error { return j.RetryLetter(ctx) }

// RetryLetter tries open dead letters again, all of them without ids, and waits for the end, for at
// most 8 s: a backlog delays it.
func (j *Job) RetryLetter(ctx context.Context, ids ...string) error {
	const wait = 8 * time.Second
	if j.control.isPaused() {
		return mongo.WithHint(errors.New("the job is paused"),
			"resume it (millrace resume): that tries all open dead letters")
	}
	j.letters.Choose(ids, false)
	j.log.Info("open dead letters are tried again on request")
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for j.letters.AnyDue(j.letters.Until()) {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-j.control.done:
			return j.control.err
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// SetLimits changes at once how fast the job copies and applies, until the process ends.
func (j *Job) SetLimits(_ context.Context, r pace.Rates) error {
	if r.Docs < 0 || r.Bytes < 0 {
		return mongo.WithHint(fmt.Errorf("limits: rates must not be negative: %d documents, %d bytes a second",
			r.Docs, r.Bytes), "0 is unlimited")
	}
	if r == j.limit.Rates() {
		return nil
	}
	j.limit.Set(r)
	j.log.Info("limits changed by operator", "docsPerSecond", r.Docs, "bytesPerSecond", r.Bytes)
	return nil
}

// SetLoads changes at once what the job asks of each side, until the process ends.
func (j *Job) SetLoads(_ context.Context, l pace.Loads) error {
	if err := l.Check(); err != nil {
		return err
	}
	source, _ := j.srcGate.Load()
	target, _ := j.dstGate.Load()
	if l == (pace.Loads{Source: source, Target: target}) {
		return nil
	}
	j.srcGate.SetLoad(l.Source)
	j.dstGate.SetLoad(l.Target)
	for _, s := range j.sources() {
		s.Limit(inUse(l.Source, sourceLow))
	}
	j.dst.Limit(inUse(l.Target, targetLow))
	j.log.Info("loads changed by operator", "source", l.Source, "target", l.Target)
	return nil
}

// Refusal says why an operator's request is refused. Code is one of the words below.
type Refusal = follow.Refusal

// The codes of refusals.
const (
	CodeNotFollowing = "notFollowing" // the target is not at one position of the source yet
	CodePaused       = "paused"
	CodeWithdrawn    = "withdrawn" // finalize was taken back
	CodeNotWanted    = "notWanted" // nobody has asked to finalize
	CodeDraining     = "draining"  // finalize cannot be taken back any more
	CodeBuilding     = follow.CodeBuilding
)

// Finalize requests the cut-over and waits for it: the job drains to the source's newest position,
// restores what was deferred, compares the catalogs and ends. It goes on after ctx ends. A job that
// does not follow yet refuses the request, or keeps it if whenCaughtUp is set. A kept request ends
// with the process: a restart brings no surprising cut-over.
func (j *Job) Finalize(ctx context.Context, whenCaughtUp bool) error {
	if st := j.Status(); !whenCaughtUp && st.CannotFinalize != "" && !slices.Contains([]Phase{PhaseFinalizing,
		PhaseFinalized}, st.Phase) {
		if st.Paused {
			return follow.Refuse(CodePaused, "resume it first (millrace resume)", "finalize: %s", st.CannotFinalize)
		}
		return follow.Refuse(CodeNotFollowing, "wait for phase following, or give --when-caught-up to finalize as soon as "+
			"it is reached, whatever is written to the source until then",
			"finalize: %s", st.CannotFinalize)
	}
	withdrawn, isNew := j.control.Request()
	if isNew {
		j.log.Info("finalize requested by operator", "whenCaughtUp", whenCaughtUp)
	}
	select {
	case <-j.control.done:
		return j.control.err
	case <-withdrawn:
		return cmp.Or(j.control.Rejection(),
			follow.Refuse(CodeWithdrawn, "the job goes on; see millrace status", "finalize was taken back"))
	case <-ctx.Done():
		return ctx.Err()
	}
}

// CancelFinalize withdraws the request to finalize, also that of Spec.Until, before it begins.
func (j *Job) CancelFinalize(ctx context.Context) error {
	if j.spec.Mode.EndsByItself() {
		return follow.Refuse(CodeNotWanted, "interrupt it to stop it",
			"a job of mode %s ends by itself: there is no finalize to take back", j.spec.Mode)
	}
	switch was, begun := j.control.Withdraw(); {
	case begun:
		return follow.Refuse(CodeDraining, "it ends when all is applied that the source had at that moment",
			"finalize cannot be taken back: the job has begun to finalize")
	case !was:
		return follow.Refuse(CodeNotWanted, "see millrace status", "nobody has asked the job to finalize")
	}
	j.log.Info("finalize taken back by operator")
	return ctx.Err()
}

func (j *Job) cannotFinalize(s Status) string {
	if j.spec.Mode == ModeStructure && s.Phase != PhaseFinalized && s.Phase != PhaseFailed {
		return "the job makes the structure alone, and ends by itself"
	}
	return notYet(s)
}

// notYet returns what a job that copies documents still has to do, "" for nothing.
func notYet(s Status) string {
	behind := ""
	if lag := s.Follow.LagSeconds; lag > 0 {
		behind = fmt.Sprintf(", %s behind the source", time.Duration(lag*float64(time.Second)))
	}
	switch s.Phase {
	case state.PhaseCreating, PhaseCopying: // collections are made while reading begins
		return fmt.Sprintf("the copy is under way, %d of about %d documents are copied", s.Copy.Docs, s.Copy.DocsTotal)
	case PhaseIndexing:
		return "the documents are copied, and indexes are being built"
	case PhaseOverlap:
		return "changes made during the copy are still being applied" + behind
	case PhaseFollowing:
		if s.Paused {
			return "the job is paused" + behind
		}
		return ""
	case PhaseFinalizing:
		return "the job is being finalized" + behind
	case PhaseFinalized:
		return "the job is finalized"
	case PhaseFailed:
		return "the job has failed"
	}
	return "the copy has not begun"
}

// Repair is a document of the target to make equal to the source's, with its outcome.
type Repair = follow.Repair

// The outcomes of a repair.
const (
	RepairWritten = resolve.RepairWritten
	RepairDeleted = resolve.RepairDeleted
	RepairSame    = resolve.RepairSame
	RepairRefused = follow.RepairRefused
)

// ErrEnded reports that the job's run ended before the request was done.
var ErrEnded = errors.New("the job's run has ended")

// Repair makes documents of the target equal to those of the source, and waits for their outcomes.
// notify gets the state of all with each new outcome. The job repairs while it follows, in order
// with the changes of the source. Repairs that have begun are finished even if ctx ends.
func (j *Job) Repair(ctx context.Context, list []*Repair, notify func(now []Repair)) error {
	if j.source.shards != nil || j.source.routed() || j.dst.Info.Kind == mongo.KindSharded {
		return mongo.WithHint(errors.New("documents of sharded clusters are not repaired"),
			"update them on the source: millrace then writes them again")
	}
	j.repairs.Add(list)
	defer j.repairs.Remove(list)
	for ended := false; ; {
		now, open, changed := j.repairs.Look(list)
		switch notify(now); {
		case open == 0:
			return nil
		case ended:
			return ErrEnded
		}
		select {
		case <-changed:
		case <-j.control.done: // the last outcomes may be of the same moment
			ended = true
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
