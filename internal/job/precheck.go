package job

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/precheck"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/state"
)

// planner collects a plan's checks.
type planner struct {
	j    *Job
	plan *Plan
	job  state.Job // the earlier checkpoint, if any
	data int64     // bytes to copy
}

// planPatience is for how long Plan tries again what passes by itself.
const planPatience = time.Minute

// Plan reads both sides and says what Run would do and what stands in its way.
// Nothing is written. An error means that a side could not be read at all, or
// not for a minute.
func (j *Job) Plan(ctx context.Context) (plan *Plan, err error) {
	err = j.patiently(ctx, planPatience, func() (err error) {
		plan, err = j.planOnce(ctx)
		return err
	})
	return plan, err
}

func (j *Job) planOnce(ctx context.Context) (*Plan, error) {
	p := &planner{j: j, plan: &Plan{
		Job: j.id, Mode: j.spec.Mode, Source: j.src.Address(), SourceInfo: describe(j.src.Info),
		Target: j.dst.Address(), TargetInfo: describe(j.dst.Info),
	}}
	p.deployments()
	p.versions()
	if p.plan.Checks.Failed() {
		return p.plan, nil
	}
	for _, step := range []func(context.Context) error{p.resume, p.collections, p.privileges, p.existing, p.window, p.space} {
		err := step(ctx)
		if mongo.IsCode(err, mongo.CodeUnauthorized) {
			p.unauthorized(err)
			return p.plan, nil
		}
		if err != nil {
			return nil, err
		}
	}
	j.plan = p.plan
	p.ok("scope", "users and roles are not copied; databases admin, config and local stay as they are")
	return p.plan, nil
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

func (p *planner) add(level precheck.Level, name, hint, format string, args ...any) {
	p.plan.Checks.Add(level, name, fmt.Sprintf(format, args...), hint)
}

func (p *planner) ok(name, format string, args ...any) { p.add(precheck.OK, name, "", format, args...) }

// deployments judges the shape of both sides.
func (p *planner) deployments() {
	src, dst, mode := p.j.src.Info, p.j.dst.Info, p.j.spec.Mode
	switch {
	case src.Kind == mongo.KindSharded:
		p.add(precheck.Fail, "source", "name one shard's replica set, or wait for sharded clusters to be supported", "a sharded cluster is not supported as a source yet")
	case src.Kind == mongo.KindStandalone && mode != ModeFull:
		p.add(precheck.Fail, "source", "use --mode full, or restart the source with --replSet and initiate it", "a standalone server has no oplog: it can only be copied in full")
	case src.Kind == mongo.KindStandalone:
		p.add(precheck.Warn, "source", "stop writes during the copy", "a standalone server: writes made during the copy may be missing or half there")
	default:
		p.ok("source", "%s", describe(src))
	}
	switch dst.Kind {
	case mongo.KindSharded:
		p.add(precheck.Fail, "target", "name a replica set", "a sharded cluster is not supported as a target yet")
	case mongo.KindStandalone:
		p.add(precheck.Fail, "target", "restart it with --replSet and initiate it", "a standalone server cannot keep a durable checkpoint")
	default:
		p.ok("target", "%s", describe(dst))
	}
	if src.Kind == mongo.KindReplicaSet && (src.SetID.IsZero() || dst.SetID.IsZero()) {
		p.add(precheck.Warn, "identity", "grant clusterMonitor, or the action replSetGetConfig, on both sides",
			"a user may not read the replica set's configuration: the sets are told apart by their addresses")
	}
	if !src.SetID.IsZero() && src.SetID == dst.SetID || overlap(src.Hosts, dst.Hosts) || src.Kind == mongo.KindStandalone && p.j.src.Address() == p.j.dst.Address() {
		p.add(precheck.Fail, "identity", "check --source and --target", "source and target are the same replica set (%s)", src.SetName)
	}
}

// overlap reports a member that both sets name.
func overlap(a, b []string) bool {
	return slices.ContainsFunc(a, func(h string) bool { return slices.Contains(b, h) })
}

func (p *planner) versions() {
	src, dst := p.j.src.Info, p.j.dst.Info
	for _, s := range []struct {
		name string
		info mongo.Info
	}{{"source", src}, {"target", dst}} {
		if !s.info.Version.AtLeast(4, 2) {
			p.add(precheck.Fail, s.name+" version", "upgrade it to 4.2 or newer", "MongoDB %s is older than 4.2", s.info.Version)
		}
	}
	older := dst.Version.OlderThan(src.Version)
	switch {
	case older && !p.j.spec.AllowDowngrade:
		p.add(precheck.Fail, "versions", "use a target at least as new, or accept the risk with --allow-downgrade", "the target (%s) is older than the source (%s)", dst.Version, src.Version)
	case older:
		p.add(precheck.Warn, "versions", "", "the target (%s) is older than the source (%s); features it lacks will fail", dst.Version, src.Version)
	case fcvOlder(dst.FCV, src.FCV) && !p.j.spec.AllowDowngrade:
		p.add(precheck.Fail, "feature compatibility", "run setFeatureCompatibilityVersion "+src.FCV+" on the target, or use --allow-downgrade",
			"the target's feature compatibility version (%s) is older than the source's (%s)", dst.FCV, src.FCV)
	default:
		p.ok("versions", "%s to %s", src.Version, dst.Version)
	}
}

func fcvOlder(a, b string) bool {
	va, err1 := mongo.ParseVersion(a)
	vb, err2 := mongo.ParseVersion(b)
	return err1 == nil && err2 == nil && va.OlderThan(vb)
}

// resume looks for an earlier checkpoint and whether it can be continued.
func (p *planner) resume(ctx context.Context) error {
	job, found, err := p.j.store.Reload(ctx)
	if err != nil {
		return err
	}
	if !found || p.j.spec.Restart {
		if p.j.spec.Mode == ModeIncremental {
			if _, err := mongo.ParseOpTime(p.j.spec.StartAt); err != nil {
				p.add(precheck.Fail, "start", "give the position that the target's data stand at, e.g. --start-at 1700000000:1",
					"incremental mode of a new job needs --start-at with a position or a time (got %q)", p.j.spec.StartAt)
			}
		}
		return nil
	}
	p.job = job
	p.plan.Resumes, p.plan.ResumePhase = true, Phase(job.Phase)
	switch {
	case job.Rules != p.j.rules.String():
		p.add(precheck.Fail, "rules", "use the same --include, --exclude and --rename, another --job, or --restart", "job %s was begun with other rules", p.j.id)
	case job.SourceSet != p.j.src.Info.SetID || job.TargetSet != p.j.dst.Info.SetID:
		p.add(precheck.Fail, "job", "use another --job, or --restart", "job %s was begun between other clusters", p.j.id)
	default:
		p.ok("resume", "continues job %s in phase %s at %s", p.j.id, job.Phase, job.Applied)
	}
	return nil
}

// copied reports that the copy's preparations are done, so that existing
// target collections are our own.
func (p *planner) copied() bool {
	return p.plan.Resumes && p.plan.ResumePhase != PhaseCatalog
}

func (p *planner) collections(ctx context.Context) error {
	colls, err := schema.List(ctx, p.j.src, p.j.scope())
	if err != nil {
		return err
	}
	var lacks []string
	for _, c := range colls {
		lacks = append(lacks, schema.Unsupported(c, p.j.dst.Info.Version)...)
		p.plan.Collections = append(p.plan.Collections, PlanCollection{
			Source: c.NS, Target: p.j.rules.Target(c.NS), Type: string(c.Type), Docs: c.Count, Bytes: c.Bytes, Indexes: len(c.Indexes)})
		p.data += c.Bytes
	}
	if len(lacks) > 0 {
		p.add(precheck.Fail, "features", "use a newer target, or exclude these", "the target cannot hold %d things: %s", len(lacks), strings.Join(lacks[:min(5, len(lacks))], "; "))
	}
	if err := schema.CheckRules(colls, p.j.rules); err != nil {
		p.add(precheck.Fail, "names", "change --rename or exclude one of them", "%v", err)
	}
	p.ok("collections", "%d, %s", len(colls), humanize.IBytes(uint64(p.data)))
	return nil
}

func (p *planner) existing(ctx context.Context) error {
	if p.copied() || p.j.spec.Mode == ModeIncremental {
		return nil
	}
	var targets []string
	for _, c := range p.plan.Collections {
		targets = append(targets, c.Target)
	}
	have, err := p.j.cat.ListExisting(ctx, targets)
	if err != nil {
		return err
	}
	if len(have) == 0 {
		p.ok("target collections", "none of them exists yet")
		return nil
	}
	names := make([]string, 0, len(have))
	for ns := range have {
		names = append(names, ns)
	}
	slices.Sort(names)
	list := strings.Join(names[:min(5, len(names))], ", ")
	switch p.j.spec.OnExisting.orOf(p.job) {
	case ExistingDrop:
		p.add(precheck.Warn, "target collections", "", "%d exist and will be DROPPED: %s", len(names), list)
	case ExistingMerge:
		p.add(precheck.Warn, "target collections", "", "%d exist and will be merged into: %s", len(names), list)
	default:
		p.add(precheck.Fail, "target collections", "drop them, or choose --on-existing merge or --on-existing drop", "%d exist already: %s", len(names), list)
	}
	return nil
}

// window checks that the oplog holds the position to begin from, and for how
// long it reaches back.
func (p *planner) window(ctx context.Context) error {
	if p.j.src.Info.Kind != mongo.KindReplicaSet {
		return nil
	}
	oldest, newest, err := oplog.Window(ctx, p.j.src)
	if err != nil && mongo.Classify(err) == mongo.ClassRetry {
		return err
	}
	if err != nil {
		p.add(precheck.Fail, "oplog", "grant the user read on database local", "the source's oplog cannot be read: %v", err)
		return nil
	}
	have := time.Duration(int64(newest.TS.T)-int64(oldest.TS.T)) * time.Second
	need, err := oplog.ReadFrom(positionOf(p.job))
	if err != nil {
		return err
	}
	if need.IsZero() && p.j.spec.Mode == ModeIncremental {
		need, _ = mongo.ParseOpTime(p.j.spec.StartAt)
	}
	switch {
	case !need.IsZero() && need.First().Before(oldest) && p.j.spooler.MayHold():
		p.add(precheck.Warn, "oplog", "leave the spool's directory alone",
			"it begins at %s and no longer holds %s, from which the job would read on; the spool may", oldest, need)
	case !need.IsZero() && need.First().Before(oldest):
		p.add(precheck.Fail, "oplog", "make the oplog larger (replSetResizeOplog), then begin anew with --restart and --on-existing drop",
			"it begins at %s and no longer holds %s, from which the job would read on", oldest, need)
	case p.j.spec.WarnWindow > 0 && have < p.j.spec.WarnWindow && oplog.Full(ctx, p.j.src):
		p.add(precheck.Warn, "oplog", "the copy must end before the oplog rolls over; replSetResizeOplog makes it larger",
			"it reaches back only %s", have)
	default:
		p.ok("oplog", "reaches back %s", have)
	}
	return nil
}

// space compares the data with the free space of the target, where the server
// tells it (dbStats, 3.6 and newer).
func (p *planner) space(ctx context.Context) error {
	raw, err := p.j.dst.Command(ctx, "admin", bson.D{{Key: "dbStats", Value: 1}})
	if err != nil {
		return nil //nolint:nilerr // a server that does not tell is no obstacle
	}
	total, ok1 := raw.Lookup("fsTotalSize").AsFloat64OK()
	used, ok2 := raw.Lookup("fsUsedSize").AsFloat64OK()
	if !ok1 || !ok2 || p.copied() {
		return nil
	}
	free := uint64(max(total-used, 0))
	if uint64(p.data) > free {
		p.add(precheck.Warn, "disk", "free space on the target, or rely on compression", "the data are %s uncompressed, the target has %s free",
			humanize.IBytes(uint64(p.data)), humanize.IBytes(free))
		return nil
	}
	p.ok("disk", "%s free for %s of data (uncompressed)", humanize.IBytes(free), humanize.IBytes(uint64(p.data)))
	return nil
}
