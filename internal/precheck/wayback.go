package precheck

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/format"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/reverse"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/transform"
)

type changes struct{ *planner }

// oplogWindow checks that the oplog has the start position, and for how long it keeps what the job reads.
func (p changes) oplogWindow(ctx context.Context) error {
	if p.Source.Info.Kind == mongo.KindStandalone || p.unread || p.job.Expiring {
		return nil
	}
	window, err := p.Window(ctx)
	if err != nil && mongo.Classify(err) == mongo.ClassRetry {
		return err
	}
	if err != nil {
		p.add(Fail, "oplog", "grant the user read on database local", "the source's oplog cannot be read: %v", err)
		return nil
	}
	if p.Streamed != nil && window.Oldest.IsZero() {
		p.add(Warn, "oplog", "keep the source's oplog long enough for the copy (replSetResizeOplog)",
			"how far back the source's change streams reach is unknown: the user may not read it, or routers do not tell")
		return nil
	}
	need, err := p.ReadFrom(p.job.ResumeAt())
	if err != nil {
		return err
	}
	if need.IsZero() && p.Mode == state.ModeIncremental {
		need, _ = mongo.ParseOpTime(p.StartAt)
	}
	if from := p.from; !from.At.IsZero() {
		if p.Streamed != nil {
			from.Mark = "" // the way back is stored for oplogs
		}
		if need, err = p.ReadFrom(from); err != nil {
			return err
		}
	}
	switch {
	case !need.IsZero() && need.First().Before(window.Oldest) && p.Spool.HasLeftover():
		p.add(Warn, "oplog", "keep the spool's directory",
			"it begins at %s and no longer holds %s, where the job would continue; the spool may", window.Oldest, need)
	case !need.IsZero() && need.First().Before(window.Oldest):
		p.add(Fail, "oplog", "make the oplog larger (replSetResizeOplog), then start again with --restart and "+
			"--on-existing drop",
			"it begins at %s and no longer holds %s, where the job would continue", window.Oldest, need)
	default:
		if need.IsZero() {
			need = window.Newest
		}
		p.judge(&window, need)
	}
	return nil
}

// judge compares the time until the oplog overwrites what the job reads from need on with --warn-window.
func (p changes) judge(window *oplog.Window, need mongo.OpTime) {
	left := window.Left(need)
	shard, of := window.First(need)
	use := "its size is unknown"
	if of.MaxBytes > 0 {
		use = fmt.Sprintf("%s of %s used, %s/s written", humanize.Bytes(uint64(of.Bytes)),
			humanize.Bytes(uint64(of.MaxBytes)), humanize.Bytes(uint64(of.Rate())))
	}
	if shard != "" {
		use = "shard " + shard + ": " + use
	}
	p.short = left < p.WarnWindow
	keeps := format.Seconds(left.Seconds())
	switch _, _, _, enabled, err := p.Spool.Check(); {
	case p.short && enabled && err == nil && p.spools():
		p.ok("oplog", "keeps what the job reads for %s (%s), the spool keeps it until the copy is done", keeps, use)
	case p.short:
		p.add(Warn, "oplog", "make the source's oplog larger (replSetResizeOplog), write less there, or give --spool-dir; a "+
			"job that loses a change must start again",
			"it keeps what the job reads for only %s, less than --warn-window %s (%s)", keeps, p.WarnWindow, use)
	default:
		p.ok("oplog", "keeps what the job reads for %s (%s)", keeps, use)
	}
}

func (p changes) spool(context.Context) error {
	if !p.spools() {
		return nil
	}
	dir, free, want, enabled, err := p.Spool.Check()
	switch {
	case !enabled:
	case err != nil:
		p.add(Fail, "spool", oplog.SpoolHint(dir, err), "changes cannot be kept on local disk, in %s: %v", dir, err)
	case free < want && p.short:
		p.add(Warn, "spool", "make room, choose another directory with --spool-dir, or lower --spool-max; once the "+
			"disk is full, the oplog alone must hold the changes",
			"%s free in %s, but changes may take %s (--spool-max)", humanize.Bytes(free), dir, humanize.Bytes(want))
	default:
		p.ok("spool", "%s free in %s", humanize.Bytes(free), dir)
	}
	return nil
}

