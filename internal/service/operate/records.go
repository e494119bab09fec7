package operate

import (
	"context"
	"time"

	"github.com/millrace/millrace/internal/service"
)

// MaxPoints bounds the points of one answer.
const MaxPoints = 2000

// enoughPoints are those of a curve, where nobody says how many.
const enoughPoints = 750

// Curve is what a job did over time.
type Curve struct {
	From, To time.Time
	Step     time.Duration
	Points   []service.Bucket
}

// Points are what a job did from one time to another, in spans of step; 0 chooses one.
func (d *Desk) Points(ctx context.Context, c *service.Caller, name string, from, to time.Time, step time.Duration) (*Curve, error) {
	j, err := d.Job(c, name)
	if err != nil {
		return nil, err
	}
	span := to.Sub(from)
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
		return nil, refuse(Invalid, "use a longer step, or none", "%s in steps of %s are more than %d points", span.Round(time.Second), step, MaxPoints)
	}
	curve := &Curve{From: from, To: to, Step: step}
	curve.Points, err = d.Hub.Records.Points(ctx, j.Definition.UID, from, to, step)
	return curve, err
}

// stepOf is a step in which a span is some hundred points.
func stepOf(span time.Duration) time.Duration {
	const day = 24 * time.Hour
	for _, step := range []time.Duration{service.PointEvery, 30 * time.Second, time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour, 3 * time.Hour, 6 * time.Hour, day} {
		if span/step <= enoughPoints {
			return step
		}
	}
	return (span / enoughPoints).Truncate(day) + day
}

// Log are entries of a job's log (see hub.Records.Entries), for viewers without values of
// documents.
func (d *Desk) Log(ctx context.Context, c *service.Caller, name string, kind service.EntryKind, before uint64, limit int) ([]service.Entry, error) {
	j, err := d.Job(c, name)
	if err != nil {
		return nil, err
	}
	list, err := d.Hub.Records.Entries(ctx, j.Definition.UID, kind, before, limit)
	return veiled(c, list, service.Entry.Veil), err
}

// veiled is a list without values of documents for callers who may not see any.
func veiled[T any](c *service.Caller, list []T, veil func(T) T) []T {
	if !c.Role.May(service.Operator) {
		for i := range list {
			list[i] = veil(list[i])
		}
	}
	return list
}
