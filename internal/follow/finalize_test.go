package follow

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/kit"
)

// TestFinalizeDrains: what was asked for begins after the next batch, and drains to where the
// source stood then. The target is drained and that is proven before the job ends.
func TestFinalizeDrains(t *testing.T) {
	r := newRig(t, transform.Config{})
	r.newest, r.diffs = at(13), []schema.Difference{{NS: "d.c"}}
	f := r.start()
	if err := f.emit(t.Context(), batch(11)); err != nil || f.phase != state.PhaseFollowing {
		t.Fatal(err, f.phase)
	}
	r.options.Finalize.Request()
	r.log = nil
	if err := f.emit(t.Context(), batch(12)); err != nil || r.job.Phase != state.PhaseFinalizing {
		t.Fatal(err, r.job.Phase)
	}
	if was, begun := r.options.Finalize.Withdraw(); !was || !begun || f.finalAt != at(13) {
		t.Errorf("withdrawn though it has begun; drains to %v", f.finalAt)
	}
	r.log = nil
	err := f.emit(t.Context(), batch(13, put("d.c", 1, "a")))
	if !errors.Is(err, ErrFinished) {
		t.Fatal(err)
	}
	for _, pair := range [][2]string{{`send d.c "a"`, "drain"}, {"drain", "prove"}, {"drain", "compare"},
		{"prove", "finish"}} {
		if a, b := slices.Index(r.log, pair[0]), slices.Index(r.log, pair[1]); a < 0 || b < a {
			t.Errorf("not %q before %q: %q", pair[0], pair[1], r.log)
		}
	}
	if end := r.ended; end == nil || len(end.Differences) != 1 || end.At != at(7000) || len(end.Set) == 0 {
		t.Errorf("ended with %+v", end)
	}
	if n := slices.Index(r.log, "restore"); n >= 0 {
		t.Errorf("expiries are restored though none waits: %q", r.log)
	}
}

// TestFinalizeOfFull: a job of mode full ends where its copy did.
func TestFinalizeOfFull(t *testing.T) {
	r := newRig(t, transform.Config{})
	r.options.Mode = state.ModeFull
	r.options.Finalize = NewFinalize(time.Now, true, time.Time{}, false)
	f := r.start()
	r.log = nil
	if err := f.emit(t.Context(), batch(11)); !errors.Is(err, ErrFinished) || slices.Contains(r.log, "newest") {
		t.Errorf("%v, did %q", err, r.log)
	}
}

// TestFinalizeWithoutReturn: before documents expire on the target that the source keeps, it is
// noted that no restart may follow changes. A run that finds the note goes on from there.
func TestFinalizeWithoutReturn(t *testing.T) {
	for _, expires := range []bool{true, false} {
		r := newRig(t, transform.Config{})
		r.waiting, r.newest = schema.Waiting{Indexes: true, Expiries: true, Expires: expires}, at(11)
		r.options.Finalize.Request()
		full := errors.New("disk full")
		r.fail["restore"] = []error{full}
		r.batches = []*stream.Batch{batch(11), batch(12)}
		if err := r.run(); !errors.Is(err, full) || r.job.Expiring != expires {
			t.Fatalf("%v, expiring %t", err, r.job.Expiring)
		}
		built, noted := slices.Index(r.log, "build deferred but 0"), slices.Index(r.log, "secure expiring")
		if expires != (noted > built && noted < slices.Index(r.log, "restore")) {
			t.Errorf("did %q", r.log)
		}
		if !expires {
			continue
		}
		r.log = nil
		if err := r.run(); !errors.Is(err, ErrFinished) {
			t.Fatal(err)
		}
		r.want("restore", "prove", "compare", "finish")
	}
}

// TestFinalizeDrainsFurther: what is read from the source, newer than where finalize drains to,
// has it drain to there.
func TestFinalizeDrainsFurther(t *testing.T) {
	r := newRig(t, transform.Config{})
	r.newest = at(12)
	r.options.Finalize.Request()
	f := r.start()
	if err := f.emit(t.Context(), batch(11)); err != nil {
		t.Fatal(err)
	}
	read := batch(12, put("d.c", 1, "a"))
	read.Until = at(15)
	for _, b := range []*stream.Batch{read, batch(14)} {
		if err := f.emit(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.emit(t.Context(), batch(15)); !errors.Is(err, ErrFinished) {
		t.Error(err)
	}
	if err := f.overlapUntil(t.Context(), at(20)); err != nil || f.finalAt != at(20) || r.sink.overlap != at(20) {
		t.Errorf("%v, drains to %v, the sink's overlap ends at %v", err, f.finalAt, r.sink.overlap)
	}
}

// TestFinalizeWaitsForBuilds: finalize waits for index builds of the source, and is rejected when
// they last too long. Withdrawn meanwhile, the job waits no longer.
func TestFinalizeWaitsForBuilds(t *testing.T) {
	building := []schema.Collection{{NS: "d.c", Type: schema.TypeCollection,
		Building: []stream.Index{{Name: "k_1", Spec: kit.Raw(kit.D("name", "k_1", "key", kit.D("k", 1)))}}}}
	begin := func(defined bool) (*rig, *follower) {
		r := newRig(t, transform.Config{})
		r.options.Finalize = NewFinalize(time.Now, defined, time.Time{}, false)
		r.options.Finalize.Request()
		r.building, r.options.IndexWait = building, time.Hour
		f := r.start()
		if err := f.emit(t.Context(), batch(11)); err != nil || !f.finalAt.IsZero() || f.builds.since.IsZero() {
			t.Fatalf("%v, drains to %v", err, f.finalAt)
		}
		return r, f
	}
	r, f := begin(false)
	if err := f.emit(t.Context(), batch(12)); err != nil || slices.Contains(r.log[len(r.log)-1:], "builds") {
		t.Errorf("%v: asked twice in a second: %q", err, r.log)
	}
	f.builds.looked, f.builds.since = time.Time{}, f.builds.since.Add(-time.Hour)
	if err := f.emit(t.Context(), batch(13)); err != nil || f.Finalize.Rejection() == nil || f.Finalize.due(false) {
		t.Errorf("%v, rejected for %v", err, f.Finalize.Rejection())
	}
	if refusal, ok := errors.AsType[*Refusal](f.Finalize.Rejection()); !ok || refusal.Code != CodeBuilding {
		t.Errorf("rejected for %v", f.Finalize.Rejection())
	}
	r, f = begin(false)
	r.options.Finalize.Withdraw()
	if err := f.emit(t.Context(), batch(12)); err != nil || !f.builds.since.IsZero() {
		t.Errorf("%v, waits since %v", err, f.builds.since)
	}
	_, f = begin(true)
	f.builds.looked, f.builds.since = time.Time{}, f.builds.since.Add(-time.Hour)
	if err := f.emit(t.Context(), batch(12)); mongo.HintOf(err) == "" {
		t.Errorf("a job that is to end by itself goes on: %v", err)
	}
	r, f = begin(false)
	r.building, f.builds.looked, r.newest = nil, time.Time{}, at(30)
	if err := f.emit(t.Context(), batch(12)); err != nil || f.finalAt != at(30) {
		t.Errorf("%v, drains to %v", err, f.finalAt)
	}
}
