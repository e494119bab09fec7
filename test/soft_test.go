package test

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// softScenarios have documents marked that the source deletes.
func softScenarios() []scenario {
	soft := []string{"DB.*=deletedAt"}
	return []scenario{
		{name: "soft_delete", softDelete: soft, setup: rowsSetup, change: skipDelete, check: softCheck},
		{name: "soft_delete_whole_documents", softDelete: soft, setup: rowsSetup, change: rowsWholeChange},
		{name: "soft_delete_gone_and_back", softDelete: soft, setup: rowsSetup, change: rowsBackChange},
		{name: "soft_delete_of_another_id_type", softDelete: soft, setup: rowsSetup, change: rowsTypeChange},
		{name: "soft_delete_transactions", softDelete: soft, setup: rowsSetup, change: rowsTxnChange},
		{name: "soft_delete_of_mapped", softDelete: soft, fields: []string{`DB.c={"drop":["o"],"rename":{"s":"status"}}`},
			setup: rowsSetup, change: skipDelete, only: []string{wayChange, wayLate}},
		{name: "soft_delete_gone_when_read", softDelete: soft, fields: []string{`DB.c={"from":{"other":"n"}}`},
			setup: rowsSetup, change: softGoneChange, check: softGoneCheck, only: []string{wayChange, wayLate}},
		{name: "soft_delete_dropped", softDelete: soft, setup: rowsSetup, change: rowsDroppedChange},
		{name: "soft_delete_renamed", softDelete: soft, setup: rowsSetup, change: rowsRenamedChange},
		{name: "soft_delete_of_an_equal_id", softDelete: soft, setup: collatedSetup, change: collatedChange},
		{name: "soft_delete_and_filter", softDelete: soft, filter: []string{`DB.c={"s":{"$in":["open","paid"]}}`},
			setup: rowsSetup, change: softFilterChange, check: softFilterCheck, only: []string{wayChange, wayLate}},
		{name: "soft_delete_renamed_elsewhere", softDelete: []string{"DB.c=deletedAt"}, setup: rowsSetup,
			change: softRenamedChange},
	}
}

func collatedSetup(s *site) {
	s.create("c", "collation", d("locale", "en", "strength", 2))
	s.fill("c", 8, func(i int) bson.D { return d("_id", fmt.Sprint("key", i), "n", i) })
}

// collatedChange has documents made anew whose _ids are the same for the server as those of
// documents that were deleted, in other bytes.
func collatedChange(s *site) {
	wantCollated(s)
	s.remove("c", d("_id", "KEY2"))
}

// wantCollated is collatedChange without the deletion that leaves a document on the target.
func wantCollated(s *site) {
	for i := range 4 {
		s.remove("c", d("_id", fmt.Sprint("key", i)))
		s.insert("c", d("_id", fmt.Sprint("KEY", i), "anew", true))
	}
	s.set("c", "KEY1", d("$set", d("more", 1)))
	s.remove("c", d("_id", "KEY3"))
	s.insert("c", d("_id", "Key3", "anew", true))
}

// softFilterChange has the source use the _ids of deleted documents again, for documents
// that are not in the filter.
func softFilterChange(s *site) {
	s.remove("c", d("_id", d("$lt", 9)))
	s.insert("c", d("_id", 0, "s", "closed", "n", 0), d("_id", 2, "s", "closed", "n", 0), d("_id", 3, "s", "open", "n", 0))
	s.set("c", 0, d("$set", d("n", 1000)))
	s.set("c", 2, d("$set", d("s", "paid")))
	s.remove("c", d("_id", 10))
}

// softFilterCheck: what was deleted stays, unless the source has the _id again.
func softFilterCheck(_, target *site) {
	var marked []struct {
		ID int `bson:"_id"`
	}
	cur, err := target.coll("c").Find(target.ctx, d("deletedAt", d("$exists", true)))
	if err == nil {
		err = cur.All(target.ctx, &marked)
	}
	if got := fmt.Sprint(marked); err != nil || got != "[{5} {6} {8}]" {
		fail("marked are %s, want 5, 6 and 8: %v", got, err)
	}
}

// softRenamedChange takes marked documents to a name where there are to be none.
func softRenamedChange(s *site) {
	skipDelete(s)
	s.rename(s.ns("c"), s.ns("elsewhere"))
	s.set("elsewhere", 3, d("$set", d("s", "paid")))
}

// softCheck: documents that were deleted while the job followed are there, marked with a
// time, and as they were.
func softCheck(_, target *site) {
	var marked []bson.Raw
	cur, err := target.coll("c").Find(target.ctx, d("deletedAt", d("$exists", true)))
	if err == nil {
		err = cur.All(target.ctx, &marked)
	}
	check(err)
	// The names of ways are told by their first letters: copy and change, early, late.
	const all = 31
	switch n, way := len(marked), target.base[:1]; {
	case n == all, way == wayEarly[:1], way == wayCopy[:1] && n == 0:
	default:
		fail("%d documents are marked, want %d", n, all)
	}
	for _, doc := range marked {
		if _, ok := doc.Lookup("deletedAt").TimeOK(); !ok {
			fail("not a time: %s", doc)
		}
		if _, err := doc.LookupErr("n"); err != nil {
			fail("not what it was: %s", doc)
		}
	}
}

// softGoneChange deletes documents right after a change for which they are to be read.
func softGoneChange(s *site) {
	for i := range 10 {
		s.transaction(func(x *site) {
			x.set("c", i, d("$inc", d("n", 100)))
			x.remove("c", d("_id", i))
		})
	}
}

// softGoneCheck: all of them are there.
func softGoneCheck(_, target *site) {
	n, err := target.coll("c").CountDocuments(target.ctx, d("deletedAt", d("$exists", true)))
	if err != nil || n != 10 {
		fail("%d documents are marked, want 10: %v", n, err)
	}
}
