// Package alert notifies operators of jobs that need attention. Rules evaluate the state of jobs.
// An alert fires once and is resolved once, by comparing revisions in the store, whichever process
// evaluates it. Receivers get webhooks and mails from a queue in the store.
package alert

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/retry"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
)

const (
	// lookEvery is the interval at which jobs are evaluated.
	lookEvery = 5 * time.Second
	storeTime = 5 * time.Second
	// lateAfter is the age of an alert without notices at which any process sends them.
	lateAfter = 30 * time.Second
)

type Options struct {
	Hub      *hub.Hub
	View     *hub.View
	Settings *Settings
	// Every is the interval of evaluations; 0 is five seconds. Settle is how long the store
	// must have answered before the first; 0 is a little more than the time of a lease, after
	// which all live processes have reported.
	Every, Settle time.Duration
	Log           *slog.Logger
}

// Keeper evaluates jobs and notifies receivers. Run is called once.
type Keeper struct {
	Options
	watch    *watch
	answered time.Time // since when the store answers; zero if it does not
}

func New(o Options) *Keeper {
	if o.Every == 0 {
		o.Every = lookEvery
	}
	if o.Settle == 0 {
		o.Settle = o.Hub.Lease() + 2*time.Second
	}
	return &Keeper{Options: o, watch: newWatch(o.Settings.Rules, rand.Text)}
}

// Run evaluates jobs and sends notices until ctx ends. It logs failures and retries.
func (k *Keeper) Run(ctx context.Context) error {
	select {
	case <-k.View.Loaded():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return retry.Every(gctx, k.Every, func() error { k.look(gctx, time.Now()); return nil })
	})
	for _, r := range k.Settings.Receivers {
		g.Go(func() error {
			t := &notifier{receiver: r, log: k.Log.With("receiver", r.Name), pause: firstPause}
			return k.Hub.Alerts.Notices(gctx, r.Name, t.take)
		})
	}
	return g.Wait()
}

func (k *Keeper) look(ctx context.Context, now time.Time) {
	if !k.settled(ctx, now) {
		return
	}
	stored := k.View.Alerts()
	for _, c := range k.watch.step(now, k.View.Jobs(), k.View.Workers(), stored) {
		if err := k.store(ctx, c); err != nil {
			k.failed(ctx, err)
			return // the next look finds the same
		}
	}
	for i := range stored { // whose process has ended, perhaps
		if a := stored[i]; !a.Notified && now.Sub(a.Since()) > lateAfter {
			if err := k.notify(ctx, &a); err != nil {
				k.failed(ctx, err)
				return
			}
		}
	}
}

// settled reports whether the store has answered long enough: after an outage leases and reports are old.
func (k *Keeper) settled(ctx context.Context, now time.Time) bool {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	if err := k.Hub.Ready(ctx); err != nil {
		k.answered = time.Time{}
		k.watch.forget()
		return false
	}
	if k.answered.IsZero() {
		k.answered = now
	}
	return now.Sub(k.answered) >= k.Settle
}

func (k *Keeper) failed(ctx context.Context, err error) {
	if ctx.Err() == nil {
		k.Log.Warn("an alert cannot be stored; trying again", "error", err)
	}
}

func (k *Keeper) store(ctx context.Context, c change) error {
	storing, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	var err error
	if c.gone {
		err = k.Hub.Alerts.Drop(storing, &c.Alert)
	} else {
		err = k.Hub.Alerts.Set(storing, &c.Alert)
	}
	switch {
	case errors.Is(err, hub.ErrChanged):
		return nil
	case err != nil || c.gone || c.Notified:
		return err
	}
	if c.Firing() {
		k.Log.Warn("alert", "job", c.Job, "kind", c.Kind, "text", c.Text, "hint", c.Hint)
	} else {
		k.Log.Info("alert is over", "job", c.Job, "kind", c.Kind, "why", c.Ending)
	}
	return k.notify(ctx, &c.Alert)
}

// notify queues notices for the receivers of an alert, and records that. It is idempotent.
func (k *Keeper) notify(ctx context.Context, a *service.Alert) error {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	event := Resolved
	if a.Firing() {
		event = Fired
	}
	raw, err := json.Marshal(Notice{event, a.Shown(plain)})
	if err != nil {
		return fmt.Errorf("write a notice of alert %s of job %s: %w", a.Kind, a.Job, err)
	}
	for _, r := range k.Settings.Receivers {
		if r.wants(a.Job) {
			if err := k.Hub.Alerts.Announce(ctx, r.Name, a.ID+"."+string(event), raw); err != nil {
				return err
			}
		}
	}
	sent := *a
	sent.Notified = true
	if a.Firing() {
		err = k.Hub.Alerts.Set(ctx, &sent)
	} else if err = k.Hub.Alerts.KeepPast(ctx, k.View, &sent); err == nil {
		if a.Kind == service.AlertConflict { // it remembers the last notified count
			err = k.Hub.Alerts.Set(ctx, &sent)
		} else {
			err = k.Hub.Alerts.Drop(ctx, &sent)
		}
	}
	if errors.Is(err, hub.ErrChanged) { // another process has sent them, too
		return nil
	}
	return err
}
