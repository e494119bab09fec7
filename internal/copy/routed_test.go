package copy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/lookup"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// routedBed is a sharded source of three shards that is read through its two routers, and a target.
type routedBed struct {
	*testing.T
	lab      *sharded.Cluster
	src, dst *mongo.Cluster
	db       string // on both
}

func newRoutedBed(t *testing.T, db string) *routedBed {
	t.Helper()
	b := &routedBed{T: t, dst: server(t, "6.0"), db: db}
	b.lab = sharded.ForTest(t, sharded.Options{Routers: 2, Options: lab.Options{
		Version: os.Getenv("MILLRACE_TEST_VERSION"), Topology: "sharded:3x1", LeanJournal: true,
		SetParameters: map[string]string{"orphanCleanupDelaySecs": "0"}}})
	var err error
	b.src, err = mongo.Connect(t.Context(), b.lab.URI(), mongo.Options{})
	b.ok(err)
	t.Cleanup(b.src.Close)
	t.Cleanup(func() { _ = b.dst.Client.Database(db).Drop(context.Background()) })
	b.ok(b.lab.CreateDatabase(t.Context(), db, "s0"))
	return b
}

func (b *routedBed) ok(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func atN(n any) bson.D { return bson.D{{Key: "n", Value: n}} }

// spread shards a collection by n, in chunks of so many.
func (b *routedBed) spread(name string, chunks, size int) {
	b.Helper()
	ns := b.db + "." + name
	must(b, b.src, "admin", bson.D{{Key: "shardCollection", Value: ns}, {Key: "key", Value: atN(1)},
		{Key: "collation", Value: bson.D{{Key: "locale", Value: "simple"}}}})
	for i := 1; i < chunks; i++ {
		b.ok(b.lab.Split(b.Context(), ns, atN(i*size)))
	}
	for i := range chunks {
		b.ok(b.lab.MoveChunk(b.Context(), ns, atN(i*size), fmt.Sprintf("s%d", i%3)))
	}
}

// moving moves chunks of a collection until it is ended, which returns how many moved.
func (b *routedBed) moving(name string, chunks, size int) (end func() int) {
	ctx, cancel := context.WithCancel(b.Context())
	rnd := seeded(b.T)
	var moved int
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			if b.lab.MoveChunk(ctx, b.db+"."+name, atN(rnd.IntN(chunks)*size), fmt.Sprintf("s%d", rnd.IntN(3))) == nil {
				moved++
			}
		}
	})
	return func() int {
		cancel()
		wg.Wait()
		return moved
	}
}

func (b *routedBed) task(name string) Task {
	return taskOf(source(b, b.src, b.db, name), b.db+"."+name)
}

// TestRouted: a copy through routers brings documents with _ids of all types, while chunks move, and
// where runs end at random moments.
func TestRouted(t *testing.T) {
	b := newRoutedBed(t, "routed")
	const chunks, size = 6, 700
	b.spread("c", chunks, size)
	insert(t, b.src, b.db, "c", mixedDocs(chunks*size))
	insert(t, b.src, b.db, "plain", mixedDocs(1500))
	want, plain := dump(t, b.src, b.db, "c"), dump(t, b.src, b.db, "plain")
	end := b.moving("c", chunks, size)
	tasks := []Task{b.task("c"), b.task("plain")}
	store := newStore()
	o := small(t, b.src)
	o.Limit = pace.New(pace.Rates{Docs: 3000}) // so that chunks move
	e := New(b.src, b.dst, store, o)
	b.ok(e.Run(t.Context(), tasks))
	if c := e.Stats().Collections[0]; c.Strategy != scan.ByID || c.Slices < 4 || c.SlicesDone != c.Slices ||
		c.State != StateDone || c.Docs < int64(len(want)) || c.Docs > int64(len(want)+c.Slices) {
		t.Errorf("stats %+v", c)
	}
	same(t, want, dump(t, b.dst, b.db, "c"))
	same(t, plain, dump(t, b.dst, b.db, "plain"))

	must(t, b.dst, b.db, bson.D{{Key: "dropDatabase", Value: 1}})
	store = newStore()
	rounds := store.crashing(t, seeded(t), 12, func(ctx context.Context) error {
		return New(b.src, b.dst, store, small(t, b.src)).Run(ctx, tasks)
	})
	moved := end()
	t.Logf("done after %d crashes, %d chunks moved", rounds, moved)
	if moved == 0 || rounds == 0 {
		t.Errorf("%d chunks moved, %d runs ended: the test shows nothing", moved, rounds)
	}
	same(t, want, dump(t, b.dst, b.db, "c"))
	same(t, plain, dump(t, b.dst, b.db, "plain"))
}

