package job

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	mongosink "github.com/millrace/millrace/internal/sink/mongo"
	"github.com/millrace/millrace/internal/state"
)

// PrecheckError says that the precheck found what forbids the job; nothing was
// written.
type PrecheckError struct{ Plan *Plan }

// Error names the checks that failed.
func (e *PrecheckError) Error() string { return e.Unwrap().Error() }

// Unwrap is the plan's own error, with its hint.
func (e *PrecheckError) Unwrap() error { return e.Plan.Checks.Err() }

// Run checks, then runs the job from its checkpoint until it is finalized (nil),
// ctx ends, or something fails that does not pass by itself.
func (j *Job) Run(ctx context.Context) (err error) {
	defer func() {
		if err != nil && ctx.Err() == nil {
			j.progress.fail(err)
		}
		j.control.finish(err)
	}()
	plan := j.plan
	if plan == nil {
		if plan, err = j.Plan(ctx); err != nil {
			return err
		}
	}
	if plan.Checks.Failed() {
		return &PrecheckError{Plan: plan}
	}
	// Restarted amid a failure, it waits for its end as one that runs does.
	if err := j.patiently(ctx, j.spec.GiveUpAfter, func() error { return j.take(ctx) }); err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		err := j.phases(gctx)
		if err == nil {
			return errFinished // ends the monitor too
		}
		return err
	})
	g.Go(func() error { return j.monitor(gctx) })
	g.Go(func() error { return j.heartbeat(gctx) })
	if err = g.Wait(); errors.Is(err, errFinished) {
		err = nil
	}
	if closeErr := j.spooler.Close(err == nil); closeErr != nil {
		j.log.Warn("the spool could not be closed", "error", closeErr)
	}
	j.letGo(ctx)
	return err
}

// heartbeat proves to other processes that the job has an owner, and to this
// one that it still is. While the target does not answer, the phases wait.
func (j *Job) heartbeat(ctx context.Context) error {
	t := time.NewTicker(state.BeatEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := j.store.Beat(ctx); err != nil {
			if ctx.Err() == nil && mongo.Classify(err) != mongo.ClassRetry {
				return err
			}
		}
	}
}

// letGo ends the connections over which this run has written and tells that the
// job has no owner, so that the next run need not wait to be sure.
func (j *Job) letGo(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	if err := j.dst.RenewConnections(ctx, mongo.TargetApp); err != nil {
		j.log.Debug("connections not closed", "error", err)
	}
	if err := j.store.Release(ctx); err != nil {
		j.log.Debug("job not released", "error", err)
	}
}

// take makes this run the owner of the job, a new one or the one that the
// checkpoint remembers. Nothing is written but that: begin comes first.
func (j *Job) take(ctx context.Context) error {
	_, found, err := j.store.Reload(ctx) // what follows is a majority write
	if err != nil {
		return err
	}
	if !found {
		if err := j.store.Create(ctx, j.newJob()); err != nil {
			return err
		}
	}
	job, err := j.store.TakeOver(ctx, func(o state.Owner) {
		j.progress.wait("the last owner of the job, " + o.String() + ", to be known dead")
		j.log.Info("waiting to learn whether the job's last owner still lives", "owner", o.String())
	})
	if err != nil {
		return err
	}
	j.progress.wait("")
	if !found || j.spec.Restart {
		return nil
	}
	j.resumed = true
	j.spec.OnExisting = j.spec.OnExisting.orOf(job)
	j.control.inherit(job.Paused)
	j.pauseNoted = job.Paused // if it was resumed meanwhile, the checkpoint has to say so
	j.formatWas = job.Version
	j.log.Info("resuming job", "job", j.id, "phase", job.Phase, "applied", job.Applied)
	return nil
}

// begin starts an attempt: nothing that an earlier one sent to the target runs
// there or arrives any more when it returns.
func (j *Job) begin(ctx context.Context) (state.Job, error) {
	job, err := j.store.Begin(ctx)
	if err != nil {
		return job, err
	}
	if j.spec.Restart {
		if err := j.store.Reset(ctx, j.newJob()); err != nil {
			return job, err
		}
		j.spec.Restart = false
		j.log.Info("the job begins anew", "job", j.id)
	}
	// Durable before the first transaction: the next run ends it by its name.
	set := bson.D{{Key: "session", Value: j.txn.SessionID()}}
	if j.formatWas == 1 && !job.Consistent.IsZero() {
		// That format did not note its reach: it is the source's newest position.
		newest, err := j.newest(ctx)
		if err != nil {
			return job, err
		}
		set = append(set, bson.E{Key: "reach", Value: newest})
	}
	if err := j.store.Note(ctx, set); err != nil {
		return job, err
	}
	j.formatWas = 0
	job, _, err = j.store.Reload(ctx)
	return job, err
}

