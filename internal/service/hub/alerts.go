package hub

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/retry"
	"github.com/millrace/millrace/internal/service"
)

// What alerts are kept in: a bucket of those that are and were, and a stream of what
// receivers are still to be told.
const (
	bucketAlerts   = "millrace-alerts"
	streamNotices  = "millrace-notices"
	subjectNotices = "millrace.notices"
	// noticeAge is how long a receiver that cannot be reached may miss nothing.
	noticeAge = 24 * time.Hour
	// noticeTime is how long a process that has a notice in hand may say nothing before
	// another one has it.
	noticeTime = time.Minute
	// idleReceiver is when a receiver of whom no process speaks any more is forgotten.
	idleReceiver = 7 * 24 * time.Hour
	// MaxPastAlerts bounds the alerts that are over and are kept.
	MaxPastAlerts = 1000
)

// makeAlerts makes what alerts are kept in.
func (h *Hub) makeAlerts(ctx context.Context, replicas int, kv func(jetstream.KeyValueConfig) (jetstream.KeyValue, error)) (err error) {
	if h.alerts, err = kv(jetstream.KeyValueConfig{Bucket: bucketAlerts, Description: "what operators should know of", MaxBytes: 32 << 20}); err != nil {
		return err
	}
	_, err = h.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: streamNotices, Description: "what receivers of alerts are still to be told", Subjects: []string{subjectNotices + ".>"}, Retention: jetstream.WorkQueuePolicy,
		MaxBytes: 32 << 20, MaxAge: noticeAge, Duplicates: noticeAge, Discard: jetstream.DiscardOld, Replicas: replicas,
	})
	if err != nil {
		return fmt.Errorf("stream %s: %w", streamNotices, err)
	}
	return nil
}

// alertKey is where the present alert of a job and a kind is, pastKey where one is that
// is over. Kinds and IDs have no dots.
func alertKey(a *service.Alert) string { return "now." + string(a.Kind) + "." + a.Job }

func pastKey(id string) string { return "past." + id }

// SetAlert stores the present alert of a job and a kind, where it is still at the
// revision that it was read with, and sets the new one. ErrChanged says that somebody
// was faster.
func (h *Hub) SetAlert(ctx context.Context, a *service.Alert) error {
	raw, err := encode(a)
	if err != nil {
		return err
	}
	var rev uint64
	if a.Revision == 0 {
		rev, err = h.alerts.Create(ctx, alertKey(a), raw)
	} else {
		rev, err = h.alerts.Update(ctx, alertKey(a), raw, a.Revision)
	}
	if conflict(err) {
		err = ErrChanged
	}
	if err != nil {
		return fmt.Errorf("store alert %s of job %s: %w", a.Kind, a.Job, err)
	}
	a.Revision = rev
	return nil
}

// DropAlert forgets the present alert of a job and a kind, unless it has changed.
func (h *Hub) DropAlert(ctx context.Context, a *service.Alert) error {
	err := h.alerts.Delete(ctx, alertKey(a), jetstream.LastRevision(a.Revision))
	if conflict(err) {
		err = ErrChanged
	}
	if err != nil {
		return fmt.Errorf("forget alert %s of job %s: %w", a.Kind, a.Job, err)
	}
	return nil
}

// KeepPastAlert keeps an alert that is over; once more is the same. Of too many the
// oldest that a view knows of go.
func (h *Hub) KeepPastAlert(ctx context.Context, v *View, a *service.Alert) error {
	raw, err := encode(a)
	if err == nil {
		_, err = h.alerts.Put(ctx, pastKey(a.ID), raw)
	}
	if err != nil {
		return fmt.Errorf("keep alert %s of job %s: %w", a.Kind, a.Job, err)
	}
	past := v.PastAlerts()
	for _, old := range past[min(len(past), MaxPastAlerts):] {
		if err := h.alerts.Purge(ctx, pastKey(old.ID)); err != nil {
			return fmt.Errorf("forget an old alert: %w", err)
		}
	}
	return nil
}

// Announce leaves a notice for a receiver. The same id once more is no other notice.
func (h *Hub) Announce(ctx context.Context, receiver, id string, notice []byte) error {
	if _, err := h.js.Publish(ctx, subjectNotices+"."+receiver, notice, jetstream.WithMsgID(receiver+"."+id)); err != nil {
		return fmt.Errorf("leave a notice for %s: %w", receiver, err)
	}
	return nil
}

// Notice is what a receiver is to be told, and when it was left for it.
type Notice struct {
	At   time.Time
	Data []byte
}

// Notices has take tell a receiver each notice, in order and one at a time, also among
// all processes, until ctx ends. A notice is told again where take fails, or where the
// process ends before it returns.
func (h *Hub) Notices(ctx context.Context, receiver string, take func(context.Context, Notice) error) error {
	for {
		err := h.notices(ctx, receiver, take)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		h.log.Warn("notices for a receiver of alerts cannot be read; trying again", "receiver", receiver, "error", err)
		if err := pace.Pause(ctx, time.Second); err != nil {
			return err
		}
	}
}

func (h *Hub) notices(ctx context.Context, receiver string, take func(context.Context, Notice) error) error {
	making, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c, err := h.js.CreateOrUpdateConsumer(making, streamNotices, jetstream.ConsumerConfig{
		Durable: receiver, FilterSubject: subjectNotices + "." + receiver, AckPolicy: jetstream.AckExplicitPolicy, AckWait: noticeTime,
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
					err = h.tell(ctx, m, take)
				}
			}
			if err == nil {
				err = batch.Error()
			}
		}
		cancel()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, jetstream.ErrNoMessages) || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
	}
}

// tell has take deal with one message, which stays in hand meanwhile.
func (h *Hub) tell(ctx context.Context, m jetstream.Msg, take func(context.Context, Notice) error) error {
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
		_ = retry.Every(taking, noticeTime/4, func() error { _ = m.InProgress(); return nil }) // lost with NATS, and told again then
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

// takeAlert takes an alert into the view.
func (v *View) takeAlert(e jetstream.KeyValueEntry, there bool) {
	a := &service.Alert{}
	there = there && json.Unmarshal(e.Value(), a) == nil
	a.Revision = e.Revision()
	put(v, v.alerts, e.Key(), a, there)
}

// Alerts are the present alerts, by job and kind, with those of which receivers are yet
// to be told that they are over. What they point to is not to be changed.
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
	slices.SortFunc(list, func(a, b service.Alert) int { return cmp.Or(b.Since().Compare(a.Since()), strings.Compare(a.ID, b.ID)) })
	return list
}

func (v *View) alertsBelow(prefix string) []service.Alert {
	v.mu.Lock()
	defer v.mu.Unlock()
	list := []service.Alert{}
	for key, a := range v.alerts {
		if strings.HasPrefix(key, prefix) {
			list = append(list, *a)
		}
	}
	return list
}
