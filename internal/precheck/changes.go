package precheck

import (
	"context"
	"fmt"
	"slices"

	"github.com/dustin/go-humanize"

	"github.com/millrace/millrace/internal/format"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/state"
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
	need, err := p.ReadFrom(p.job.ResumeAt())
	if err != nil {
		return err
	}
	if need.IsZero() && p.Mode == state.ModeIncremental {
		need, _ = mongo.ParseOpTime(p.StartAt)
	}
	if !p.from.At.IsZero() {
		if need, err = p.ReadFrom(p.from); err != nil {
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
	return p.Source.Info.Kind == mongo.KindReplicaSet && p.Mode != state.ModeIncremental && p.WarnWindow > 0 &&
		!(p.plan.Resumes && slices.Contains([]state.Phase{state.PhaseOverlap, state.PhaseFollowing,
			state.PhaseFinalizing, state.PhaseFinalized}, p.plan.ResumePhase))
}
