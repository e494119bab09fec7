package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace/millrace/internal/service"
)

// The buckets of verifications. What they have found is apart: it is large, and nobody
// watches it.
const (
	bucketVerifications = "millrace-verifications"
	bucketFindings      = "millrace-findings"
	// wished and told are the first parts of keys in bucketVerifications.
	wished = "wished."
	told   = "told."
	// markerTTL is how long the store remembers that a key was removed, for views that
	// are cut off meanwhile.
	markerTTL = time.Hour
)

// makeVerifications makes the buckets of verifications.
func (h *Hub) makeVerifications(kv func(jetstream.KeyValueConfig) (jetstream.KeyValue, error)) (err error) {
	if h.verifications, err = kv(jetstream.KeyValueConfig{Bucket: bucketVerifications, Description: "what is to be verified, and how that stands", LimitMarkerTTL: markerTTL, MaxBytes: 64 << 20}); err != nil {
		return err
	}
	h.findings, err = kv(jetstream.KeyValueConfig{Bucket: bucketFindings, Description: "what verifications have found", LimitMarkerTTL: markerTTL, MaxBytes: 512 << 20})
	return err
}

// Verifying is the unit of work that is the verifications of a job, of which one runs
// at a time.
func Verifying(job string) string { return "verify." + job }

// verificationKey is unlike that of any other, for ids have no dots.
func verificationKey(job, id string) string { return job + "." + id }

// Verify stores a new verification. ErrExists where one of its id is there.
func (h *Hub) Verify(ctx context.Context, w *service.VerifyWish) error {
	raw, err := encode(w)
	if err != nil {
		return err
	}
	rev, err := h.verifications.Create(ctx, wished+verificationKey(w.Job, w.ID), raw)
	if conflict(err) {
		err = ErrExists
	}
	if err != nil {
		return fmt.Errorf("ask for verification %s of job %s: %w", w.ID, w.Job, err)
	}
	w.Revision = rev
	return nil
}

// VerifyWish is a verification as it is wanted, as the store has it now.
func (h *Hub) VerifyWish(ctx context.Context, job, id string) (*service.VerifyWish, error) {
	e, err := h.verifications.Get(ctx, wished+verificationKey(job, id))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		err = ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("read verification %s of job %s: %w", id, job, err)
	}
	return decodeVerifyWish(e)
}

func decodeVerifyWish(e jetstream.KeyValueEntry) (*service.VerifyWish, error) {
	var w service.VerifyWish
	if err := json.Unmarshal(e.Value(), &w); err != nil {
		return nil, fmt.Errorf("read the verification %s: %w", e.Key(), err)
	}
	w.Revision = e.Revision()
	return &w, nil
}

// CancelVerification notes who calls a verification off. One that was called off stays
// so.
func (h *Hub) CancelVerification(ctx context.Context, job, id, who string) (*service.VerifyWish, error) {
	for range changeTries {
		w, err := h.VerifyWish(ctx, job, id)
		if err != nil || w.CanceledBy != "" {
			return w, err
		}
		w.CanceledBy = who
		raw, err := encode(w)
		if err != nil {
			return nil, err
		}
		rev, err := h.verifications.Update(ctx, wished+verificationKey(job, id), raw, w.Revision)
		if err == nil {
			w.Revision = rev
			return w, nil
		}
		if !conflict(err) {
			return nil, fmt.Errorf("cancel verification %s of job %s: %w", id, job, err)
		}
	}
	return nil, fmt.Errorf("cancel verification %s of job %s: %w", id, job, ErrChanged)
}

// VerifyReport is what was said last of a verification, nil for nothing, as the store
// has it now.
func (h *Hub) VerifyReport(ctx context.Context, job, id string) (*service.VerifyReport, error) {
	e, err := h.verifications.Get(ctx, told+verificationKey(job, id))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, nil
	}
	var r service.VerifyReport
	if err == nil {
		err = json.Unmarshal(e.Value(), &r)
	}
	if err != nil {
		return nil, fmt.Errorf("read how verification %s of job %s stands: %w", id, job, err)
	}
	return &r, nil
}

// TellVerification stores how a verification stands. The caller has the lease of the
// job's verifications.
func (h *Hub) TellVerification(ctx context.Context, job, id string, r *service.VerifyReport) error {
	raw, err := encode(r)
	if err != nil {
		return err
	}
	if _, err := h.verifications.Put(ctx, told+verificationKey(job, id), raw); err != nil {
		return fmt.Errorf("report on verification %s of job %s: %w", id, job, err)
	}
	return nil
}

// PutFindings stores what a verification has found.
func (h *Hub) PutFindings(ctx context.Context, job, id string, f *service.Findings) error {
	raw, err := encode(f)
	if err != nil {
		return err
	}
	if _, err := h.findings.Put(ctx, verificationKey(job, id), raw); err != nil {
		return fmt.Errorf("store what verification %s of job %s has found: %w", id, job, err)
	}
	return nil
}

