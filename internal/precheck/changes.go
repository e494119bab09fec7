package precheck

import (
	"context"
	"slices"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/state"
)

// changes checks the sources of the changes that the job follows.
type changes struct{ *planner }

// oplogWindow checks that the oplog has the start position, and how far back it goes.
func (p changes) oplogWindow(ctx context.Context) error {
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
	if !p.from.At.IsZero() {
		if need, err = p.ReadFrom(state.Job{Applied: p.from.At, Mark: p.from.Mark}); err != nil {
			return err
		}
	}
	switch {
	case !need.IsZero() && need.First().Before(oldest) && p.Spool.HasLeftover():
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

func (p changes) window(ctx context.Context) (oldest, newest mongo.OpTime, err error) {
	if p.Shards != nil {
		return p.Shards.Window(ctx)
	}
	return oplog.Window(ctx, p.Source)
}

func (p changes) full(ctx context.Context) bool {
	if p.Shards != nil {
		return p.Shards.Full(ctx)
	}
	return oplog.Full(ctx, p.Source)
}

// spool checks the directory for changes that the oplog may lose during a copy.
func (p changes) spool(context.Context) error {
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

// spooled reports whether the job no longer writes to the spool.
func (p changes) spooled() bool {
	return p.plan.Resumes && slices.Contains([]state.Phase{state.PhaseOverlap, state.PhaseFollowing, state.PhaseFinalizing,
		state.PhaseFinalized}, p.plan.ResumePhase)
}
