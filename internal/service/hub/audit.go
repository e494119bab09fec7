package hub

import (
	"cmp"
	"context"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/service"
)

// noJob is the subject of changes that are about no job.
const noJob = "-"

// Audit is the trail of who has changed what. It is safe for concurrent use.
type Audit struct {
	trail[service.Change]
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
	list, err := a.newest(ctx, subjectAudit+"."+cmp.Or(job, ">"), service.Page{Before: before, Limit: limit})
	return list, mongo.Wrap(err, "read the audit trail")
}
