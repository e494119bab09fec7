package precheck

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/origin"
	"github.com/millrace/millrace/internal/placing"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// Plan is what a job would do, and what stands in its way.
type Plan struct {
	Job         string      `json:"job"`
	Resumes     bool        `json:"resumes"` // an earlier checkpoint is continued
	ResumePhase state.Phase `json:"resumePhase,omitempty"`
	Mode        state.Mode  `json:"mode"`
	Source      string      `json:"source"`
	SourceInfo  string      `json:"sourceInfo"` // e.g. "replica set src, 6.0.5, FCV 6.0"
	Target      string      `json:"target"`
	TargetInfo  string      `json:"targetInfo"`
	// Finalized says when the job was finalized, and TargetPosition where the target
	// stood then; there is nothing to do.
	Finalized      *time.Time   `json:"finalized,omitempty"`
	TargetPosition string       `json:"targetPosition,omitempty"`
	Collections    []Collection `json:"collections"`
	// Rules are what the rules would do to documents drawn at random.
	Rules []transform.Effect `json:"rules,omitempty"`
	// LeftOut is what the rules choose and the job cannot bring to the target.
	LeftOut []string `json:"leftOut,omitempty"`
	Checks  List     `json:"checks"`
}

// Collection is one namespace of a plan.
type Collection struct {
	Source  string      `json:"source"`
	Target  string      `json:"target"`
	Type    schema.Type `json:"type"`
	Docs    int64       `json:"docs"`
	Bytes   int64       `json:"bytes"`
	Indexes int         `json:"indexes"`
	// Sample says of a filtered collection how many documents its filter keeps.
	Sample *Sample `json:"sample,omitempty"`
}

// Error says that the precheck found what forbids the job; nothing was written.
type Error struct{ Plan *Plan }

// Error names the checks that failed.
func (e *Error) Error() string { return e.Unwrap().Error() }

// Unwrap is the plan's own error, with its hint.
func (e *Error) Unwrap() error { return e.Plan.Checks.Err() }

// Input is what a plan is made from.
type Input struct {
	Job            string
	Source, Target *mongo.Cluster
	Shards         *origin.Sharded // behind Source, if it is a router
	Rules          *transform.Set
	Keys           *transform.Keys // by which the rules mask
	Store          state.Store     // what is stored of the job
	Schema         *schema.Target  // the target's collections
	Wishes         *placing.Source // how collections are to be sharded on a sharded target

	Mode                    state.Mode
	OnExisting              state.OnExisting
	StartAt                 string
	Restart, AllowDowngrade bool
	AllowMissing            bool // an include that matches nothing yet
	AllowOverlap            bool
	AllowShard              bool // a side may be one shard of a sharded cluster
	Skips                   bool // documents that the target refuses are left out
	WarnWindow              time.Duration

	// Router opens one of the target's routers.
	Router func(ctx context.Context, host string) (*mongo.Cluster, error)
	// ReadFrom is the first change that a stored job still needs.
	ReadFrom func(state.Job) (mongo.OpTime, error)
	// CheckShards returns an error where the address of a shard was given that neither the
	// source has nor a stored job reads; nil where the source has no shards.
	CheckShards func(state.Job) error
	// Spool may hold, or is to hold, changes that the oplog has lost.
	Spool *oplog.Spooler
}

// planner collects a plan's checks.
type planner struct {
	Input
	seen seen
	plan *Plan
	job  state.Job // the earlier checkpoint, if any
	data int64     // bytes to copy
	// unread says that no member of the source can be read for the read preference now.
	unread bool
}

// Make reads both sides and says what the job would do and what stands in its
// way. Nothing is written. An error means that a side could not be read.
func Make(ctx context.Context, in Input) (*Plan, error) {
	p := &planner{Input: in, plan: &Plan{Job: in.Job, Mode: in.Mode, Source: in.Source.Address(),
		SourceInfo: describe(in.Source.Info),
		Target:     in.Target.Address(), TargetInfo: describe(in.Target.Info)}}
	if err := p.complete(ctx); err != nil {
		return nil, err
	}
	p.deployments()
	p.versions()
	if p.plan.Checks.Failed() {
		return p.plan, nil
	}
	if err := p.members(ctx); err != nil {
		return nil, err
	}
	if p.plan.Checks.Failed() {
		return p.plan, nil
	}
	if err := p.look(ctx); err != nil {
		return nil, err
	}
	for _, step := range p.steps() {
		err := step(ctx)
		if mongo.IsCode(err, mongo.CodeUnauthorized) {
			p.unauthorized(err)
			return p.plan, nil
		}
		if err != nil {
			return nil, err
		}
		if p.plan.Finalized != nil {
			return p.plan, nil
		}
	}
	p.ok("scope", "users and roles are not copied; databases admin, config and local stay as they are")
	return p.plan, nil
}

