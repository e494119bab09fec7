package alert

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
)

// Receiver is somebody who is told of alerts.
type Receiver struct {
	// Name is the receiver's in the store, for all processes.
	Name string
	// Jobs are patterns of names of those that it hears of; none is all.
	Jobs []string
	send sender
}

func (r *Receiver) wants(job string) bool { return (&service.Caller{Jobs: r.Jobs}).Sees(job) }

// sender brings one notice to where it belongs. What will not pass by itself is a
// refusal.
type sender interface {
	send(ctx context.Context, n *Notice, raw []byte) error
}

// refusal is an error that the same notice will meet again.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

const (
	// sendTime is how long one try may take.
	sendTime = 15 * time.Second
	// farewell is how long one that is under way may take when the process ends.
	farewell = 3 * time.Second
	// firstPause grows to lastPause while a receiver does not answer.
	firstPause = time.Second
	lastPause  = 5 * time.Minute
	// oldest is when a notice is of no use any more.
	oldest = 24 * time.Hour
)

// teller tells one receiver, one notice after the other.
type teller struct {
	receiver Receiver
	log      *slog.Logger
	pause    time.Duration // the first
}

// take tells of one notice, again until it has arrived, was refused or is too old. It
// fails when ctx ends first.
func (t *teller) take(ctx context.Context, stored hub.Notice) error {
	var n Notice
	if err := json.Unmarshal(stored.Data, &n); err != nil {
		t.log.Error("a notice of an alert cannot be read, and is left out", "error", err)
		return nil
	}
	for pause := t.pause; ; pause = min(2*pause, lastPause) {
		err := t.try(ctx, &n, stored.Data)
		if err == nil {
			t.log.Debug("notice of an alert arrived", "job", n.Job, "kind", n.Kind, "event", n.Event)
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if _, refused := errors.AsType[refusal](err); refused || time.Since(stored.At) > oldest {
			t.log.Error("a notice of an alert is given up", "job", n.Job, "kind", n.Kind, "event", n.Event, "error", err)
			return nil
		}
		t.log.Warn("a notice of an alert did not arrive; trying again", "job", n.Job, "kind", n.Kind, "event", n.Event,
			"error", err, "retryIn", pause)
		if err := pace.Pause(ctx, pause/2+rand.N(pause)); err != nil {
			return err
		}
	}
}

// try sends once. What is on its way when ctx ends has a moment to arrive: else it would
// come twice.
func (t *teller) try(ctx context.Context, n *Notice, raw []byte) (err error) {
	sending, cancel := context.WithTimeout(context.WithoutCancel(ctx), sendTime)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		_ = pace.Pause(sending, farewell)
		cancel()
	})()
	if err := t.receiver.send.send(sending, n, raw); err != nil {
		return fmt.Errorf("tell %s: %w", t.receiver.Name, err)
	}
	return nil
}
