package hub

import (
	"context"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/service"
)

// Workers has present workers, and drains. It is safe for concurrent use.
type Workers struct{ present, drains jetstream.KeyValue }

// Present says that a worker is there, for the time of a lease.
func (w *Workers) Present(ctx context.Context, one *service.Worker) error {
	return mongo.Wrap(put(ctx, w.present, one.Name, one), "announce worker %s", one.Name)
}

// Leave says that a worker is there no more.
func (w *Workers) Leave(ctx context.Context, name string) error {
	return mongo.Wrap(w.present.Purge(ctx, name), "take leave of worker %s", name)
}

// Drain stores that a worker is to take nothing more and to give back what it has.
func (w *Workers) Drain(ctx context.Context, name string, d *service.Drain) error {
	return mongo.Wrap(put(ctx, w.drains, name, d), "drain worker %s", name)
}

// Undrain takes that back.
func (w *Workers) Undrain(ctx context.Context, name string) error {
	return mongo.Wrap(w.drains.Purge(ctx, name), "take back the drain of worker %s", name)
}
