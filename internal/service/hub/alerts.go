package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/retry"
	"github.com/millrace/millrace/internal/service"
)

// Alerts are in a bucket, notices in a stream.
const (
	bucketAlerts   = "millrace-alerts"
	streamNotices  = "millrace-notices"
	subjectNotices = "millrace.notices"
	// noticeAge is how long notices wait for a receiver.
	noticeAge = 24 * time.Hour
	// noticeTime is how long a process may hold a notice.
	noticeTime = time.Minute
	// idleReceiver is when an unused receiver is deleted.
	idleReceiver = 7 * 24 * time.Hour
	// MaxPastAlerts bounds the stored alerts that have ended.
	MaxPastAlerts = 1000
)

// Alerts has alerts, and notices for receivers. It is safe for concurrent use.
type Alerts struct {
	*streams
	kv  jetstream.KeyValue
	log *slog.Logger
}

// Kinds and IDs have no dots.
func alertKey(a *service.Alert) string { return "now." + string(a.Kind) + "." + a.Job }

func pastKey(id string) string { return "past." + id }

// Set stores the present alert of a job and a kind. It returns ErrChanged if the revision is old.
func (a *Alerts) Set(ctx context.Context, one *service.Alert) error {
	err := write(ctx, a.kv, alertKey(one), one)
	if errors.Is(err, ErrExists) {
		err = ErrChanged
	}
	return mongo.Wrap(err, "store alert %s of job %s", one.Kind, one.Job)
}

// Drop deletes the present alert of a job and a kind, unless the revision is old.
func (a *Alerts) Drop(ctx context.Context, one *service.Alert) error {
	return mongo.Wrap(remove(ctx, a.kv, alertKey(one), one.Revision), "forget alert %s of job %s", one.Kind, one.Job)
}

// KeepPast stores an ended alert, and removes the oldest beyond MaxPastAlerts.
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

// Announce queues a notice for a receiver, once for each id.
func (a *Alerts) Announce(ctx context.Context, receiver, id string, notice []byte) error {
	_, err := a.js.Publish(ctx, subjectNotices+"."+receiver, notice, jetstream.WithMsgID(receiver+"."+id))
	return mongo.Wrap(err, "leave a notice for %s", receiver)
}

type Notice struct {
	At   time.Time
	Data []byte
}

// Notices calls take with each notice for a receiver, in order, until ctx ends. Of all processes only one does so at a
// time. A notice is repeated if take fails, or if the process ends before take returns.
func (a *Alerts) Notices(ctx context.Context, receiver string, take func(context.Context, Notice) error) error {
	return retry.Again(ctx, time.Second, time.Second, func(err error, _ time.Duration) bool {
		if ctx.Err() == nil {
			a.log.Warn("notices for a receiver of alerts cannot be read; trying again", "receiver", receiver, "error", err)
		}
		return true
	}, func() error { return a.notices(ctx, receiver, take) })
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

// deliver keeps a message from other processes while take runs.
func (a *Alerts) deliver(ctx context.Context, m jetstream.Msg, take func(context.Context, Notice) error) error {
	n := Notice{Data: m.Data(), At: time.Now()}
	if meta, err := m.Metadata(); err == nil {
		n.At = meta.Timestamp
	}
	taking, end := context.WithCancel(ctx)
	var holding sync.WaitGroup
	holding.Go(func() {
		// An error means that NATS repeats the message.
		_ = retry.Every(taking, noticeTime/4, func() error { _ = m.InProgress(); return nil })
	})
	err := take(ctx, n)
	end()
	holding.Wait()
	if err != nil {
		_ = m.Nak() // else another process waits noticeTime
		return err
	}
	acking, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return m.DoubleAck(acking)
}

// Alerts returns present alerts by job and kind, with those whose end was not notified. Do not change them.
func (v *View) Alerts() []service.Alert {
	list := v.alertsBelow("now.")
	slices.SortFunc(list, func(a, b service.Alert) int {
		return cmp.Or(strings.Compare(a.Job, b.Job), strings.Compare(string(a.Kind), string(b.Kind)))
	})
	return list
}

// PastAlerts returns ended alerts, the newest first.
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
