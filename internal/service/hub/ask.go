package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/service"
)

const (
	// subjectAsk is followed by a worker's name.
	subjectAsk = "millrace.ask."
	// subjectAssist is followed by a run. Nothing is stored: the run knows its parts.
	subjectAssist = "millrace.lend."
)

const (
	asksAtOnce  = 4
	asksWaiting = 64
	// mostAnswers bounds the simultaneous requests to a run, each in memory.
	mostAnswers = 256
	// MaxAnswer bounds an answer, in bytes, by NATS' default.
	MaxAnswer = maxValue
)

// ErrNoAnswer reports that a worker is absent or silent.
var ErrNoAnswer = errors.New("the worker does not answer")

// AskFor sends a question to a worker and reads the body of its answer. A refusal is in the answer, without an error.
func AskFor[T any](ctx context.Context, h *Hub, worker string, question []byte) (*T, service.Answer, error) {
	var a service.Answer
	out := new(T)
	m, err := h.conn.RequestWithContext(ctx, subjectAsk+worker, question)
	if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, nats.ErrTimeout) ||
		errors.Is(err, context.DeadlineExceeded) {
		err = errors.Join(ErrNoAnswer, err)
	}
	if err != nil {
		return nil, a, fmt.Errorf("ask worker %s: %w", worker, err)
	}
	if err = json.Unmarshal(m.Data, &a); err == nil && a.Code == "" {
		err = json.Unmarshal(a.Body, out)
	}
	return out, a, mongo.Wrap(err, "read the answer of worker %s", worker)
}

// Answer answers questions to a worker, in up to MaxAnswer bytes, until ctx ends and all are answered.
func (h *Hub) Answer(ctx context.Context, worker string,
	answer func(ctx context.Context, question []byte) []byte) error {
	return h.answer(ctx, subjectAsk+worker, asksAtOnce, asksWaiting, answer)
}

// ServeAssistants answers requests to a run until ctx ends and all are answered.
func (h *Hub) ServeAssistants(ctx context.Context, run string,
	answer func(ctx context.Context, request []byte) (reply []byte)) error {
	return h.answer(ctx, subjectAssist+run, mostAnswers, mostAnswers, answer) // assistants repeat dropped requests
}

// AskOwner sends an assistant's request to a run and returns the reply.
func (h *Hub) AskOwner(ctx context.Context, run string, request []byte) ([]byte, error) {
	m, err := h.conn.RequestWithContext(ctx, subjectAssist+run, request)
	if errors.Is(err, nats.ErrNoResponders) {
		return nil, mongo.Retry("the job's owner does not copy any more", nil, "")
	}
	if err != nil {
		return nil, fmt.Errorf("over NATS: %w", err)
	}
	return m.Data, nil
}

// answer drops requests if too many wait.
func (h *Hub) answer(ctx context.Context, subject string, atOnce, waiting int,
	answer func(context.Context, []byte) []byte) error {
	asked := make(chan *nats.Msg, waiting)
	sub, err := h.conn.ChanSubscribe(subject, asked)
	if err != nil {
		return fmt.Errorf("listen to questions: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	var g errgroup.Group
	g.SetLimit(atOnce)
	defer func() { _ = g.Wait() }()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case m, ok := <-asked:
			if !ok {
				return errors.New("listen to questions: the connection has ended")
			}
			g.Go(func() error {
				if err := m.Respond(answer(ctx, m.Data)); err != nil {
					h.log.Warn("an answer cannot be sent", "subject", subject, "error", err)
				}
				return nil
			})
		}
	}
}