// TestRoutedKinds copies collections with a collation, clustered and capped ones, and time series.
func TestRoutedKinds(t *testing.T) {
	b := newRoutedBed(t, "kinds")
	kinds := map[string]bson.D{
		"clustered": {{Key: "clusteredIndex", Value: bson.D{{Key: "key", Value: bson.D{{Key: "_id", Value: 1}}},
			{Key: "unique", Value: true}}}},
		"collated": {{Key: "collation", Value: bson.D{{Key: "locale", Value: "en"}, {Key: "strength", Value: 2}}}},
		"capped":   {{Key: "capped", Value: true}, {Key: "size", Value: 4 << 20}},
		"series":   {{Key: "timeseries", Value: bson.D{{Key: "timeField", Value: "t"}, {Key: "metaField", Value: "m"}}}},
	}
	if !b.src.Info.Version.AtLeast(5, 3) {
		delete(kinds, "clustered")
	}
	if !b.src.Info.Version.AtLeast(5, 0) {
		delete(kinds, "series")
	}
	rnd := seeded(t)
	var tasks []Task
	for kind, options := range kinds {
		for _, isSharded := range []bool{false, true} {
			name := fmt.Sprintf("%s_%t", kind, isSharded)
			if isSharded && (kind == "capped" || kind == "series") {
				continue
			}
			for _, c := range []*mongo.Cluster{b.src, b.dst} {
				must(t, c, b.db, append(bson.D{{Key: "create", Value: name}}, options...))
			}
			if isSharded {
				b.spread(name, 3, 500)
			}
			insert(t, b.src, b.db, name, docsOf(kind, 1500, rnd))
			tasks = append(tasks, b.task(name))
		}
	}
	store := newStore()
	b.ok(New(b.src, b.dst, store, small(t, b.src)).Run(t.Context(), tasks))
	for _, task := range tasks {
		_, data := mongo.SplitNS(task.Source.DataNS())
		want, got := dump(t, b.src, b.db, data), dump(t, b.dst, b.db, data)
		if task.Source.Capped() {
			sameOrder(t, want, got)
		} else {
			same(t, want, got)
		}
	}
	for _, st := range store.states {
		if strings.Contains(st.NS, "capped") && st.At.IsZero() {
			t.Error("the copy of a capped collection has no position")
		}
	}
}

func docsOf(kind string, n int, rnd *rand.Rand) (docs []any) {
	for i := range n {
		var id any = fmt.Sprintf("%06d %d", rnd.IntN(1_000_000), i)
		if kind == "collated" && i%2 == 0 {
			id = fmt.Sprintf("KEY%05d", i)
		}
		doc := bson.D{{Key: "_id", Value: id}, {Key: "n", Value: i}}
		if kind == "series" {
			doc = bson.D{{Key: "t", Value: bson.DateTime(1.7e12 + i*60_000)}, {Key: "m", Value: i % 100},
				{Key: "v", Value: i}}
		}
		docs = append(docs, doc)
	}
	return docs
}

// TestRoutedTwins: two documents of one _id, on different shards, are an error where the target takes
// only one. A sharded target gets both.
func TestRoutedTwins(t *testing.T) {
	b := newRoutedBed(t, "twins")
	b.spread("c", 3, 500)
	b.ok(b.lab.CreateDatabase(t.Context(), "twins_t", "s1"))
	var docs []any
	for i, id := range anyIDs(300) {
		docs = append(docs, bson.D{{Key: "_id", Value: id}, {Key: "n", Value: i}})
		if i%3 == 0 {
			docs = append(docs, bson.D{{Key: "_id", Value: id}, {Key: "n", Value: i + 600}})
		}
	}
	insert(t, b.src, b.db, "c", docs)
	task := b.task("c")
	task.Source.Count = 1000 // more slices

	times := map[string]int{}
	id := func(doc []byte) string { return string(bsonraw.AppendID(nil, bsonraw.IDOf(doc))) }
	for _, doc := range dump(t, b.src, b.db, "c") {
		times[id(doc)]++
	}
	replacing := func(_ context.Context, _ Task, docs [][]byte) error {
		for _, doc := range docs {
			if times[id(doc)] > 1 {
				return lookup.ErrTwice
			}
		}
		return nil
	}
	o := small(t, b.src)
	o.Replacing = replacing
	if err := New(b.src, b.dst, newStore(), o).Run(t.Context(), []Task{task}); !errors.Is(err, lookup.ErrTwice) {
		t.Errorf("to a replica set: %v", err)
	}

	target := &routedBed{T: t, lab: b.lab, src: b.src, db: "twins_t"}
	target.spread("c", 3, 500)
	o = small(t, b.src)
	o.Replacing = replacing
	o.Keys = func(ctx context.Context) (map[string]bson.Raw, error) { return schema.ShardKeys(ctx, b.src, nil) }
	task = taskOf(task.Source, "twins_t.c")
	same := int64(0)
	store := newStore()
	rounds := store.crashing(t, seeded(t), 8, func(ctx context.Context) error {
		e := New(b.src, b.src, store, o)
		defer func() { same += e.Stats().Same }()
		return e.Run(ctx, []Task{task})
	})
	if rounds == 0 || same == 0 {
		t.Errorf("%d runs ended, %d documents came again: the test shows nothing", rounds, same)
	}
	count := func(docs [][]byte) map[string]int {
		n := map[string]int{}
		for _, d := range docs {
			n[string(d)]++
		}
		return n
	}
	want, got := count(dump(t, b.src, b.db, "c")), count(dump(t, b.src, "twins_t", "c"))
	if len(want) != len(docs) || len(got) != len(want) {
		t.Errorf("%d documents, %d on the target, want %d", len(want), len(got), len(docs))
	}
	for d := range want {
		if got[d] != 1 {
			t.Errorf("%s is on the target %d times", bson.Raw(d), got[d])
		}
	}
}

