package copy

import (
	"context"
	"errors"
	"testing"

	"github.com/millrace/millrace/internal/scan"
)

// TestProgressIsKeptBeforeAllSlicesHaveBegun ends a run amid the first slices: the
// next one must not begin anew for want of the others' states.
func TestProgressIsKeptBeforeAllSlicesHaveBegun(t *testing.T) {
	c := server(t, "6.0")
	insert(t, c, "begun", "c", mixedDocs(6000))
	tasks := []Task{taskOf(source(t, c, "begun", "c"), "begun_t.c")}
	store := newStore()
	opts := small(t, c)
	opts.Readers, opts.Writers = 1, 1
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	store.onWrite = func(n int64) {
		if n == 10 {
			cancel()
		}
	}
	if err := New(c, c, store, opts).Run(ctx, tasks); !errors.Is(err, context.Canceled) {
		t.Fatalf("not interrupted: %v", err)
	}
	before := map[string]scan.Slice{}
	kept := int64(0)
	for k, st := range store.states {
		before[k] = st
		kept += st.Docs
	}
	if kept == 0 {
		t.Fatal("nothing was saved")
	}
	store.onWrite = nil
	e := New(c, c, store, opts)
	if err := e.Run(t.Context(), tasks); err != nil {
		t.Fatal(err)
	}
	for k, st := range before {
		if after := store.states[k]; after.Plan != st.Plan {
			t.Fatalf("plan %d was given up for plan %d, with %d documents copied", st.Plan, after.Plan, kept)
		}
	}
	same(t, dump(t, c, "begun", "c"), dump(t, c, "begun_t", "c"))
}
