package test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/replicate"
)

// Random writers work on the source before, during and after the copy. The
// seed of a failure is set again by MILLRACE_TEST_SEED; what several writers
// do to each other still varies.
func TestRandomWrites(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("MILLRACE_TEST_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("seed %d", seed)
	src := &site{ctx: t.Context(), client: shared.sourceDB, base: "random"}
	dst := &site{ctx: t.Context(), client: shared.targetDB, base: "random"}
	drop := func() {
		for _, s := range []*site{src, dst, src.in("x"), dst.in("x")} {
			_ = s.db().Drop(context.WithoutCancel(t.Context()))
		}
	}
	drop()
	defer drop()
	if err := attempt(func() { randomSetup(src) }); err != nil {
		t.Fatal(err)
	}
	w := startWriters(src, seed)
	defer w.stop()
	w.until(600)
	job, err := startJob(t, replicate.Spec{Job: newJob("random"), Rules: rulesOf("random")})
	if err == nil {
		err = job.reach(replicate.PhaseFollowing)
	}
	if err != nil {
		t.Fatal(err)
	}
	copied := w.done.Load()
	w.until(copied + 4000)
	w.stop()
	t.Logf("%d writes done, %d of them when the target was consistent; %d refused", w.done.Load(), copied, w.refused.Load())
	if err := job.finalize(t.Context()); err != nil {
		t.Fatal(err)
	}
	compareDatabase(t, "random")
}

func randomSetup(s *site) {
	s.fill("plain", 20000, func(i int) bson.D { return d("_id", i, "n", i%50, "v", a(1, 2, 3), "o", d("a", i), "pad", pad(i%300)) })
	s.index("plain", d("n", 1))
	s.fill("unique", 300, func(i int) bson.D { return d("_id", i, "k", i) })
	s.index("unique", d("k", 1), "unique", true)
	s.create("capped", "capped", true, "size", 100<<10, "max", 300)
	s.fill("capped", 400, func(i int) bson.D { return d("_id", fmt.Sprint("first", i)) })
	s.create("folded", "collation", d("locale", "en", "strength", 2))
	s.fill("moving", 3000, func(i int) bson.D { return d("_id", i, "n", i) })
	for _, c := range []string{"txn1", "txn2"} {
		s.fill(c, 200, func(i int) bson.D { return d("_id", i, "n", 0) })
	}
	if shared.sourceVer.AtLeast(5, 0) {
		s.series("series", "metaField", "m")
	}
}

// writers are goroutines that write until they are stopped.
type writers struct {
	cancel        context.CancelFunc
	wg            sync.WaitGroup
	done, refused atomic.Int64
}

func startWriters(s *site, seed uint64) *writers {
	ctx, cancel := context.WithCancel(s.ctx)
	w := &writers{cancel: cancel}
	for i := range 4 {
		one := &writer{site: &site{ctx: ctx, client: s.client, base: s.base}, r: rand.New(rand.NewPCG(seed, uint64(i)))}
		one.values = slices.Collect(maps.Values(maps.Collect(ordered(values()))))
		w.wg.Go(func() {
			for ctx.Err() == nil {
				if attempt(one.write) != nil { // two writers were in each other's way
					w.refused.Add(1)
				}
				w.done.Add(1)
			}
		})
	}
	return w
}

// until waits until so many writes are done.
func (w *writers) until(n int64) {
	for w.done.Load() < n {
		time.Sleep(5 * time.Millisecond)
	}
}

// stop ends the writers and waits for them.
func (w *writers) stop() {
	w.cancel()
	w.wg.Wait()
}

// writer makes writes from a seed.
type writer struct {
	*site
	r      *rand.Rand
	n      int
	values []bson.RawValue
}

// write does one thing, chosen by weight.
func (w *writer) write() {
	w.n++
	p := w.r.IntN(800) // just above the sum of the weights
	for _, c := range []struct {
		weight int
		do     func()
	}{
		{200, func() { w.update("plain", d("_id", w.id("plain")), w.change()) }},
		{60, func() { w.insert("plain", w.document()) }},
		{60, func() { w.remove("plain", d("_id", w.id("plain"))) }},
		{40, func() { w.update("plain", d("_id", w.id("plain")), w.document()[1:], "upsert", true) }},
		{30, func() { w.bulk() }},
		{20, func() { w.update("plain", d("n", w.r.IntN(50)), w.change(), "multi", true) }},
		{5, func() { w.remove("plain", d("n", w.r.IntN(200))) }},
		{30, func() { w.findAndModify("plain", d("_id", w.id("plain")), "update", w.change()) }},
		{80, func() { w.update("plain", d("_id", w.r.IntN(5)), w.change()) }}, // hot ones
		{60, w.trade},
		{40, func() { w.insert("capped", d("_id", bson.NewObjectID(), "pad", pad(w.r.IntN(900)))) }},
		{40, w.folded},
		{30, w.inTransaction},
		{30, w.measure},
		{60, func() { w.update("moving", d("_id", w.r.IntN(3000)), w.change(), "upsert", true) }},
		{4, w.schema},
	} {
		if p -= c.weight; p < 0 {
			c.do()
			return
		}
	}
}

func (w *writer) value() any { return w.values[w.r.IntN(len(w.values))] }

// id is one of those there were at first, or an odd one.
func (w *writer) id(string) any {
	switch w.r.IntN(10) {
	case 0:
		return fmt.Sprint("s", w.r.IntN(300))
	case 1:
		return float64(w.r.IntN(300)) + 0.5
	case 2:
		return d("a", w.r.IntN(300))
	}
	return w.r.IntN(20500)
}

func (w *writer) document() bson.D {
	doc := d("_id", w.id("plain"), "n", w.r.IntN(50), "by", w.n)
	if w.r.IntN(2) == 0 {
		doc = append(doc, d("v", a(1, w.value(), a(w.value()), d("k", 1)), "o", d("a", w.value(), "b", d("c", w.n)))...)
	}
	return append(doc, bson.E{Key: fmt.Sprint("f", w.r.IntN(5)), Value: w.value()})
}

// change is an update of any kind.
func (w *writer) change() any {
	f := []string{"v", "o", "o.a", "o.b.c", "v.1", "v.5", "f1", "f2", "n", "x.y", "by"}[w.r.IntN(11)]
	switch w.r.IntN(14) {
	case 0, 1, 2:
		return d("$set", d(f, w.value()))
	case 3:
		return d("$set", d("by", w.n, "v", a(1, 2, 3, d("k", w.n)), "o", d("a", 1)))
	case 4:
		return d("$unset", d(f, 1), "$inc", d("n", 1))
	case 5:
		return d("$push", d("v", d("$each", a(w.value(), w.n), "$slice", -6)))
	case 6:
		return d("$push", d("v", d("$each", a(), "$slice", w.r.IntN(4))), "$set", d("by", w.n))
	case 7:
		return d("$pop", d("v", 1), "$set", d("f1", w.value()))
	case 8:
		return a(d("$set", d("v", d("$cond", a(d("$isArray", "$v"), d("$slice", a("$v", 2)), a(w.n))), "by", w.n)))
	case 9:
		return a(d("$set", d("o", d("$mergeObjects", a(d("$cond", a(d("$eq", a(d("$type", "$o"), "object")), "$o", d())), d("m", w.n))), "f2", "$$REMOVE")))
	case 10:
		return a(d("$replaceWith", d("_id", "$_id", "n", "$n", "v", a(1, 2, w.n), "o", d("b", d("c", "$by")))))
	case 11:
		return d("$inc", d("by", 1, "n", 1))
	case 12:
		return d("$rename", d("f1", "f2"))
	}
	return w.document()[1:] // a replacement
}

func (w *writer) bulk() {
	var docs, updates, deletes bson.A
	for range 20 {
		docs = append(docs, w.document())
		updates = append(updates, d("q", d("_id", w.id("plain")), "u", w.change()))
		deletes = append(deletes, d("q", d("_id", w.id("plain")), "limit", 1))
	}
	_, _ = w.try(d("insert", "plain", "documents", docs, "ordered", false))
	_, _ = w.try(d("update", "plain", "updates", updates, "ordered", false))
	_, _ = w.try(d("delete", "plain", "deletes", deletes, "ordered", false))
}

// trade moves the keys of a unique index between documents.
func (w *writer) trade() {
	i, j := w.r.IntN(300), w.r.IntN(300)
	switch w.r.IntN(4) {
	case 0:
		w.remove("unique", d("_id", i))
		w.update("unique", d("_id", j), d("$set", d("k", i)), "upsert", true)
	case 1:
		tmp := fmt.Sprint("tmp", w.r.IntN(1000))
		w.update("unique", d("_id", i), d("$set", d("k", tmp)))
		w.update("unique", d("_id", j), d("$set", d("k", i)))
		w.update("unique", d("_id", i), d("$set", d("k", j)))
	case 2:
		w.insert("unique", d("_id", i, "k", j))
	case 3:
		w.transaction(func(x *site) {
			x.remove("unique", d("k", a(i, j)))
			x.update("unique", d("_id", i), d("k", fmt.Sprint("t", w.n)))
			x.update("unique", d("_id", j), d("k", i))
		})
	}
}

// folded writes to a collection that ignores the case of an _id.
func (w *writer) folded() {
	id := fmt.Sprintf([]string{"KEY%d", "key%d", "Key%d"}[w.r.IntN(3)], w.r.IntN(40))
	switch w.r.IntN(3) {
	case 0:
		w.remove("folded", d("_id", id))
	case 1:
		w.update("folded", d("_id", id), d("$set", d("n", w.n)), "upsert", true)
	case 2:
		w.insert("folded", d("_id", id, "new", w.n))
	}
}

func (w *writer) inTransaction() {
	x := w.begin()
	defer x.end()
	for range 1 + w.r.IntN(6) {
		c := []string{"txn1", "txn2"}[w.r.IntN(2)]
		id := w.r.IntN(250)
		switch w.r.IntN(4) {
		case 0:
			x.update(c, d("_id", id), d("n", w.n), "upsert", true)
		case 1:
			x.remove(c, d("_id", id))
		default:
			x.update(c, d("_id", id), d("$inc", d("n", 1), "$push", d("v", w.n)))
		}
	}
	if w.r.IntN(4) == 0 {
		x.abort()
		return
	}
	x.commit()
}

func (w *writer) measure() {
	if !shared.sourceVer.AtLeast(5, 0) {
		return
	}
	var docs bson.A
	for range 1 + w.r.IntN(20) {
		docs = append(docs, d("t", at(w.r.IntN(100000)), "m", w.r.IntN(4), "v", w.n))
	}
	w.insert("series", docs...)
}

// schema changes collections and indexes.
func (w *writer) schema() {
	other := fmt.Sprint("extra", w.r.IntN(3))
	switch w.r.IntN(11) {
	case 0:
		w.insert(other, d("_id", w.n, "n", w.n))
	case 1:
		w.drop(other)
	case 2:
		w.rename(w.ns(other), w.ns(fmt.Sprint("extra", w.r.IntN(3))), "dropTarget", true)
	case 3:
		w.index(other, d("n", 1))
	case 4:
		w.dropIndexes(other, "*")
	case 5:
		w.rename(w.ns("moving"), w.ns("moved"))
	case 6:
		w.rename(w.ns("moved"), w.ns("moving"), "dropTarget", true)
	case 7:
		w.collMod(other, "validator", d("n", d("$gte", 0)))
	case 8:
		w.rename(w.ns(other), w.in("x").ns(other), "dropTarget", true)
	case 9:
		w.aggregate("txn1", d("$out", other))
	case 10:
		w.create(other, "capped", true, "size", 4096)
	}
}
