package operate

import (
	"context"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/service"
)

// MaxPoints bounds the points of one answer.
const MaxPoints = 2000

// enoughPoints is the default bound.
const enoughPoints = 750

// Curve has the figures of a job over time.
type Curve struct {
	service.Period
	Step   time.Duration
	Points []service.Bucket
}

// Points returns the figures of a job in a period, in spans of step; 0 chooses one.
func (d *Desk) Points(ctx context.Context, c *service.Caller, name string, in service.Period,
	step time.Duration) (*Curve, error) {
	j, err := d.Job(c, name)
	if err != nil {
		return nil, err
	}
	span := in.To.Sub(in.From)
	if span <= 0 {
		return nil, refuse(Invalid, "", "from is not before to")
	}
	if step == 0 {
		step = stepOf(span)
	}
	if step < service.PointEvery || step%time.Second != 0 {
		return nil, refuse(Invalid, "", "a step of %s: want whole seconds, and %s at least", step, service.PointEvery)
	}
	if span/step > MaxPoints {
		return nil, refuse(Invalid, "use a longer step, or none", "%s in steps of %s are more than %d points",
			span.Round(time.Second), step, MaxPoints)
	}
	curve := &Curve{Period: in, Step: step}
	curve.Points, err = d.Hub.Records.Points(ctx, j.Definition.UID, in, step)
	return curve, err
}

func stepOf(span time.Duration) time.Duration {
	const day = 24 * time.Hour
	for _, step := range []time.Duration{service.PointEvery, 30 * time.Second, time.Minute, 5 * time.Minute,
		15 * time.Minute, time.Hour, 3 * time.Hour, 6 * time.Hour, day} {
		if span/step <= enoughPoints {
			return step
		}
	}
	return (span / enoughPoints).Truncate(day) + day
}

// Log returns entries of a job's log (see hub.Records.Entries), to viewers without values.
func (d *Desk) Log(ctx context.Context, c *service.Caller, name string, kind service.EntryKind,
	page service.Page) ([]service.Entry, error) {
	j, err := d.Job(c, name)
	if err != nil {
		return nil, err
	}
	list, err := d.Hub.Records.Entries(ctx, j.Definition.UID, kind, page)
	return redacted(c, list, service.Entry.Redact), err
}

func redacted[T any](c *service.Caller, list []T, redact func(T) T) []T {
	if !c.Role.May(service.Operator) {
		for i := range list {
			list[i] = redact(list[i])
		}
	}
	return list
}

// Alerts returns firing alerts by job, and up to limit past ones, the newest first, that the caller may see.
func (d *Desk) Alerts(c *service.Caller, limit int) (present, past []service.Alert) {
	present, past = []service.Alert{}, []service.Alert{}
	for _, a := range d.View.Alerts() {
		if a.Firing() && c.Sees(a.Job) {
			present = append(present, a)
		}
	}
	for _, a := range d.View.PastAlerts() {
		if len(past) == limit {
			break
		}
		if c.Sees(a.Job) {
			past = append(past, a)
		}
	}
	return redacted(c, present, service.Alert.Redact), redacted(c, past, service.Alert.Redact)
}

// Workers returns the present workers, by name.
func (d *Desk) Workers() []service.Worker { return d.View.Workers() }

// Drain has a worker return its jobs and take no others, or ends that. The caller must see all jobs.
func (d *Desk) Drain(ctx context.Context, c *service.Caller, name string, drain bool) (*service.Worker, error) {
	what := "drain"
	if !drain {
		what = "undrain"
	}
	err := allowed(c, service.Admin, "")
	if err == nil && len(c.Jobs) > 0 {
		err = refuse(Forbidden, "ask for a token of all jobs", "this concerns jobs that the token does not show")
	}
	if err != nil {
		return nil, d.refused(ctx, request{caller: c, what: what, worker: name}, err)
	}
	list := d.Workers()
	i := slices.IndexFunc(list, func(w service.Worker) bool { return w.Name == name })
	if i < 0 {
		return nil, refuse(NotFound, "see the list of workers", "there is no worker %q", name)
	}
	w := &list[i]
	var order *service.Drain
	if drain {
		order = &service.Drain{StartedAt: w.StartedAt}
	}
	if err = d.Hub.Workers.Drain(ctx, name, order); err != nil {
		return nil, err
	}
	w.Draining = drain
	return w, d.note(ctx, c, service.Change{What: what, Worker: name})
}
