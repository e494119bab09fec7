package test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/internal/verify"
	"github.com/millrace/millrace/workshop/lab"
)

// versionScenarios have the target hold all versions of documents.
func versionScenarios() []scenario {
	all := []string{"DB.*"}
	others := asHistories(slices.Concat(typeScenarios(), idScenarios(), updateScenarios(), writeScenarios(),
		txnScenarios()))
	return append(others, []scenario{
		{name: "history_of_changes", history: all, setup: rowsSetup, change: versionsChange, check: versionsCheck},
		{name: "history_whole_documents", history: all, setup: rowsSetup, change: rowsWholeChange, check: versionsCheck},
		{name: "history_gone_and_back", history: all, setup: rowsSetup, change: rowsBackChange, check: versionsCheck},
		{name: "history_of_another_id_type", history: all, setup: rowsSetup, change: rowsTypeChange, check: versionsCheck},
		{name: "history_in_and_out", history: all, setup: rowsSetup, change: rowsInOutChange, check: versionsCheck},
		{name: "history_transactions", history: all, setup: rowsSetup, change: rowsTxnChange, check: versionsCheck},
		{name: "history_of_mapped", history: all,
			fields: []string{`DB.*={"drop":["o","pad"],"rename":{"s":"status"},"set":{"tenant":"a"}}`}, setup: rowsSetup,
			change: versionsChange},
		{name: "history_of_mapped_transactions", history: all,
			fields: []string{`DB.*={"drop":["o"],"rename":{"s":"status"}}`}, setup: rowsSetup, change: rowsTxnChange},
		{name: "history_dropped", history: all, setup: rowsSetup, change: rowsDroppedChange},
		{name: "history_renamed", history: all, setup: rowsSetup, change: rowsRenamedChange},
		{name: "history_renamed_over", history: all, setup: rowsSetup, change: versionsRenamedOver},
	}...)
}

// versionsChange is changes of every kind, many of the same documents.
func versionsChange(s *site) {
	for i := range 40 {
		s.set("c", i%7, d("$set", d("o.b", i), "$push", d("v", i)))
		s.set("c", i, d("$inc", d("n", 1)))
	}
	for i := range 6 {
		s.set("c", i, d("$unset", d("o.b", 1), "$set", d("t", i)))
		s.remove("c", d("_id", 20+i))
		s.insert("c", d("_id", 20+i, "again", i))
		s.set("c", 20+i, d("$set", d("again", "x")))
	}
	s.remove("c", d("_id", 30))
	s.insert("c", d("_id", "new", "a", a(1, d("b", 2))))
	s.set("c", "new", d("$set", d("a.1.b", 3)))
}

// versionsRenamedOver renames a collection over another one that has documents of the same
// _ids, and of others.
func versionsRenamedOver(s *site) {
	s.set("c", 1, d("$set", d("s", "before")))
	s.rename(s.ns("d"), s.ns("c"), "dropTarget", true)
	s.set("c", 1, d("$set", d("s", "after")))
	s.insert("d", d("_id", 1, "new", true))
	s.set("d", 1, d("$set", d("new", false)))
}

// versionsCheck: each version is what the source's document was at its time, and of what
// has changed since the copy ended each change has one. Servers before 5.0 do not tell what
// a document was; the newest versions are compared in any case.
func versionsCheck(source, target *site) {
	if !shared.sourceVer.AtLeast(5, 0) {
		return
	}
	for _, name := range []string{"c", "d"} {
		ns := source.ns(name)
		diffs, err := CompareVersions(source.ctx, source.client, target.client,
			VersionsOf{Source: ns, Target: ns, Most: 1000})
		if err != nil {
			panic(err)
		}
		if len(diffs) > 0 {
			panic(fmt.Sprint(diffs))
		}
	}
}

// asHistories are scenarios of others, whose documents the target holds versions of.
func asHistories(of []scenario) (out []scenario) {
	often := []string{"ids_of_every_type", "ids_equal_in_other_bytes", "truncation_with_sibling", "update_arrays",
		"field_names", "txn_large", "txn_same_document", "replacements_and_upserts"}
	never := []string{"big_documents", "deep_nesting"} // a version is larger than its document, and one level deeper
	for _, sc := range of {
		if slices.Contains(never, sc.name) || !lab.InMatrix() && !slices.Contains(often, sc.name) {
			continue
		}
		sc.name, sc.history, sc.check = "history_as_"+sc.name, []string{"DB.*"}, nil
		out = append(out, sc)
	}
	return out
}