// TestRoutedRenamedAndDropped: collections that are renamed or dropped during the copy.
func TestRoutedRenamedAndDropped(t *testing.T) {
	b := newRoutedBed(t, "renames")
	var tasks []Task
	names := []string{"stays", "renamed", "dropped", "renamed_sharded", "dropped_sharded"}
	if !b.src.Info.Version.AtLeast(5, 0) {
		names = names[:3] // sharded collections are not renamed
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_sharded") {
			b.spread(name, 3, 500)
		}
		insert(t, b.src, b.db, name, mixedDocs(1500))
		tasks = append(tasks, b.task(name))
	}
	suffixes := []string{"", "_sharded"}[:len(names)/2]
	var want [][][]byte
	for _, suffix := range suffixes {
		want = append(want, dump(t, b.src, b.db, "renamed"+suffix))
	}
	e, let := slowly(t, b.src, b.dst, small(t, b.src), newStore(), tasks...)
	other := []any{bson.D{{Key: "_id", Value: "another collection of that name"}, {Key: "n", Value: 1}}}
	for _, suffix := range suffixes {
		must(t, b.src, "admin", bson.D{{Key: "renameCollection", Value: b.db + ".renamed" + suffix},
			{Key: "to", Value: b.db + ".other" + suffix}})
		must(t, b.src, b.db, bson.D{{Key: "drop", Value: "dropped" + suffix}})
		insert(t, b.src, b.db, "renamed"+suffix, other)
	}
	b.ok(let())
	for i, suffix := range suffixes {
		same(t, want[i], dump(t, b.dst, b.db, "renamed"+suffix))
	}
	same(t, dump(t, b.src, b.db, "stays"), dump(t, b.dst, b.db, "stays"))
	for i := range names {
		state := []CollectionState{StateDone, StateDone, StateDropped, StateDone, StateDropped}[i]
		if c := e.Stats().Collections[i]; c.State != state || c.Slices != c.SlicesDone {
			t.Errorf("%s: %+v, want %s", names[i], c, state)
		}
	}
}

// TestRoutedMovedDatabase: movePrimary gives the collections of a database other UUIDs during the copy.
func TestRoutedMovedDatabase(t *testing.T) {
	lab.Nightly(t)
	b := newRoutedBed(t, "movedb")
	insert(t, b.src, b.db, "c", mixedDocs(1500))
	task := b.task("c")
	e, let := slowly(t, b.src, b.dst, small(t, b.src), newStore(), task)
	b.ok(b.lab.MovePrimary(t.Context(), b.db, "s1"))
	b.ok(let())
	if b.task("c").Source.UUID.Equal(task.Source.UUID) {
		t.Error("it has its UUID still: the test shows nothing")
	}
	same(t, dump(t, b.src, b.db, "c"), dump(t, b.dst, b.db, "c"))
	if c := e.Stats().Collections[0]; c.State != StateDone {
		t.Errorf("%+v", c)
	}
}

// TestRoutedEdge: the copy of a capped collection ends at the document that was the newest at the position
// that it notes.
func TestRoutedEdge(t *testing.T) {
	b := newRoutedBed(t, "edges")
	for _, c := range []*mongo.Cluster{b.src, b.dst} {
		must(t, c, b.db, bson.D{{Key: "create", Value: "c"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}})
	}
	put := func(ids ...int) {
		for _, id := range ids {
			insert(t, b.src, b.db, "c", []any{bson.D{{Key: "_id", Value: id}}})
		}
	}
	put(5, 4, 3)
	store, o := newStore(), small(t, b.src)
	o.Inserted = nil // needs an oplog
	var began mongo.OpTime
	o.edged = func(ctx context.Context) (err error) {
		if began, err = b.src.ClusterTime(ctx); err != nil {
			return err
		}
		put(2, 1)
		at, err := b.src.ClusterTime(ctx)
		if err == nil { // the copy sees them
			_, err = b.src.Command(ctx, b.db, bson.D{{Key: "find", Value: "c"},
				{Key: "readConcern", Value: scan.Majority(at.TS)}})
		}
		return err
	}
	b.ok(New(b.src, b.dst, store, o).Run(t.Context(), []Task{b.task("c")}))
	sameOrder(t, dump(t, b.src, b.db, "c")[:3], dump(t, b.dst, b.db, "c"))
	for _, st := range store.states {
		if st.At.IsZero() || began.Before(st.At) {
			t.Errorf("as of %s, not before %s", st.At, began)
		}
	}
}
