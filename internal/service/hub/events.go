package hub

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/millrace/millrace/internal/service"
)

// AddEntry stores an entry of a job's log. It is stored once, however often it is sent
// under one id.
func (h *Hub) AddEntry(ctx context.Context, uid, id string, e *service.Entry) error {
	raw, err := encode(e)
	if err != nil {
		return err
	}
	return h.publish(ctx, subjectEvents+"."+string(e.Kind)+"."+uid, id, raw)
}

// Entries are up to limit entries of a job's log that come before one, the newest first;
// before 0 is the end. kind "" is both.
func (h *Hub) Entries(ctx context.Context, uid string, kind service.EntryKind, before uint64, limit int) ([]service.Entry, error) {
	of := "*"
	if kind != "" {
		of = string(kind)
	}
	messages, err := h.newest(ctx, h.events, subjectEvents+"."+of+"."+uid, before, limit)
	if err != nil {
		return nil, fmt.Errorf("read the log of a job: %w", err)
	}
	list := make([]service.Entry, len(messages))
	for i, m := range messages {
		if err := json.Unmarshal(m.Data, &list[i]); err != nil {
			return nil, fmt.Errorf("read entry %d of the log: %w", m.Sequence, err)
		}
		list[i].Seq = m.Sequence
	}
	return list, nil
}