// Findings are what a verification has found; ErrNotFound where nothing is stored.
func (h *Hub) Findings(ctx context.Context, job, id string) (*service.Findings, error) {
	e, err := h.findings.Get(ctx, verificationKey(job, id))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		err = ErrNotFound
	}
	var f service.Findings
	if err == nil {
		err = json.Unmarshal(e.Value(), &f)
	}
	if err != nil {
		return nil, fmt.Errorf("read what verification %s of job %s has found: %w", id, job, err)
	}
	return &f, nil
}

// DropVerification forgets a verification and what it has found.
func (h *Hub) DropVerification(ctx context.Context, job, id string) error {
	key := verificationKey(job, id)
	err := errors.Join(h.findings.Purge(ctx, key, jetstream.PurgeTTL(markerTTL)), h.dropRepair(ctx, job, id), h.verifications.Purge(ctx, wished+key, jetstream.PurgeTTL(markerTTL)),
		h.verifications.Purge(ctx, told+key, jetstream.PurgeTTL(markerTTL)))
	if err != nil {
		return fmt.Errorf("forget verification %s of job %s: %w", id, job, err)
	}
	return nil
}

// Prune forgets the oldest finished verifications of a job beyond those that are kept,
// but for the last of its schedule, which says when the next is due.
func (h *Hub) Prune(ctx context.Context, list []service.Verification) error {
	var failed error
	finished, scheduled := 0, false
	for i := range list { // the newest first
		v := &list[i]
		if v.Open() {
			continue
		}
		last := v.Wish.Scheduled && !scheduled
		scheduled = scheduled || v.Wish.Scheduled
		if finished++; finished > service.KeptVerifications && !last {
			failed = errors.Join(failed, h.DropVerification(ctx, v.Wish.Job, v.Wish.ID))
		}
	}
	return failed
}

// takeVerification has the view hold a verification, or its report.
func (v *View) takeVerification(e jetstream.KeyValueEntry, there bool) {
	if key, ok := strings.CutPrefix(e.Key(), told); ok {
		var r service.VerifyReport
		put(v, v.verified, key, &r, there && json.Unmarshal(e.Value(), &r) == nil)
		return
	}
	key, ok := strings.CutPrefix(e.Key(), wished)
	if !ok {
		return
	}
	w, err := decodeVerifyWish(e)
	v.change(func() {
		if v.wishes[key] != nil {
			delete(v.byJob[v.wishes[key].Job], key)
		}
		delete(v.wishes, key)
		if there && err == nil {
			v.wishes[key] = w
			if v.byJob[w.Job] == nil {
				v.byJob[w.Job] = map[string]bool{}
			}
			v.byJob[w.Job][key] = true
		}
	})
}

// Verifications are those of a job, of its present definition, the newest first. What
// they point to is not to be changed.
func (v *View) Verifications(job string) []service.Verification {
	v.mu.Lock()
	defer v.mu.Unlock()
	d := v.jobs[job]
	if d == nil {
		return nil
	}
	return v.verifications(job, func(w *service.VerifyWish) bool { return w.UID == d.UID })
}

// LeftVerifications are those of a job that is no more, or was made anew.
func (v *View) LeftVerifications(job string) []service.Verification {
	v.mu.Lock()
	defer v.mu.Unlock()
	d := v.jobs[job]
	return v.verifications(job, func(w *service.VerifyWish) bool { return d == nil || w.UID != d.UID })
}

func (v *View) verifications(job string, of func(*service.VerifyWish) bool) []service.Verification {
	var list []service.Verification
	lease := v.verifying(job)
	for key := range v.byJob[job] {
		if w := v.wishes[key]; of(w) {
			list = append(list, service.Verification{Wish: *w, Report: v.verified[key], Lease: lease})
		}
	}
	slices.SortFunc(list, func(a, b service.Verification) int {
		if c := b.Wish.CreatedAt.Compare(a.Wish.CreatedAt); c != 0 {
			return c
		}
		return strings.Compare(b.Wish.ID, a.Wish.ID)
	})
	return list
}

// Verification is one of a job's, nil where there is none.
func (v *View) Verification(job, id string) *service.Verification {
	for _, one := range v.Verifications(job) {
		if one.Wish.ID == id {
			return &one
		}
	}
	return nil
}

// OpenVerifications are those that are to be run, or are, the oldest of each job.
func (v *View) OpenVerifications() []service.Verification {
	v.mu.Lock()
	defer v.mu.Unlock()
	oldest := map[string]service.Verification{}
	for key, w := range v.wishes {
		d := v.jobs[w.Job]
		one := service.Verification{Wish: *w, Report: v.verified[key]}
		was, known := oldest[w.Job]
		if d == nil || d.UID != w.UID || !one.Open() || known && was.Wish.CreatedAt.Before(w.CreatedAt) {
			continue
		}
		one.Lease = v.verifying(w.Job)
		oldest[w.Job] = one
	}
	return slices.SortedFunc(maps.Values(oldest), func(a, b service.Verification) int { return strings.Compare(a.Wish.Job, b.Wish.Job) })
}

// verifying is the lease of a job's verifications, nil where nobody has it.
func (v *View) verifying(job string) *service.Lease {
	if l, ok := v.leases[Verifying(job)]; ok && v.fresh(l.at) {
		return &l.of
	}
	return nil
}
