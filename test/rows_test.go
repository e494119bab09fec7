package test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
)

// rowScenarios are about filters that keep some documents of a collection.
func rowScenarios() []scenario {
	open := []string{`DB.c={"s":{"$in":["open","paid"]}}`}
	return []scenario{
		{name: "rows_in_and_out", filter: open, setup: rowsSetup, change: rowsInOutChange},
		{name: "rows_whole_documents", filter: open, setup: rowsSetup, change: rowsWholeChange},
		{name: "rows_gone_and_back", filter: open, setup: rowsSetup, change: rowsBackChange},
		{name: "rows_of_another_id_type", filter: open, setup: rowsSetup, change: rowsTypeChange},
		{name: "rows_ids_of_every_type", filter: []string{`DB.*={"i":{"$bitsAnySet":1}}`}, setup: idsSetup,
			change: idsChange},
		{name: "rows_transactions", filter: open, setup: rowsSetup, change: rowsTxnChange},
		{name: "rows_large", filter: open, setup: rowsLargeSetup, change: rowsLargeChange},
		{name: "rows_unique_keys", filter: open, setup: rowsUniqueSetup, change: rowsUniqueChange},
		{name: "rows_arrays",
			filter: []string{`DB.c={"list":{"$elemMatch":{"a":{"$gt":5},"b":{"$exists":true}}},"list.3":{"$exists":false}}`},
			setup:  rowsArraySetup, change: rowsArrayChange},
		{name: "rows_none", filter: []string{`DB.c={"s":"never"}`}, setup: rowsSetup, change: rowsInOutChange},
		{name: "rows_negated", filter: []string{`DB.c={"s":{"$nin":["open","none"]},"$nor":[{"n":{"$lt":3}}]}`},
			setup: rowsSetup, change: rowsInOutChange},
		{name: "rows_renamed", filter: []string{`DB.c={"s":"open"}`, `DB.d={"s":"paid"}`}, setup: rowsSetup,
			change: rowsRenamedChange},
		{name: "rows_renamed_on_the_way", filter: open, rename: []string{"DB.c=DB-x.other"}, setup: rowsSetup,
			change: rowsInOutChange},
		{name: "rows_renamed_in", filter: open, exclude: []string{"DB.out*"}, setup: rowsSetup, change: rowsRenamedInChange},
		{name: "rows_dropped", filter: open, setup: rowsSetup, change: rowsDroppedChange},
		{name: "rows_many", filter: []string{`DB.c={"s":{"$in":["open","paid"]},"n":{"$gte":20}}`,
			`DB.d={"$nor":[{"s":"closed"},{"list":{"$exists":true}}]}`}, setup: rowsManySetup, change: rowsManyChange},
		{name: "rows_beside_others", filter: []string{`DB.c={"s":"open"}`, `DB.*={"n":{"$gte":10}}`}, setup: rowsSetup,
			change: rowsBesideChange},
	}
}

// rowsSetup makes documents of which the third part is open, closed and paid.
func rowsSetup(s *site) {
	s.fill("c", 90, func(i int) bson.D {
		return d("_id", i, "s", []string{"open", "closed", "paid"}[i%3], "n", i, "o", d("a", 1), "v", a(1, 2, 3))
	})
	s.fill("d", 30, func(i int) bson.D { return d("_id", i, "s", []string{"open", "closed", "paid"}[i%3], "n", i) })
	s.index("c", d("n", 1))
}

func rowsInOutChange(s *site) {
	for i := range 30 {
		s.set("c", i, d("$set", d("o.b", i)))                                                 // of no concern
		s.set("c", i, d("$set", d("s", []string{"closed", "open", "open", "paid"}[(i/3)%4]))) // in, out, or neither
		s.set("c", i, d("$inc", d("n", 100), "$push", d("v", i)))
	}
	s.update("c", d("n", d("$gte", 30, "$lt", 60)), d("$set", d("s", "closed")), "multi", true)
	s.update("c", d("n", d("$gte", 50, "$lt", 70)), d("$set", d("s", "paid", "t", 1)), "multi", true)
	s.set("c", 80, d("$unset", d("s", 1)))
	s.set("c", 81, d("$rename", d("s", "t")))
	s.set("c", 82, d("$rename", d("n", "s")))
	s.set("c", 83, a(d("$set", d("s", d("$concat", a("o", "pen"))))))
	for i := range 6 { // many times the same
		s.set("c", 85, d("$set", d("s", []string{"open", "closed"}[i%2], "last", i)))
		s.set("c", 86, d("$set", d("s", []string{"closed", "open"}[i%2], "last", i)))
		s.set("c", 86, d("$set", d("o.last", i)))
	}
	s.update("c", d("_id", "upserted"), d("$set", d("s", "open")), "upsert", true)
	s.update("c", d("_id", "upserted too"), d("$set", d("s", "closed")), "upsert", true)
	s.insert("c", d("_id", "in", "s", "paid"), d("_id", "out", "s", "closed"))
	s.set("c", "out", d("$set", d("s", "open")))
	s.set("c", "in", d("$set", d("s", "closed")))
}

