package hub

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/millrace/millrace/internal/service"
)

// noJob is the subject of changes that are about no job.
const noJob = "-"

// Note adds an entry to the audit trail. It returns when the entry is stored.
func (h *Hub) Note(ctx context.Context, c *service.Change) error {
	raw, err := encode(c)
	if err != nil {
		return err
	}
	about := c.Job
	if about == "" {
		about = noJob
	}
	if _, err := h.js.Publish(ctx, subjectAudit+"."+about, raw); err != nil {
		return fmt.Errorf("note %s of %s in the audit trail: %w", c.What, about, err)
	}
	return nil
}

// Trail are up to limit entries of the audit trail that come before one, the newest
// first; before 0 is the end. job "" is all.
func (h *Hub) Trail(ctx context.Context, job string, before uint64, limit int) ([]service.Change, error) {
	about := subjectAudit + ".>"
	if job != "" {
		about = subjectAudit + "." + job
	}
	messages, err := h.newest(ctx, h.audit, about, before, limit)
	if err != nil {
		return nil, fmt.Errorf("read the audit trail: %w", err)
	}
	list := make([]service.Change, len(messages))
	for i, m := range messages {
		if err := json.Unmarshal(m.Data, &list[i]); err != nil {
			return nil, fmt.Errorf("read entry %d of the audit trail: %w", m.Sequence, err)
		}
		list[i].Seq = m.Sequence
	}
	return list, nil
}