// endOthers ends what other runs of the job, and earlier attempts of this one,
// have under way on the target: their operations, their transactions, and what
// is still on its way to it over their connections.
func (j *Job) endOthers(ctx context.Context, attempt int64, then bson.D) (bson.Raw, error) {
	if err := j.renewConnections(ctx, attempt); err != nil {
		return nil, err
	}
	job, _, err := j.store.Reload(ctx)
	if err != nil {
		return nil, err
	}
	failpoint.Hit("session.before")
	for _, session := range []bson.Raw{job.Session, j.txn.SessionID()} {
		if len(session) == 0 {
			continue
		}
		if err := j.dst.KillSession(ctx, session); err != nil {
			if mongo.Classify(err) == mongo.ClassRetry {
				return nil, err
			}
			j.log.Warn("an open transaction of an earlier run may hold up writes for a minute", "error", err)
		}
	}
	defer j.progress.wait("")
	return j.dst.EndConnections(ctx, mongo.OtherRuns(j.id, j.run, attempt), func(left []mongo.Connection) {
		j.progress.wait(fmt.Sprintf("%d connections of an earlier run to the target to end, one of them from %s", len(left), left[0].Client))
		j.log.Warn("an earlier run of the job still has connections to the target; they have to end before anything is written",
			"connections", len(left), "from", left[0].Client, "hint", "end that process, or the tunnel or proxy that keeps its connections")
	}, then)
}

// renewConnections gives the attempt connections that carry its name. What
// earlier attempts of this process had checked out is closed.
func (j *Job) renewConnections(ctx context.Context, attempt int64) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return j.dst.RenewConnections(ctx, mongo.RunName(j.id, j.run, attempt))
}

// phases runs the job's phases from the checkpoint, again after each failure
// that passes by itself.
func (j *Job) phases(ctx context.Context) error {
	return j.patiently(ctx, j.spec.GiveUpAfter, func() error {
		for {
			err := j.pausePoint(ctx)
			if err == nil {
				err = j.attempt(ctx)
			}
			if !errors.Is(err, errPaused) || ctx.Err() != nil {
				return err
			}
		}
	})
}

