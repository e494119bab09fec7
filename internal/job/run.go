package job

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/expiry"
	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/follow"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/placing"
	"github.com/millrace/millrace/internal/schema"
	mongosink "github.com/millrace/millrace/internal/sink/mongo"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// errPaused ends a phase on purpose, as follow.ErrFinished does.
var errPaused = errors.New("paused")

// Run checks, then runs the job from its checkpoint until it is finalized (nil),
// ctx ends, or something fails that does not pass by itself.
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
	if err := j.patience.Try(ctx, j.spec.GiveUpAfter, func() error { return j.explained(ctx, j.lease.take(ctx)) }); err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		err := j.phases(gctx)
		if err == nil {
			return follow.ErrFinished // ends the monitor too
		}
		return err
	})
	g.Go(func() error { return (&monitor{Job: j}).run(gctx) })
	g.Go(func() error { return j.lease.heartbeat(gctx) })
	if err = g.Wait(); errors.Is(err, follow.ErrFinished) {
		err = nil
	}
	if closeErr := j.spooler.Close(err == nil); closeErr != nil {
		j.log.Warn("the spool could not be closed", "error", closeErr)
	}
	j.lease.letGo(ctx)
	return err
}

// phases runs the job's phases from the checkpoint, again after each failure
// that passes by itself.
func (j *Job) phases(ctx context.Context) error {
	return j.patience.Try(ctx, j.spec.GiveUpAfter, func() error {
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

// explained adds to a failure what is known of the servers that may be its cause.
func (j *Job) explained(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	return j.src.WithLimit(j.dst.WithLimit(j.withCompatibility(ctx, err)))
}

// withCompatibility adds to a failure that ends the job, and that a server reported, the
// target's featureCompatibilityVersion where it is lower than when the job connected, or
// than the source's: the target refuses then what it did not refuse before.
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
	for _, raise := range []string{j.dst.Info.FCV, j.src.Info.FCV} {
		if mongo.OlderFCV(now, raise) {
			// In the error itself, for that may have a hint for servers as they were.
			return fmt.Errorf("%w (the target's featureCompatibilityVersion is %s: raise it with setFeatureCompatibilityVersion to %s)", err, now, raise)
		}
	}
	return err
}

// failing says that a failure has to pass, or none any more.
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

// pausePoint records a pause and waits for its end.
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

// attempt runs phases from the durable checkpoint until the job is finished or
// something interrupts it.
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
	j.patience.Worked()
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

// begin begins an attempt. That of a new job knows what comes first, and looks
// meanwhile.
func (j *Job) begin(ctx context.Context) (job state.Job, err error) {
	g, gctx := errgroup.WithContext(ctx)
	if j.copier.looked = j.lease.made; j.lease.made {
		j.lease.made = false
		g.Go(func() error { return j.copier.look(gctx) })
	}
	g.Go(func() (err error) {
		job, err = j.lease.begin(gctx)
		return err
	})
	err = g.Wait()
	return job, err
}

// load reads what an attempt begins with, and asks whether the source answers.
func (j *Job) load(ctx context.Context, job state.Job) error {
	j.stored, j.catalog, j.fresh = job, nil, job.Phase == PhaseCatalog
	j.cat.KeepRoom(job.Roomy)
	if j.shards != nil {
		now, err := j.shards.Refresh(ctx, positionOf(job))
		if err != nil {
			return err
		}
		for what, names := range map[string][]string{"a shard has joined the source": now.Joined, "a shard has left the source": now.Left,
			"a shard has left the source while the job was stopped; the rest of its changes is read from its servers": now.Unread} {
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
		if !j.copier.looked {
			g.Go(func() error { return j.copier.look(gctx) })
		}
	} else {
		g.Go(func() (err error) {
			j.catalog, err = j.store.LoadCatalog(gctx)
			return err
		})
	}
	g.Go(func() error {
		_, err := j.origin.Positions(gctx)
		return err
	})
	g.Go(func() error { return j.readable(gctx) })
	if err := g.Wait(); err != nil {
		return err
	}
	j.show(job)
	return nil
}

// show has the status tell where a stored job stands.
func (j *Job) show(job state.Job) {
	failpoint.Hit("load.after")
	j.progress.Enter(job.Phase)
	j.progress.SetApplied(positionOf(job))
}

// mostRefused bounds the documents of conflicts that are noted, mostDifferences
// what is noted of a finalized job.
const (
	mostRefused     = 1000
	mostDifferences = 100
)

// whole gives the cause of an error that may come from a shard that has joined and that
// nobody has read yet: what it did is missing on the target.
func (j *Job) whole(ctx context.Context, err error) error {
	if j.shards == nil || mongo.Classify(err) == mongo.ClassRetry || mongo.Classify(err) == mongo.ClassCanceled {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if cause := j.shards.Whole(ctx); cause != nil {
		j.log.Info("asked for the shards after an error", "error", err)
		return cause
	}
	return err
}

// noteRefused records the documents of conflicts that end the job, and how far it has sent
// anything. After the restart their events are none that may have been applied already, and
// neither is what was not sent. Where that cannot be recorded because the target's primary
// changed, what was read of the target is in doubt, and so is the conflict.
func (j *Job) noteRefused(ctx context.Context, job state.Job, err error) error {
	var c *mongosink.ConflictError
	if !errors.As(err, &c) || c.Since.IsZero() {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	all := slices.DeleteFunc(slices.Clone(job.Refused), func(p stream.Place) bool { return !c.Applied.Before(p.At) })
	for _, one := range append([]*mongosink.ConflictError{c}, c.Others...) {
		all = append(all, stream.Place{NS: one.NS, ID: one.Doc, At: one.Since})
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

// step runs one phase; nil means that the next one may begin.
func (j *Job) step(ctx context.Context, job state.Job) error {
	if job.Phase == PhaseCatalog {
		return j.copier.prepare(ctx, job)
	}
	catalog := j.catalog
	j.ask.Names = state.Names(catalog) // at the position from which the job goes on
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

// savePhase moves the job on, with fields that belong to the step.
func (j *Job) savePhase(ctx context.Context, p Phase, set ...bson.E) error {
	failpoint.Hit("phase.before")
	defer failpoint.Hit("phase.after")
	fields := append(bson.D{{Key: "phase", Value: p}}, set...)
	if err := j.store.SaveDurably(ctx, fields); err != nil {
		return err
	}
	j.progress.Enter(p)
	var err error
	j.stored, err = j.stored.With(fields)
	return err
}

// follow replicates changes until the job is finalized.
func (j *Job) follow(ctx context.Context, job state.Job) error {
	if job.Phase == PhaseFinalizing { // what has begun survives a restart
		j.control.begin()
	}
	if !job.Expiring {
		if err := j.copier.deferTTL(ctx); err != nil {
			return err
		}
	}
	b := j.spec.applyBuffer()
	leaves := j.leaves()
	j.ask.LeavesOut = leaves != nil
	return follow.Run(ctx, job, positionOf(job), follow.Options{
		Mode: j.spec.Mode, OnExisting: j.spec.OnExisting, Rules: j.rules, Tally: j.tally, Store: j.store, Target: j.dst, Schema: j.cat,
		MixedSchema: schema.MakesMixedSchema(j.src.Info.Version), Letters: j.letters, Leaves: leaves, Ask: j.ask, Progress: j.progress, Log: j.log,
		Fresh: j.fresh, Capped: slices.ContainsFunc(j.catalog, func(m state.Mapped) bool { return m.Capped() }),
		Source: j.origin.Changes(oplog.Options{Keep: j.rules.Match, JoinRenames: j.rules.Commands(), Log: j.log,
			ReadAheadBytes: b.readAhead, BatchBytes: b.batch, TxnBufferBytes: b.transactions}, func() []schema.Name { return j.ask.Names.All() }, job.Intent),
		Parts: j.shards != nil, Sink: j.sink, CopyAnew: j.copier.again, CopyWithin: j.copier.within, Slices: sliceStore{j.store}.LoadSlices,
		Repairs: &j.repairs, SavePhase: j.savePhase, Passed: j.spooler.Passed, Compare: j.compare, Finish: j.finish, Unclear: &j.unclear,
		Wanted: func() bool { return j.control.due(j.spec.Now()) }, Final: func() bool { return j.control.final(j.spec.Now()) },
		Rejected: j.rejectFinal, IndexWait: j.spec.IndexWait,
	})
}

// newSpooler prepares to keep changes of the source on local disk.
func (j *Job) newSpooler() *oplog.Spooler {
	o := oplog.SpoolOptions{MaxBytes: j.spec.SpoolBytes, Log: j.log}
	if j.spec.SpoolDir != "" && j.src.Info.Kind == mongo.KindReplicaSet && j.spec.Mode != ModeStructure {
		o.Dir = filepath.Join(j.spec.SpoolDir, j.id)
	}
	return oplog.NewSpooler(j.src, o)
}

// leaves keeps documents that the rules cannot map; nil has them end the job.
func (j *Job) leaves() transform.LeftOut {
	return follow.Leaves(j.letters, j.spec.OnConflict, j.log)
}

// sink makes the engine that applies changes, with what it needs to know about
// conflicts.
func (j *Job) sink(pos stream.Position, o mongosink.Options) *mongosink.Engine {
	partitions := partitionsFor(j.spec.Partitions, j.dst.Pool.RoundTripTime())
	b := newApplyBuffer(j.spec.ApplyBuffer, partitions)
	o.Sizes = mongosink.Sizes{Partitions: partitions, InFlight: b.inFlight, BatchBytes: b.writes, Coalesce: b.kept}
	o.Targets, o.LeavesOut = targets{j, j.ask.Names}, j.ask.LeavesOut
	o.Policy = mongosink.Policy{Overwrite: j.spec.OnExisting == ExistingMerge, OnConflict: j.spec.OnConflict, Letters: j.letters}
	o.Source = mongosink.Source{Reread: j.ask.Reread, Has: j.ask.OnSource}
	if j.shards != nil {
		o.Source.Whole = j.shards.Whole
	}
	o.Write.Transactions, o.Write.SameTerm, o.Write.Gate = j.txn, j.store.SameTerm, j.dstGate
	o.Write.Others = j.spec.OnExisting == ExistingMerge
	o.Log, o.Limit = j.log, j.limit
	return mongosink.New(j.dst, pos, o)
}

// partitionsFor is how many partitions there are for a target so far away, unless
// a number was asked for. One that waits for an answer keeps the target waiting
// too, so that more are needed the longer that takes.
func partitionsFor(asked int, away time.Duration) int {
	const (
		near, most = 8, 16
		doubling   = 40 * time.Millisecond // the round trip for which there are twice as many
	)
	if asked > 0 {
		return asked
	}
	return min(near+int(min(float64(near)*float64(away)/float64(doubling), most)), most)
}

// targets are the collections of the target as they are now.
type targets struct {
	*Job
	*schema.Names
}

// Traits reads what restricts the applying of events to a target collection.
func (j targets) Traits(ctx context.Context, ns string) (mongosink.Traits, error) {
	c, _, err := collection(ctx, j.dst, ns)
	if err != nil {
		return mongosink.Traits{}, err
	}
	keys, err := j.dst.ShardKeys(ctx, ns)
	return mongosink.Traits{Capped: c.Capped(), Collated: c.Collated(), Key: docwrite.KeyOf(keys[ns], c.Collated())}, err
}

// keepsExpired says that documents of a target's namespace stay there when they expire.
func (j *Job) keepsExpired(targetNS string) bool {
	return slices.ContainsFunc(j.rules.Sources(targetNS), func(ns string) bool { return j.rules.Route(ns).KeepsExpired })
}

// Expiry says how documents expire that stay on the target, and gives what counts them. The settings are those at the position that is applied: schema
// changes note them on the target. In mode incremental the target has them to begin with.
func (j targets) Expiry(ctx context.Context, r *stream.Route) (expiry.Settings, func(n int64), error) {
	c, _, err := collection(ctx, j.dst, r.Target)
	if err != nil {
		return nil, nil, err
	}
	s, err := j.cat.Deferred.Expiry(ctx, r.Target, c.Collated(), j.spec.Mode == ModeIncremental)
	return s, j.tally.Expired(j.rules.Route(r.Source)), err
}

// collection reads the options of a collection of the target as they are now.
func collection(ctx context.Context, c *mongo.Cluster, ns string) (coll schema.Collection, found bool, err error) {
	db, name := mongo.SplitNS(ns)
	specs, err := c.Client.Database(db).ListCollectionSpecifications(ctx, bson.D{{Key: "name", Value: name}})
	if err != nil || len(specs) == 0 {
		return coll, false, err
	}
	coll = schema.Collection{NS: ns, Options: specs[0].Options}
	if uuid := specs[0].UUID; uuid != nil {
		coll.UUID = *uuid
	}
	return coll, true, nil
}

// compare finds how the target's collections, options and indexes differ from the
// source's.
func (j *Job) compare(ctx context.Context) ([]schema.Difference, error) {
	// Shard keys are as rules say, or as they were when a collection was made.
	o := schema.DiffOptions{Keep: j.rules.Match, Own: j.ask.Names.Targets(), IgnoreSharding: true}
	var err error
	if j.shards != nil {
		if o.Building, err = j.shards.Building(ctx, j.rules); err != nil {
			return nil, err
		}
	}
	if j.placer != nil {
		if err := j.placer.Settle(ctx); err != nil {
			return nil, err
		}
		if o.Made, err = j.placer.Made(ctx); err != nil {
			return nil, err
		}
		if err := j.tellKeys(ctx); err != nil {
			return nil, err
		}
	}
	return schema.Diff(ctx, j.src, j.dst, j.rules, o)
}

// rezone gives the job's collections the zones that the source has now: changes of zones
// are in no shard's oplog.
func (j *Job) rezone(ctx context.Context) (diffs []schema.Difference, err error) {
	if j.placer == nil {
		return nil, nil
	}
	var pairs []placing.Pair
	for _, n := range j.ask.Names.All() {
		pairs = append(pairs, placing.Pair{NS: n.NS, Target: n.Target})
	}
	left, err := j.placer.Rezone(ctx, pairs)
	for _, l := range left {
		diffs = append(diffs, schema.Difference{NS: l.NS, What: "zones", Source: l.Source, Target: l.Target})
	}
	return diffs, err
}

// tellKeys tells of collections that the source has sharded otherwise since they were
// made on the target.
func (j *Job) tellKeys(ctx context.Context) error {
	if j.shards == nil {
		return nil
	}
	var names, targets []string
	for _, n := range j.ask.Names.All() {
		names, targets = append(names, n.NS), append(targets, n.Target)
	}
	want, err := placing.Entries(ctx, j.src, names)
	if err != nil {
		return err
	}
	have, err := placing.Entries(ctx, j.dst, targets)
	if err != nil {
		return err
	}
	for i, ns := range names {
		if _, ruled := j.wishes.Rules.Of(ns); !ruled && !placing.SameKey(want[ns].Key, have[targets[i]].Key) {
			j.log.Warn("a collection has another shard key on the target than on the source", "ns", ns,
				"source", placing.KeyText(want[ns].Key), "target", placing.KeyText(have[targets[i]].Key))
		}
	}
	return nil
}

// finish notes how the catalogs differ, and ends the job.
func (j *Job) finish(ctx context.Context, end follow.Final) error {
	zones, err := j.rezone(ctx)
	if err != nil {
		return err
	}
	var lines []string
	for _, d := range append(end.Differences, zones...) {
		if d.Skipped != "" {
			j.log.Info("target differs from the source as it has to", "difference", d.String())
			continue
		}
		lines = append(lines, strings.TrimSpace(d.String()))
		j.log.Warn("target differs from the source", "difference", d.String())
	}
	fallBack := end.At
	if j.shards != nil { // to which no job writes yet
		fallBack = mongo.OpTime{}
	}
	if j.placer != nil {
		if err := j.placer.Release(ctx); err != nil {
			return err
		}
	}
	err = deadletter.Bind(ctx, j.dst, j.id, func(ctx context.Context, ns string) (bson.Binary, error) {
		c, _, err := collection(ctx, j.dst, ns)
		return c.UUID, err
	})
	if err != nil {
		return err
	}
	j.progress.SetFinal(lines, j.leftOut(ctx), fallBack)
	err = j.savePhase(ctx, PhaseFinalized, append(end.Set, bson.E{Key: "differences", Value: lines[:min(len(lines), mostDifferences)]},
		bson.E{Key: "finalizedAt", Value: j.spec.Now().UTC()}, bson.E{Key: "targetPosition", Value: end.At}, bson.E{Key: "ended", Value: j.spec.Mode})...)
	if err == nil && j.placer != nil {
		if ferr := j.placer.ForgetAll(ctx); ferr != nil {
			j.log.Debug("what was noted of sharded collections stays", "error", ferr)
		}
	}
	return err
}

// leftOut lists and logs what the rules choose and the job has left out. A job does not
// fail because that cannot be read.
func (j *Job) leftOut(ctx context.Context) (out []string) {
	list, err := schema.Omissions(ctx, j.src, j.rules)
	if err != nil {
		j.log.Warn("cannot list what is left out", "error", err)
	}
	for _, o := range list[:min(len(list), mostDifferences)] {
		j.log.Warn("left out", "what", o.String())
		out = append(out, o.String())
	}
	return out
}

// causeOr prefers the reason for which ctx was canceled.
func causeOr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