// TestVerifyHistories: verify takes the newest versions for the documents, over many
// ranges and replies, and finds each that is not what the source's document is.
func TestVerifyHistories(t *testing.T) {
	rejectedBy(t, true)
	s := &site{ctx: t.Context(), client: shared.sourceDB, base: "verify-versions"}
	dst := &site{ctx: t.Context(), client: shared.targetDB, base: s.base}
	c := &trial{base: s.base}
	cleanUp(t, []*trial{c})
	t.Cleanup(func() { _ = dropAll(context.WithoutCancel(t.Context()), []*trial{c}) })
	const docs = 1500
	s.fill("c", docs, func(i int) bson.D {
		return d("_id", []any{i, fmt.Sprint("id", i), float64(i) + 0.5}[i%3], "n", i, "pad", strings.Repeat("x", i%100))
	})
	rules := transform.Config{Include: []string{s.base}, History: []string{s.base + ".*"}}
	live, err := startJob(t, job.Spec{Job: newJob("versions"), Rules: rules})
	if err == nil {
		err = live.reach(job.PhaseFollowing)
	}
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		s.update("c", d(), d("$inc", d("n", 1)), "multi", true)
	}
	s.remove("c", d("_id", d("$gte", 900, "$lt", 1000)))
	if err := live.finalize(t.Context()); err != nil {
		t.Fatal(err)
	}
	judge := func() map[string]verify.Kind {
		t.Helper()
		report, err := verify.Clusters(t.Context(),
			verify.Spec{Source: shared.source.URI(), Target: shared.target.URI(), Rules: rules,
				Options: verify.Options{RangeBytes: 8 << 10, MaxBufferedBytes: 256 << 10, Workers: 2}})
		if err != nil {
			t.Fatal(err)
		}
		if one := report.Collections[0]; one.Ranges < 3 || one.SourceDocs < docs*9/10 {
			t.Errorf("%d documents in %d ranges of %v", one.SourceDocs, one.Ranges, one)
		}
		found := map[string]verify.Kind{}
		for _, diff := range report.Differences {
			found[diff.ID.String()] = diff.Kind
		}
		if report.Same != (len(found) == 0) || len(report.Schema) > 0 {
			t.Errorf("same %t, with %v %v", report.Same, found, report.Schema)
		}
		return found
	}
	if found := judge(); len(found) > 0 {
		t.Fatal(found)
	}
	of := func(k any) bson.D { return d("_id", d("$gte", d("k", k), "$lt", d("k", k, "t", bson.MaxKey{}))) }
	newest := func(k any) bson.D {
		var last struct {
			ID bson.Raw `bson:"_id"`
		}
		if err := dst.coll("c").FindOne(dst.ctx, of(k), options.FindOne().SetSort(d("_id", -1))).Decode(&last); err != nil {
			t.Fatal(err)
		}
		return d("_id", last.ID)
	}
	later := func(k any) bson.D { return d("k", k, "t", bson.Timestamp{T: 1<<32 - 2}, "n", int32(0)) }
	// the one before is another state
	dst.remove("c", newest(0))
	dst.update("c", newest("id1"), d("$set", d("doc.n", -1))) // not what it was
	dst.remove("c", of(3))                                    // all of it
	// an end that never was
	dst.insert("c", d("_id", later("id4"), "op", "delete"))
	// a document that never was
	dst.insert("c", d("_id", later("none"), "op", "insert", "doc", d("_id", "none")))
	dst.insert("c", d("_id", later(int32(900)), "op", "insert", "doc", d("_id", int32(900), "n", 1))) // one that is gone
	want := map[string]verify.Kind{`{"$numberInt":"0"}`: verify.Content, `"id1"`: verify.Content,
		`{"$numberInt":"3"}`: verify.Missing, `"id4"`: verify.Missing,
		`"none"`: verify.Extra, `{"$numberInt":"900"}`: verify.Extra}
	if found := judge(); !maps.Equal(found, want) {
		t.Errorf("verify finds %v, want %v", found, want)
	}
}

