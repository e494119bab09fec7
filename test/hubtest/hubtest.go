// Package hubtest starts stores of the service for tests.
package hubtest

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/service/hub"
)

// Start is a store of the test's own, in this process, with a view.
func Start(t testing.TB, lease time.Duration) (*hub.Hub, *hub.View) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	e, err := hub.Embed(t.Context(), hub.EmbedOptions{Dir: t.TempDir(), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	h, err := hub.Open(t.Context(), hub.Options{Embedded: e, Lease: lease, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h, Watch(t, h)
}

// Watch is a view that is kept up to date until the test ends. It returns once the view
// holds what is there.
func Watch(t testing.TB, h *hub.Hub) *hub.View {
	t.Helper()
	v := h.NewView()
	// Longer than t.Context, which ends before what the test cleans up.
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := v.Run(ctx); ctx.Err() == nil {
			t.Errorf("the view ended: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	<-v.Loaded()
	return v
}

// Answer has a worker of the test's own answer until the test ends. It returns once that
// is asked what others ask it.
func Answer(t testing.TB, h *hub.Hub, worker string, answer func(question []byte) []byte) {
	t.Helper()
	const ping = "there?"
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		err := h.Answer(ctx, worker, func(_ context.Context, question []byte) []byte {
			if string(question) == ping {
				return question
			}
			return answer(question)
		})
		if ctx.Err() == nil {
			t.Errorf("worker %s answers no more: %v", worker, err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	for {
		_, _, err := hub.AskFor[struct{}](t.Context(), h, worker, []byte(ping))
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
		if !errors.Is(err, hub.ErrNoAnswer) { // the ping comes back, which is no answer of a worker
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}
