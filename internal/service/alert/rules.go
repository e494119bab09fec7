package alert

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/format"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/source/oplog"
)

// Rule says when alerts of one kind fire.
type Rule struct {
	Off bool
	// For is the time that a finding must last.
	For time.Duration
	// Limit is the highest lag, or the shortest window, without a finding.
	Limit time.Duration
	// Jobs are patterns of names of jobs; none is all.
	Jobs []string
}

type Rules map[service.AlertKind]Rule

// calm is the time without a finding that resolves an alert of lag or window: values may be around the limit.
const calm = time.Minute

// DefaultRules returns the rules that hold without settings.
func DefaultRules() Rules {
	return Rules{
		service.AlertLag:        {Limit: time.Minute, For: 5 * time.Minute},
		service.AlertWindow:     {Limit: 6 * time.Hour, For: time.Minute},
		service.AlertFailed:     {},
		service.AlertConflict:   {For: 10 * time.Minute},
		service.AlertNoProgress: {For: 15 * time.Minute},
		service.AlertNoWorker:   {For: 2 * time.Minute},
	}
}

type answer int

const (
	unknown answer = iota
	no
	yes
)

// finding is an answer with text and hint. For no, text is the reason.
type finding struct {
	answer     answer
	text, hint string
}

func not(why string) finding { return finding{answer: no, text: why} }

type look struct {
	job     *service.Job
	state   service.State
	status  *job.Status // nil if unknown
	live    bool        // of the present run
	workers []service.Worker
	moved   bool  // since the last evaluation
	before  int64 // refused documents that were notified
}

func (r Rule) evaluate(kind service.AlertKind, l look) finding {
	switch {
	case r.Off || !service.MatchJob(r.Jobs, l.job.Definition.Name):
		return not("the rule is not asked for")
	case l.job.Definition.Desired.Removed:
		return not("the job is removed")
	case kind == service.AlertConflict:
		return l.conflict()
	case l.state == service.Finished:
		return not("the job is finished")
	}
	switch kind {
	case service.AlertLag:
		return l.lag(r.Limit)
	case service.AlertWindow:
		return l.window(r.Limit)
	case service.AlertFailed:
		return l.failed()
	case service.AlertNoProgress:
		return l.noProgress()
	case service.AlertNoWorker:
		return l.noWorker()
	}
	return finding{}
}

func (l look) lag(limit time.Duration) finding {
	if l.state == service.Paused {
		return not("the job is paused")
	}
	if !l.live {
		return finding{}
	}
	f := l.status.Follow
	switch {
	case l.status.Phase != job.PhaseFollowing && l.status.Phase != job.PhaseFinalizing:
		return not("the job does not follow")
	case f.LagSeconds < 0:
		return finding{}
	case f.LagSeconds <= limit.Seconds():
		return not("the target has caught up")
	}
	return finding{yes, fmt.Sprintf("the target is %s behind the source, more than %s", format.Seconds(f.LagSeconds),
		limit),
		"see what the job waits for, and whether its limits, the target or the network hold it back"}
}

func (l look) window(limit time.Duration) finding {
	if !l.live || l.status.Follow.WindowSeconds < 0 {
		return finding{}
	}
	switch f := l.status.Follow; {
	case f.WindowSeconds >= limit.Seconds():
		return not("the oplog window is long enough")
	case f.WindowHeld:
		return not("the spool keeps what the job needs")
	default:
		return finding{yes, fmt.Sprintf("at its write rate the source's oplog will overwrite in %s what the job reads next, "+
			"less than %s", format.Clock(time.Duration(f.WindowSeconds)*time.Second), limit), oplog.ShortHint}
	}
}

func (l look) failed() finding {
	if l.state != service.Failed {
		return not("the job is " + string(l.state))
	}
	return finding{yes, "the job has failed: " + cmp.Or(l.job.Report.Error, "the worker did not say why"),
		cmp.Or(l.job.Report.Hint, "correct the cause, and resume the job")}
}

func (l look) conflict() finding {
	if l.status == nil {
		return finding{}
	}
	n := service.Refused(l.status)
	if n <= l.before {
		return not("no more documents were refused")
	}
	return finding{yes, fmt.Sprintf("the target has refused %d documents, %d more than were known", n, n-l.before),
		"see them with millrace deadletters, and correct them or their source"}
}

func (l look) noProgress() finding {
	switch l.state {
	case service.Starting, service.Running:
	default:
		return not("the job is " + string(l.state))
	}
	s := l.status
	if l.live && s.Phase == job.PhaseFollowing && s.Follow.LagSeconds == 0 && s.Error == "" {
		return not("the target has all that the source has")
	}
	if l.moved {
		return not("the job moves")
	}
	f := finding{answer: yes, text: "the job makes no progress", hint: "see the worker's log"}
	if r := l.job.Known(); r != nil {
		why, hint := r.Error, r.Hint
		if l.live {
			why, hint = cmp.Or(why, s.Error, s.Waiting), cmp.Or(hint, s.Hint)
		}
		if why != "" {
			f.text += ": " + why
		}
		f.hint = cmp.Or(hint, f.hint)
	}
	return f
}

func (l look) noWorker() finding {
	if l.state != service.Waiting {
		return not("the job is " + string(l.state))
	}
	d := &l.job.Definition
	fit, room := 0, 0
	for _, w := range l.workers {
		if w.Draining || !d.Fits(w.Labels) {
			continue
		}
		if fit++; w.MaxJobs == 0 || len(w.Jobs) < w.MaxJobs {
			room++
		}
	}
	switch {
	case len(l.workers) == 0:
		return finding{yes, "nobody runs the job: there is no worker", "start millrace worker, or serve without --no-worker"}
	case fit == 0:
		return finding{yes, fmt.Sprintf("nobody runs the job: none of %d workers takes jobs with its labels (%s)",
			len(l.workers), cmp.Or(strings.Join(service.LabelTexts(d.Labels), ", "), "none")),
			"start a worker with these labels"}
	case room == 0:
		return finding{yes, "nobody runs the job: the workers that may have no room",
			"start another worker, or raise --max-jobs"}
	}
	return finding{yes, "nobody runs the job, though workers have room", "see the logs of the workers"}
}

type progress struct {
	state                                  service.State
	phase                                  job.Phase
	docs, bytes, operations, built, schema int64
	made                                   int
	applied, spooled                       string
}

func (l look) progress() progress {
	m := progress{state: l.state}
	s := l.status
	if !l.live {
		return m
	}
	m.phase, m.docs, m.bytes, m.operations = s.Phase, s.Copy.Docs, s.Copy.Bytes, s.Follow.Operations
	m.applied, m.spooled, m.schema = s.Follow.Applied, s.Follow.SpooledTo, s.Follow.SchemaChanges
	for _, i := range s.Indexes {
		m.built += i.Done
	}
	if x := s.Structure; x != nil {
		m.made = x.Collections + x.Views + x.Indexes
	}
	return m
}
