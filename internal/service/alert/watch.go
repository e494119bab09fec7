package alert

import (
	"time"

	"github.com/millrace/millrace/internal/service"
)

// watch applies rules to jobs and remembers how long conditions last. It stores nothing.
type watch struct {
	rules Rules
	newID func() string
	seen  map[place]*track
	last  map[string]jobProgress // by job
}

// place identifies alerts of one kind and one definition of a job.
type place struct {
	kind     service.AlertKind
	job, uid string
}

// track has the times since which a rule answers yes or no; zero if it does not.
type track struct {
	yes, no time.Time
	refused int64
	looked  bool
}

type jobProgress struct {
	uid string
	progress
}

func newWatch(rules Rules, newID func() string) *watch {
	return &watch{rules: rules, newID: newID, seen: map[place]*track{}, last: map[string]jobProgress{}}
}

func (w *watch) forget() { clear(w.seen); clear(w.last) }

// change is an alert to store, because it fires or is over, or to delete if gone.
type change struct {
	service.Alert
	gone bool
}

// step evaluates all jobs and returns the changes of the stored alerts. now needs its monotonic reading.
func (w *watch) step(now time.Time, jobs []service.Job, workers []service.Worker,
	stored []service.Alert) (out []change) {
	has := map[place]*service.Alert{}
	taken := map[place]bool{}
	for i := range stored {
		a := &stored[i]
		has[place{a.Kind, a.Job, ""}] = a
	}
	seen := make(map[place]*track, len(w.seen))
	last := make(map[string]jobProgress, len(w.last))
	for i := range jobs {
		j := &jobs[i]
		name, uid := j.Definition.Name, j.Definition.UID
		l := look{job: j, state: j.State(), workers: workers, status: j.Status(), live: j.Live()}
		p := jobProgress{uid, l.progress()}
		l.moved = w.last[name] != p
		last[name] = p
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
	w.seen, w.last = seen, last
	for i := range stored { // of removed jobs
		if a := stored[i]; !taken[place{a.Kind, a.Job, ""}] && a.Notified {
			out = append(out, change{Alert: over(a, now, "the job is removed"), gone: !a.Firing()})
		}
	}
	return out
}

func (w *watch) next(now time.Time, kind service.AlertKind, l look, t *track, a *service.Alert) (service.Alert, bool) {
	rule := w.rules[kind]
	firing := a != nil && a.Firing()
	if a != nil {
		l.before = a.Mark
	}
	f := rule.evaluate(kind, l)
	wait, quiet := rule.For, time.Duration(0)
	switch kind {
	case service.AlertLag, service.AlertWindow:
		quiet = calm
	case service.AlertConflict: // For is how long no more must come
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
	case a != nil && !a.Notified: // its process will notify
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
		fewer := *a // some were removed: later ones are new
		fewer.Mark = service.Refused(l.status)
		return fewer, true
	}
	return service.Alert{}, false
}

// last records an answer. An unknown one ends the time without findings, and changes nothing else.
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

func over(a service.Alert, now time.Time, why string) service.Alert {
	if a.Firing() {
		at := now.UTC()
		a.ResolvedAt, a.Ending, a.Notified = &at, why, false
	}
	return a
}
