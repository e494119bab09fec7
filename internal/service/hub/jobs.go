package hub

import (
	"context"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/service"
)

// Jobs are what jobs there are to be, and how they stand. It is safe for concurrent use.
type Jobs struct {
	definitions, reports jetstream.KeyValue
	records              *Records
}

// Create stores a new definition, and sets its revision. ErrExists says that the name exists.
func (j *Jobs) Create(ctx context.Context, d *service.Definition) error {
	return mongo.Wrap(write(ctx, j.definitions, d.Name, d), "create job %s", d.Name)
}

// Definition is that of one job, as the store has it now.
func (j *Jobs) Definition(ctx context.Context, name string) (*service.Definition, error) {
	d, err := get[service.Definition](ctx, j.definitions, name)
	return d, mongo.Wrap(err, "read job %s", name)
}

// Change changes the stored definition by do, again after another's change. An error of do stores nothing.
func (j *Jobs) Change(ctx context.Context, name string,
	do func(*service.Definition) error) (*service.Definition, error) {
	return change(ctx, j.definitions, name, do)
}

// Forget removes all that is stored of a job whose lease the caller has. A newer job of the name stays.
func (j *Jobs) Forget(ctx context.Context, d *service.Definition) error {
	// The definition last: a removal that was cut off is done again as long as it is there.
	err := j.records.forget(ctx, d.UID)
	if err == nil {
		err = remove(ctx, j.definitions, d.Name, d.Revision)
	}
	if err == nil {
		err = j.reports.Purge(ctx, d.Name)
	}
	return mongo.Wrap(err, "remove job %s", d.Name)
}

// Report stores how a job stands. What is too large goes without its collections.
func (j *Jobs) Report(ctx context.Context, name string, r *service.Report) error {
	if _, err := encode(r); err != nil && r.Status != nil {
		short, fewer := *r.Status, *r
		short.Copy.Collections, short.Indexes = nil, nil
		fewer.Status, r = &short, &fewer
	}
	return mongo.Wrap(put(ctx, j.reports, name, r), "report on job %s", name)
}
