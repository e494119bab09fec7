package hub

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/millrace/millrace/internal/mongo"
)

// subjectLend is where the run of a job answers those that borrow slices of its copy.
// They are no stream: what of a copy is left to do only that run knows, and the target.
const subjectLend = "millrace.lend."

// mostAnswers bounds the requests that are answered side by side. Each has at most a
// message in hand.
const mostAnswers = 256

// Lend has requests to a run answered until ctx ends. It returns when none is being
// answered.
func (h *Hub) Lend(ctx context.Context, run string, answer func(ctx context.Context, request []byte) (reply []byte)) error {
	return h.answer(ctx, subjectLend+run, mostAnswers, mostAnswers, answer) // what is dropped is asked again
}

// Borrow sends a request to a run, and returns its reply.
func (h *Hub) Borrow(ctx context.Context, run string, request []byte) ([]byte, error) {
	m, err := h.conn.RequestWithContext(ctx, subjectLend+run, request)
	if errors.Is(err, nats.ErrNoResponders) {
		return nil, mongo.Retry("the job's owner does not copy any more", nil, "")
	}
	if err != nil {
		return nil, fmt.Errorf("over NATS: %w", err)
	}
	return m.Data, nil
}