// spools reports whether the job may still write to the spool.
func (p changes) spools() bool {
	return p.Source.Info.Kind == mongo.KindReplicaSet && p.Streamed == nil && p.Mode != state.ModeIncremental && p.WarnWindow > 0 &&
		!(p.plan.Resumes && slices.Contains([]state.Phase{state.PhaseOverlap, state.PhaseFollowing,
			state.PhaseFinalizing, state.PhaseFinalized}, p.plan.ResumePhase))
}

// returning checks a job that leads another one back, before it begins.
type returning struct{ *planner }

const wayBack = "way back"

// wayBack checks that the job fits the one that it reverses, and what would be lost.
func (p returning) wayBack(ctx context.Context) error {
	name, reverses := state.StartAtJob(p.StartAt)
	if !reverses || p.plan.Resumes {
		return nil
	}
	was, err := state.LoadFinished(ctx, p.Source, name)
	switch {
	case errors.Is(err, state.ErrNoJob):
		p.add(Fail, wayBack, mongo.HintOf(err), "%v", err)
		return nil
	case err != nil:
		return err
	}
	src, dst := p.Source.Info.SetID, p.Target.Info.SetID
	switch known := !src.IsZero() && !dst.IsZero(); {
	case was.Reason == "" && p.Shards != nil && !was.HasNames():
		was.Reason = "it was finalized by a version that stored no position of shards"
		fallthrough
	case was.Reason != "":
		p.add(Fail, wayBack, "copy in the other direction, with --on-existing drop", "job %s stored no way back: %s",
			name, was.Reason)
		return nil
	case known && (was.TargetSet != src || was.SourceSet != dst):
		p.add(Fail, wayBack, "exchange source and target of job "+name,
			"job %s was finalized between other clusters", name)
		return nil
	}
	p.from = was.Position
	if err := p.inverse(was); err != nil {
		return err
	}
	return p.targetChanges(ctx, was)
}

func (p returning) inverse(was state.Finished) error {
	back, losses, err := Inverse(was)
	if err == nil {
		err = reverse.Holds(transform.ParseConfig(p.Rules.String()), back)
	}
	if err != nil {
		p.add(Fail, wayBack, "let millrace reverse make the rules", "%v", err)
		return nil
	}
	p.ok(wayBack, "follows from %s, where job %s was finalized; rules: %s", was.Position.At, was.ID, p.Rules)
	refusing := reverse.Refusing(losses, p.AcceptLoss)
	for _, l := range losses {
		if slices.ContainsFunc(refusing, func(r reverse.Loss) bool { return r.String() == l.String() }) {
			p.add(Fail, "loss: "+l.Name, "--accept-loss "+l.Name+" continues anyway", "%s", l)
		} else {
			p.add(Warn, "loss: "+l.Name, "", "%s", l)
		}
	}
	return nil
}

// Inverse is the definition that leads a finalized job back, and what it loses. Its sides are those of the caller.
func Inverse(was state.Finished) (reverse.Definition, []reverse.Loss, error) {
	d := reverse.Definition{Rules: transform.ParseConfig(was.Rules)}
	if was.Reverses != "" {
		first := transform.ParseConfig(was.Returns)
		d.Returns = &first
	}
	for _, n := range was.Names {
		d.Names = append(d.Names, reverse.Name{Source: n.Target, Target: n.NS})
	}
	back, losses, err := reverse.Invert(d)
	return back, losses, mongo.Wrap(err, "reverse job %s", was.ID)
}

// errFound ends a search.
var errFound = errors.New("found")