func rowsWholeChange(s *site) {
	for i := range 30 {
		s.set("c", i, d("s", []string{"closed", "open", "closed", "paid"}[i%4], "whole", i))
	}
	s.findAndModify("c", d("_id", 40), "update", d("s", "closed", "n", 40))
	s.findAndModify("c", d("_id", 41), "update", d("s", "open", "n", 41))
	s.findAndModify("c", d("_id", "made"), "update", d("s", "open"), "upsert", true)
	s.remove("c", d("_id", d("$gte", 70)))
}

func rowsBackChange(s *site) {
	for i := range 20 {
		s.remove("c", d("_id", i))
		s.insert("c", d("_id", i, "s", []string{"closed", "open"}[i%2], "again", 1))
		s.set("c", i, d("$set", d("s", []string{"open", "closed"}[(i/2)%2])))
		if i%5 == 0 {
			s.remove("c", d("_id", i))
		}
	}
}

// rowsTypeChange has documents come back with an _id that is equal in other bytes.
func rowsTypeChange(s *site) {
	for i := range 12 {
		s.set("c", i, d("$set", d("s", "open")))
		s.remove("c", d("_id", i))
		s.insert("c", d("_id", float64(i), "s", []string{"closed", "open"}[i%2]))
		if i%3 == 0 {
			s.set("c", i, d("$set", d("s", "paid", "n", 1)))
		}
	}
}

func rowsTxnChange(s *site) {
	for i := range 10 {
		s.transaction(func(x *site) {
			x.set("c", i, d("$set", d("s", "closed")))
			x.set("c", i+10, d("$set", d("s", "open")))
			x.set("c", i+10, d("$set", d("o.a", 2)))
			x.set("d", i, d("$set", d("s", "open")))
			x.insert("c", d("_id", fmt.Sprint("t", i), "s", "closed"))
			x.set("c", fmt.Sprint("t", i), d("$set", d("s", []string{"open", "closed"}[i%2])))
			x.remove("c", d("_id", i+20))
		})
	}
	s.transaction(func(x *site) { // larger than a batch
		for i := range 3 {
			x.insert("c", d("_id", fmt.Sprint("large", i), "s", "closed", "pad", strings.Repeat("p", 8<<20)))
			x.set("c", 50+i, d("$set", d("s", "open")))
			x.set("c", fmt.Sprint("large", i), d("$set", d("s", "open")))
			x.set("c", 50, d("$set", d("s", []string{"closed", "open"}[i%2], "turn", i)))
		}
		x.set("c", "large1", d("$set", d("s", "closed")))
	})
}

func rowsLargeSetup(s *site) {
	for i := range 24 {
		s.insert("c", d("_id", i, "s", []string{"open", "closed"}[i%2], "pad", strings.Repeat("x", 2<<20)))
	}
}

// rowsLargeChange has more documents read than are read at once.
func rowsLargeChange(s *site) {
	s.update("c", d(), d("$set", d("s", "open")), "multi", true)
	s.update("c", d("_id", d("$mod", a(2, 0))), d("$set", d("s", "closed")), "multi", true)
	s.update("c", d("_id", d("$mod", a(3, 0))), d("$set", d("s", "paid", "n", 1)), "multi", true)
}

func rowsUniqueSetup(s *site) {
	s.fill("c", 20, func(i int) bson.D { return d("_id", i, "s", []string{"open", "closed"}[i%2], "k", i) })
	s.index("c", d("k", 1), "unique", true, "sparse", true)
}

