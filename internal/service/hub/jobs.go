package hub

import (
	"context"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/service"
)

// Jobs has definitions and reports. It is safe for concurrent use.
type Jobs struct {
	definitions, reports jetstream.KeyValue
	records              *Records
}

// Create stores a new definition and sets its revision. It returns ErrExists if the name is taken.
func (j *Jobs) Create(ctx context.Context, d *service.Definition) error {
	return mongo.Wrap(write(ctx, j.definitions, d.Name, d), "create job %s", d.Name)
}

// Definition reads a definition from the store.
func (j *Jobs) Definition(ctx context.Context, name string) (*service.Definition, error) {
	d, err := get[service.Definition](ctx, j.definitions, name)
	return d, mongo.Wrap(err, "read job %s", name)
}

// Change applies do to the stored definition, again after a concurrent change. An error of do stores nothing.
func (j *Jobs) Change(ctx context.Context, name string,
	do func(*service.Definition) error) (*service.Definition, error) {
	return change(ctx, j.definitions, name, do)
}

// Forget removes everything stored of a job. The caller has its lease. A newer job of the name stays.
func (j *Jobs) Forget(ctx context.Context, d *service.Definition) error {
	// The definition comes last, so that an interrupted removal is repeated.
	err := j.records.forget(ctx, d.UID)
	if err == nil {
		err = remove(ctx, j.definitions, d.Name, d.Revision)
	}
	if err == nil {
		err = j.reports.Purge(ctx, d.Name)
	}
	return mongo.Wrap(err, "remove job %s", d.Name)
}

// Report stores a report. Without room it drops collections, then checks and the end of long texts: a job whose failure
// is not stored would begin again and again.
func (j *Jobs) Report(ctx context.Context, name string, r *service.Report) error {
	if _, err := encode(r); err != nil && r.Status != nil {
		short, fewer := *r.Status, *r
		short.Copy.Collections, short.Indexes = nil, nil
		short.LeftOut = short.LeftOut[:min(len(short.LeftOut), 100)]
		fewer.Status, r = &short, &fewer
	}
	if _, err := encode(r); err != nil {
		const most = 8 << 10
		fewer := *r
		fewer.Checks = nil
		fewer.Error, fewer.Hint = service.Short(r.Error, most), service.Short(r.Hint, most)
		fewer.Unmet = service.Short(r.Unmet, most)
		r = &fewer
	}
	return mongo.Wrap(put(ctx, j.reports, name, r), "report on job %s", name)
}

// Workers has present workers, and drains. It is safe for concurrent use.
type Workers struct{ present, drains jetstream.KeyValue }

// Present announces a worker for the time of a lease.
func (w *Workers) Present(ctx context.Context, one *service.Worker) error {
	return mongo.Wrap(put(ctx, w.present, one.Name, one), "announce worker %s", one.Name)
}

// Leave withdraws the announcement.
func (w *Workers) Leave(ctx context.Context, name string) error {
	return mongo.Wrap(w.present.Purge(ctx, name), "take leave of worker %s", name)
}

// Drain stores that a worker should return its jobs and take no others; nil withdraws that.
func (w *Workers) Drain(ctx context.Context, name string, d *service.Drain) error {
	if d == nil {
		return mongo.Wrap(w.drains.Purge(ctx, name), "take back the drain of worker %s", name)
	}
	return mongo.Wrap(put(ctx, w.drains, name, d), "drain worker %s", name)
}
