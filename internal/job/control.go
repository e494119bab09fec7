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
	mongosink "github.com/millrace/millrace/internal/sink/mongo"
	"github.com/millrace/millrace/internal/state"
)

// control carries what an operator asks for to the running job.
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

// newControl reads Spec.Until.
func newControl(spec Spec) (*control, error) {
	var at time.Time
	wanted := spec.Until == "caught-up" || spec.Mode.EndsByItself()
	if spec.Until != "" && spec.Until != "never" && spec.Until != "caught-up" {
		var err error
		if at, err = time.Parse(time.RFC3339, spec.Until); err != nil {
			return nil, fmt.Errorf("--until %q: want never, caught-up or a time (2026-01-02T15:04:05Z)", spec.Until)
		}
	}
	return &control{Finalize: follow.NewFinalize(spec.Now, wanted, at, spec.FinalizeLogged),
		changed: make(chan struct{}), done: make(chan struct{})}, nil
}

// inherit takes over what the checkpoint says, unless an operator has spoken
// since.
func (c *control) inherit(paused bool) {
	c.noted = paused // if it was resumed meanwhile, the checkpoint has to say so
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.asked && paused {
		c.set(true)
	}
}

// ask records an operator's pause or resume. It reports whether that changes the last request.
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

// state is whether the job is paused, and what is closed when that changes.
func (c *control) state() (paused bool, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.paused, c.changed
}

// whilePaused waits until the job is not paused.
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

// Pause stops reading and writing after a checkpoint. The job stays owned. The request survives
// a restart.
func (j *Job) Pause(ctx context.Context) error {
	if j.control.ask(true) {
		j.log.Info("paused by operator")
	}
	return ctx.Err()
}

// Resume goes on after Pause. Before Run it says that the job is not to be paused,
// whatever its checkpoint remembers.
func (j *Job) Resume(ctx context.Context) error {
	if j.control.ask(false) {
		j.log.Info("resumed by operator")
	}
	return ctx.Err()
}

// RetryLetters has each open dead letter tried once more, now, and waits until
// that is done, but not for ever: while there is a backlog it comes later.
func (j *Job) RetryLetters(ctx context.Context) error { return j.retryLetters(ctx, nil) }

// RetryLetter does so with one letter.
func (j *Job) RetryLetter(ctx context.Context, id string) error {
	return j.retryLetters(ctx, []string{id})
}

func (j *Job) retryLetters(ctx context.Context, ids []string) error {
	const wait = 8 * time.Second
	if j.control.isPaused() {
		return mongo.WithHint(errors.New("the job is paused"),
			"resume it (millrace resume): that tries all open dead letters")
	}
	if len(ids) == 0 {
		j.letters.RetryAll()
	} else {
		j.letters.Choose(ids, false)
	}
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

// SetLimits changes how fast the job copies and applies, at once. They last
// as long as this process.
func (j *Job) SetLimits(_ context.Context, r pace.Rates) error {
	if r.Docs < 0 || r.Bytes < 0 {
		return mongo.WithHint(fmt.Errorf("limits: %d documents and %d bytes a second are no rates", r.Docs, r.Bytes),
			"0 is unlimited")
	}
	if r == j.limit.Rates() {
		return nil
	}
	j.limit.Set(r)
	j.log.Info("limits changed by operator", "docsPerSecond", r.Docs, "bytesPerSecond", r.Bytes)
	return nil
}

// SetLoads changes how much the job asks of each side, at once. They last as
// long as this process.
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
		s.Limit(sourceInUse(l.Source))
	}
	j.dst.Limit(targetInUse(l.Target))
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

// Finalize requests the cut-over and waits for it: the job drains to the source's newest
// position, restores what was deferred, compares the catalogs and ends. When ctx ends first,
// the finalization goes on. A job that does not follow yet refuses the request. With
// whenCaughtUp it keeps it until it follows. A kept request ends with the process: no cut-over
// comes as a surprise after a restart.
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

// CancelFinalize withdraws the request to finalize, also that of Spec.Until, while the job has
// not begun to finalize.
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

// cannotFinalize says why the job as shown cannot be finalized now, "" if it can.
func (j *Job) cannotFinalize(s Status) string {
	if j.spec.Mode == ModeStructure && s.Phase != PhaseFinalized && s.Phase != PhaseFailed {
		return "the job makes the structure alone, and ends by itself"
	}
	return notYet(s)
}

// notYet says what a job as shown that brings documents has to do before it can be
// finalized, "" for nothing.
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

// Repair is a document of the target that is to become as the source has it, and what has
// come of it.
type Repair = follow.Repair

// What may come of a repair.
const (
	RepairWritten = mongosink.RepairWritten
	RepairDeleted = mongosink.RepairDeleted
	RepairSame    = mongosink.RepairSame
	RepairRefused = follow.RepairRefused
)

// ErrEnded says that the job's run has ended before what was asked of it.
var ErrEnded = errors.New("the job's run has ended")

// Repair makes documents of the target equal to those of the source, and waits until each has
// its outcome. Each time that one more has its outcome, notify gets the state of all. The job
// repairs while it follows, in order with the changes of the source. Repairs that have begun
// when ctx ends are still finished.
func (j *Job) Repair(ctx context.Context, list []*Repair, notify func(now []Repair)) error {
	if j.source.shards != nil || j.dst.Info.Kind == mongo.KindSharded {
		return mongo.WithHint(errors.New("documents of sharded clusters are not repaired"),
			"change them on the source, which has them written anew")
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
