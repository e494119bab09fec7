package job

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/follow"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/sink/mongo/resolve"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
)

// errPaused ends a phase on purpose, as follow.ErrFinished does.
var errPaused = errors.New("paused")

// Run checks, then runs the job from its checkpoint until it is finalized (nil), ctx ends, or
// something fails for good.
func (j *Job) Run(ctx context.Context) (err error) {
	defer func() {
		if err != nil && ctx.Err() == nil {
			j.progress.Fail(err)
		}
		j.control.finish(err)
	}()
	if j.plan == nil {
		plan, err := j.Plan(ctx)
		if err != nil {
			return err
		}
		if plan.Checks.Failed() {
			return &PrecheckError{Plan: plan}
		}
	}
	// Restarted amid a failure, it waits for its end as one that runs does.
	if err := j.backoff.Try(ctx, j.spec.GiveUpAfter,
		func() error { return j.explained(ctx, j.lease.take(ctx)) }); err != nil {
		return err
	}
	if was := j.lease.resumed; was != nil {
		j.spec.OnExisting = j.spec.OnExisting.Or(was.OnExisting)
		j.control.inherit(was.Paused)
		if j.accounts != nil {
			j.accounts.resume(was.Users)
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	if j.accounts != nil {
		g.Go(func() error { return j.accounts.keep(gctx, j.control.isPaused) })
	}
	g.Go(func() error {
		err := j.phases(gctx)
		if err == nil {
			return follow.ErrFinished // ends the monitor too
		}
		return err
	})
	m := &monitor{progress: j.progress, source: j.source, spooler: j.spooler, builds: j.builds, log: j.log,
		warnWindow: j.spec.WarnWindow,
		follows:    j.source.cluster.Info.Kind != mongo.KindStandalone && j.spec.Mode != ModeStructure}
	g.Go(func() error { return m.run(gctx) })
	g.Go(func() error { return j.lease.heartbeat(gctx) })
	if err = g.Wait(); errors.Is(err, follow.ErrFinished) {
		err = nil
	}
	if st := j.letters.Stats(); err == nil && st.Open+st.Unmapped > 0 {
		j.log.Warn("the target lacks documents of the finalized job", "deadLetters", st.Text(),
			"hint", "millrace deadletters list --job "+j.id)
	}
	if closeErr := j.spooler.Close(err == nil); closeErr != nil {
		j.log.Warn("the spool could not be closed", "error", closeErr)
	}
	j.lease.letGo(ctx, err)
	return err
}

// phases runs the job's phases from the checkpoint, again after each temporary failure.
func (j *Job) phases(ctx context.Context) error {
	return j.backoff.Try(ctx, j.spec.GiveUpAfter, func() error {
		for {
			err := j.pausePoint(ctx)
			if err == nil {
				err = j.explained(ctx, j.attempt(ctx))
			}
			if !errors.Is(err, errPaused) || ctx.Err() != nil {
				return err
			}
		}
	})
}

// explained adds what is known of the servers that may have caused a failure.
func (j *Job) explained(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	return j.source.cluster.WithLimit(j.dst.WithLimit(j.withCompatibility(ctx, err)))
}

// withCompatibility adds a lowered featureCompatibilityVersion of the target to a fatal server
// error: the target then refuses what it accepted before.
func (j *Job) withCompatibility(ctx context.Context, err error) error {
	if !mongo.Reported(err) || mongo.Classify(err) != mongo.ClassFatal {
		return err
	}
	const askTime = 10 * time.Second
	asking, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	now, unknown := j.dst.Compatibility(asking)
	if unknown != nil {
		return err //nolint:nilerr // what failed first matters
	}
	for _, raise := range []string{j.dst.Info.FCV, j.source.cluster.Info.FCV} {
		if mongo.OlderFCV(now, raise) {
			// In the error itself, for that may have a hint for servers as they were.
			return fmt.Errorf("%w (the target's featureCompatibilityVersion is %s: raise it with "+
				"setFeatureCompatibilityVersion to %s)", err, now, raise)
		}
	}
	return err
}

func (j *Job) failing(failure error, pause time.Duration) {
	if failure == nil {
		j.progress.Wait("")
		return
	}
	j.progress.CountError("retry")
	reason, more := "a failure to pass: "+mongo.Brief(failure), []any{"error", failure, "retryIn", pause}
	if hint := mongo.HintOf(failure); hint != "" {
		reason, more = reason+" ("+hint+")", append(more, "hint", hint)
	}
	j.progress.Wait(reason)
	j.log.Warn("interrupted; trying again from the last checkpoint", more...)
}

func (j *Job) pausePoint(ctx context.Context) error {
	if j.control.isPaused() {
		j.control.noted = true
		if err := j.store.Mark(ctx, bson.D{{Key: "paused", Value: true}}); err != nil {
			return err
		}
		j.progress.Wait("the operator to resume")
		if err := j.control.whilePaused(ctx); err != nil {
			return err
		}
		j.progress.Wait("")
	}
	if !j.control.noted {
		return nil
	}
	if err := j.store.Mark(ctx, bson.D{{Key: "paused", Value: false}}); err != nil {
		return err
	}
	j.control.noted = false
	return nil
}

func (j *Job) attempt(ctx context.Context) error {
	ctx, cancel := j.control.phase(ctx)
	defer cancel(nil)
	job, err := j.begin(ctx)
	if err != nil {
		return causeOr(ctx, err)
	}
	if err := j.load(ctx, job); err != nil {
		return causeOr(ctx, err)
	}
	// The target has been read and the source answers: nothing fails any more.
	j.backoff.Worked()
	life := fmt.Sprintf("%s to %s since %d", job.SourceSet.Hex(), job.TargetSet.Hex(), job.CreatedAt.UnixNano())
	defer j.spooler.Begin(ctx, life, j.progress.ReadFrom)()
	for {
		err = j.step(ctx, j.stored)
		if errors.Is(err, follow.ErrFinished) {
			return nil
		}
		if err != nil {
			return causeOr(ctx, j.noteRefused(ctx, job, j.whole(ctx, err)))
		}
		j.show(j.stored)
	}
}

// begin begins an attempt. For a new job it looks at the same time.
func (j *Job) begin(ctx context.Context) (job state.Job, err error) {
	g, gctx := errgroup.WithContext(ctx)
	if j.preparer.looked = j.lease.made; j.lease.made {
		j.lease.made = false
		g.Go(func() error { return j.preparer.look(gctx) })
	}
	g.Go(func() (err error) {
		job, err = j.lease.begin(gctx)
		return err
	})
	err = g.Wait()
	return job, err
}

func (j *Job) load(ctx context.Context, job state.Job) error {
	if err := j.checkCapture(&job); err != nil {
		return err
	}
	j.stored, j.catalog, j.fresh = job, nil, job.Phase == PhaseCatalog
	j.cat.KeepRoom(job.Roomy)
	if j.source.shards != nil {
		now, err := j.source.shards.Refresh(ctx, job.ResumeAt())
		if err != nil {
			return err
		}
		for what, names := range map[string][]string{"a shard has joined the source": now.Joined,
			"a shard has left the source": now.Left,
			"a shard has left the source while the job was stopped; the rest of its changes is read from its " +
				"servers": now.Unread} {
			for _, name := range names {
				j.log.Info(what, "shard", name)
			}
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return j.letters.Load(gctx, j.spec.OnConflict != ConflictStop) })
	if job.Phase == PhaseCatalog {
		if !job.Restarted { // what there is of a copy is of a snapshot that was not taken to its end
			g.Go(func() error { return j.store.Clear(gctx) })
		}
		if !j.preparer.looked {
			g.Go(func() error { return j.preparer.look(gctx) })
		}
	} else {
		g.Go(func() (err error) {
			j.catalog, err = j.store.LoadCatalog(gctx)
			return err
		})
	}
	g.Go(func() error {
		_, err := j.source.Positions(gctx)
		return err
	})
	g.Go(func() error { return j.readable(gctx) })
	if err := g.Wait(); err != nil {
		return err
	}
	j.show(job)
	return nil
}

func (j *Job) show(job state.Job) {
	failpoint.Hit("load.after")
	j.progress.Enter(job.Phase)
	j.progress.SetApplied(job.ResumeAt())
}

// mostRefused bounds the noted conflicts, mostDifferences the stored differences.
const (
	mostRefused     = 1000
	mostDifferences = 100
)

// whole returns the cause of an error that may come from a shard that joined and was not read.
func (j *Job) whole(ctx context.Context, err error) error {
	if j.source.shards == nil || mongo.Classify(err) == mongo.ClassRetry || mongo.Classify(err) == mongo.ClassCanceled {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if cause := j.source.shards.Whole(ctx); cause != nil {
		j.log.Info("asked for the shards after an error", "error", err)
		return cause
	}
	return err
}

// noteRefused stores the documents of conflicts that end the job, and how far it has sent. After
// the restart, neither their events nor what was not sent count as possibly applied. If the
// target's primary changed, that cannot be stored, and the conflict is in doubt, too.
func (j *Job) noteRefused(ctx context.Context, job state.Job, err error) error {
	var c *resolve.ConflictError
	if !errors.As(err, &c) || c.Since.IsZero() {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	all := slices.DeleteFunc(slices.Clone(job.Refused), func(p stream.Place) bool { return !c.Applied.Before(p.At) })
	for _, one := range append([]*resolve.ConflictError{c}, c.Others...) {
		all = append(all, stream.Place{Origin: stream.Origin{NS: one.NS}, ID: one.Doc, At: one.Since})
	}
	all = all[max(len(all)-mostRefused, 0):]
	fields := bson.D{{Key: "refused", Value: all}}
	if !c.Sent.IsZero() {
		fields = append(fields, bson.E{Key: "reach", Value: c.Sent})
	}
	if noteErr := j.store.SaveDurably(ctx, fields); noteErr != nil {
		j.log.Warn("the conflict could not be recorded", "conflict", err, "error", noteErr)
		if mongo.Classify(noteErr) == mongo.ClassRetry {
			return noteErr
		}
	}
	return err
}

func (j *Job) step(ctx context.Context, job state.Job) error {
	if job.Phase == PhaseCatalog {
		return j.preparer.prepare(ctx, job)
	}
	catalog := j.catalog
	j.source.Names = state.Names(catalog) // at the position from which the job goes on
	if j.spec.Mode == ModeStructure && job.Phase != PhaseFinalized {
		return j.copier.structure(ctx, job.Phase, catalog)
	}
	switch job.Phase {
	case state.PhaseCreating, PhaseCopying:
		return j.copier.copyAll(ctx, job, catalog)
	case PhaseIndexing:
		return j.copier.buildIndexes(ctx, catalog)
	case PhaseOverlap, PhaseFollowing, PhaseFinalizing:
		return j.follow(ctx, job)
	case PhaseFinalized:
		j.log.Info("job is finalized already", "job", j.id)
		return follow.ErrFinished
	}
	return fmt.Errorf("job %s is in phase %q, which this version does not know", j.id, job.Phase)
}

// SavePhase moves the job to a phase and sets fields of the step.
func (s *session) SavePhase(ctx context.Context, p Phase, set ...bson.E) error {
	failpoint.Hit("phase.before")
	defer failpoint.Hit("phase.after")
	fields := append(bson.D{{Key: "phase", Value: p}}, set...)
	if err := s.store.SaveDurably(ctx, fields); err != nil {
		return err
	}
	s.progress.Enter(p)
	var err error
	s.stored, err = s.stored.With(fields)
	return err
}

func (j *Job) follow(ctx context.Context, job state.Job) error {
	if job.Phase == PhaseFinalizing { // what has begun survives a restart
		j.control.Resume()
	}
	if !job.Expiring {
		if err := j.copier.deferTTL(ctx); err != nil {
			return err
		}
	}
	b := newApplyBuffer(j.spec.ApplyBuffer, j.spec.Partitions)
	j.source.Leaves = follow.Leaves(j.letters, j.spec.OnConflict, j.log)
	changes := j.source.Changes(oplog.Options{Keep: j.rules.Followed(), Prefixes: j.rules.Prefixes(),
		JoinRenames: j.rules.Commands(), Log: j.log, Shared: j.spec.Oplogs,
		ReadAheadBytes: b.readAhead, BatchBytes: b.batch, TxnBufferBytes: b.transactions},
		func() []schema.Name { return j.source.Names.All() }, job.Intent)
	return follow.Run(ctx, job, job.ResumeAt(), follow.Options{
		Mode: j.spec.Mode, OnExisting: j.spec.OnExisting, Rules: j.rules, Counters: j.counters, Store: j.store, Target: j.dst,
		Schema: follow.SchemaOf(j.cat), Letters: j.letters, Progress: j.progress, Log: j.log,
		Fresh: j.fresh, Capped: slices.ContainsFunc(j.catalog, func(m state.Mapped) bool { return m.Capped() }),
		Changes: changes, Source: j.source.Source, Parts: j.source.shards != nil || j.source.routed(),
		MixedSchema: schema.MakesMixedSchema(j.source.cluster.Info.Version), Job: j.copier, Passed: j.spooler.Passed,
		Finalize: j.control.Finalize, Repairs: &j.repairs, IndexWait: j.spec.IndexWait,
	})
}

func (j *Job) newSpooler() *oplog.Spooler {
	o := oplog.SpoolOptions{MaxBytes: j.spec.SpoolBytes, Shared: j.spec.Oplogs, Log: j.log}
	if j.spec.SpoolDir != "" && j.source.cluster.Info.Kind == mongo.KindReplicaSet && j.spec.Mode != ModeStructure &&
		j.capture.by == state.CaptureOplog {
		o.Dir = filepath.Join(j.spec.SpoolDir, j.id)
	}
	return oplog.NewSpooler(j.source.cluster, o)
}

// causeOr prefers the reason for which ctx was canceled.
func causeOr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
