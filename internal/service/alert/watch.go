package alert

import (
	"time"

	"github.com/millrace/millrace/internal/service"
)

// watch applies rules to what it is shown, again and again. It keeps how long things
// have lasted, and does nothing but that: what fires and what is over it says.
type watch struct {
	rules Rules
	newID func() string
	seen  map[place]*track
	marks map[string]marked // by job
}

// place is where alerts of a kind are, of a job as it was defined.
type place struct {
	kind     service.AlertKind
	job, uid string
}

// track is since when a rule says what it says; zero where it does not.
type track struct {
	yes, no time.Time
	refused int64
	looked  bool
}

type marked struct {
	uid string
	mark
}

func newWatch(rules Rules, newID func() string) *watch {
	return &watch{rules: rules, newID: newID, seen: map[place]*track{}, marks: map[string]marked{}}
}

// forget has it begin anew: what it saw is of another time.
func (w *watch) forget() { clear(w.seen); clear(w.marks) }

// change is an alert that is to be stored: it fires, or is over. Gone is one that is to be
// forgotten.
type change struct {
	service.Alert
	gone bool
}

// step looks at all jobs, and at the alerts that are stored. It returns what has to
// change of those. now is not of the wall clock alone, which may be set.
func (w *watch) step(now time.Time, jobs []service.Job, workers []service.Worker,
	stored []service.Alert) (out []change) {
	has := map[place]*service.Alert{}
	taken := map[place]bool{}
	for i := range stored {
		a := &stored[i]
		has[place{a.Kind, a.Job, ""}] = a
	}
	seen := make(map[place]*track, len(w.seen))
	marks := make(map[string]marked, len(w.marks))
	for i := range jobs {
		j := &jobs[i]
		name, uid := j.Definition.Name, j.Definition.UID
		l := newLook(j, workers)
		m := marked{uid, l.mark()}
		l.moved = w.marks[name] != m
		marks[name] = m
		for _, kind := range service.AlertKinds() {
			at := place{kind, name, uid}
			t := w.seen[at]
			if t == nil {
				t = &track{}
			}
			seen[at] = t
			a := has[place{kind, name, ""}]
			if a != nil && a.UID != uid {
				continue // first that one ends
			}
			taken[place{kind, name, ""}] = true
			if next, ok := w.next(now, kind, l, t, a); ok {
				next.Job, next.UID = name, uid
				out = append(out, change{Alert: next})
			}
		}
	}
	w.seen, w.marks = seen, marks
	for i := range stored { // of jobs that are no more
		if a := stored[i]; !taken[place{a.Kind, a.Job, ""}] && a.Told {
			out = append(out, change{Alert: over(a, now, "the job is removed"), gone: !a.Firing()})
		}
	}
	return out
}

// next is what an alert, nil where there is none, has to become.
func (w *watch) next(now time.Time, kind service.AlertKind, l look, t *track, a *service.Alert) (service.Alert, bool) {
	rule := w.rules[kind]
	firing := a != nil && a.Firing()
	if a != nil {
		l.before = a.Mark
	}
	f := rule.judge(kind, l)
	wait, quiet := rule.For, time.Duration(0)
	switch kind {
	case service.AlertLag, service.AlertWindow:
		quiet = calm
	case service.AlertConflict: // For is how long no more come before it is over
		wait, quiet = 0, rule.For
		if firing && f.answer == yes && t.looked && t.refused == service.Refused(l.status) {
			f = not("no more documents were refused")
		}
		if l.status != nil {
			t.refused, t.looked = service.Refused(l.status), true
		}
	}
	t.last(f.answer, now)
	switch {
	case a != nil && !a.Told: // whoever stored it is about to tell of it
	case !firing && f.answer == yes && now.Sub(t.yes) >= wait:
		fired := service.Alert{ID: w.newID(), Kind: kind, Text: f.text, Hint: f.hint, FiredAt: now.UTC()}
		if a != nil {
			fired.Revision = a.Revision
		}
		if kind == service.AlertConflict {
			fired.Mark = l.before
		}
		return fired, true
	case firing && f.answer == no && now.Sub(t.no) >= quiet:
		ended := over(*a, now, f.text)
		if kind == service.AlertConflict && l.status != nil {
			ended.Mark = service.Refused(l.status)
		}
		return ended, true
	case kind == service.AlertConflict && a != nil && !firing && l.status != nil && service.Refused(l.status) < a.Mark:
		fewer := *a // some were taken away: those that come are new
		fewer.Mark = service.Refused(l.status)
		return fewer, true
	}
	return service.Alert{}, false
}

// last takes what a rule says now. What it does not know is no change, and no calm.
func (t *track) last(a answer, now time.Time) {
	switch a {
	case yes:
		if t.no = (time.Time{}); t.yes.IsZero() {
			t.yes = now
		}
	case no:
		if t.yes = (time.Time{}); t.no.IsZero() {
			t.no = now
		}
	case unknown:
		t.no = time.Time{}
	}
}

// over is an alert that has ended.
func over(a service.Alert, now time.Time, why string) service.Alert {
	if a.Firing() {
		at := now.UTC()
		a.ResolvedAt, a.Ending, a.Told = &at, why, false
	}
	return a
}