// steps are the checks of what both sides have answered.
func (p *planner) steps() []func(context.Context) error {
	all := []func(context.Context) error{p.resume, p.givenShards, p.history, p.rivals, p.collections, p.omissions,
		p.filters, p.names, p.cases, p.sharding, p.privileges, p.existing}
	if p.Mode == state.ModeStructure { // which copies no documents and reads no oplog
		return all
	}
	return append(all, p.oplogWindow, p.spool, p.room)
}

func describe(i mongo.Info) string {
	s := string(i.Kind)
	if i.SetName != "" {
		s += " " + i.SetName
	}
	s += ", MongoDB " + i.Version.String()
	if i.FCV != "" {
		s += ", FCV " + i.FCV
	}
	return s
}

func (p *planner) add(level Level, name, hint, format string, args ...any) {
	p.plan.Checks.Add(level, name, fmt.Sprintf(format, args...), hint)
}

func (p *planner) ok(name, format string, args ...any) { p.add(OK, name, "", format, args...) }

// deployments judges the shape of both sides.
func (p *planner) deployments() {
	src, dst, mode := p.Source.Info, p.Target.Info, p.Mode
	switch {
	case src.Kind == mongo.KindSharded && !src.Version.AtLeast(4, 4):
		p.add(Fail, "source", "upgrade it to 4.4 or later",
			"a sharded cluster of MongoDB %s is not supported as a source: nothing was tried with it", src.Version)
	case src.Kind == mongo.KindSharded && mode == state.ModeIncremental:
		p.add(Fail, "source", "use --mode all",
			"incremental mode cannot begin at a sharded cluster yet: a position of one is that of each shard")
	case src.Kind == mongo.KindStandalone && !mode.EndsByItself():
		p.add(Fail, "source", "use --mode full, or restart the source with --replSet and initiate it",
			"a standalone server has no oplog: it can only be copied in full")
	case src.Kind == mongo.KindStandalone && mode == state.ModeFull:
		p.add(Warn, "source", "stop writes during the copy",
			"a standalone server: writes made during the copy may be missing or half there")
	default:
		p.ok("source", "%s", describe(src))
	}
	switch dst.Kind {
	case mongo.KindSharded:
		p.router(dst)
	case mongo.KindStandalone:
		p.add(Fail, "target", "restart it with --replSet and initiate it",
			"a standalone server cannot keep a durable checkpoint")
	default:
		p.ok("target", "%s", describe(dst))
	}
	if src.Kind == mongo.KindReplicaSet && (src.SetID.IsZero() || dst.SetID.IsZero()) {
		p.add(Warn, "identity", "grant clusterMonitor, or the action replSetGetConfig, on both sides",
			"a user may not read the replica set's configuration: the sets are told apart by their addresses")
	}
	p.shards()
	if p.Rules.SkipsAny(stream.OpInsert) && dst.Kind == mongo.KindSharded {
		p.add(Fail, "rules", "leave insert out of --skip",
			"--skip …=insert: on a sharded cluster the replacement of a document may make it, so that one whose insert was "+
				"left out would be there")
	}
	if p.Rules.SkipsAny(stream.OpTTL) && (src.Kind == mongo.KindSharded || dst.Kind == mongo.KindSharded) {
		p.add(Fail, "rules", "skip delete in place of ttl, which leaves all deletions out",
			"--skip …=ttl: of a sharded cluster, as source or target, deletions of expired documents cannot be left out by "+
				"themselves")
	}
	if p.Source.Same(p.Target) {
		p.add(Fail, "identity", "check --source and --target", "source and target are the same %s",
			strings.TrimSpace(string(src.Kind)+" "+src.SetName))
	}
}

// router judges a target that is a sharded cluster.
func (p *planner) router(dst mongo.Info) {
	if !dst.Version.AtLeast(6, 0) {
		p.add(Fail, "target", "upgrade it to 6.0",
			"a sharded cluster of MongoDB %s is not supported as a target: nothing was tried with it", dst.Version)
		return
	}
	p.ok("target", "%s", describe(dst))
}

