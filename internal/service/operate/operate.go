// Package operate has the operations of people on jobs: it checks roles, changes the desired
// state, and keeps the audit trail, for API and console. It runs nothing.
package operate

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
)

// Code is the stable reason of a refusal.
type Code string

const (
	NotFound  Code = "notFound"
	Exists    Code = "exists"
	Invalid   Code = "invalid"
	Forbidden Code = "forbidden"
	Conflict  Code = "conflict"
	// Failed means that the job tried and failed, Ended that its process ends.
	Failed Code = "failed"
	Ended  Code = "ended"
	// TooMany means that the caller has changed too much in a short time.
	TooMany Code = "tooMany"
)

type Error struct {
	Code Code
	Text string
	Hint string
	// Problems are those of a definition.
	Problems config.Problems
}

// Error returns the text and the problems.
func (e *Error) Error() string {
	return strings.Join(append([]string{e.Text}, e.Problems.Lines()...), "\n")
}

func refuse(code Code, hint, format string, args ...any) *Error {
	return &Error{Code: code, Text: fmt.Sprintf(format, args...), Hint: hint}
}

type request struct {
	caller *service.Caller
	needed service.Role
	what   string // for the audit trail
	job    string
	worker string // if no job is concerned
}

// Desk changes the desired state of jobs of a service. It is safe for concurrent use.
type Desk struct {
	Hub  *hub.Hub
	View *hub.View
	Now  func() time.Time

	refusals, changes counts
	checking          turns
}

// allowed refuses callers without the role. A job that a caller may not see counts as missing.
func allowed(c *service.Caller, needed service.Role, name string) error {
	switch {
	case name != "" && !c.Sees(name):
		return missing(name)
	case !c.Role.May(needed):
		return refuse(Forbidden, "ask for a token of the role "+string(needed), "the role %s may not do this", c.Role)
	}
	return nil
}

func missing(name string) error {
	return refuse(NotFound, "see the list of jobs", "there is no job %q", name)
}

func checkName(name string) error {
	if err := service.CheckName(name); err != nil {
		return refuse(Invalid, "choose another name", "%s", err)
	}
	return nil
}

func checkSettings(name, settings string) error {
	if len(settings) > service.MaxSettings {
		return refuse(Invalid, "use patterns in place of lists", "the settings take %d bytes, more than %d", len(settings),
			service.MaxSettings)
	}
	if _, problems := config.CheckDefinition(name, settings); len(problems) > 0 {
		e := refuse(Invalid, "see docs/reference/configuration.md for the settings",
			"the settings of job %q cannot be used", name)
		e.Problems = problems
		return e
	}
	return nil
}

// Create makes a job. For an equal definition made is false. Another one of the name is refused.
func (d *Desk) Create(ctx context.Context, c *service.Caller, wanted service.Definition) (_ *service.Job, made bool,
	err error) {
	if err := checkName(wanted.Name); err != nil {
		return nil, false, err
	}
	q := request{caller: c, needed: service.Admin, what: "create", job: wanted.Name}
	if err := d.enter(ctx, q); err != nil {
		return nil, false, err
	}
	if err := d.checkSettings(ctx, c, wanted.Name, wanted.Settings); err != nil {
		return nil, false, err
	}
	if d.View.Job(wanted.Name) == nil { // else nothing is made
		if err := d.changing(ctx, q); err != nil {
			return nil, false, err
		}
		if err := d.roomFor(c, wanted.Name, wanted.Settings); err != nil {
			return nil, false, d.refused(ctx, q, err)
		}
	}
	def := service.Definition{Name: wanted.Name, UID: rand.Text(), Settings: wanted.Settings, Labels: wanted.Labels,
		Desired: service.Desired{Paused: wanted.Desired.Paused}, CreatedAt: d.Now().UTC(), CreatedBy: c.Name}
	err = d.Hub.Jobs.Create(ctx, &def)
	if errors.Is(err, hub.ErrExists) {
		was, getErr := d.Hub.Jobs.Definition(ctx, def.Name)
		if getErr != nil {
			return nil, false, getErr
		}
		if was.Settings != def.Settings || !maps.Equal(was.Labels, def.Labels) || was.Desired.Removed {
			return nil, false, d.refused(ctx, q,
				refuse(Exists, "choose another name, or remove the other first", "there is another job %q already", def.Name))
		}
		seen(ctx, d.View, was.Name, was.Revision-1)
		return with(d.View, was), false, nil
	}
	if err != nil {
		return nil, false, err
	}
	err = d.note(ctx, c, service.Change{What: q.what, Job: def.Name, After: &def.Desired})
	seen(ctx, d.View, def.Name, def.Revision-1)
	return with(d.View, &def), true, err
}

