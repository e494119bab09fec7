package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

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
	info, err := h.audit.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the audit trail: %w", err)
	}
	seq := info.State.LastSeq
	if before > 0 {
		seq = min(seq, before-1)
	}
	list := []service.Change{}
	for ; seq >= max(info.State.FirstSeq, 1) && len(list) < limit; seq-- {
		m, err := h.audit.GetMsg(ctx, seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read entry %d of the audit trail: %w", seq, err)
		}
		if job != "" && m.Subject != subjectAudit+"."+job {
			continue
		}
		var c service.Change
		if err := json.Unmarshal(m.Data, &c); err != nil {
			return nil, fmt.Errorf("read entry %d of the audit trail: %w", seq, err)
		}
		c.Seq = seq
		list = append(list, c)
	}
	return list, nil
}
