package hub

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace/millrace/internal/service"
)

// Drain stores that a worker is to take nothing more and to give back what it has.
func (h *Hub) Drain(ctx context.Context, worker string, d *service.Drain) error {
	raw, err := encode(d)
	if err != nil {
		return err
	}
	if _, err := h.drains.Put(ctx, worker, raw); err != nil {
		return fmt.Errorf("drain worker %s: %w", worker, err)
	}
	return nil
}

// Undrain takes that back.
func (h *Hub) Undrain(ctx context.Context, worker string) error {
	if err := h.drains.Purge(ctx, worker); err != nil {
		return fmt.Errorf("take back the drain of worker %s: %w", worker, err)
	}
	return nil
}

func (v *View) takeDrain(e jetstream.KeyValueEntry, there bool) {
	var d service.Drain
	there = there && json.Unmarshal(e.Value(), &d) == nil
	put(v, v.drains, e.Key(), d, there)
}

// Draining reports whether a worker that began at a time is to give back what it has.
func (v *View) Draining(worker string, began time.Time) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.draining(worker, began)
}

func (v *View) draining(worker string, began time.Time) bool {
	d, ok := v.drains[worker]
	return ok && d.StartedAt.Equal(began)
}
