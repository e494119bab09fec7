package job

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/assign"
	"github.com/millrace/millrace/internal/follow"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/origin"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/placing"
	"github.com/millrace/millrace/internal/precheck"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/retry"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/internal/users"
)

// Job is one source replicated into one target. Run is called once. Other methods are safe for
// concurrent use with it, except Plan, which comes before.
type Job struct {
	session
	builds  *schema.Builds
	repairs follow.Repairs // that operators have asked for
	plan    *Plan          // the latest one that may be run
	fresh   bool           // this attempt began with nothing; phases only

	control  *control
	backoff  *retry.Backoff
	lease    *lease
	preparer *preparer
	copier   *copier
	spooler  *oplog.Spooler
}

type session struct {
	throttle
	spec     Spec
	id       string
	capture  capture
	log      *slog.Logger
	source   *source
	dst      *mongo.Cluster
	store    state.Store
	cat      *schema.Target
	placer   *placing.Placer     // shards collections of the target; nil where it is no router
	desired  *placing.Source     // how collections are to be sharded
	txn      *mongo.Transactions // on the target
	letters  *deadletter.Store   // the documents that the target refuses
	rules    *transform.Set
	keys     transform.Keys // of the rules
	counters *transform.Counters
	progress *progress.Progress
	accounts *accounts // nil copies no users

	stored  state.Job      // as this attempt has stored it; phases only
	catalog []state.Mapped // likewise, up to the overlap; nil before it is there
}

type throttle struct {
	limit            *pace.Limiter
	srcGate, dstGate *pace.Gate
}

func (t throttle) low() bool {
	source, _ := t.srcGate.Load()
	target, _ := t.dstGate.Load()
	return source == pace.Low || target == pace.Low
}

type source struct {
	cluster *mongo.Cluster  // that its connection string names: a replica set, a standalone, a router
	shards  *origin.Sharded // behind a router, that are read directly; else nil
	// streamed is the source that is captured by change streams; else nil.
	streamed *origin.Streamed
	// Source is what the job asks there. Its names are those that the job has on the target;
	// phases only.
	*follow.Source
	oplogs
}

type oplogs interface {
	// Snapshot lists the catalog as it stood at a position to follow from.
	Snapshot(ctx context.Context, scope schema.Scope) (schema.Snapshot, stream.Position, error)
	// Changes is what happens there. The names are those at the position of a run.
	Changes(o oplog.Options, names func() []schema.Name, noted mongo.OpTime) stream.Source
	// StartAt is the position of whoever has applied everything up to a time.
	StartAt(at mongo.OpTime) stream.Position
	// ReadFrom is the first change that whoever stands at a position needs.
	ReadFrom(stream.Position) (mongo.OpTime, error)
	// Window reads what its oplogs hold.
	Window(ctx context.Context) (oplog.Window, error)
	// Recent returns the positions of at most a second ago.
	Recent(ctx context.Context) (mongo.Positions, error)
}

// sourcePauses is how many times as long as a read the pause after it is under --source-load low. Reads take less than
// half of a copy's time, so that a pause as long as a read would change nothing.
const sourcePauses = 3