// TestHistoriesRefused: what a history cannot be kept with is told before anything is
// written.
func TestHistoriesRefused(t *testing.T) {
	s := &site{ctx: t.Context(), client: shared.sourceDB, base: "no-versions"}
	cleanUp(t, []*trial{{base: s.base}})
	t.Cleanup(func() { _ = dropAll(context.WithoutCancel(t.Context()), []*trial{{base: s.base}}) })
	s.insert("c", d("_id", 1))
	s.create("capped", "capped", true, "size", 4096)
	s.create("view", "viewOn", "c", "pipeline", a())
	for _, c := range []struct {
		name string
		spec job.Spec
		want string
	}{
		{"", job.Spec{}, ""},
		{"filter", job.Spec{Rules: transform.Config{Filter: []string{`no-versions.c={"a": 1}`}}}, "a filter keeps some"},
		{"fields", job.Spec{Rules: transform.Config{Fields: []string{`no-versions.c={"drop": ["a.b"]}`}}},
			"its fields are mapped"},
		{"whole fields", job.Spec{Rules: transform.Config{Fields: []string{`no-versions.c={"drop": ["a"]}`}}}, ""},
		{"soft-delete", job.Spec{Rules: transform.Config{SoftDelete: []string{"no-versions.*=gone"}}},
			"deleted documents are marked"},
		{"skip update", job.Spec{Rules: transform.Config{Skip: []string{"no-versions.*=update,delete"}}},
			"update is skipped"},
		{"skip drop", job.Spec{Rules: transform.Config{Skip: []string{"no-versions.*=drop"}}}, "drop is skipped"},
		{"skip delete", job.Spec{Rules: transform.Config{Skip: []string{"no-versions.c=delete"}}}, ""},
		{"capped", job.Spec{Rules: transform.Config{History: []string{"no-versions.capped"}}}, "it is capped"},
		{"merge", job.Spec{OnExisting: job.ExistingMerge}, "--on-existing merge"},
		{"on-conflict", job.Spec{OnConflict: job.ConflictSkip}, "--on-conflict skip"},
		{"incremental", job.Spec{Mode: job.ModeIncremental, StartAt: "1700000000:1"}, "incremental mode"},
	} {
		c.spec.Job, c.spec.Source, c.spec.Target = newJob("refused"), shared.source.URI(), shared.target.URI()
		c.spec.Rules.Include, c.spec.Rules.History = []string{s.base}, append(c.spec.Rules.History, "no-versions.c")
		c.spec.Mode, c.spec.OnExisting = cmp.Or(c.spec.Mode, job.ModeAll), cmp.Or(c.spec.OnExisting, job.ExistingFail)
		j, err := job.Open(t.Context(), c.spec)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := j.Plan(t.Context())
		j.Close()
		switch {
		case err != nil:
			t.Error(c.name, err)
		case c.want == "" && plan.Checks.Failed():
			t.Errorf("%s: %v", c.name, plan.Checks.Err())
		case c.want != "" && !strings.Contains(fmt.Sprint(plan.Checks.Err()), c.want):
			t.Errorf("%s: %v, want %q", c.name, plan.Checks.Err(), c.want)
		}
	}
}

// TestHistoryOfTooLarge: a document whose version is larger than a server takes ends the
// job with an error that names it, in the copy and in the changes.
func TestHistoryOfTooLarge(t *testing.T) {
	rejectedBy(t, true)
	const most = 16 << 20
	large := func(id string) bson.D { return d("_id", id, "pad", strings.Repeat("x", most-50)) }
	for _, way := range []string{wayCopy, wayChange} {
		t.Run(way, func(t *testing.T) {
			s := &site{ctx: t.Context(), client: shared.sourceDB, base: "large-versions-" + way}
			cleanUp(t, []*trial{{base: s.base}})
			t.Cleanup(func() { _ = dropAll(context.WithoutCancel(t.Context()), []*trial{{base: s.base}}) })
			s.insert("c", d("_id", 1))
			if way == wayCopy {
				s.insert("c", large("huge-one"))
			}
			live, err := startJob(t, job.Spec{Job: newJob("large"),
				Rules: transform.Config{Include: []string{s.base}, History: []string{s.base + ".*"}}})
			if err == nil && way == wayChange {
				if err = live.reach(job.PhaseFollowing); err == nil {
					s.insert("c", large("huge-one"))
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			err = live.wait()
			live.stop()
			if text := fmt.Sprint(err); !strings.Contains(text, s.base+".c") || !strings.Contains(text, "huge-one") {
				t.Errorf("the job ended with %.500s", text)
			}
		})
	}
}

// TestHistoryBesideOthers: where the source makes a collection, what somebody else has put
// on the target under its name is not taken for its history, and the one that the job left
// there is.
func TestHistoryBesideOthers(t *testing.T) {
	rejectedBy(t, true)
	s := &site{ctx: t.Context(), client: shared.sourceDB, base: "versions-beside"}
	dst := &site{ctx: t.Context(), client: shared.targetDB, base: s.base}
	cleanUp(t, []*trial{{base: s.base}})
	t.Cleanup(func() { _ = dropAll(context.WithoutCancel(t.Context()), []*trial{{base: s.base}}) })
	s.insert("c", d("_id", 1))
	live, err := startJob(t, job.Spec{Job: newJob("beside"),
		Rules: transform.Config{Include: []string{s.base}, History: []string{s.base + ".*"}}})
	if err == nil {
		err = live.reach(job.PhaseFollowing)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.drop("c")
	s.insert("c", d("_id", 1, "again", true))
	dst.insert("other", d("_id", 1, "theirs", true))
	s.insert("other", d("_id", 2))
	err = live.wait()
	live.stop()
	if text := fmt.Sprint(err); !strings.Contains(text, s.base+".other") || !strings.Contains(text, "holds no versions") {
		t.Errorf("the job ended with %.500s", text)
	}
	if n := dst.count("other", d()); n != 1 {
		t.Errorf("%d documents beside theirs", n-1)
	}
	if n := dst.count("c", d("_id.k", 1)); n != 3 {
		t.Errorf("%d versions, want copy, drop, insert", n)
	}
}
