package hub

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/service"
)

// Jobs are what jobs there are to be, and how they stand. It is safe for concurrent use.
type Jobs struct {
	definitions, reports jetstream.KeyValue
	records              *Records
}

// Create stores a new definition, and sets its revision. ErrExists where one of its
// name is there.
func (j *Jobs) Create(ctx context.Context, d *service.Definition) error {
	revision, err := create(ctx, j.definitions, d.Name, d, 0)
	if err == nil {
		d.Revision = revision
	}
	return mongo.Wrap(err, "create job %s", d.Name)
}

// Definition is that of one job, as the store has it now.
func (j *Jobs) Definition(ctx context.Context, name string) (*service.Definition, error) {
	d, revision, err := get[service.Definition](ctx, j.definitions, name)
	if err != nil {
		return nil, mongo.Wrap(err, "read job %s", name)
	}
	d.Revision = revision
	return &d, nil
}

// changeTries is how often a change begins again after another's.
const changeTries = 20

// Change has do change the wish of a job, on what is stored, again where somebody was
// faster. What do refuses is not stored. uid "" is whatever job has the name.
func (j *Jobs) Change(ctx context.Context, name, uid string, do func(*service.Definition) error) (before,
	after service.Wish, err error) {
	for range changeTries {
		d, err := j.Definition(ctx, name)
		if err != nil {
			return before, after, err
		}
		if uid != "" && d.UID != uid {
			return before, after, mongo.Wrap(ErrNotFound, "change job %s", name)
		}
		before = d.Wish
		if err := do(d); err != nil {
			return before, before, err
		}
		if _, err = update(ctx, j.definitions, name, d, d.Revision); err == nil {
			return before, d.Wish, nil
		} else if !errors.Is(err, ErrChanged) {
			return before, before, mongo.Wrap(err, "change job %s", name)
		}
	}
	return before, before, mongo.Wrap(ErrChanged, "change job %s", name)
}

// Forget removes the definition, the report, the points and the log of a job that nobody
// runs: the caller has its lease. A job of the same name that was made since stays.
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
