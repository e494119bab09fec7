package copy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
)

// seeded returns a generator of the test's seed.
func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(testseed.Of(t), 1))
}

// crashing runs a copy until it is done, and returns how many runs were ended: each at a
// random one of its next writes, half of them without a last save.
func (m *memStore) crashing(t *testing.T, rnd *rand.Rand, most int64, run func(context.Context) error) (rounds int) {
	t.Helper()
	for ; ; rounds++ {
		ctx, cancel := context.WithCancel(t.Context())
		limit, hard := m.writes.Load()+1+rnd.Int64N(most), rnd.IntN(2) == 0
		m.onWrite = func(n int64) {
			if n != limit {
				return
			}
			if hard {
				m.crash()
			}
			cancel()
		}
		err := run(ctx)
		cancel()
		if err == nil {
			return rounds
		}
		if !errors.Is(err, context.Canceled) && !errors.Is(err, errCrashed) {
			t.Fatal(err)
		}
	}
}

// TestCrashes ends runs at random moments, half of them without a last save,
// and goes on from what the store holds.
func TestCrashes(t *testing.T) {
	rnd := seeded(t)
	dst := server(t, "6.0")
	for _, version := range []string{"6.0", "4.2"} {
		src := server(t, version)
		db := "crash" + strings.ReplaceAll(version, ".", "")
		insert(t, src, db, "c", mixedDocs(6000))
		insert(t, src, db, "d", mixedDocs(500))
		tasks := []Task{
			taskOf(source(t, src, db, "c"), db+"_t.c"),
			taskOf(source(t, src, db, "d"), db+"_t.d"),
		}
		store := newStore()
		rounds := store.crashing(t, rnd, 30, func(ctx context.Context) error {
			return New(src, dst, store,
				small(t, src)).Run(ctx, tasks)
		})
		t.Logf("%s: done after %d crashes", version, rounds)
		same(t, dump(t, src, db, "c"), dump(t, dst, db+"_t", "c"))
		same(t, dump(t, src, db, "d"), dump(t, dst, db+"_t", "d"))
	}
}

// TestFinishedSlicesAreNotReadAgain deletes what a finished slice has brought:
// the next run must leave the gap alone.
func TestFinishedSlicesAreNotReadAgain(t *testing.T) {
	c := server(t, "6.0")
	insert(t, c, "skip", "c", mixedDocs(4000))
	tasks := []Task{taskOf(source(t, c, "skip", "c"), "skip_t.c")}
	store := newStore()
	if err := New(c, c, store, small(t, c)).Run(t.Context(), tasks); err != nil {
		t.Fatal(err)
	}
	again := int64(0)
	for k, st := range store.states {
		if st.N%2 == 0 {
			st.Done, st.Position, st.Back, st.Docs, st.Bytes = false, nil, nil, 0, 0
			store.states[k] = st
		} else {
			again += st.Docs
		}
	}
	must(t, c, "skip_t", bson.D{{Key: "delete", Value: "c"},
		{Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "limit", Value: 0}}}}})
	e := New(c, c, store, small(t, c))
	if err := e.Run(t.Context(), tasks); err != nil {
		t.Fatal(err)
	}
	got := dump(t, c, "skip_t", "c")
	total := int64(len(dump(t, c, "skip", "c")))
	if int64(len(got)) != total-again || again == 0 {
		t.Errorf("%d of %d documents were copied, %d belong to finished slices", len(got), total, again)
	}
	if st := e.Stats(); st.Docs != total || st.SlicesDone != st.Slices {
		t.Errorf("stats %+v", st)
	}
}

