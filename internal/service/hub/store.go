package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/service"
)

// maxValue is NATS' default bound of a message.
const maxValue = 1<<20 - 4<<10

func encode(v any) ([]byte, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("write %T as JSON: %w", v, err)
	}
	if len(raw) > maxValue {
		return nil, fmt.Errorf("%T takes %d bytes, more than the %d that the store takes", v, len(raw), maxValue)
	}
	return raw, nil
}

type revised interface{ At() *uint64 }

// read sets the revision. It returns ErrNotFound for a removed value.
func read[T any](e jetstream.KeyValueEntry) (*T, error) {
	if e.Operation() != jetstream.KeyValuePut {
		return nil, ErrNotFound
	}
	v := new(T)
	if r, ok := any(v).(revised); ok {
		*r.At() = e.Revision()
	}
	return v, json.Unmarshal(e.Value(), v)
}

func get[T any](ctx context.Context, kv jetstream.KeyValue, key string) (*T, error) {
	e, err := kv.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		err = ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	return read[T](e)
}

func put(ctx context.Context, kv jetstream.KeyValue, key string, v any) error {
	raw, err := encode(v)
	if err == nil {
		_, err = kv.Put(ctx, key, raw)
	}
	return err
}

// write replaces a value of the same revision (else ErrChanged), or creates one (else ErrExists).
func write(ctx context.Context, kv jetstream.KeyValue, key string, v revised) error {
	raw, err := encode(v)
	if err != nil {
		return err
	}
	at, name := v.At(), ErrChanged
	var revision uint64
	if *at > 0 {
		revision, err = kv.Update(ctx, key, raw, *at)
	} else {
		name = ErrExists
		revision, err = kv.Create(ctx, key, raw)
	}
	if err == nil {
		*at = revision
	}
	return as(name, err)
}

const changeTries = 20

// change applies do to a stored value, again after a concurrent change. An error of do stores nothing.
func change[T any](ctx context.Context, kv jetstream.KeyValue, key string, do func(*T) error) (*T, error) {
	for range changeTries {
		v, err := get[T](ctx, kv, key)
		if err == nil {
			if refused := do(v); refused != nil {
				return nil, refused
			}
			err = write(ctx, kv, key, any(v).(revised))
		}
		if !errors.Is(err, ErrChanged) {
			return v, mongo.Wrap(err, "change %s", key)
		}
	}
	return nil, mongo.Wrap(ErrChanged, "change %s", key)
}

// remove returns ErrChanged if the revision is old.
func remove(ctx context.Context, kv jetstream.KeyValue, key string, revision uint64) error {
	return as(ErrChanged, kv.Delete(ctx, key, jetstream.LastRevision(revision)))
}

// as returns name for a conflict, other errors as they are.
func as(name, err error) error {
	if conflict(err) {
		return name
	}
	return err
}

// conflict reports that a key exists or has another revision.
func conflict(err error) bool {
	var api *jetstream.APIError
	return errors.Is(err, jetstream.ErrKeyExists) || errors.As(err, &api) &&
		(api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == errWrongRevision)
}

// Format is the version of stored values and questions. A release that changes them raises it by one and works with
// the previous one, which may lose unknown fields of a definition.
const Format = 1

// The newest format of any process of the service.
const (
	bucketFormat = "millrace-format"
	keyFormat    = "newest"
)

const formatEvery = 15 * time.Second

var errFormat = errors.New("this release and the service's are too far apart")

type formats struct {
	jetstream.KeyValue
	mine int
}

// enter stores the format of this process, unless it is too far from the service's.
func (f *formats) enter(ctx context.Context) error {
	for {
		newest, revision, err := f.newest(ctx)
		if err != nil {
			return err
		}
		if err := f.apart(newest); err != nil || f.mine <= newest {
			return err
		}
		if revision == 0 {
			_, err = f.Create(ctx, keyFormat, []byte(strconv.Itoa(f.mine)))
		} else {
			_, err = f.Update(ctx, keyFormat, []byte(strconv.Itoa(f.mine)), revision)
		}
		if err == nil || !conflict(err) {
			return mongo.Wrap(err, "note the format of this release")
		}
	}
}

func (f *formats) newest(ctx context.Context) (format int, revision uint64, err error) {
	e, err := f.Get(ctx, keyFormat)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return 0, 0, nil
	}
	if err == nil {
		format, err = strconv.Atoi(string(e.Value()))
	}
	if err != nil {
		return 0, 0, fmt.Errorf("read the format of the service: %w", err)
	}
	return format, e.Revision(), nil
}

func (f *formats) apart(newest int) error {
	hint := "take a newer release here"
	switch {
	case newest == 0 || f.mine >= newest-1 && f.mine <= newest+1:
		return nil
	case f.mine > newest:
		hint = "upgrade all processes to the releases between, one after the other"
	}
	return mongo.WithHint(fmt.Errorf("%w: it has format %d, the service %d", errFormat, f.mine, newest), hint)
}

// KeepFormat returns an error when the service has become too new for this process.
func (h *Hub) KeepFormat(ctx context.Context) error {
	for {
		if err := pace.Pause(ctx, formatEvery); err != nil {
			return context.Cause(ctx)
		}
		newest, _, err := h.formats.newest(ctx) // other calls report errors of NATS
		if err == nil {
			err = h.formats.apart(newest)
		}
		if errors.Is(err, errFormat) {
			return err
		}
	}
}

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
