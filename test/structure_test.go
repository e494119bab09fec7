package test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// none is a filter that no document passes.
func none(string) bson.Raw { return kit.Raw(d("$nor", a(d()))) }

// structureOf empties the target and makes there, by one job of mode structure, what the
// scenarios have left on the source: the catalogs are the same then, and the target has no
// document.
func structureOf(t *testing.T, cases []*trial) {
	cases = slices.DeleteFunc(slices.Clone(cases), func(c *trial) bool { return !c.structure })
	if len(cases) == 0 {
		return
	}
	ctx := t.Context()
	cleanUpOn(t, cases, shared.targetDB)
	of := func(ns string) *trial {
		if i := slices.IndexFunc(cases, func(c *trial) bool { return c.owns(ns) }); i >= 0 {
			return cases[i]
		}
		return nil
	}
	config := rules(cases)
	config.Filter = nil
	live, err := startJob(t, job.Spec{Job: newJob("structure"), Mode: job.ModeStructure, Rules: config})
	if err == nil {
		err = live.wait()
	}
	if err != nil {
		t.Error(err)
		return
	}
	diffs, err := Compare(ctx, shared.sourceDB, shared.targetDB, CompareOptions{
		Source: func(ns string) bool { return of(ns) != nil && !excluded(config.Exclude, ns) },
		Target: func(ns string) bool { return of(ns) != nil },
		Name:   newNames(config.Rename).target,
		Filter: none,
		Fields: Mappings(config.Fields),
		// Versions are documents: there are none.
		History: config.History,
	})
	if err != nil {
		t.Error(err)
	}
	for _, d := range diffs {
		of(d.NS).failed(fmt.Errorf("structure: %s", d))
	}
	checkShown(t, live.Status())
}

// checkShown checks that the status of a finished job shows all as made.
func checkShown(t *testing.T, st job.Status) {
	t.Helper()
	s := st.Structure
	switch {
	case s == nil:
		t.Fatal("the status shows no structure")
	case s.Collections == 0 || s.Collections != s.CollectionsTotal || s.Views != s.ViewsTotal ||
		s.Indexes != s.IndexesTotal:
		t.Errorf("made %d of %d collections, %d of %d views, %d of %d indexes", s.Collections, s.CollectionsTotal, s.Views,
			s.ViewsTotal, s.Indexes, s.IndexesTotal)
	case st.Copy.Docs != 0 || st.Follow.Operations != 0 || st.TargetPosition != "":
		t.Errorf("documents: %d copied, %d changed, position %q", st.Copy.Docs, st.Follow.Operations, st.TargetPosition)
	}
}

// structureSite is a source for the tests below, in a database of its own.
func structureSite(t *testing.T, base string) *site {
	t.Helper()
	s := &site{ctx: t.Context(), client: shared.sourceDB, base: base}
	drop := func(ctx context.Context) {
		for _, c := range []*site{s, {client: shared.targetDB, base: base}} {
			if err := c.client.Database(base).Drop(ctx); err != nil {
				t.Error(err)
			}
		}
	}
	drop(t.Context())
	t.Cleanup(func() { drop(context.WithoutCancel(s.ctx)) })
	return s
}