func (p *planner) versions() {
	src, dst := p.Source.Info, p.Target.Info
	oldest, newest := mongo.Tested()
	for i, v := range []mongo.Version{src.Version, dst.Version} {
		name := []string{"source", "target"}[i] + " version"
		switch {
		case v.OlderThan(oldest):
			p.add(Fail, name, fmt.Sprintf("upgrade it to %d.%d or newer", oldest.Major, oldest.Minor),
				"MongoDB %s is older than %d.%d", v, oldest.Major, oldest.Minor)
		case newest.OlderThan(v.Series()):
			p.add(Warn, name, "try it with a copy of the data first, and compare with millrace verify",
				"MongoDB %s is untested: it is newer than %d.%d, the newest series that millrace is tested with", v, newest.Major,
				newest.Minor)
		}
	}
	older := dst.Version.OlderThan(src.Version)
	switch {
	case older && !p.AllowDowngrade:
		p.add(Fail, "versions", "use a target at least as new, or accept the risk with --allow-downgrade",
			"the target (%s) is older than the source (%s)", dst.Version, src.Version)
	case older:
		p.add(Warn, "versions", "", "the target (%s) is older than the source (%s); features it lacks will fail", dst.Version,
			src.Version)
	case mongo.OlderFCV(dst.FCV, src.FCV) && !p.AllowDowngrade:
		p.add(Fail, "feature compatibility",
			"run setFeatureCompatibilityVersion "+src.FCV+" on the target, or use --allow-downgrade",
			"the target's feature compatibility version (%s) is older than the source's (%s)", dst.FCV, src.FCV)
	default:
		p.ok("versions", "%s to %s", src.Version, dst.Version)
	}
}

// resume looks for an earlier checkpoint and whether it can be continued.
func (p *planner) resume(context.Context) error {
	job, found, err := p.seen.job()
	if err != nil {
		return err
	}
	if !found || p.Restart {
		if p.Mode == state.ModeIncremental {
			if _, err := mongo.ParseOpTime(p.StartAt); err != nil {
				p.add(Fail, "start", "give the position that the target's data stand at, e.g. --start-at 1700000000:1",
					"incremental mode of a new job needs --start-at with a position or a time (got %q)", p.StartAt)
			}
		}
		return nil
	}
	p.job = job
	p.plan.Resumes, p.plan.ResumePhase = true, job.Phase
	switch {
	case (job.Mode == state.ModeStructure) != (p.Mode == state.ModeStructure):
		p.add(Fail, "mode", "use the same --mode, another --job, or --restart",
			"job %s was begun with --mode %s, and goes on with no other", p.Job, job.Mode)
	case job.Rules != p.Rules.String():
		p.add(Fail, "rules", "use the same --include, --exclude, --rename, --filter, --skip, --fields, --soft-delete and "+
			"--history, another --job, or --restart", "job %s was begun with other rules", p.Job)
	case job.SourceSet != p.Source.Info.SetID || job.TargetSet != p.Target.Info.SetID:
		p.add(Fail, "job", "use another --job, or --restart", "job %s was begun between other clusters", p.Job)
	case job.Phase == state.PhaseFinalized && job.OnlyCopied() && !p.Mode.EndsByItself():
		then := fmt.Sprintf("follow with another --job, --mode incremental and --start-at %s, or copy again with --restart",
			job.Applied)
		if p.Source.Info.Kind == mongo.KindSharded {
			then = "copy and follow with --restart, or with another --job"
		}
		p.add(Fail, "mode", then, "job %s ended with --mode full at %s: it does not go on with --mode %s", p.Job, job.Applied,
			p.Mode)
	case job.Phase == state.PhaseFinalized:
		at := job.FinalizedAt
		if at.IsZero() { // by an older version
			at = job.UpdatedAt
		}
		p.plan.Finalized = &at
		if !job.TargetPosition.IsZero() {
			p.plan.TargetPosition = job.TargetPosition.String()
		}
		p.ok("resume", "job %s is finalized already, at %s; nothing is left to do", p.Job, at.Format(time.RFC3339))
	case !p.Keys.Fits(p.Rules, job.Keys):
		p.add(Fail, "rules", "give the key that the job began with, use another --job, or --restart",
			"job %s was begun with another key to mask by: the target would have values of both", p.Job)
	default:
		p.ok("resume", "continues job %s in phase %s at %s", p.Job, job.Phase, job.Applied)
	}
	return nil
}

// givenShards checks the names of shards whose addresses were given.
func (p *planner) givenShards(context.Context) error {
	if p.CheckShards == nil {
		return nil
	}
	if err := p.CheckShards(p.job); err != nil {
		p.add(Fail, "shards", mongo.HintOf(err), "%v", err)
	}
	return nil
}

// copied reports that the copy's preparations are done, so that existing
// target collections are our own.
func (p *planner) copied() bool {
	return p.plan.Resumes && p.plan.ResumePhase != state.PhaseCatalog
}