// rowsUniqueChange hands keys on between documents that come in, go out and stay.
func rowsUniqueChange(s *site) {
	for round := range 5 {
		for i := range 10 {
			x, y := 2*i, (2*i+3)%20
			s.set("c", x, d("$unset", d("k", 1)))
			s.set("c", y, d("$set", d("k", 100*round+x), "$inc", d("n", 1)))
			s.set("c", y, d("$set", d("s", []string{"open", "closed"}[(i+round)%2])))
			s.set("c", x, d("$set", d("k", 1000*(round+1)+x, "s", []string{"closed", "open", "paid"}[(i+round)%3])))
		}
	}
}

func rowsArraySetup(s *site) {
	s.fill("c", 20, func(i int) bson.D {
		return d("_id", i, "list", a(d("a", i, "b", 1), d("a", 1), d("b", i)), "other", a(1, 2))
	})
}

func rowsArrayChange(s *site) {
	for i := range 20 {
		s.set("c", i, d("$push", d("other", i)))
		switch i % 5 {
		case 0:
			s.set("c", i, d("$set", d("list.0.a", 20-i)))
		case 1:
			s.set("c", i, d("$push", d("list", d("a", 9, "b", 9))))
		case 2:
			s.set("c", i, d("$pop", d("list", -1)))
		case 3:
			s.set("c", i, d("$set", d("list.1.b", 1, "list.1.a", i)))
		default:
			s.set("c", i, d("$set", d("list", "none")))
		}
	}
}

func rowsRenamedChange(s *site) {
	s.set("c", 1, d("$set", d("s", "open")))
	s.drop("d")
	s.rename(s.ns("c"), s.ns("d"))
	s.set("d", 2, d("$set", d("s", "open")))
	s.set("d", 3, d("$set", d("s", "paid")))
	s.insert("c", d("_id", 1, "s", "open"), d("_id", 2, "s", "paid"))
	s.rename(s.ns("d"), s.ns("e"))
	s.set("e", 4, d("$set", d("s", "closed")))
	s.rename(s.ns("e"), s.ns("c"), "dropTarget", true)
	s.set("c", 5, d("$set", d("s", "open", "last", 1)))
	s.set("c", 6, d("$set", d("s", "paid", "last", 1)))
}

func rowsRenamedInChange(s *site) {
	s.fill("out", 20, func(i int) bson.D { return d("_id", i, "s", []string{"open", "closed"}[i%2]) })
	s.set("out", 1, d("$set", d("s", "open")))
	s.rename(s.ns("out"), s.ns("c"), "dropTarget", true)
	s.set("c", 2, d("$set", d("s", "closed")))
	s.set("c", 3, d("$set", d("s", "open")))
	s.rename(s.ns("d"), s.ns("out2"))
}

func rowsDroppedChange(s *site) {
	s.set("c", 1, d("$set", d("s", "open")))
	s.set("c", 2, d("$set", d("s", "closed")))
	s.drop("c")
	s.insert("c", d("_id", 1, "s", "closed"), d("_id", 2, "s", "open"))
	s.set("c", 1, d("$set", d("s", "open")))
	s.set("c", 2, d("$set", d("s", "closed")))
	s.set("d", 2, d("$set", d("s", "closed")))
}

// rowsManySetup makes documents of which few are kept, and more than are read before that
// is known: the source leaves out the others.
func rowsManySetup(s *site) {
	s.fill("c", 3000, func(i int) bson.D {
		return d("_id", i, "s", []string{"closed", "none", "closed", "closed", "open"}[max(i%7-2, 0)], "n", i, "pad",
			strings.Repeat("x", 40))
	})
	s.fill("d", 1500, func(i int) bson.D {
		if i%40 == 0 || i > 1490 {
			return d("_id", fmt.Sprint(i), "s", "open")
		}
		return d("_id", fmt.Sprint(i), "s", "open", "list", a(i))
	})
}

// rowsManyChange takes documents in and out all over the collections, the first and the
// last ones too.
func rowsManyChange(s *site) {
	s.update("c", d("_id", d("$mod", a(11, 3))), d("$set", d("s", "open")), "multi", true)
	s.update("c", d("_id", d("$mod", a(14, 7))), d("$set", d("s", "closed")), "multi", true)
	s.update("c", d("n", d("$gt", 2900, "$lt", 2950)), d("$set", d("s", "paid"), "$inc", d("n", -2890)), "multi", true)
	s.remove("c", d("_id", d("$mod", a(100, 3))))
	s.fillFrom("c", 3000, 3100, func(i int) bson.D { return d("_id", i, "s", []string{"open", "closed"}[i%2], "n", i) })
	s.update("d", d("list", d("$lt", 700)), d("$unset", d("list", 1)), "multi", true)
	s.update("d", d("_id", d("$gt", "8")), d("$push", d("list", 1)), "multi", true)
	s.set("d", "1499", d("$set", d("s", "closed")))
	s.set("d", "1", d("$set", d("s", "paid")))
}

