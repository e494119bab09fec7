package follow

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// TestRetained: a collection is renamed while it is copied, and the rename skipped. Up to the end
// of the copy the target's has what happens under the new name, also after a restart.
func TestRetained(t *testing.T) {
	r := newRig(t, transform.Config{Skip: []string{"d.c=rename"}, Exclude: []string{"d.out"}})
	r.job.Phase, r.job.Copied, r.job.Consistent = state.PhaseOverlap, at(20), at(20)
	r.effects["renameCollection"] = schema.Effect{Skipped: "rename is skipped"}
	begin := func() *follower {
		f := r.start()
		f.stage.Copies(f)
		f.stage.Retain(f.Source.Names, f.job.Taken)
		return f
	}
	emit := func(f *follower, n uint32, ev stream.Event) {
		t.Helper()
		if err := errors.Join(f.emit(t.Context(), batch(n, ev)), f.sink.Drain(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	f := begin()
	emit(f, 12, changed(stream.Change{Kind: stream.ChangeRename, NS: "d.c", To: "d.out", UUID: uuid(1)}))
	emit(f, 13, put("d.out", 1, "a"))
	f = begin()
	emit(f, 14, put("d.out", 2, "b"))
	one, _ := f.Source.Names.Source("d.out")
	if one.Since != at(12) || one.Until != at(20) || f.CopyEnd("d.c") != at(20) ||
		!f.Source.Names.Absent("d.out") || !f.Source.Names.Retains("d.c", at(20)) || f.Source.Names.Retains("d.c", at(21)) {
		t.Errorf("%+v", one)
	}
	emit(f, 15, changed(stream.Change{Kind: stream.ChangeCreate, NS: "d.c", UUID: uuid(2)}))
	emit(f, 16, put("d.c", 2, "of another"))
	emit(f, 17, put("d.out", 2, "c"))
	if got := slices.Sorted(maps.Values(r.target["d.c"])); !slices.Equal(got, []string{"a", "of another"}) {
		t.Errorf("the target has %q", got)
	}
	if err := f.save(t.Context()); err != nil || len(r.job.Taken.Documents) != 1 {
		t.Fatalf("%v, stored %+v", err, r.job.Taken)
	}
	f = begin()
	emit(f, 18, put("d.out", 2, "d"))
	emit(f, 19, put("d.out", 1, "e"))
	if got := slices.Sorted(maps.Values(r.target["d.c"])); !slices.Equal(got, []string{"e", "of another"}) {
		t.Errorf("the target has %q", got)
	}
	r.job.Taken.Incomplete = true
	f = begin()
	if err := f.emit(t.Context(), batch(20, put("d.out", 2, "f"))); err == nil || mongo.HintOf(err) == "" {
		t.Error(err)
	}
	r.job.Taken = transform.Taken{}
	f = begin()
	emit(f, 1001, put("d.out", 3, "late"))
	if _, there := f.Source.Names.Source("d.out"); there || len(r.target["d.c"]) != 2 || f.phase != state.PhaseFollowing {
		t.Errorf("phase %s, the target has %v", f.phase, r.target)
	}
}

// TestRetainedTooLate: a rename after the end of the copy retains nothing.
func TestRetainedTooLate(t *testing.T) {
	r := newRig(t, transform.Config{Skip: []string{"d.*=rename"}})
	r.effects["renameCollection"] = schema.Effect{Skipped: "rename is skipped"}
	f := r.start()
	f.stage.Copies(f)
	f.stage.Retain(f.Source.Names, f.job.Taken)
	rename := changed(stream.Change{Kind: stream.ChangeRename, NS: "d.c", To: "d.e", UUID: uuid(1)})
	if err := f.emit(t.Context(), batch(12, rename)); err != nil {
		t.Fatal(err)
	}
	if one, _ := f.Source.Names.Source("d.e"); one.Was != "" || !one.Left {
		t.Errorf("%+v", one)
	}
}
