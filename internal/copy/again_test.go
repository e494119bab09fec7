package copy

import (
	"context"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// TestAgain: what is copied again to a sharded target is not written where it is the same,
// and replaces what it has to: another one, and those under other shard keys.
func TestAgain(t *testing.T) {
	lab.Nightly(t)
	src := server(t, "6.0")
	l := sharded.ForTest(t, sharded.Options{Options: lab.Options{Topology: "sharded:2x1"}, Routers: 1})
	dst, err := mongo.Connect(t.Context(), l.URI(), mongo.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer dst.Close()
	shards := l.ShardNames()
	const ns = "again.c"
	if err := l.CreateDatabase(t.Context(), "again", shards[0]); err != nil {
		t.Fatal(err)
	}
	if err := l.ShardCollection(t.Context(), ns, sharded.Sharding{Key: bson.D{{Key: "k", Value: 1}}}); err != nil {
		t.Fatal(err)
	}
	if err := l.Split(t.Context(), ns, bson.D{{Key: "k", Value: 0}}); err != nil {
		t.Fatal(err)
	}
	for i, k := range []int{-1, 1} {
		if err := l.MoveChunk(t.Context(), ns, bson.D{{Key: "k", Value: k}}, shards[i]); err != nil {
			t.Log(err) // it is there
		}
	}
	doc := func(id any, k int, v string) bson.D {
		return bson.D{{Key: "_id", Value: id}, {Key: "k", Value: k}, {Key: "v", Value: v}}
	}
	want := []any{doc("same", 5, "x"), doc("other value", 5, "x"), doc("other key", 5, "x"), doc("missing", 5, "x"),
		doc("two", 5, "x"), doc("two, both others", 5, "x"), doc(strings.Repeat("large", 400_000), 5, "x")}
	special := len(want)
	for i := range 1500 {
		want = append(want, doc(i, i%9-4, "x"))
	}
	must(t, src, "again", bson.D{{Key: "dropDatabase", Value: 1}})
	insert(t, src, "again", "c", want)
	have := []any{doc("same", 5, "x"), doc("other value", 5, "y"), doc("other key", -5, "x"), doc("two", 5, "x"),
		doc("two", -5, "x"), doc("two, both others", -5, "y"), doc("two, both others", 6, "y"),
		doc("not the source's", 5, "x")}
	insert(t, dst, "again", "c", slices.Concat(have, want[special:]))
	if n := len(dump(t, dst, "again", "c")); n != len(have)+1500 {
		t.Fatalf("%d documents on the target", n)
	}
	kit.Until(t, "a majority", func() bool {
		raw := must(t, dst, "again", bson.D{{Key: "find", Value: "c"}, {Key: "batchSize", Value: 10_000},
			{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}}})
		all, _ := raw.Lookup("cursor", "firstBatch").Array().Values()
		return len(all) == len(have)+1500
	})
	o := small(t, src)
	o.Keys = func(ctx context.Context) (map[string]bson.Raw, error) { return schema.ShardKeys(ctx, dst, nil) }
	e := New(src, dst, newStore(), o)
	task := taskOf(source(t, src, "again", "c"), ns)
	task.Again = true
	if err := e.Run(t.Context(), []Task{task}); err != nil {
		t.Fatal(err)
	}
	must(t, dst, "again", bson.D{{Key: "delete", Value: "c"},
		{Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: "not the source's"}}},
			{Key: "limit", Value: 0}}}}})
	same(t, dump(t, src, "again", "c"), dump(t, dst, "again", "c"))
	if st := e.Stats(); st.Same != 1501 || st.Replaced != 4 {
		t.Errorf("%d are the same, %d were replaced", st.Same, st.Replaced)
	}
}
