package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace/millrace/internal/service"
)

// Create stores a new definition, and sets its revision. ErrExists where one of its
// name is there.
func (h *Hub) Create(ctx context.Context, d *service.Definition) error {
	raw, err := encode(d)
	if err != nil {
		return err
	}
	rev, err := h.jobs.Create(ctx, d.Name, raw)
	if conflict(err) {
		err = ErrExists
	}
	if err != nil {
		return fmt.Errorf("create job %s: %w", d.Name, err)
	}
	d.Revision = rev
	return nil
}

// Definition is that of one job, as the store has it now.
func (h *Hub) Definition(ctx context.Context, name string) (*service.Definition, error) {
	e, err := h.jobs.Get(ctx, name)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		err = ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("read job %s: %w", name, err)
	}
	return decodeDefinition(e)
}

func decodeDefinition(e jetstream.KeyValueEntry) (*service.Definition, error) {
	var d service.Definition
	if err := json.Unmarshal(e.Value(), &d); err != nil {
		return nil, fmt.Errorf("read the definition of job %s: %w", e.Key(), err)
	}
	d.Revision = e.Revision()
	return &d, nil
}

// changeTries is how often a change begins again after another's.
const changeTries = 20

// Change has do change the wish of a job, on what is stored, again where somebody was
// faster. What do refuses is not stored. uid "" is whatever job has the name.
func (h *Hub) Change(ctx context.Context, name, uid string, do func(*service.Definition) error) (before, after service.Wish, err error) {
	for range changeTries {
		d, err := h.Definition(ctx, name)
		if err != nil {
			return before, after, err
		}
		if uid != "" && d.UID != uid {
			return before, after, fmt.Errorf("change job %s: %w", name, ErrNotFound)
		}
		before = d.Wish
		if err := do(d); err != nil {
			return before, before, err
		}
		raw, err := encode(d)
		if err != nil {
			return before, before, err
		}
		if _, err = h.jobs.Update(ctx, name, raw, d.Revision); err == nil {
			return before, d.Wish, nil
		} else if !conflict(err) {
			return before, before, fmt.Errorf("change job %s: %w", name, err)
		}
	}
	return before, before, fmt.Errorf("change job %s: %w", name, ErrChanged)
}

// Forget removes the definition, the report, the points and the log of a job that nobody
// runs: the caller has its lease. A job of the same name that was made since stays.
func (h *Hub) Forget(ctx context.Context, d *service.Definition) error {
	// The definition last: a removal that was cut off is done again as long as it is there.
	if err := h.forgetRecords(ctx, d.UID); err != nil {
		return fmt.Errorf("remove job %s: %w", d.Name, err)
	}
	err := h.jobs.Delete(ctx, d.Name, jetstream.LastRevision(d.Revision))
	if conflict(err) {
		return fmt.Errorf("remove job %s: %w", d.Name, ErrChanged)
	}
	if err == nil {
		err = h.reports.Purge(ctx, d.Name)
	}
	if err != nil {
		return fmt.Errorf("remove job %s: %w", d.Name, err)
	}
	return nil
}

// Tell stores how a job stands. What is too large goes without its collections.
func (h *Hub) Tell(ctx context.Context, name string, r *service.Report) error {
	raw, err := encode(r)
	if err != nil && r.Status != nil {
		short := *r.Status
		short.Copy.Collections, short.Indexes = nil, nil
		fewer := *r
		fewer.Status = &short
		raw, err = encode(&fewer)
	}
	if err != nil {
		return err
	}
	if _, err := h.reports.Put(ctx, name, raw); err != nil {
		return fmt.Errorf("report on job %s: %w", name, err)
	}
	return nil
}

// Present says that a worker is there, for the time of a lease.
func (h *Hub) Present(ctx context.Context, w *service.Worker) error {
	raw, err := encode(w)
	if err != nil {
		return err
	}
	if _, err := h.workers.Put(ctx, w.Name, raw); err != nil {
		return fmt.Errorf("announce worker %s: %w", w.Name, err)
	}
	return nil
}

// Leave says that a worker is there no more.
func (h *Hub) Leave(ctx context.Context, name string) error {
	if err := h.workers.Purge(ctx, name); err != nil {
		return fmt.Errorf("take leave of worker %s: %w", name, err)
	}
	return nil
}