// TestStructureIntoDuplicates merges into documents that the source's unique index does
// not allow: that is an error, and starting the job again goes on when they are gone.
func TestStructureIntoDuplicates(t *testing.T) {
	s := structureSite(t, "structuredup")
	s.insert("c", d("_id", 1, "k", 1))
	s.run(d("createIndexes", "c", "indexes", a(d("key", d("k", 1), "name", "k", "unique", true))))
	target := shared.targetDB.Database(s.base).Collection("c")
	if _, err := target.InsertMany(t.Context(), []any{d("_id", 7, "k", 5), d("_id", 8, "k", 5)}); err != nil {
		t.Fatal(err)
	}
	spec := job.Spec{Job: newJob("structuredup"), Mode: job.ModeStructure,
		Rules: transform.Config{Include: []string{s.base}}, OnExisting: job.ExistingMerge}
	live, err := startJob(t, spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := live.wait(); err == nil || !strings.Contains(err.Error(), "duplicate key") ||
		!strings.Contains(err.Error(), "k: 5") || !strings.Contains(err.Error(), "change or remove one of them") {
		t.Fatalf("with duplicates: %v", err)
	}
	live.stop()
	if _, err := target.DeleteOne(t.Context(), d("_id", 8)); err != nil {
		t.Fatal(err)
	}
	if live, err = startJob(t, spec); err == nil {
		err = live.wait()
	}
	if err != nil {
		t.Fatal(err)
	}
	if n, err := target.CountDocuments(t.Context(), d()); err != nil || n != 1 {
		t.Errorf("%d documents, want the target's own: %v", n, err)
	}
	checkShown(t, live.Status())
}

// TestStructureKilled kills millrace at each failpoint that it meets, one after the
// other, and starts it again: each time the target is the same in the end.
func TestStructureKilled(t *testing.T) {
	lab.Nightly(t)
	s := structureSite(t, "structurekill")
	if err := attempt(func() { richStructure(s) }); err != nil {
		t.Fatal(err)
	}
	program := BuildMillrace(t, "-tags", "failpoint")
	name := newJob("structurekill")
	sync := func(points string) *Process {
		return StartWith(t, []string{"MILLRACE_FAILPOINTS=" + points}, program, "sync", "--source", shared.source.URI(),
			"--target", shared.target.URI(),
			"--include", s.base+".*", "--mode", "structure", "--job", name, "--log-level", "warn", "--output", "json")
	}
	step := 1
	if lab.Brief() {
		step = 5
	}
	for n := 1; ; n += step {
		killed := sync(fmt.Sprintf("*:%d=kill", n))
		if err := killed.Wait(waitLimit); err == nil { // it met fewer
			if n < 15 {
				t.Errorf("only %d points were met", n)
			}
			checkKilled(t, s, killed)
			return
		}
		again := sync("")
		if err := again.Wait(waitLimit); err != nil {
			t.Fatalf("after a kill at point %d: %v\n%s\nit was killed at:\n%s", n, err, again.Output(), killed.Output())
		}
		checkKilled(t, s, again)
		for _, db := range []string{s.base, "millrace"} {
			if err := shared.targetDB.Database(db).Drop(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// richStructure makes collections of all kinds.
func richStructure(s *site) {
	s.insert("plain", d("_id", 1, "k", 1))
	s.run(d("createIndexes", "plain", "indexes", a(
		d("key", d("k", 1), "name", "k", "unique", true), d("key", d("at", 1), "name", "at", "expireAfterSeconds", 3600),
		d("key", d("h", "hashed"), "name", "h"))))
	s.run(d("create", "capped", "capped", true, "size", 8192))
	s.run(d("create", "valid", "validator", d("n", d("$gte", 0)), "collation", d("locale", "en", "strength", 2)))
	s.run(d("createIndexes", "valid", "indexes", a(d("key", d("n", 1), "name", "n"))))
	s.run(d("create", "view", "viewOn", "plain", "pipeline", a(d("$match", d("k", 1)))))
	s.run(d("create", "onview", "viewOn", "view", "pipeline", a()))
	if shared.sourceVer.AtLeast(6, 0) && shared.targetVer.AtLeast(6, 0) {
		s.run(d("create", "series", "timeseries", d("timeField", "t", "metaField", "m"), "expireAfterSeconds", 7200))
		s.run(d("create", "clustered", "clusteredIndex", d("key", d("_id", 1), "unique", true), "expireAfterSeconds", 7200))
	}
}

// checkKilled wants the target to have the site's catalog and no document.
func checkKilled(t *testing.T, s *site, p *Process) {
	t.Helper()
	ours := func(ns string) bool { return strings.HasPrefix(ns, s.base+".") }
	diffs, err := Compare(t.Context(), shared.sourceDB, shared.targetDB,
		CompareOptions{Source: ours, Target: ours, Filter: none})
	if err != nil {
		t.Fatal(err)
	}
	for _, diff := range diffs {
		t.Errorf("%s\n%s", diff, p.Output())
	}
}