// planned makes and saves the plan of a task without reading anything.
func planned(t *testing.T, src, dst *mongo.Cluster, store *memStore, task Task) []scan.Slice {
	t.Helper()
	e := New(src, dst, store, small(t, src))
	r := newRun(e)
	r.colls = []*collection{newCollection(t.Context(), task, e)}
	if err := r.chooseMember(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn, err := src.Pool.Checkout(t.Context(), src.Reader())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	plan, err := r.reader(conn).plan(t.Context(), r.colls[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := store.SaveSlices(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	return plan
}

// TestBoundsDeleted deletes documents that slices begin and end with.
func TestBoundsDeleted(t *testing.T) {
	c := server(t, "6.0")
	insert(t, c, "bounds", "c", mixedDocs(4000))
	task := taskOf(source(t, c, "bounds", "c"), "bounds_t.c")
	store := newStore()
	plan := planned(t, c, c, store, task)
	if len(plan) < 6 {
		t.Fatalf("%d slices", len(plan))
	}
	remove := func(filter any) {
		must(t, c, "bounds", bson.D{{Key: "delete", Value: "c"},
			{Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: filter}, {Key: "limit", Value: 0}}}}})
	}
	for _, st := range plan[1 : len(plan)/2] {
		remove(bson.D{{Key: "_id", Value: bson.D{{Key: "$eq", Value: st.Lower.Lookup("_id")}}}})
	}
	// Of the second slice every place to start from: records up to its lower
	// bound are gone but for one in twenty.
	for rid, id := range recordIDs(t, c, "bounds", "c") {
		if rid <= scan.Record(plan[1].Lower) && rid%20 != 7 || contains(plan[1].Back, rid) {
			remove(bson.D{{Key: "_id", Value: bson.D{{Key: "$eq", Value: id}}}})
		}
	}
	e := New(c, c, store, small(t, c))
	if err := e.Run(t.Context(), []Task{task}); err != nil {
		t.Fatal(err)
	}
	same(t, dump(t, c, "bounds", "c"), dump(t, c, "bounds_t", "c"))
	if got := e.Stats().Slices; got != len(plan) {
		t.Errorf("%d slices, the plan has %d", got, len(plan))
	}
}

func contains(list []int64, n int64) bool {
	for _, v := range list {
		if v == n {
			return true
		}
	}
	return false
}

func recordIDs(t *testing.T, c *mongo.Cluster, db, coll string) map[int64]bson.RawValue {
	t.Helper()
	cur, err := c.Client.Database(db).RunCommandCursor(t.Context(), bson.D{{Key: "find", Value: coll},
		{Key: "projection", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "showRecordId", Value: true}})
	if err != nil {
		t.Fatal(err)
	}
	out := map[int64]bson.RawValue{}
	for cur.Next(t.Context()) {
		raw := append(bson.Raw(nil), cur.Current...)
		out[raw.Lookup("$recordId").AsInt64()] = raw.Lookup("_id")
	}
	return out
}

// TestOtherRecordIDs goes on with a plan whose record ids are not those of the
// member any more.
func TestOtherRecordIDs(t *testing.T) {
	c := server(t, "6.0")
	insert(t, c, "rebuilt", "c", mixedDocs(3000))
	task := taskOf(source(t, c, "rebuilt", "c"), "rebuilt_t.c")
	store := newStore()
	planned(t, c, c, store, task)
	docs := dump(t, c, "rebuilt", "c")
	must(t, c, "rebuilt", bson.D{{Key: "delete", Value: "c"},
		{Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "limit", Value: 0}}}}})
	var back []any
	for i := range docs {
		back = append(back, bson.Raw(docs[len(docs)-1-i]))
	}
	insert(t, c, "rebuilt", "c", back)
	for k, st := range store.states { // as if half were done
		if st.N%2 == 0 {
			st.Done = true
			store.states[k] = st
		}
	}
	if err := New(c, c, store, small(t, c)).Run(t.Context(), []Task{task}); err != nil {
		t.Fatal(err)
	}
	same(t, docs, dump(t, c, "rebuilt_t", "c"))
}

// slowly starts a throttled copy and returns once documents have arrived; let
// lifts the limit and waits for the end.
func slowly(t *testing.T, src, dst *mongo.Cluster, o Options, store *memStore, tasks ...Task) (e *Engine,
	let func() error) {
	t.Helper()
	o.Limit = pace.New(pace.Rates{Docs: 500})
	e = New(src, dst, store, o)
	done := make(chan error, 1)
	go func() { done <- e.Run(t.Context(), tasks) }()
	kit.Until(t, "first documents", func() bool { return e.Stats().Docs > 0 })
	return e, func() error {
		o.Limit.Set(pace.Rates{})
		return <-done
	}
}