func (p *planner) collections(ctx context.Context) error {
	colls, err := p.seen.collections()
	if err != nil {
		return err
	}
	var lacks []string
	for _, c := range colls {
		lacks = append(lacks, schema.Unsupported(c, p.Target.Info.Version)...)
		p.plan.Collections = append(p.plan.Collections, Collection{
			Source: c.NS, Target: p.Rules.Target(c.NS), Type: c.Type, Docs: c.Count, Bytes: c.Bytes, Indexes: len(c.Indexes)})
		p.data += c.Bytes
	}
	if len(lacks) > 0 {
		p.add(Fail, "features", "use a newer target, or exclude these", "the target cannot hold %d things: %s", len(lacks),
			strings.Join(lacks[:min(5, len(lacks))], "; "))
	}
	if err := schema.CheckRules(colls, p.Rules); err != nil {
		p.add(Fail, "names", "change --rename or exclude one of them", "%v", err)
	}
	p.ok("collections", "%d, %s", len(colls), humanize.Bytes(uint64(p.data)))
	return p.building(ctx, colls)
}

// building tells of index builds under way on the source: until they have ended the
// target goes without.
func (p *planner) building(ctx context.Context, colls []schema.Collection) error {
	if p.Shards != nil { // each shard builds by itself
		of, err := p.Shards.Building(ctx, p.Rules)
		if mongo.IsCode(err, mongo.CodeUnauthorized) { // the check of privileges names what is missing
			of, err = nil, nil
		}
		if err != nil {
			return err
		}
		colls = of
	}
	builds, err := schema.BuildingNames(colls, p.Rules)
	if err != nil || len(builds) == 0 {
		return err
	}
	hint := "the target gets them when they have ended; finalize waits for them, as long as --index-wait says"
	if p.Mode == state.ModeStructure || p.Source.Info.Kind == mongo.KindStandalone {
		hint = "the job waits for them before it begins, as long as --index-wait says"
	}
	p.add(Warn, "index builds", hint, "%d index builds of the source are under way and left out until they end: %s",
		len(builds), schema.NameAll(builds))
	return nil
}

// omissions reports what the rules choose and the job leaves out.
func (p *planner) omissions(context.Context) error {
	list, err := p.seen.omissions()
	for _, o := range list[:min(len(list), maxOmissions)] {
		p.plan.LeftOut = append(p.plan.LeftOut, o.String())
	}
	if more := len(list) - maxOmissions; more > 0 {
		p.plan.LeftOut = append(p.plan.LeftOut, fmt.Sprintf("and %d more", more))
	}
	if len(list) > 0 {
		p.add(Warn, "left out", "copy them by other means, or rename or exclude them",
			"%d things are not copied as they are: %s", len(list),
			strings.Join(p.plan.LeftOut[:min(5, len(p.plan.LeftOut))], "; "))
	}
	return err
}

// maxOmissions bounds how many omissions a plan lists.
const maxOmissions = 100

func (p *planner) existing(context.Context) error {
	if p.copied() || p.Mode == state.ModeIncremental {
		return nil
	}
	have, err := p.seen.existing()
	if err != nil {
		return err
	}
	if len(have) == 0 {
		p.ok(checkExisting, "none of them exists yet")
		return nil
	}
	names := slices.Sorted(maps.Keys(have))
	list := strings.Join(names[:min(5, len(names))], ", ")
	switch p.OnExisting.Or(p.job.OnExisting) {
	case state.ExistingDrop:
		p.add(Warn, checkExisting, "", "%d exist and will be DROPPED: %s", len(names), list)
	case state.ExistingMerge:
		p.add(Warn, checkExisting, "", "%d exist and will be merged into: %s", len(names), list)
	default:
		p.add(Fail, checkExisting, "drop them, or choose --on-existing merge or --on-existing drop", "%d exist already: %s",
			len(names), list)
	}
	return nil
}

