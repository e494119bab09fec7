package hub

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/service"
)

// noJob is the subject of changes that are about no job.
const noJob = "-"

// Audit is the trail of who has changed what. It is safe for concurrent use.
type Audit struct {
	*streams
	trail jetstream.Stream
}

// Note adds an entry to the audit trail. It returns when the entry is stored.
func (a *Audit) Note(ctx context.Context, c *service.Change) error {
	about := cmp.Or(c.Job, noJob)
	raw, err := encode(c)
	if err == nil {
		_, err = a.js.Publish(ctx, subjectAudit+"."+about, raw)
	}
	return mongo.Wrap(err, "note %s of %s in the audit trail", c.What, about)
}

// Trail returns up to limit entries before one, the newest first; before 0 is the end, job "" all jobs.
func (a *Audit) Trail(ctx context.Context, job string, before uint64, limit int) ([]service.Change, error) {
	messages, err := a.newest(ctx, a.trail, subjectAudit+"."+cmp.Or(job, ">"), before, limit)
	list, err := decoded(messages, err, func(c *service.Change, at uint64) { c.Seq = at })
	return list, mongo.Wrap(err, "read the audit trail")
}

// decoded are the messages of an answer of newest, read from JSON.
func decoded[T any](messages []*jetstream.RawStreamMsg, err error, numbered func(*T, uint64)) ([]T, error) {
	if err != nil {
		return nil, err
	}
	list := make([]T, len(messages))
	for i, m := range messages {
		if err := json.Unmarshal(m.Data, &list[i]); err != nil {
			return nil, fmt.Errorf("entry %d: %w", m.Sequence, err)
		}
		numbered(&list[i], m.Sequence)
	}
	return list, nil
}