func TestRenamedAndDropped(t *testing.T) {
	dst := server(t, "6.0")
	for _, version := range []string{"6.0", "4.2"} {
		src := server(t, version)
		db := "rename" + strings.ReplaceAll(version, ".", "")
		var tasks []Task
		for _, name := range []string{"stays", "renamed", "dropped"} {
			insert(t, src, db, name, mixedDocs(1500))
			tasks = append(tasks, taskOf(source(t, src, db, name), db+"_t."+name))
		}
		want := dump(t, src, db, "renamed")
		e, let := slowly(t, src, dst, small(t, src), newStore(), tasks...)
		must(t, src, "admin", bson.D{{Key: "renameCollection", Value: db + ".renamed"}, {Key: "to", Value: db + ".other"}})
		must(t, src, db, bson.D{{Key: "drop", Value: "dropped"}})
		insert(t, src, db, "renamed", []any{bson.D{{Key: "_id", Value: "another collection of that name"}}})
		insert(t, src, db, "dropped", []any{bson.D{{Key: "_id", Value: "another collection of that name"}}})
		if err := let(); err != nil {
			t.Fatal(err)
		}
		same(t, want, dump(t, dst, db+"_t", "renamed"))
		same(t, dump(t, src, db, "stays"), dump(t, dst, db+"_t", "stays"))
		for i, state := range []CollectionState{StateDone, StateDone, StateDropped} {
			if c := e.Stats().Collections[i]; c.State != state || c.Slices != c.SlicesDone {
				t.Errorf("%s: %+v, want %s", version, c, state)
			}
		}
	}
}

// TestWritesMeanwhile changes the source during the copy: what nobody touched
// is copied exactly, the tail included.
func TestWritesMeanwhile(t *testing.T) {
	dst := server(t, "6.0")
	for _, version := range []string{"6.0", "4.2"} {
		src := server(t, version)
		db := "busy" + strings.ReplaceAll(version, ".", "")
		insert(t, src, db, "c", mixedDocs(4000))
		want := byID(dump(t, src, db, "c"))
		_, let := slowly(t, src, dst, small(t, src), newStore(), taskOf(source(t, src, db, "c"), db+"_t.c"))
		touched := make(map[int32]bool)
		for i := range int32(600) {
			n := i * 7 % 4000
			touched[n] = true
			q := bson.D{{Key: "n", Value: n}}
			switch i % 3 {
			case 0:
				must(t, src, db, bson.D{{Key: "delete", Value: "c"},
					{Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: q}, {Key: "limit", Value: 1}}}}})
			case 1:
				must(t, src, db, bson.D{{Key: "update", Value: "c"},
					{Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: q},
						{Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "text", Value: strings.Repeat("changed", 100)}}}}}}}}})
			case 2:
				insert(t, src, db, "c", []any{bson.D{{Key: "_id", Value: fmt.Sprint("new", i)}, {Key: "n", Value: -1}}})
			}
		}
		if err := let(); err != nil {
			t.Fatal(err)
		}
		got := byID(dump(t, dst, db+"_t", "c"))
		for id, doc := range want {
			if n, _ := bson.Raw(doc).Lookup("n").AsInt64OK(); !touched[int32(n)] && string(got[id]) != string(doc) {
				t.Fatalf("untouched document %v is %v on the target", bson.Raw(doc), bson.Raw(got[id]))
			}
		}
	}
}

func cappedPair(t *testing.T, c *mongo.Cluster, db string, n int) Task {
	create := bson.D{{Key: "create", Value: "c"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20},
		{Key: "max", Value: 2000}}
	must(t, c, db, create)
	must(t, c, db+"_t", create)
	var docs []any
	for i := range n {
		docs = append(docs, bson.D{{Key: "_id", Value: (i * 7919) % 100003}, {Key: "i", Value: i},
			{Key: "p", Value: strings.Repeat("p", 100)}})
	}
	insert(t, c, db, "c", docs)
	return taskOf(source(t, c, db, "c"), db+"_t.c")
}

