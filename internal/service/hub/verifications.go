package hub

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/service"
)

// Findings are apart: they are large, and no view needs them.
const (
	bucketVerifications = "millrace-verifications"
	bucketFindings      = "millrace-findings"
	// These begin keys in bucketVerifications.
	requested = "wished."
	reported  = "told."
	// markerTTL is how long a removal is visible to views that are disconnected.
	markerTTL = time.Hour
)

// Verifications has requests, reports and findings. It is safe for concurrent use.
type Verifications struct{ kv, findings jetstream.KeyValue }

// Verifying is the unit of work of a job's verifications, which run one at a time.
func Verifying(job string) string { return "verify." + job }

// ids have no dots
func verificationKey(job, id string) string { return job + "." + id }

// Create stores a new verification. It returns ErrExists if the id is taken.
func (v *Verifications) Create(ctx context.Context, w *service.VerifyRequest) error {
	return mongo.Wrap(write(ctx, v.kv, requested+verificationKey(w.Job, w.ID), w),
		"ask for verification %s of job %s", w.ID, w.Job)
}

// Requested reads a verification as it was requested.
func (v *Verifications) Requested(ctx context.Context, job, id string) (*service.VerifyRequest, error) {
	w, err := get[service.VerifyRequest](ctx, v.kv, requested+verificationKey(job, id))
	return w, mongo.Wrap(err, "read verification %s of job %s", id, job)
}

// Cancel records who canceled first.
func (v *Verifications) Cancel(ctx context.Context, job, id, who string) (*service.VerifyRequest, error) {
	return change(ctx, v.kv, requested+verificationKey(job, id), func(w *service.VerifyRequest) error {
		w.CanceledBy = cmp.Or(w.CanceledBy, who)
		return nil
	})
}

// LastReport returns the stored report, nil for none.
func (v *Verifications) LastReport(ctx context.Context, job, id string) (*service.VerifyReport, error) {
	r, err := get[service.VerifyReport](ctx, v.kv, reported+verificationKey(job, id))
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	return r, mongo.Wrap(err, "read how verification %s of job %s stands", id, job)
}

// Report stores a report. The caller has the lease.
func (v *Verifications) Report(ctx context.Context, job, id string, r *service.VerifyReport) error {
	return mongo.Wrap(put(ctx, v.kv, reported+verificationKey(job, id), r), "report on verification %s of job %s", id, job)
}

func (v *Verifications) PutFindings(ctx context.Context, job, id string, f *service.Findings) error {
	return mongo.Wrap(put(ctx, v.findings, verificationKey(job, id), f),
		"store what verification %s of job %s has found", id, job)
}

// Findings returns findings, ErrNotFound if there are none.
func (v *Verifications) Findings(ctx context.Context, job, id string) (*service.Findings, error) {
	f, err := get[service.Findings](ctx, v.findings, verificationKey(job, id))
	return f, mongo.Wrap(err, "read what verification %s of job %s has found", id, job)
}

const (
	// repairing begins keys of documents to repair, among the findings. Names of jobs have no slash.
	repairing = "repair/"
	// repairTTL is how long an impossible repair is stored.
	repairTTL = 7 * 24 * time.Hour
)

// PutRepair stores documents to repair. It returns ErrExists if there are others.
func (v *Verifications) PutRepair(ctx context.Context, job, id string, docs []service.RepairDocument) error {
	key := repairing + verificationKey(job, id)
	raw, err := encode(docs)
	if err == nil {
		_, err = v.findings.Create(ctx, key, raw, jetstream.KeyTTL(repairTTL))
	}
	if err = as(ErrExists, err); errors.Is(err, ErrExists) {
		was, getErr := v.Repair(ctx, job, id)
		if getErr == nil && slices.Equal(was, docs) {
			return nil
		}
		err = errors.Join(err, getErr)
	}
	return mongo.Wrap(err, "store what verification %s of job %s is to repair", id, job)
}

