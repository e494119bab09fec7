package main

import (
	"context"

	"github.com/millrace/millrace/internal/replicate"
)

// engine is replicate's job as the commands use it.
type engine struct{ *replicate.Job }

// openJob connects both sides of a job.
func openJob(ctx context.Context, spec replicate.Spec) (job, error) {
	j, err := replicate.Open(ctx, spec)
	if err != nil {
		return nil, err
	}
	return engine{j}, nil
}
