package precheck

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/reverse"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/transform"
)

type stored struct{ *planner }

func (p stored) resume(context.Context) error {
	job, found, err := p.seen.job()
	if err != nil {
		return err
	}
	if !found || p.Restart {
		if err := p.alive(found); err != nil {
			return err
		}
		if p.Mode == state.ModeIncremental {
			_, reverses := state.StartAtJob(p.StartAt)
			if found && reverses {
				p.reversedBefore()
			}
			if _, err := mongo.ParseOpTime(p.StartAt); err != nil && !reverses {
				p.add(Fail, "start", "give the position of the target's data, e.g. --start-at 1700000000:1",
					"incremental mode of a new job needs --start-at with a position, a time or job:NAME (got %q)", p.StartAt)
			}
		}
		return nil
	}
	p.job = job
	p.plan.Resumes, p.plan.ResumePhase = true, job.Phase
	switch {
	case (job.Mode == state.ModeStructure) != (p.Mode == state.ModeStructure):
		p.add(Fail, "mode", "use the same --mode, another --job, or --restart",
			"job %s started with --mode %s and continues only with it", p.Job, job.Mode)
	case cmp.Or(job.Capture, state.CaptureOplog) != cmp.Or(p.Capture.By, state.CaptureOplog):
		p.add(Fail, checkCapture, "use the same --capture and --via, another --job, or --restart",
			"job %s began with --capture %s, and its positions are none of --capture %s", p.Job,
			cmp.Or(job.Capture, state.CaptureOplog), p.Capture.By)
	case job.Rules != p.Rules.String():
		p.add(Fail, "rules", "use the same --include, --exclude, --rename, --filter, --skip, --fields, --soft-delete and "+
			"--history, another --job, or --restart", "job %s started with other rules", p.Job)
	case job.SourceSet != p.Source.Info.SetID || job.TargetSet != p.Target.Info.SetID:
		p.add(Fail, "job", "use another --job, or --restart", "job %s started between other clusters", p.Job)
	case job.Phase == state.PhaseFinalized && job.Ended == state.ModeFull && !p.Mode.EndsByItself():
		then := fmt.Sprintf("follow with another --job, --mode incremental and --start-at %s, or copy again with --restart",
			job.Applied)
		if p.Source.Info.Kind == mongo.KindSharded {
			then = "copy and follow with --restart, or with another --job"
		}
		p.add(Fail, "mode", then, "job %s ended with --mode full at %s: it cannot continue with --mode %s",
			p.Job, job.Applied, p.Mode)
	case job.Phase == state.PhaseFinalized:
		at := job.FinalizedAt
		p.plan.Finalized = &at
		if !job.TargetPosition.IsZero() {
			p.plan.TargetPosition = job.TargetPosition.String()
		}
		p.ok("resume", "job %s is finalized already, at %s; nothing is left to do", p.Job, at.Format(time.RFC3339))
	case job.Files && !p.Files:
		p.add(Fail, "copy", "use --copy files, --source-agent and --target-agents, another --job, or --restart",
			"job %s copied files and continues only with --copy files: else the target never expires documents", p.Job)
	case p.copied() && p.OnExisting == state.ExistingDrop && job.OnExisting != state.ExistingDrop:
		p.add(Fail, "target collections", "leave --on-existing out, use another --job, or --restart",
			"job %s started with --on-existing %s: --on-existing drop would drop what it kept", p.Job,
			cmp.Or(job.OnExisting, state.ExistingFail))
	case !p.Keys.Fits(p.Rules, job.Keys):
		p.add(Fail, "rules", "use the same key, another --job, or --restart",
			"job %s started with another key for masks: the target would have values of both", p.Job)
	default:
		p.ok("resume", "continues job %s in phase %s at %s", p.Job, job.Phase, job.Applied)
	}
	return nil
}

// reversedBefore refuses to restart a job that leads another one back: all changes since the cut-over are applied
// once more, over what was written since.
func (p stored) reversedBefore() {
	job, _, _ := p.seen.job()
	why := fmt.Sprintf("job %s has begun to lead back already (phase %s): --restart applies all changes since the "+
		"cut-over again, and forgets its dead letters", p.Job, job.Phase)
	if job.Phase == state.PhaseFinalized {
		why = fmt.Sprintf("job %s was finalized at %s: --restart overwrites what was written to its target since, and "+
			"forgets its own way back", p.Job, job.FinalizedAt.Format(time.RFC3339))
	}
	if slices.Contains(p.AcceptLoss, reverse.TargetChanges) {
		p.add(Warn, "loss: "+reverse.TargetChanges, "", "%s", why)
		return
	}
	p.add(Fail, "loss: "+reverse.TargetChanges, "leave --restart out to continue the job; --accept-loss "+
		reverse.TargetChanges+" restarts anyway", "%s", why)
}