// Repair returns the documents to repair, ErrNotFound if there are none.
func (v *Verifications) Repair(ctx context.Context, job, id string) ([]service.RepairDocument, error) {
	docs, err := get[[]service.RepairDocument](ctx, v.findings, repairing+verificationKey(job, id))
	if err != nil {
		return nil, mongo.Wrap(err, "read what verification %s of job %s is to repair", id, job)
	}
	return *docs, nil
}

// Drop deletes a verification and its findings.
func (v *Verifications) Drop(ctx context.Context, job, id string) error {
	key, marker := verificationKey(job, id), jetstream.PurgeTTL(markerTTL)
	err := errors.Join(v.findings.Purge(ctx, key, marker), v.findings.Purge(ctx, repairing+key, marker),
		v.kv.Purge(ctx, requested+key, marker), v.kv.Purge(ctx, reported+key, marker))
	return mongo.Wrap(err, "forget verification %s of job %s", id, job)
}

// Prune removes the oldest finished verifications beyond service.KeptVerifications, but not the last scheduled one.
func (v *Verifications) Prune(ctx context.Context, list []service.Verification) error {
	var failed error
	finished, scheduled := 0, false
	for i := range list { // newest first
		one := &list[i]
		if one.Open() {
			continue
		}
		last := one.Request.Scheduled && !scheduled
		scheduled = scheduled || one.Request.Scheduled
		if finished++; finished > service.KeptVerifications && !last {
			failed = errors.Join(failed, v.Drop(ctx, one.Request.Job, one.Request.ID))
		}
	}
	return failed
}

func (v *View) takeVerification(e jetstream.KeyValueEntry) {
	if key, ok := strings.CutPrefix(e.Key(), reported); ok {
		take(v, &v.verified, key, e)
		return
	}
	key, ok := strings.CutPrefix(e.Key(), requested)
	if !ok {
		return
	}
	w, err := read[service.VerifyRequest](e)
	v.change(func() {
		job := key[:max(strings.LastIndexByte(key, '.'), 0)]
		of := v.requests[job]
		set(&of, key, w, err == nil)
		set(&v.requests, job, of, true)
	})
}

// Verifications returns those of a job's present definition, the newest first. Do not change them.
func (v *View) Verifications(job string) []service.Verification {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.present(job)
}

func (v *View) present(job string) []service.Verification {
	d := v.jobs[job]
	return v.verifications(job, func(w *service.VerifyRequest) bool { return d != nil && w.UID == d.UID })
}

// LeftVerifications returns those of a removed job or of an earlier definition.
func (v *View) LeftVerifications(job string) []service.Verification {
	v.mu.Lock()
	defer v.mu.Unlock()
	d := v.jobs[job]
	return v.verifications(job, func(w *service.VerifyRequest) bool { return d == nil || w.UID != d.UID })
}

func (v *View) verifications(job string, of func(*service.VerifyRequest) bool) []service.Verification {
	var list []service.Verification
	lease := v.lease(Verifying(job))
	for key, w := range v.requests[job] {
		if of(w) {
			list = append(list, service.Verification{Request: *w, Report: v.verified[key].of, Lease: lease})
		}
	}
	slices.SortFunc(list, func(a, b service.Verification) int {
		return cmp.Or(b.Request.CreatedAt.Compare(a.Request.CreatedAt), strings.Compare(b.Request.ID, a.Request.ID))
	})
	return list
}

// Verification returns one, nil if there is none.
func (v *View) Verification(job, id string) *service.Verification {
	for _, one := range v.Verifications(job) {
		if one.Request.ID == id {
			return &one
		}
	}
	return nil
}

// OpenVerifications returns those that wait or run, the oldest of each job.
func (v *View) OpenVerifications() (list []service.Verification) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, job := range slices.Sorted(maps.Keys(v.requests)) {
		for _, one := range slices.Backward(v.present(job)) {
			if one.Open() {
				list = append(list, one)
				break
			}
		}
	}
	return list
}