const noteTime = 5 * time.Second

const seenTime = 2 * time.Second

// await waits until the view has a change, so that the caller sees it.
func await(ctx context.Context, v *hub.View, has func() bool) {
	ctx, cancel := context.WithTimeout(ctx, seenTime)
	defer cancel()
	for {
		changed, _ := v.Changed()
		if has() {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

func seen(ctx context.Context, v *hub.View, name string, revision uint64) {
	await(ctx, v, func() bool { j := v.Job(name); return j != nil && j.Definition.Revision > revision })
}

// with joins the view's job with a definition of the store, which may be newer.
func with(v *hub.View, def *service.Definition) *service.Job {
	j := cmp.Or(v.Job(def.Name), &service.Job{})
	j.Definition = *def
	return j
}

// Job returns a job that the caller may see.
func (d *Desk) Job(c *service.Caller, name string) (*service.Job, error) {
	if err := allowed(c, service.Viewer, name); err != nil {
		return nil, err
	}
	j := d.View.Job(name)
	if j == nil {
		return nil, missing(name)
	}
	if !c.Role.May(service.Operator) {
		*j = j.Redact()
	}
	return j, nil
}

// Jobs returns the jobs that the caller may see, by name.
func (d *Desk) Jobs(c *service.Caller) []service.Job {
	return d.After(c, "", math.MaxInt, func(*service.Job) bool { return true })
}

// After returns the first n visible jobs after name that match, by name, to viewers without values.
func (d *Desk) After(c *service.Caller, name string, n int, match func(*service.Job) bool) []service.Job {
	list := d.View.After(name, n, func(j *service.Job) bool { return c.Sees(j.Definition.Name) && match(j) })
	return redacted(c, list, service.Job.Redact)
}

// Pause stops a job at its checkpoint.
func (d *Desk) Pause(ctx context.Context, c *service.Caller, name string) (*service.Job, error) {
	return d.change(ctx, request{caller: c, needed: service.Operator, what: "pause", job: name},
		func(j *service.Job, w *service.Desired) error {
			w.Paused = true
			return unfinished(j, "pause")
		})
}

// Resume continues a paused or failed job.
func (d *Desk) Resume(ctx context.Context, c *service.Caller, name string) (*service.Job, error) {
	return d.change(ctx, request{caller: c, needed: service.Operator, what: "resume", job: name},
		func(j *service.Job, w *service.Desired) error {
			if w.Paused = false; j.State() == service.Failed {
				w.Try++
			}
			return unfinished(j, "resume")
		})
}

// unfinished refuses what has no effect on a finished job.
func unfinished(j *service.Job, what string) error {
	if j.State() != service.Finished {
		return nil
	}
	return refuse(Conflict, "", "cannot %s job %q: it is finished", what, j.Definition.Name)
}

// Edit replaces settings and labels of a job that failed before it wrote anything, and starts it again.
func (d *Desk) Edit(ctx context.Context, c *service.Caller, wanted service.Definition) (*service.Job, error) {
	q := request{caller: c, needed: service.Admin, what: "edit", job: wanted.Name}
	if err := d.enter(ctx, q); err != nil {
		return nil, err
	}
	if err := d.checkSettings(ctx, c, wanted.Name, wanted.Settings); err != nil {
		return nil, err
	}
	if err := d.roomFor(c, wanted.Name, wanted.Settings); err != nil {
		return nil, d.refused(ctx, q, err)
	}
	// A worker reports the failure shortly before it releases its lease.
	await(ctx, d.View, func() bool { j := d.View.Job(wanted.Name); return j == nil || j.Lease == nil || !j.Untouched() })
	return d.change(ctx, q, func(j *service.Job, w *service.Desired) error {
		switch {
		case !j.Untouched():
			return refuse(Conflict, "make a new job from a copy of it",
				"job %q did not fail before it wrote to its target, so its settings stay", wanted.Name)
		case j.Lease != nil:
			return refuse(Conflict, "try again when its lease has ended",
				"job %q has failed, but worker %s has not released it yet, so its settings stay", wanted.Name, j.Lease.Worker)
		}
		j.Definition.Settings, j.Definition.Labels = wanted.Settings, wanted.Labels
		w.Paused = wanted.Desired.Paused
		w.Try++
		return nil
	})
}

// Finalize cuts a job over. It refuses one that does not follow, unless whenCaughtUp lets it wait for that.
func (d *Desk) Finalize(ctx context.Context, c *service.Caller, name string, whenCaughtUp bool) (*service.Job, error) {
	return d.change(ctx, request{caller: c, needed: service.Operator, what: "finalize", job: name},
		func(j *service.Job, w *service.Desired) error {
			if j.State() == service.Finished {
				return nil
			}
			why, hint := "it does not run", "wait until it follows, or ask for it when it has caught up"
			switch {
			case j.State() == service.Failed:
				why, hint = "it has failed", "see why in its status, then resume it"
			case j.State() == service.Running && j.Report.Status != nil:
				why = j.Report.Status.CannotFinalize
			}
			if why != "" && !whenCaughtUp {
				return refuse(Conflict, hint,
					"job %q cannot be finalized now: %s", name, why)
			}
			w.Finalize = true
			return nil
		})
}

// CancelFinalize cancels a finalize that has not begun.
func (d *Desk) CancelFinalize(ctx context.Context, c *service.Caller, name string) (*service.Job, error) {
	return d.change(ctx, request{caller: c, needed: service.Operator, what: "cancel finalize", job: name},
		func(j *service.Job, w *service.Desired) error {
			switch s := j.Status(); {
			case !w.Finalize:
				return refuse(Conflict, "", "nobody has asked to finalize job %q", name)
			case s != nil && (s.Phase == job.PhaseFinalizing || s.Phase == job.PhaseFinalized):
				return refuse(Conflict, "", "job %q has begun to finalize, which cannot be taken back", name)
			}
			w.Finalize = false
			return nil
		})
}

// Limit changes rates and loads of a job; nil values stay as they are.
func (d *Desk) Limit(ctx context.Context, c *service.Caller, name string, l server.Limits) (*service.Job, error) {
	var own *config.Sync
	text := ""
	return d.change(ctx, request{caller: c, needed: service.Operator, what: "limits", job: name},
		func(j *service.Job, w *service.Desired) error {
			if settings := j.Definition.Settings; own == nil || text != settings { // else this is another try
				end, err := d.turn(ctx, c, settings)
				if err != nil {
					return err
				}
				own, _ = config.CheckDefinition(name, settings)
				text = settings
				end()
			}
			rates, loads, err := limited(l, *cmp.Or(w.Limits, &own.Limits), *cmp.Or(w.Loads, &own.Loads))
			if l.Docs != nil || l.Bytes != nil {
				w.Limits = &rates
			}
			if l.Source != nil || l.Target != nil {
				w.Loads = &loads
			}
			return err
		})
}

func limited(l server.Limits, rates pace.Rates, loads pace.Loads) (pace.Rates, pace.Loads, error) {
	rates.Docs, rates.Bytes = *cmp.Or(l.Docs, &rates.Docs), *cmp.Or(l.Bytes, &rates.Bytes)
	loads.Source, loads.Target = *cmp.Or(l.Source, &loads.Source), *cmp.Or(l.Target, &loads.Target)
	switch err := loads.Check(); {
	case l == (server.Limits{}):
		return rates, loads, refuse(Invalid, "name docsPerSecond, bytesPerSecond, sourceLoad or targetLoad",
			"nothing is to be changed")
	case rates.Docs < 0 || rates.Bytes < 0:
		return rates, loads, refuse(Invalid, "0 is unlimited", "rates must not be negative: %d documents, %d bytes a second",
			rates.Docs, rates.Bytes)
	case err != nil && (l.Source != nil || l.Target != nil):
		return rates, loads, refuse(Invalid, "", "%s", err)
	}
	return rates, loads, nil
}

// Remove deletes a job's definition. Its data and checkpoint stay on the target.
func (d *Desk) Remove(ctx context.Context, c *service.Caller, name string) (*service.Job, error) {
	return d.change(ctx, request{caller: c, needed: service.Admin, what: "remove", job: name},
		func(_ *service.Job, w *service.Desired) error {
			w.Removed = true
			return nil
		})
}

// errSame keeps what changes nothing out of the store and the audit trail.
var errSame = errors.New("nothing changes")

func (d *Desk) change(ctx context.Context, q request, do func(*service.Job, *service.Desired) error) (*service.Job,
	error) {
	if err := d.enter(ctx, q); err != nil {
		return nil, err
	}
	if err := d.changing(ctx, q); err != nil {
		return nil, err
	}
	var now *service.Job
	var before service.Desired
	var revision uint64
	def, err := d.Hub.Jobs.Change(ctx, q.job, func(def *service.Definition) error {
		now, before, revision = with(d.View, def), def.Desired, def.Revision
		if err := do(now, &now.Definition.Desired); err != nil {
			return err
		}
		if reflect.DeepEqual(*def, now.Definition) {
			return errSame
		}
		def.Desired, def.Settings, def.Labels = now.Definition.Desired, now.Definition.Settings, now.Definition.Labels
		return nil
	})
	if errors.Is(err, errSame) {
		return now, nil
	}
	if errors.Is(err, hub.ErrNotFound) {
		return nil, missing(q.job)
	}
	if err != nil {
		return nil, d.refused(ctx, q, err)
	}
	err = d.note(ctx, q.caller, service.Change{What: q.what, Job: q.job, Before: &before, After: &def.Desired})
	seen(ctx, d.View, q.job, revision)
	return now, err
}

// enter refuses and records requests without the role. An invalid name must not reach the store.
func (d *Desk) enter(ctx context.Context, q request) error {
	if service.CheckName(q.job) != nil {
		return missing(q.job)
	}
	return d.refused(ctx, q, allowed(q.caller, q.needed, q.job))
}

func (d *Desk) refused(ctx context.Context, q request, why error) error {
	var e *Error
	if !errors.As(why, &e) || !d.refusals.fits(q.caller.Name, d.Now(), time.Minute, maxRefusals) {
		return why
	}
	return errors.Join(why,
		d.note(ctx, q.caller, service.Change{What: q.what, Job: q.job, Worker: q.worker, Refused: e.Text}))
}

func (d *Desk) note(ctx context.Context, c *service.Caller, change service.Change) error {
	change.At, change.Who, change.From = d.Now().UTC(), c.Name, c.From
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteTime)
	defer cancel()
	return d.Hub.Audit.Note(ctx, &change)
}

// Trail returns entries of the audit trail to admins (see hub.Audit.Trail).
func (d *Desk) Trail(ctx context.Context, c *service.Caller, name string, page service.Page) ([]service.Change,
	error) {
	if err := allowed(c, service.Admin, name); err != nil {
		return nil, err
	}
	if name == "" && len(c.Jobs) > 0 {
		return nil, refuse(Forbidden, "ask for one job", "the trail of all jobs is not for a token of some jobs")
	}
	return d.Hub.Audit.Trail(ctx, name, page)
}