// patiently tries again what fails in a way that passes by itself, with growing
// pauses, and says so in the status. It gives up when that goes on for longer
// than limit; 0 is never.
func (j *Job) patiently(ctx context.Context, limit time.Duration, try func() error) error {
	var failingSince time.Time
	backoff := newBackoff()
	for {
		began := time.Now()
		j.answeredAt = time.Time{}
		err := try()
		switch {
		case err == nil:
			j.progress.wait("")
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case mongo.Classify(err) != mongo.ClassRetry:
			return err
		}
		switch ran := j.ran(); {
		case ran > worksAfter:
			failingSince, backoff = time.Time{}, newBackoff()
		case ran > time.Second:
			backoff = newBackoff() // it works at times: a long pause would not help
		}
		if failingSince.IsZero() {
			failingSince = began.Add(j.ran())
		}
		if limit > 0 && time.Since(failingSince) > limit {
			return fmt.Errorf("gave up after %s of failures: %w", limit, err)
		}
		d := backoff.next()
		j.progress.countError("retry")
		j.progress.wait("a failure to pass: " + err.Error())
		j.log.Warn("interrupted; trying again from the last checkpoint", "error", err, "retryIn", d)
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// worksAfter is how long after both sides answered an attempt counts as one
// that worked. It is longer than a member is waited for.
const worksAfter = 45 * time.Second

// ran is how long ago both sides answered in this attempt, 0 if they did not.
func (j *Job) ran() time.Duration {
	if j.answeredAt.IsZero() {
		return 0
	}
	return time.Since(j.answeredAt)
}

// pausePoint records a pause and waits for its end.
func (j *Job) pausePoint(ctx context.Context) error {
	if j.control.isPaused() {
		j.pauseNoted = true
		if err := j.store.Mark(ctx, bson.D{{Key: "paused", Value: true}}); err != nil {
			return err
		}
		j.progress.wait("the operator to resume")
		if err := j.control.whilePaused(ctx); err != nil {
			return err
		}
		j.progress.wait("")
	}
	if !j.pauseNoted {
		return nil
	}
	if err := j.store.Mark(ctx, bson.D{{Key: "paused", Value: false}}); err != nil {
		return err
	}
	j.pauseNoted = false
	return nil
}

// answered ends the wait for a failure to pass: the target has been read, and
// now the source answers too.
func (j *Job) answered(ctx context.Context) error {
	if _, err := j.src.Positions(ctx); err != nil {
		return err
	}
	j.answeredAt = time.Now()
	j.progress.wait("")
	return nil
}

// attempt runs phases from the durable checkpoint until the job is finished or
// something interrupts it.
func (j *Job) attempt(ctx context.Context) error {
	ctx, cancel := j.control.phase(ctx)
	defer cancel(nil)
	job, err := j.begin(ctx)
	if err != nil {
		return causeOr(ctx, err)
	}
	if err := j.letters.Load(ctx, j.spec.OnConflict != ConflictStop); err != nil {
		return causeOr(ctx, err)
	}
	endSpool := func() {}
	defer func() { endSpool() }()
	for n := 0; ; n++ {
		if n > 0 {
			if job, _, err = j.store.Reload(ctx); err != nil {
				return causeOr(ctx, err)
			}
		}
		failpoint.Hit("load.after")
		j.progress.setPhase(Phase(job.Phase))
		j.progress.setApplied(positionOf(job))
		if n == 0 {
			if err := j.answered(ctx); err != nil {
				return causeOr(ctx, err)
			}
			endSpool = j.spooler.Begin(ctx, spoolOwner(job), j.progress.reads)
		}
		err = j.step(ctx, job)
		if errors.Is(err, errFinished) {
			return nil
		}
		if err != nil {
			return j.noteRefused(ctx, job, causeOr(ctx, err))
		}
	}
}

// noteRefused records the document of a conflict that ends the job. After the
// restart its event is no longer one that may have been applied already. Where
// that cannot be recorded because the target's primary changed, what was read of
// the target is in doubt, and so is the conflict.
func (j *Job) noteRefused(ctx context.Context, job state.Job, err error) error {
	var c *mongosink.ConflictError
	if !errors.As(err, &c) || c.Since.IsZero() {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	all := append(job.Refused[:len(job.Refused):len(job.Refused)], state.Doc{NS: c.NS, ID: c.Doc, At: c.Since})
	if len(all) > mostAside {
		all = all[len(all)-mostAside:]
	}
	if noteErr := j.store.SaveDurably(ctx, bson.D{{Key: "refused", Value: all}}); noteErr != nil {
		j.log.Warn("the conflict could not be recorded", "conflict", err, "error", noteErr)
		if mongo.Classify(noteErr) == mongo.ClassRetry {
			return noteErr
		}
	}
	return err
}

// step runs one phase; nil means that the next one may begin.
func (j *Job) step(ctx context.Context, job state.Job) error {
	switch Phase(job.Phase) {
	case PhaseCatalog:
		return j.prepare(ctx, job)
	case phaseCreating:
		return j.create(ctx)
	case PhaseCopying:
		return j.copyAll(ctx, job)
	case PhaseIndexing:
		return j.buildIndexes(ctx)
	case PhaseOverlap, PhaseFollowing, PhaseFinalizing:
		return j.follow(ctx, job)
	case PhaseFinalized:
		j.log.Info("job is finalized already", "job", j.id)
		return errFinished
	}
	return fmt.Errorf("job %s is in phase %q, which this version does not know", j.id, job.Phase)
}

// causeOr prefers the reason for which ctx was canceled.
func causeOr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// backoff grows from half a second to 15 s, with jitter so that many jobs do
// not come back at once.
type backoff struct{ d time.Duration }

func newBackoff() *backoff { return &backoff{d: 250 * time.Millisecond} }

func (b *backoff) next() time.Duration {
	b.d = min(2*b.d, 15*time.Second)
	return b.d/2 + time.Duration(rand.Int64N(int64(b.d)))
}
