package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/retry"
	"github.com/millrace/millrace/internal/service"
)

// Alerts are in a bucket, and notices for their receivers in a stream.
const (
	bucketAlerts   = "millrace-alerts"
	streamNotices  = "millrace-notices"
	subjectNotices = "millrace.notices"
	// noticeAge is how long a receiver that cannot be reached may miss nothing.
	noticeAge = 24 * time.Hour
	// noticeTime is how long a process may take over a notice before another one gets it.
	noticeTime = time.Minute
	// idleReceiver is when a receiver of whom no process speaks any more is forgotten.
	idleReceiver = 7 * 24 * time.Hour
	// MaxPastAlerts bounds the alerts that are over and are kept.
	MaxPastAlerts = 1000
)

// Alerts has present and past alerts, and notices for receivers. It is safe for concurrent use.
type Alerts struct {
	*streams
	kv  jetstream.KeyValue
	log *slog.Logger
}

// alertKey is the key of the present alert of a job and kind, pastKey of a past one. Kinds and IDs have no dots.
func alertKey(a *service.Alert) string { return "now." + string(a.Kind) + "." + a.Job }

func pastKey(id string) string { return "past." + id }

// Set stores the present alert of a job and a kind over its revision. ErrChanged says that it has changed.
func (a *Alerts) Set(ctx context.Context, one *service.Alert) error {
	err := write(ctx, a.kv, alertKey(one), one)
	if errors.Is(err, ErrExists) {
		err = ErrChanged
	}
	return mongo.Wrap(err, "store alert %s of job %s", one.Kind, one.Job)
}

// Drop forgets the present alert of a job and a kind, unless it has changed.
func (a *Alerts) Drop(ctx context.Context, one *service.Alert) error {
	return mongo.Wrap(remove(ctx, a.kv, alertKey(one), one.Revision), "forget alert %s of job %s", one.Kind, one.Job)
}

// KeepPast stores an alert that is over, and removes the oldest of too many that a view has.
func (a *Alerts) KeepPast(ctx context.Context, v *View, one *service.Alert) error {
	if err := put(ctx, a.kv, pastKey(one.ID), one); err != nil {
		return fmt.Errorf("keep alert %s of job %s: %w", one.Kind, one.Job, err)
	}
	past := v.PastAlerts()
	for _, old := range past[min(len(past), MaxPastAlerts):] {
		if err := a.kv.Purge(ctx, pastKey(old.ID)); err != nil {
			return fmt.Errorf("forget an old alert: %w", err)
		}
	}
	return nil
}

// Announce leaves a notice for a receiver. The same id once more is no other notice.
func (a *Alerts) Announce(ctx context.Context, receiver, id string, notice []byte) error {
	_, err := a.js.Publish(ctx, subjectNotices+"."+receiver, notice, jetstream.WithMsgID(receiver+"."+id))
	return mongo.Wrap(err, "leave a notice for %s", receiver)
}

// Notice is what a receiver is to be told, and when it was left for it.
type Notice struct {
	At   time.Time
	Data []byte
}

// Notices calls take with each notice for a receiver, in order and one at a time among all processes, until ctx
// ends. It repeats one if take fails, or if the process ends before take returns.
func (a *Alerts) Notices(ctx context.Context, receiver string, take func(context.Context, Notice) error) error {
	for {
		err := a.notices(ctx, receiver, take)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		a.log.Warn("notices for a receiver of alerts cannot be read; trying again", "receiver", receiver, "error", err)
		if err := pace.Pause(ctx, time.Second); err != nil {
			return err
		}
	}
}

func (a *Alerts) notices(ctx context.Context, receiver string, take func(context.Context, Notice) error) error {
	making, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c, err := a.js.CreateOrUpdateConsumer(making, streamNotices, jetstream.ConsumerConfig{
		Durable: receiver, FilterSubject: subjectNotices + "." + receiver, AckPolicy: jetstream.AckExplicitPolicy,
		AckWait:       noticeTime,
		MaxAckPending: 1, MaxDeliver: -1, InactiveThreshold: idleReceiver})
	if err != nil {
		return fmt.Errorf("read the notices for %s: %w", receiver, err)
	}
	for {
		waiting, cancel := context.WithTimeout(ctx, 30*time.Second)
		batch, err := c.Fetch(1, jetstream.FetchContext(waiting))
		if err == nil {
			for m := range batch.Messages() {
				if err == nil {
					err = a.deliver(ctx, m, take)
				}
			}
			if err == nil {
				err = batch.Error()
			}
		}
		cancel()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, jetstream.ErrNoMessages) ||
			ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
	}
}

// deliver calls take with one message, and keeps the message from other processes meanwhile.
func (a *Alerts) deliver(ctx context.Context, m jetstream.Msg, take func(context.Context, Notice) error) error {
	n := Notice{Data: m.Data(), At: time.Now()}
	if meta, err := m.Metadata(); err == nil {
		n.At = meta.Timestamp
	}
	g, gctx := errgroup.WithContext(ctx)
	taking, end := context.WithCancel(gctx)
	taken := false
	g.Go(func() error {
		defer end()
		err := take(gctx, n)
		taken = err == nil
		return err
	})
	g.Go(func() error {
		// lost with NATS, and told again then
		_ = retry.Every(taking, noticeTime/4, func() error { _ = m.InProgress(); return nil })
		return nil
	})
	if err := g.Wait(); !taken {
		_ = m.Nak() // else another has it after noticeTime
		return err
	}
	acking, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return m.DoubleAck(acking)
}

// Alerts returns the present alerts by job and kind, and those whose end was not notified. Do not change them.
func (v *View) Alerts() []service.Alert {
	list := v.alertsBelow("now.")
	slices.SortFunc(list, func(a, b service.Alert) int {
		return cmp.Or(strings.Compare(a.Job, b.Job), strings.Compare(string(a.Kind), string(b.Kind)))
	})
	return list
}

// PastAlerts are those that are over, the newest first.
func (v *View) PastAlerts() []service.Alert {
	list := v.alertsBelow("past.")
	slices.SortFunc(list,
		func(a, b service.Alert) int { return cmp.Or(b.Since().Compare(a.Since()), strings.Compare(a.ID, b.ID)) })
	return list
}

func (v *View) alertsBelow(prefix string) []service.Alert {
	v.mu.Lock()
	defer v.mu.Unlock()
	list := []service.Alert{}
	for key, a := range v.alerts {
		if strings.HasPrefix(key, prefix) {
			list = append(list, *a.of)
		}
	}
	return list
}
