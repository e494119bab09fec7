package test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

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
		var list []bson.Raw
		cur, err := target.coll(name).Find(target.ctx, bson.D{}, options.Find().SetSort(d("_id", 1)))
		if err == nil {
			err = cur.All(target.ctx, &list)
		}
		must(err)
		for i, v := range list {
			id := v.Lookup("_id").Document()
			at, n := timeOf(v)
			if i+1 < len(list) { // the last of one time counts
				next := list[i+1].Lookup("_id").Document()
				if t, _ := timeOf(list[i+1]); t == at && bytes.Equal(next.Lookup("k").Value, id.Lookup("k").Value) {
					continue
				}
			}
			was, err := asOf(source, name, id.Lookup("k"), at)
			if isCode(err, snapshotTooOld) { // on a machine that is too busy for the server's five minutes
				return
			}
			must(err)
			doc, _ := v.Lookup("doc").DocumentOK()
			if !bytes.Equal(was, doc) {
				panic(fmt.Sprintf("%s: version %s (%d at its time) is %s, the document was %s", name, id, n, doc, was))
			}
		}
		if target.base[:1] == wayChange[:1] && name == "c" {
			versionsOfChanges(source, list)
		}
	}
}

const snapshotTooOld = 239

func isCode(err error, code int) bool {
	var se mongo.ServerError
	return errors.As(err, &se) && se.HasErrorCode(code)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// timeOf is of which time a version tells, and its place there.
func timeOf(v bson.Raw) (at bson.Timestamp, n int32) {
	at.T, at.I = v.Lookup("_id", "t").Timestamp()
	if later, err := v.LookupErr("at"); err == nil {
		at.T, at.I = later.Timestamp()
	}
	return at, v.Lookup("_id", "n").Int32()
}

// asOf reads a document as it was at a time.
func asOf(s *site, name string, id bson.RawValue, at bson.Timestamp) (bson.Raw, error) {
	cur, err := s.db().RunCommandCursor(s.ctx, bson.D{{Key: "find", Value: name}, {Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$eq", Value: id}}}}},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "snapshot"}, {Key: "atClusterTime", Value: at}}}})
	if err != nil {
		return nil, err
	}
	defer func() { _ = cur.Close(s.ctx) }()
	if cur.Next(s.ctx) {
		return bytes.Clone(cur.Current), nil
	}
	return nil, cur.Err()
}

// versionsOfChanges compares the versions with what the source's oplog tells since the
// copy: which document, when, and which operation.
func versionsOfChanges(s *site, list []bson.Raw) {
	var have []string
	var since bson.Timestamp
	for _, v := range list {
		if at, _ := timeOf(v); v.Lookup("op").StringValue() == "copy" {
			if since.Before(at) {
				since = at
			}
			continue
		}
		t, i := v.Lookup("_id", "t").Timestamp()
		have = append(have, fmt.Sprintf("%d:%d %s %s", t, i, v.Lookup("_id", "k"), v.Lookup("op").StringValue()[:1]))
	}
	want := oplogOf(s, s.base+".c", since)
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		panic(fmt.Sprintf("%d versions, %d changes since %v: versions %v, changes %v", len(have), len(want), since, have, want))
	}
}

// oplogOf lists the operations on documents of a collection after a time, replacements
// by their first letter.
func oplogOf(s *site, ns string, since bson.Timestamp) (out []string) {
	cur, err := s.client.Database("local").Collection("oplog.rs").Find(s.ctx, bson.D{{Key: "ts", Value: bson.D{{Key: "$gt", Value: since}}},
		{Key: "$or", Value: bson.A{bson.D{{Key: "ns", Value: ns}}, bson.D{{Key: "o.applyOps.ns", Value: ns}}}}})
	must(err)
	var entries []bson.Raw
	must(cur.All(s.ctx, &entries))
	add := func(e bson.Raw, t, i uint32) {
		op, id := e.Lookup("op").StringValue(), e.Lookup("o", "_id")
		if op == "u" {
			if id, _ = e.Lookup("o2").Document().LookupErr("_id"); e.Lookup("o", "_id").Type != 0 {
				op = "r"
			}
		}
		if e.Lookup("ns").StringValue() == ns && op != "c" && op != "n" {
			out = append(out, fmt.Sprintf("%d:%d %s %s", t, i, id, op))
		}
	}
	for _, e := range entries {
		t, i := e.Lookup("ts").Timestamp()
		ops, err := e.LookupErr("o", "applyOps")
		if err != nil {
			add(e, t, i)
			continue
		}
		inner, err := ops.Array().Values()
		must(err)
		for _, one := range inner {
			add(one.Document(), t, i)
		}
	}
	return out
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