// alive refuses to begin a job anew that a process runs.
func (p stored) alive(found bool) error {
	if !found {
		return nil
	}
	life, err := p.seen.life()
	if err == nil && life == state.Running {
		job, _, _ := p.seen.job()
		p.add(Fail, "job", "stop that process first", "cannot restart job %s: %s runs it", p.Job, job.Owner)
	}
	return err
}

func (p stored) givenShards(context.Context) error {
	if p.CheckShards == nil {
		return nil
	}
	if err := p.CheckShards(p.job.ResumeAt()); err != nil {
		p.add(Fail, "shards", mongo.HintOf(err), "%v", err)
	}
	return nil
}

func (p stored) history(context.Context) error {
	if !p.Rules.Histories() {
		return nil
	}
	fail := func(hint, format string, args ...any) { p.add(Fail, "history", hint, format, args...) }
	const pair = "leave --history out, or use a replica set on either side"
	src, dst := p.Source.Info, p.Target.Info
	switch {
	case src.Kind != mongo.KindReplicaSet:
		fail(pair, "the source is a %s: only a replica set orders the changes of a document", src.Kind)
	case dst.Kind != mongo.KindReplicaSet:
		fail(pair, "the target is a %s: histories on one were not tried", dst.Kind)
	case !dst.Version.AtLeast(4, 4):
		fail("upgrade it to 4.4 or newer",
			"the target is MongoDB %s, which cannot look for the versions of many documents at once ($unionWith)", dst.Version)
	}
	if p.Mode == state.ModeIncremental {
		fail("use --mode all", "in incremental mode nothing tells what the documents were at the beginning")
	}
	if p.onExisting() == state.ExistingMerge {
		fail("use --on-existing fail or drop",
			"with --on-existing merge the target may have documents other than versions of this job")
	}
	if p.Skips {
		fail("use --on-conflict stop",
			"with --on-conflict skip or overwrite a version that the target refuses would be missing, and later ones are "+
				"made of it")
	}
	return nil
}

// rivals checks the other jobs of the target. A job that has begun to write goes on beside those allowed since.
func (p stored) rivals(context.Context) error {
	others, err := p.seen.others()
	rivals := rivalsAmong(others, p.Rules)
	if err != nil || len(rivals) == 0 {
		return err
	}
	if err := Refusal(rivals, p.onExisting(), p.AllowOverlap); err != nil && !p.copied() {
		p.add(Fail, "other jobs", mongo.HintOf(err), "%s", err)
		return nil
	}
	p.add(Warn, "other jobs", "", "%s", rivalsText(rivals))
	return nil
}

// Rival is another job with the same target whose rules lead to names of this job's rules. Until it
// is finalized they are its own, whether it runs or not.
type Rival struct {
	state.Job
	Names string // which, as a pattern
}

// Rivals finds rivals by the rules alone: both jobs may create collections at any time. certain is
// as in state.Jobs.LoadOthers.
func Rivals(ctx context.Context, store state.Store, rules *transform.Set, certain bool) ([]Rival, error) {
	others, err := store.LoadOthers(ctx, certain)
	return rivalsAmong(others, rules), err
}

func rivalsAmong(others []state.Job, rules *transform.Set) (out []Rival) {
	for _, other := range others {
		names, found := "*.*", true // of rules that this version does not know
		if theirs, err := transform.Parse(other.Rules); err == nil {
			names, found = transform.Overlap(rules, theirs)
		}
		if found {
			out = append(out, Rival{other, names})
		}
	}
	return out
}

// Refusal returns an error if a job may not begin beside its rivals. It may where that is allowed
// and neither side drops collections.
func Refusal(rivals []Rival, onExisting state.OnExisting, allowed bool) error {
	for _, r := range rivals {
		switch drops := onExisting == state.ExistingDrop || r.OnExisting == state.ExistingDrop; {
		case allowed && drops:
			return mongo.WithHint(errors.New(rivalsText(rivals)+"; one that began with --on-existing drop drops what the "+
				"other has made"),
				"merge with --on-existing merge in all of these jobs, or finalize the other first")
		case !allowed:
			return mongo.WithHint(errors.New(rivalsText(rivals)),
				"finalize the other job first, or remove it with millrace jobs drop if it is given up; change the rules; or "+
					"merge both with --allow-overlap")
		}
	}
	return nil
}

func rivalsText(rivals []Rival) string {
	const most = 3
	var texts []string
	for _, r := range rivals[:min(most, len(rivals))] {
		by := "stopped"
		if r.Owner != (state.Owner{}) {
			by = "last run by " + r.Owner.String()
		}
		texts = append(texts, fmt.Sprintf("job %s (phase %s, %s) has %s of this target too", r.ID, r.Phase, by, r.Names))
	}
	if more := len(rivals) - most; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d jobs more", more))
	}
	return strings.Join(texts, "; ")
}
