package statetest

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
)

// TestMemory: a store that keeps its promises passes.
func TestMemory(t *testing.T) { Run(t, newWorld("").setup()) }

// TestSuiteFinds: a store that breaks a promise fails the property about it.
func TestSuiteFinds(t *testing.T) {
	for fault, property := range map[string]string{
		"create replaces":                "a job is kept",
		"everybody owns":                 "an attempt of its own",
		"terms are not looked at":        "a write of another term ends the attempt",
		"another term is forgotten":      "a write of another term ends the attempt",
		"a mark needs the term":          "a write of another term ends the attempt",
		"a taker uses the old fence":     "an old attempt saves nothing",
		"an attempt uses the old fence":  "fences are never used again",
		"a reset begins at fence 0":      "fences are never used again",
		"old attempts save":              "an old attempt saves nothing",
		"old runs save":                  "a run that was displaced saves nothing",
		"displaces the living":           "a living owner is not displaced",
		"an owner never gives up":        "a silent owner gives up before it is displaced",
		"a reset keeps the position":     "a restart resets in place",
		"a reset lets the owner go":      "a restart resets in place",
		"clears all jobs":                "what an earlier life left is cleared",
		"finalized jobs are known":       "other jobs are known",
		"idle jobs are known":            "other jobs are known",
		"clears without the skipped":     "what an earlier life left is cleared",
		"slices are added":               "slices are replaced, and dropped by prefix",
		"drops what contains the prefix": "slices are replaced, and dropped by prefix",
		"a catalog is added":             "the catalog is kept in order",
		"the catalog is sorted":          "the catalog is kept in order",
		"names are put twice":            "names follow schema changes",
		"what is put anew is removed":    "names follow schema changes",
		"what never came is forgotten":   "names follow schema changes",
		"the skipped are kept for later": "skipped updates are kept before the position",
		"the skipped are added":          "skipped updates are kept before the position",
		"the skipped are saved in parts": "a save that breaks off loses no skipped updates",
		"stores, then proves":            "what is stored was proven first",
		"nothing is proven":              "what is stored was proven first",
		"slices are not proven":          "what is stored was proven first",
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			all := Properties()
			at := slices.IndexFunc(all, func(p Property) bool { return p.Name == property })
			if at < 0 {
				t.Fatalf("no property %q", property)
			}
			if got := failures(t.Context(), all[at], newWorld(fault).setup()); len(got) == 0 {
				t.Errorf("%q does not find it", property)
			} else {
				t.Logf("%q", got)
			}
		})
	}
}

// failures are what a property says of a store.
func failures(ctx context.Context, p Property, s Setup) []string {
	r := &recorder{ctx: ctx}
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Check(r, s)
	}()
	<-done
	return r.said
}

// recorder is a T that remembers.
type recorder struct {
	ctx  context.Context
	said []string
}

func (r *recorder) Helper()                  {}
func (r *recorder) Context() context.Context { return r.ctx }
func (r *recorder) Errorf(format string, args ...any) {
	r.said = append(r.said, fmt.Sprintf(format, args...))
}
func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}