// oplogWindow checks that the oplog holds the position to begin from, and for how
// long it reaches back.
func (p *planner) oplogWindow(ctx context.Context) error {
	if p.Source.Info.Kind == mongo.KindStandalone || p.unread || p.job.Expiring {
		return nil
	}
	oldest, newest, err := p.window(ctx)
	if err != nil && mongo.Classify(err) == mongo.ClassRetry {
		return err
	}
	if err != nil {
		p.add(Fail, "oplog", "grant the user read on database local", "the source's oplog cannot be read: %v", err)
		return nil
	}
	have := time.Duration(int64(newest.TS.T)-int64(oldest.TS.T)) * time.Second
	need, err := p.ReadFrom(p.job)
	if err != nil {
		return err
	}
	if need.IsZero() && p.Mode == state.ModeIncremental {
		need, _ = mongo.ParseOpTime(p.StartAt)
	}
	switch {
	case !need.IsZero() && need.First().Before(oldest) && p.Spool.MayHold():
		p.add(Warn, "oplog", "leave the spool's directory alone",
			"it begins at %s and no longer holds %s, from which the job would read on; the spool may", oldest, need)
	case !need.IsZero() && need.First().Before(oldest):
		p.add(Fail, "oplog", "make the oplog larger (replSetResizeOplog), then begin anew with --restart and "+
			"--on-existing drop",
			"it begins at %s and no longer holds %s, from which the job would read on", oldest, need)
	case p.WarnWindow > 0 && have < p.WarnWindow && p.full(ctx):
		p.add(Warn, "oplog", "the copy must end before the oplog rolls over; replSetResizeOplog makes it larger",
			"it reaches back only %s", have)
	default:
		p.ok("oplog", "reaches back %s", have)
	}
	return nil
}

func (p *planner) window(ctx context.Context) (oldest, newest mongo.OpTime, err error) {
	if p.Shards != nil {
		return p.Shards.Window(ctx)
	}
	return oplog.Window(ctx, p.Source)
}

func (p *planner) full(ctx context.Context) bool {
	if p.Shards != nil {
		return p.Shards.Full(ctx)
	}
	return oplog.Full(ctx, p.Source)
}

// shards judges what is behind a router.
func (p *planner) shards() {
	if p.Shards == nil {
		return
	}
	var names []string
	for _, s := range p.Shards.Cluster().Shards {
		names = append(names, s.Name)
		if s.Info.Version.OlderThan(p.Source.Info.Version.Series()) {
			p.add(Fail, "shards", "upgrade it", "shard %s is of MongoDB %s, older than the router", s.Name, s.Info.Version)
		}
		if s.Same(p.Target) {
			p.add(Fail, "identity", "check --source and --target", "the target is a shard of the source, %s", s.Name)
		}
	}
	p.ok("shards", "%d, each can be reached: %s; the balancer may go on", len(names), strings.Join(names, ", "))
}

// spool looks at the directory for changes that the oplog may forget during a copy.
func (p *planner) spool(context.Context) error {
	if p.Source.Info.Kind != mongo.KindReplicaSet || p.Mode == state.ModeIncremental || p.WarnWindow <= 0 || p.spooled() {
		return nil
	}
	dir, free, want, enabled, err := p.Spool.Check()
	switch {
	case !enabled:
	case err != nil:
		p.add(Fail, "spool", oplog.SpoolHint(dir, err), "changes cannot be kept on local disk, in %s: %v", dir, err)
	case free < want:
		p.add(Warn, "spool", "make room, choose another directory with --spool-dir, or lower --spool-max; a full disk is "+
			"no failure, but then the oplog alone has to hold the changes",
			"%s free in %s for changes that the oplog may forget, %s are allowed (--spool-max)", humanize.Bytes(free), dir,
			humanize.Bytes(want))
	default:
		p.ok("spool", "%s free in %s", humanize.Bytes(free), dir)
	}
	return nil
}

// spooled reports that the job needs no spool any more: what it may have left is
// read where it can be.
func (p *planner) spooled() bool {
	return p.plan.Resumes && slices.Contains([]state.Phase{state.PhaseOverlap, state.PhaseFollowing, state.PhaseFinalizing,
		state.PhaseFinalized}, p.plan.ResumePhase)
}

// room compares the data with the free space of the target, where the server
// tells it (dbStats, 3.6 and newer).
func (p *planner) room(context.Context) error {
	raw, err := p.seen.disk()
	if err != nil {
		return nil //nolint:nilerr // a server that does not say is no obstacle
	}
	total, ok1 := raw.Lookup("fsTotalSize").AsFloat64OK()
	used, ok2 := raw.Lookup("fsUsedSize").AsFloat64OK()
	if !ok1 || !ok2 || p.copied() {
		return nil
	}
	free := uint64(max(total-used, 0))
	if uint64(p.data) > free {
		p.add(Warn, "disk", "free space on the target, or rely on compression",
			"the data are %s uncompressed, the target has %s free",
			humanize.Bytes(uint64(p.data)), humanize.Bytes(free))
		return nil
	}
	p.ok("disk", "%s free for %s of data (uncompressed)", humanize.Bytes(free), humanize.Bytes(uint64(p.data)))
	return nil
}
