package operate

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/service"
)

// The audit trail takes so many refusals of one caller in a minute, and changes in an hour. More of them would push out
// what others have done.
const (
	maxRefusals = 60
	maxChanges  = 7200
)

// counts are those of a period, by caller.
type counts struct {
	mu    sync.Mutex
	since time.Time
	by    map[string]int
}

// fits counts one more in the period, and reports whether it is among the first most of the caller.
func (c *counts) fits(who string, now time.Time, period time.Duration, most int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if age := now.Sub(c.since); age < 0 || age >= period || c.by == nil {
		c.since, c.by = now, map[string]int{}
	}
	c.by[who]++
	return c.by[who] <= most
}

// changing refuses a caller who has changed too much in the last hour.
func (d *Desk) changing(ctx context.Context, q request) error {
	if d.changes.fits(q.caller.Name, d.Now(), time.Hour, maxChanges) {
		return nil
	}
	return d.refused(ctx, q, refuse(TooMany, "wait up to an hour",
		"%d changes in an hour are the most that the audit trail takes of one token", maxChanges))
}

// turns let one large check of each caller run at a time, so that many cannot take all processors. They can be waited
// for as long as a request lasts.
type turns struct {
	mu sync.Mutex
	by map[string]chan struct{} // closed at the end of the check
}

// smallSettings are checked at once.
const smallSettings = 16 << 10

// take waits for the caller's turn. end gives it back.
func (t *turns) take(ctx context.Context, who string) (end func(), err error) {
	for {
		t.mu.Lock()
		before := t.by[who]
		if before == nil {
			if t.by == nil {
				t.by = map[string]chan struct{}{}
			}
			mine := make(chan struct{})
			t.by[who] = mine
			t.mu.Unlock()
			return func() {
				t.mu.Lock()
				defer t.mu.Unlock()
				delete(t.by, who)
				close(mine)
			}, nil
		}
		t.mu.Unlock()
		select {
		case <-before:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for another check of settings: %w", ctx.Err())
		}
	}
}

// turn takes the caller's turn for large settings.
func (d *Desk) turn(ctx context.Context, c *service.Caller, settings string) (end func(), err error) {
	if len(settings) <= smallSettings {
		return func() {}, nil
	}
	return d.checking.take(ctx, c.Name)
}

func (d *Desk) checkSettings(ctx context.Context, c *service.Caller, name, settings string) error {
	end, err := d.turn(ctx, c, settings)
	if err != nil {
		return err
	}
	defer end()
	return checkSettings(name, settings)
}

// The settings of all jobs take up to maxDefined bytes, half of what the store takes: the rest is for changes, such as
// a pause or a removal. Those of one caller take up to half of that.
const (
	maxDefined = 256 << 20
	// perJob is what a definition takes beside its settings.
	perJob = 1 << 10
)

// roomFor refuses settings for which the store has no room.
func (d *Desk) roomFor(c *service.Caller, name, settings string) error {
	all, own := len(settings)+perJob, len(settings)+perJob
	for _, j := range d.View.Jobs() {
		if j.Definition.Name == name {
			continue
		}
		size := len(j.Definition.Settings) + perJob
		if all += size; j.Definition.CreatedBy == c.Name {
			own += size
		}
	}
	switch {
	case all > maxDefined:
		return refuse(Conflict, "remove jobs, or use patterns in place of lists",
			"the settings of all jobs would take %d bytes, more than %d", all, maxDefined)
	case own > maxDefined/2:
		return refuse(Conflict, "remove some of them, or use patterns in place of lists",
			"the settings of the jobs of %s would take %d bytes, more than %d", c.Name, own, maxDefined/2)
	}
	return nil
}