// Open parses the spec, connects both sides and reads their identity. It writes nothing.
func Open(ctx context.Context, spec Spec) (*Job, error) {
	spec.SetDefaults()
	spec.Capture, spec.Via = cmp.Or(spec.Capture, CaptureAuto), cmp.Or(spec.Via, ViaAuto)
	if spec.OnConflict == "" {
		spec.OnConflict = ConflictStop
	}
	j := &Job{session: session{spec: spec, log: spec.Log, source: &source{}, throttle: newThrottle(&spec)}}
	var err error
	spec.Rules.Secret = j.keys.Remember(spec.Rules.Secret)
	if j.rules, err = transform.New(spec.Rules); err != nil {
		return nil, err
	}
	if spec.OnExisting == ExistingMerge || spec.AllowOverlap {
		j.rules = j.rules.ByCommand()
	}
	if j.control, err = newControl(spec); err != nil {
		return nil, err
	}
	keys, err := placing.ParseRules(spec.Shard)
	if err != nil {
		return nil, fmt.Errorf("--shard: %w", err)
	}
	zones, err := placing.ParseZones(spec.Zones)
	if err != nil {
		return nil, fmt.Errorf("--zone: %w", err)
	}
	wc, err := mongo.ParseWriteConcern(spec.WriteConcern)
	if err != nil {
		return nil, err
	}
	if err := j.connect(ctx); err != nil {
		return nil, err
	}
	j.spooler = j.newSpooler()
	read := j.deployment()
	j.source.oplogs = read
	if j.txn, err = j.dst.NewTransactions(); err != nil {
		j.Close()
		return nil, fmt.Errorf("target: %w", err)
	}
	j.counters = transform.NewCounters(j.rules)
	j.progress = progress.New(progress.Options{Job: j.id, Rules: j.counters,
		Source: j.source.cluster.Address(), Target: j.dst.Address(), Now: spec.Now, Usage: spec.Usage,
		ReadFrom: j.source.ReadFrom, Routers: j.routers, OnEvent: spec.OnEvent})
	j.source.Source = &follow.Source{Deployment: read, Rules: j.rules, Progress: j.progress,
		Names: schema.NewNames(nil)}
	j.lease = &lease{target: j.dst, txn: j.txn, gate: j.dstGate, progress: j.progress, log: j.log,
		anew: j.newJob(), run: state.NewRun(), restart: spec.Restart}
	j.store = state.Open(j.dst, state.Options{Job: j.id, Run: j.lease.run, Write: wc, EndOthers: j.lease.endOthers})
	j.lease.store = j.store
	j.dst.Pool.SetGuard(j.store.Owned)
	j.letters = deadletter.New(j.dst, j.id, j.store.SameTerm)
	j.builds = schema.NewBuilds(j.dst, wc, j.log)
	shape := schema.TargetOptions{Job: j.id, Builds: j.builds, Log: j.log, SameTerm: j.store.SameTerm,
		KeepsExpired: func(ns string) bool {
			return slices.ContainsFunc(j.rules.Sources(ns), func(ns string) bool { return j.rules.Route(ns).KeepsExpired })
		}}
	if j.desired = (&placing.Source{Cluster: j.source.cluster, Shards: j.source.shards, Rules: keys,
		Zones: zones}); j.dst.Info.Kind == mongo.KindSharded {
		j.placer = placing.New(j.dst, placing.Options{Job: j.id, Source: j.desired, Builds: j.builds, Log: j.log})
		shape.Sharding = j.placer
	}
	j.cat = schema.NewTarget(j.dst, shape)
	if spec.Users {
		j.accounts = &accounts{sides: j.sides(), rules: j.rules, store: j.store, log: j.log, own: users.Own{},
			warned: map[string]bool{}}
	}
	j.backoff = &retry.Backoff{Waiting: j.failing}
	j.preparer = &preparer{session: &j.session}
	j.copier = &copier{session: &j.session, lease: j.lease, assistants: map[string]*assign.Figures{}}
	return j, nil
}

// deployment is the source as the job reads it.
func (j *Job) deployment() (read interface {
	follow.Deployment
	oplogs
}) {
	src := j.source
	switch {
	case j.capture.by == state.CaptureStreams:
		src.streamed = &origin.Streamed{Cluster: src.cluster, Log: j.log,
			Waiting: func(reason string) { j.progress.Wait(reason) }}
		return src.streamed
	case src.shards != nil:
		return src.shards
	}
	return origin.Set{Cluster: src.cluster, Spool: j.spooler, Shared: j.spec.Oplogs}
}

func newThrottle(spec *Spec) throttle {
	return throttle{pace.New(spec.Limits), pace.NewGate(spec.Loads.Source).Spare(sourcePauses),
		pace.NewGate(spec.Loads.Target)}
}

// sides are where users are copied from and to.
func (j *Job) sides() users.Sides {
	return users.Sides{Source: users.Side{Cluster: j.source.cluster, URI: j.spec.Source, Shards: j.spec.SourceShards},
		Target: users.Side{Cluster: j.dst, URI: j.spec.Target, Shards: j.spec.TargetShards}}
}

func (j *Job) newJob() state.Job {
	src, dst := j.source.cluster, j.dst
	return state.Job{ID: j.id, Source: src.Address(), Target: dst.Address(), SourceSet: src.Info.SetID,
		Capture: j.capture.by, TargetSet: dst.Info.SetID, Rules: j.rules.String(),
		Keys: j.keys.Seal(j.rules, state.NewRun()), Mode: j.spec.Mode,
		OnExisting: j.spec.OnExisting, Settings: j.spec.Settings, Phase: PhaseCatalog,
		Files: !j.spec.FilesAt.IsZero(),
		Roomy: j.spec.Mode != ModeStructure && schema.TellsRollOff(src, dst)}
}

// Close disconnects both sides. Run must have returned.
func (j *Job) Close() {
	if j.txn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		j.txn.End(ctx)
	}
	(&connected{j.source.cluster, j.dst, j.source.shards}).close()
}