func rowsBesideChange(s *site) {
	rowsInOutChange(s)
	s.fill("e", 20, func(i int) bson.D { return d("_id", i, "n", i) })
	s.update("e", d("_id", d("$lt", 15)), d("$inc", d("n", 5)), "multi", true)
	s.update("d", d(), d("$mul", d("n", -1)), "multi", true)
}

// TestRowsWhileCopied: documents come into a filter and go out of it all the while that
// the copy, which is slowed, passes them by, with the source leaving most of them out. Half
// of the time the job is broken off on the way.
func TestRowsWhileCopied(t *testing.T) {
	lab.Nightly(t)
	seed := testseed.Of(t)
	r := rand.New(rand.NewPCG(seed, 3))
	const docs = 40_000
	s := structureSite(t, "rowscopied")
	s.fill("c", docs, func(i int) bson.D { return d("_id", i, "in", r.IntN(50) == 0, "n", i) })
	rule := `rowscopied.c={"in":true}`
	spec := job.Spec{Job: newJob("rowscopied"), Rules: transform.Config{Include: []string{s.base}, Filter: []string{rule}},
		Readers: 1}
	spec.Limits = pace.Rates{Docs: 400}
	live, err := startJob(t, spec)
	if err == nil {
		err = live.reach(job.PhaseCopying)
	}
	if err != nil {
		t.Fatal(err)
	}
	end := make(chan struct{})
	var writer sync.WaitGroup
	written := 0
	writer.Go(func() {
		err := attempt(func() {
			for ; ; written++ {
				select {
				case <-end:
					return
				case <-time.After(2 * time.Millisecond):
				}
				rowsToggle(s, r.IntN(docs+docs/20), r)
			}
		})
		if err != nil {
			t.Error(err)
		}
	})
	stop := sync.OnceFunc(func() { close(end); writer.Wait() })
	defer stop()
	brokenOff, unread := seed%2 == 0, int64(0)
	if brokenOff {
		if err := live.until("some documents",
			func(st job.Status) bool { return st.Copy.Docs > docs/4 || st.Phase != job.PhaseCopying }); err != nil {
			t.Fatal(err)
		}
		live.stop()
		unread = live.Status().Filters[0].Unread // each process counts its own
		if live, err = startJob(t, spec); err != nil {
			t.Fatal(err)
		}
	}
	if err := live.reach(job.PhaseIndexing); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := live.SetLimits(t.Context(), pace.Rates{}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(live.reach(job.PhaseFollowing), live.finalize(t.Context())); err != nil {
		t.Fatal(err)
	}
	counts := live.Status().Filters[0]
	t.Logf("%d writes, broken off: %v; %+v", written, brokenOff, counts)
	if unread += counts.Unread; unread < docs/4 {
		t.Errorf("the source left out %d documents", unread)
	}
	own := func(ns string) bool { return strings.HasPrefix(ns, s.base+".") }
	diffs, err := Compare(t.Context(), shared.sourceDB, shared.targetDB,
		CompareOptions{Source: own, Target: own, Filter: Filters([]string{rule})})
	if err != nil {
		t.Fatal(err)
	}
	for _, diff := range diffs {
		t.Error(diff)
	}
}

// rowsToggle does one of the writes that may bring a document into {in: true}, or take it
// out.
func rowsToggle(s *site, id int, r *rand.Rand) {
	in := r.IntN(3) == 0
	switch r.IntN(5) {
	case 0:
		s.remove("c", d("_id", id))
	case 1:
		s.update("c", d("_id", id), d("in", in, "n", -id), "upsert", true)
	case 2:
		s.update("c", d("_id", d("$gte", id, "$lt", id+3)), d("$set", d("in", in)), "multi", true)
	default:
		s.update("c", d("_id", id), d("$set", d("in", in), "$inc", d("n", 1)), "upsert", true)
	}
}
