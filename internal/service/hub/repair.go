package hub

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace/millrace/internal/service"
)

const (
	// repairing is the first part of the keys of documents that are to be repaired, in
	// the bucket of findings. No job has a name with a slash.
	repairing = "repair/"
	// repairTTL is how long a repair that nobody can do is remembered.
	repairTTL = 7 * 24 * time.Hour
)

// PutRepair stores the documents that a verification is to repair. ErrExists where there
// are others.
func (h *Hub) PutRepair(ctx context.Context, job, id string, docs []service.RepairDocument) error {
	raw, err := encode(docs)
	if err != nil {
		return err
	}
	key := repairing + verificationKey(job, id)
	_, err = h.findings.Create(ctx, key, raw, jetstream.KeyTTL(repairTTL))
	if conflict(err) {
		e, getErr := h.findings.Get(ctx, key)
		if getErr == nil && bytes.Equal(e.Value(), raw) {
			return nil
		}
		err = errors.Join(ErrExists, getErr)
	}
	if err != nil {
		return fmt.Errorf("store what verification %s of job %s is to repair: %w", id, job, err)
	}
	return nil
}

// Repair are the documents that a verification is to repair, ErrNotFound where there are
// none any more.
func (h *Hub) Repair(ctx context.Context, job, id string) (docs []service.RepairDocument, err error) {
	e, err := h.findings.Get(ctx, repairing+verificationKey(job, id))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		err = ErrNotFound
	}
	if err == nil {
		err = json.Unmarshal(e.Value(), &docs)
	}
	if err != nil {
		return nil, fmt.Errorf("read what verification %s of job %s is to repair: %w", id, job, err)
	}
	return docs, nil
}

// dropRepair forgets them.
func (h *Hub) dropRepair(ctx context.Context, job, id string) error {
	return h.findings.Purge(ctx, repairing+verificationKey(job, id), jetstream.PurgeTTL(markerTTL))
}