func (j *Job) ID() string { return j.id }

// jobID is stable: a replica set counts by its id, whatever its addresses. Mode structure differs.
func jobID(src, dst *mongo.Cluster, rules *transform.Set, mode Mode) string {
	h := sha256.New()
	parts := []string{identity(src), identity(dst), rules.String()}
	if mode == ModeStructure {
		parts = append(parts, string(mode))
	}
	for _, s := range parts {
		fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	return "job-" + hex.EncodeToString(h.Sum(nil))[:12]
}

func identity(c *mongo.Cluster) string {
	if !c.Info.SetID.IsZero() {
		return c.Info.SetID.Hex()
	}
	return c.Address()
}

// Plan reads both sides and returns what Run would do and what prevents it. It writes nothing. It
// fails when a side cannot be read for a minute.
func (j *Job) Plan(ctx context.Context) (plan *Plan, err error) {
	in := precheck.Input{Job: j.id, Source: j.source.cluster, Shards: j.source.shards, Streamed: j.source.streamed,
		Capture: precheck.Capture{By: j.capture.by, Why: j.capture.why, Via: j.spec.Via}, Target: j.dst, Rules: j.rules,
		Keys: &j.keys, Store: j.store, Schema: j.cat, Desired: j.desired, Router: j.router,
		Mode: j.spec.Mode, Files: !j.spec.FilesAt.IsZero(), OnExisting: j.spec.OnExisting, StartAt: j.spec.StartAt,
		AcceptLoss: j.spec.AcceptLoss, Restart: j.spec.Restart, TargetShards: j.targetShards, Homes: j.sides().Homes,
		AllowDowngrade: j.spec.AllowDowngrade, AllowMissing: j.spec.AllowMissing, AllowOverlap: j.spec.AllowOverlap,
		AllowShard: j.spec.AllowShard, Users: j.spec.Users, Skips: j.spec.OnConflict != ConflictStop,
		WarnWindow: j.spec.WarnWindow, Spool: j.spooler, Window: j.source.Window,
		ReadFrom: j.source.ReadFrom}
	if j.source.shards != nil {
		in.CheckShards = j.source.shards.Cluster().CheckNames
	}
	j.plan = nil
	defer j.logWaits(ctx)()
	err = j.backoff.Try(ctx, time.Minute, func() (err error) {
		plan, err = precheck.Make(ctx, in)
		return err
	})
	if err == nil && !plan.Checks.Failed() {
		j.plan, j.source.Readable = plan, readable(plan)
	}
	return plan, err
}

func (j *Job) Status() Status {
	st := j.progress.Status(j.spooler.NeedsFrom)
	if st.Waiting == "" {
		st.Waiting, st.WaitingSince = j.stalled()
	}
	if j.spec.Mode != ModeStructure {
		st.Capture = j.capture.by
	}
	st.Paused, st.Limits = j.control.isPaused(), j.limit.Rates()
	if takes := j.limit.Takes(st.Copy.DocsTotal-st.Copy.Docs, st.Copy.BytesTotal-st.Copy.Bytes); takes > 0 && !st.Paused {
		st.Copy.ETASeconds = max(st.Copy.ETASeconds, takes.Seconds())
	}
	st.Load.Source, st.Load.SourceAtOnce = j.srcGate.Load()
	st.Load.Target, st.Load.TargetAtOnce = j.dstGate.Load()
	st.Compression = progress.Compressions{Source: compression(j.source.cluster), Target: compression(j.dst)}
	s := j.letters.Stats()
	st.Conflicts = progress.Conflicts{Policy: string(j.spec.OnConflict), Stats: s}
	if s != (deadletter.Stats{}) {
		st.Conflicts.Where = fmt.Sprintf("%s.%s on the target, job %q", mongo.StateDB, deadletter.Collection, j.id)
	}
	bytes, until := j.spooler.Usage()
	if st.Follow.SpoolBytes = bytes; !until.IsZero() {
		st.Follow.SpooledTo = until.String()
	}
	st.FinalizeWanted, st.CannotFinalize = j.control.Requested(), j.cannotFinalize(st)
	st.CanFinalize = st.CannotFinalize == ""
	return st
}

func (j *Job) Done() Done { return j.progress.Done() }

// readable returns a namespace of the source that the user may read.
func readable(p *Plan) string {
	const none = ".millrace-none"
	ns := mongo.StateDB + none
	for _, c := range p.Collections {
		if c.Type == schema.TypeCollection {
			return c.Source
		}
		db, _ := mongo.SplitNS(c.Source)
		ns = db + none
	}
	return ns
}