// emptied recreates a capped target and counts how often.
func emptied(t *testing.T, c *mongo.Cluster, n *atomic.Int64) func(context.Context, Task) error {
	return func(ctx context.Context, task Task) error {
		n.Add(1)
		db, coll := mongo.SplitNS(task.Route.Target)
		if _, err := c.Command(ctx, db, bson.D{{Key: "drop", Value: coll}}); err != nil {
			return err
		}
		_, err := c.Command(ctx, db, bson.D{{Key: "create", Value: coll}, {Key: "capped", Value: true},
			{Key: "size", Value: 1 << 20}, {Key: "max", Value: 2000}})
		return err
	}
}

func TestCapped(t *testing.T) {
	dst := server(t, "6.0")
	var n atomic.Int64
	task := cappedPair(t, dst, "capped", 3000)
	o := small(t, dst)
	o.Recreate = emptied(t, dst, &n)
	store := newStore()
	if err := New(dst, dst, store, o).Run(t.Context(), []Task{task}); err != nil {
		t.Fatal(err)
	}
	sameOrder(t, dump(t, dst, "capped", "c"), dump(t, dst, "capped_t", "c"))
	if n.Load() != 0 {
		t.Error("an untouched target was emptied")
	}

	// Interrupted: it begins anew.
	for k, st := range store.states {
		st.Done = false
		store.states[k] = st
	}
	if err := New(dst, dst, store, o).Run(t.Context(), []Task{task}); err != nil {
		t.Fatal(err)
	}
	sameOrder(t, dump(t, dst, "capped", "c"), dump(t, dst, "capped_t", "c"))
	if n.Load() != 1 {
		t.Errorf("emptied %d times", n.Load())
	}
}

// TestCappedOverrun lets the source overtake the copy.
func TestCappedOverrun(t *testing.T) {
	c := server(t, "6.0")
	var n atomic.Int64
	task := cappedPair(t, c, "overrun", 2000)
	o := small(t, c)
	empty, written := emptied(t, c, &n), make(chan struct{})
	o.Recreate = func(ctx context.Context, task Task) error {
		<-written // what comes later is not for the copy
		return empty(ctx, task)
	}
	_, let := slowly(t, c, c, o, newStore(), task)
	var more []any
	for i := range 2500 {
		more = append(more, bson.D{{Key: "_id", Value: fmt.Sprint("more", i)}})
	}
	insert(t, c, "overrun", "c", more)
	close(written)
	if err := let(); err != nil {
		t.Fatal(err)
	}
	sameOrder(t, dump(t, c, "overrun", "c"), dump(t, c, "overrun_t", "c"))
	if n.Load() == 0 {
		t.Error("the copy was not begun anew")
	}
}

// TestCappedEdge: the copy ends at the document that was the newest at the
// position that it tells, whatever is inserted until it gets there.
func TestCappedEdge(t *testing.T) {
	c := server(t, "6.0")
	db := "edge"
	for _, d := range []string{db, db + "_t"} {
		must(t, c, d, bson.D{{Key: "create", Value: "c"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20},
			{Key: "max", Value: 5}})
	}
	put := func(ids ...int) {
		for _, id := range ids {
			insert(t, c, db, "c", []any{bson.D{{Key: "_id", Value: id}}})
		}
	}
	put(1, 2, 3, 4, 5)
	pos, err := c.Positions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	store := newStore()
	o := small(t, c)
	o.AfterClusterTime = pos.Last
	var began mongo.OpTime
	o.edged = func(context.Context) error {
		pos, err := c.Positions(t.Context())
		began = pos.Last
		must(t, c, db, bson.D{{Key: "delete", Value: "c"}, {Key: "deletes",
			Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 3}}}, {Key: "limit", Value: 1}}}}})
		put(3, 6, 2000)
		for err == nil {
			if pos, err = c.Positions(t.Context()); !pos.Majority.Before(pos.Last) {
				break // the copy sees it
			}
		}
		return err
	}
	if err := New(c, c, store, o).Run(t.Context(), []Task{taskOf(source(t, c, db, "c"), db+"_t.c")}); err != nil {
		t.Fatal(err)
	}
	sameOrder(t, dump(t, c, db, "c")[:2], dump(t, c, db+"_t", "c")) // of 4, 5, 3, 6, 2000
	for _, st := range store.states {
		if at := st.At; at.Before(pos.Last) || began.Before(at) {
			t.Errorf("as of %s, not between %s and %s", at, pos.Last, began)
		}
	}
}
