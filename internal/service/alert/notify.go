package alert

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"
	"unicode"

	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
)

// Receiver gets notices of alerts.
type Receiver struct {
	// Name identifies the receiver in the store, for all processes.
	Name string
	// Jobs are patterns of names of jobs; none is all.
	Jobs []string
	send sender
}

func (r *Receiver) wants(job string) bool { return service.MatchJob(r.Jobs, job) }

// sender delivers one notice. It returns a refusal for permanent errors.
type sender interface {
	send(ctx context.Context, n *Notice, raw []byte) error
}

type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

const (
	sendTime = 15 * time.Second
	// farewell bounds an attempt under way when the process ends.
	farewell = 3 * time.Second
	// firstPause doubles up to lastPause while a receiver does not answer.
	firstPause = time.Second
	lastPause  = 5 * time.Minute
	// oldest is the age at which a notice is dropped.
	oldest = 24 * time.Hour
)

type notifier struct {
	receiver Receiver
	log      *slog.Logger
	pause    time.Duration // the first
}

// take sends a notice until it arrives, is refused or is too old. It fails if ctx ends first.
func (t *notifier) take(ctx context.Context, stored hub.Notice) error {
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

// try sends once. It may finish within farewell when ctx ends, so that the notice does not come twice.
func (t *notifier) try(ctx context.Context, n *Notice, raw []byte) (err error) {
	sending, cancel := context.WithTimeout(context.WithoutCancel(ctx), sendTime)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		_ = pace.Pause(sending, farewell)
		cancel()
	})()
	if err := t.receiver.send.send(sending, n, raw); err != nil {
		return fmt.Errorf("notify %s: %w", t.receiver.Name, err)
	}
	return nil
}

// Event is the change of an alert.
type Event string

const (
	Fired    Event = "fired"
	Resolved Event = "resolved"
)

// Notice is the JSON that a receiver gets. ID and Event identify it, also when it comes twice.
type Notice struct {
	Event Event `json:"event"`
	service.Alert
}

const maxText = 2000

func plain(text string) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsGraphic(r):
			return r
		case unicode.IsSpace(r):
			return ' '
		}
		return unicode.ReplacementChar
	}, strings.ToValidUTF8(text, string(unicode.ReplacementChar)))
	return service.Short(text, maxText)
}
