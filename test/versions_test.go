package test

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/internal/lab"
)

// versionScenarios have the target hold all versions of documents.
func versionScenarios() []scenario {
	all := []string{"DB.*"}
	others := asHistories(slices.Concat(typeScenarios(), idScenarios(), updateScenarios(), writeScenarios(), txnScenarios()))
	return append(others, []scenario{
		{name: "history_of_changes", history: all, setup: rowsSetup, change: versionsChange, check: versionsCheck},
		{name: "history_whole_documents", history: all, setup: rowsSetup, change: rowsWholeChange, check: versionsCheck},
		{name: "history_gone_and_back", history: all, setup: rowsSetup, change: rowsBackChange, check: versionsCheck},
		{name: "history_of_another_id_type", history: all, setup: rowsSetup, change: rowsTypeChange, check: versionsCheck},
		{name: "history_in_and_out", history: all, setup: rowsSetup, change: rowsInOutChange, check: versionsCheck},
		{name: "history_transactions", history: all, setup: rowsSetup, change: rowsTxnChange, check: versionsCheck},
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
// has changed since the copy ended each change has one.
func versionsCheck(source, target *site) {
	for _, name := range []string{"c", "d"} {
		ns := source.ns(name)
		diffs, err := CompareVersions(source.ctx, source.client, target.client, VersionsOf{Source: ns, Target: ns, Most: 1000})
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
	often := []string{"ids_of_every_type", "ids_equal_in_other_bytes", "truncation_with_sibling", "update_arrays", "field_names", "txn_large", "txn_same_document", "replacements_and_upserts"}
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
