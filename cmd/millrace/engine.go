package main

import (
	"context"

	"github.com/millrace/millrace/internal/job"
)

// engine is replicate's job as the commands use it.
type engine struct{ *job.Job }

// openJob connects both sides of a job.
func openJob(ctx context.Context, spec job.Spec) (syncJob, error) {
	j, err := job.Open(ctx, spec)
	if err != nil {
		return nil, err
	}
	return engine{j}, nil
}
