package job

import (
	"context"

	"github.com/millrace/millrace/internal/copy"
	"github.com/millrace/millrace/internal/follow"
	"github.com/millrace/millrace/internal/mongo"
)

// Applied is the position that is applied, durable or not; zero while the job
// does not follow.
func Applied(j *Job) mongo.OpTime { return j.progress.Applied() }

// Recreate is what empties the target of a copy that begins anew, in an attempt.
func Recreate(j *Job, ctx context.Context, t copy.Task) error {
	if err := j.lease.take(ctx); err != nil {
		return err
	}
	if _, err := j.lease.begin(ctx); err != nil {
		return err
	}
	return j.copier.recreate(ctx, t)
}

// Source is how a job asks the source for what is certain.
func Source(j *Job) *follow.Source { return j.source.Source }