// targetChanges looks for what was written to the old cluster after the cut-over: the new one does
// not have it. What expires there by itself expires on the new one, too.
func (p returning) targetChanges(ctx context.Context, was state.Finished) error {
	level, hint := Fail, "compare with millrace verify; --accept-loss "+reverse.TargetChanges+" continues, and keeps or "+
		"replaces the later writes"
	if slices.Contains(p.AcceptLoss, reverse.TargetChanges) {
		level, hint = Warn, ""
	}
	all := []*mongo.Cluster{p.Target}
	if p.Target.Info.Kind == mongo.KindSharded {
		to, err := p.TargetShards(ctx)
		if err != nil {
			p.add(level, "loss: "+reverse.TargetChanges, hint, "cannot tell whether the target has changed since the cut-over: "+
				"%s", mongo.Brief(err))
			return nil
		}
		defer to.Close()
		all = nil
		for _, s := range to.Cluster().Shards {
			all = append(all, s.Cluster)
		}
	}
	for _, c := range all {
		found, err := p.changedSince(ctx, c, was.Applied)
		if mongo.Classify(err) == mongo.ClassRetry {
			return err
		}
		if err != nil {
			found = "cannot tell whether the target has changed since the cut-over: " + mongo.Brief(err)
		}
		if found != "" {
			p.add(level, "loss: "+reverse.TargetChanges, hint, "%s", found)
			return nil
		}
	}
	p.ok("target", "nothing was written to it since the cut-over")
	return nil
}

// changedSince finds the first change of a user after a position, "" for none.
func (p returning) changedSince(ctx context.Context, c *mongo.Cluster, at mongo.OpTime) (found string, err error) {
	oldest, _, err := c.OldestEntry(ctx) // by other connections than those that write, which need an owner
	switch {
	case err != nil:
		return "", err
	case at.Before(oldest):
		return fmt.Sprintf("cannot tell whether the target has changed since the cut-over at %s: its oplog begins at %s", at,
			oldest), nil
	}
	now, err := c.Committed(ctx)
	if err != nil {
		return "", err
	}
	expires := map[string]bool{}
	theirs := bson.D{{Key: "$not", Value: bson.Regex{Pattern: `^(admin|config|local|` + mongo.StateDB + `)\.`}}}
	filter := bson.D{
		{Key: "ts", Value: bson.D{{Key: "$gt", Value: at.TS}, {Key: "$lte", Value: now.TS}}},
		{Key: "op", Value: bson.D{{Key: "$in", Value: bson.A{"i", "u", "d", "c"}}}},
		{Key: "fromMigrate", Value: bson.D{{Key: "$ne", Value: true}}},
		{Key: "$or", Value: bson.A{bson.D{{Key: "ns", Value: theirs}}, bson.D{{Key: "o.applyOps.ns", Value: theirs}}}},
	}
	err = c.EachEntry(ctx, filter, now.TS, func(raw bson.Raw) error {
		for _, e := range entries(raw) {
			if e.op == "d" {
				if _, asked := expires[e.ns]; !asked {
					expires[e.ns] = schema.Expires(ctx, c, e.ns)
				}
				if expires[e.ns] {
					continue
				}
			}
			if p.concerns(e.ns) {
				t, i, _ := raw.Lookup("ts").TimestampOK()
				found = fmt.Sprintf("the target has changed since the cut-over, first %s by an entry %q at %d:%d", e.ns, e.op, t, i)
				return errFound
			}
		}
		return nil
	})
	if errors.Is(err, errFound) {
		err = nil
	}
	return found, err
}

// concerns reports a namespace of the target, or a database's commands, that the rules lead to.
func (p returning) concerns(ns string) bool {
	db, coll := mongo.SplitNS(ns)
	if coll == "$cmd" {
		return p.Rules.MatchTargetDB(db)
	}
	return len(p.Rules.Sources(db+"."+strings.TrimPrefix(coll, mongo.BucketsPrefix))) > 0
}

type change struct{ op, ns string }

func entries(raw bson.Raw) (out []change) {
	op, _ := raw.Lookup("op").StringValueOK()
	ns, _ := raw.Lookup("ns").StringValueOK()
	ops, grouped := raw.Lookup("o", "applyOps").ArrayOK()
	if !grouped {
		return []change{{op, ns}}
	}
	values, _ := ops.Values()
	for _, v := range values {
		if doc, ok := v.DocumentOK(); ok {
			out = append(out, entries(doc)...)
		}
	}
	return out
}
