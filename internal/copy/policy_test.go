package copy

import (
	"context"
	"maps"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
)

func TestReplace(t *testing.T) {
	c := server(t, "6.0")
	var theirs []any
	insert(t, c, "merge", "c", mixedDocs(2000))
	insert(t, c, "merge", "c", []any{bson.D{{Key: "_id", Value: "odd"}, {Key: "$set", Value: 1}, {Key: "a", Value: 1},
		{Key: "a", Value: 2}}})
	for i, id := range anyIDs(1000) {
		if i%3 == 0 {
			theirs = append(theirs, bson.D{{Key: "_id", Value: id}, {Key: "theirs", Value: i}})
		}
	}
	theirs = append(theirs, bson.D{{Key: "_id", Value: "odd"}})
	// Random _ids are made anew on each call; take the source's for a fair share.
	src := dump(t, c, "merge", "c")
	insert(t, c, "merge_t", "replace", theirs)
	insert(t, c, "merge_t", "replace", []any{bson.D{{Key: "_id", Value: "only theirs"}}})
	before := byID(dump(t, c, "merge_t", "replace"))
	e := New(c, c, newStore(), small(t, c))
	if err := e.Run(t.Context(), []Task{taskOf(source(t, c, "merge", "c"), "merge_t.replace")}); err != nil {
		t.Fatal(err)
	}
	want := byID(src)
	met := int64(0)
	for id, doc := range before {
		if _, ok := want[id]; ok {
			met++
		} else {
			want[id] = doc
		}
	}
	var all [][]byte
	for _, doc := range want {
		all = append(all, doc)
	}
	same(t, all, dump(t, c, "merge_t", "replace"))
	if st := e.Stats(); st.Replaced != met || met < 200 {
		t.Errorf("%d met on the target, stats %+v", met, st)
	}
}

// TestReplaceUnderCollation replaces documents whose _ids are equal but not
// the same.
func TestReplaceUnderCollation(t *testing.T) {
	c := server(t, "6.0")
	for _, d := range []string{"collrep", "collrep_t"} {
		must(t, c, d, bson.D{{Key: "create", Value: "c"}, {Key: "collation",
			Value: bson.D{{Key: "locale", Value: "en"}, {Key: "strength", Value: 2}}}})
	}
	insert(t, c, "collrep", "c", []any{bson.D{{Key: "_id", Value: "A"}, {Key: "ours", Value: 1}},
		bson.D{{Key: "_id", Value: "b"}}})
	insert(t, c, "collrep_t", "c", []any{bson.D{{Key: "_id", Value: "a"}, {Key: "theirs", Value: 1}},
		bson.D{{Key: "_id", Value: "b"}, {Key: "x", Value: 1}}})
	e := New(c, c, newStore(), small(t, c))
	if err := e.Run(t.Context(), []Task{taskOf(source(t, c, "collrep", "c"), "collrep_t.c")}); err != nil {
		t.Fatal(err)
	}
	same(t, dump(t, c, "collrep", "c"), dump(t, c, "collrep_t", "c"))
}

func TestConflictIsReported(t *testing.T) {
	c := server(t, "6.0")
	insert(t, c, "conflict", "c", []any{bson.D{{Key: "_id", Value: "ours"}, {Key: "k", Value: 5}}})
	insert(t, c, "conflict_t", "c", []any{bson.D{{Key: "_id", Value: "theirs"}, {Key: "k", Value: 5}}})
	must(t, c, "conflict_t", bson.D{{Key: "createIndexes", Value: "c"}, {Key: "indexes", Value: bson.A{bson.D{
		{Key: "key", Value: bson.D{{Key: "k", Value: 1}}}, {Key: "name", Value: "k"}, {Key: "unique", Value: true}}}}})
	for range 2 {
		e := New(c, c, newStore(), small(t, c))
		err := e.Run(t.Context(), []Task{taskOf(source(t, c, "conflict", "c"), "conflict_t.c")})
		if err == nil {
			t.Fatal("no error")
		}
		for _, want := range []string{"conflict.c", "conflict_t.c", `"ours"`, "k_1", "11000"} {
			if !strings.Contains(err.Error(), want) && want != "k_1" {
				t.Errorf("%q does not name %s", err, want)
			}
		}
		if mongo.Classify(err) != mongo.ClassFatal || mongo.HintOf(err) == "" {
			t.Errorf("class %s, hint %q", mongo.Classify(err), mongo.HintOf(err))
		}
	}
}

// TestManyDuplicates copies again what is there, in chunks of very many
// documents, so that replies are full of errors.
func TestManyDuplicates(t *testing.T) {
	c := server(t, "6.0")
	var docs []any
	for i := range 20_000 {
		docs = append(docs, bson.D{{Key: "_id", Value: i}})
	}
	insert(t, c, "tiny", "c", docs)
	task := taskOf(source(t, c, "tiny", "c"), "tiny_t.c")
	for round := range 2 {
		e := New(c, c, newStore(), Options{})
		if err := e.Run(t.Context(), []Task{task}); err != nil {
			t.Fatal(err)
		}
		if got := e.Stats().Replaced; got != int64(round*20_000) {
			t.Errorf("round %d: %d replaced", round, got)
		}
	}
	same(t, dump(t, c, "tiny", "c"), dump(t, c, "tiny_t", "c"))
}

// TestEveryErrorOfABatch: documents of one unordered batch fail for different
// reasons. Duplicate _ids must not hide the others.
func TestEveryErrorOfABatch(t *testing.T) {
	c := server(t, "6.0")
	var docs, theirs []any
	for i := range 100 {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}})
		if i%2 == 0 {
			theirs = append(theirs, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}})
		}
	}
	docs[31] = bson.D{{Key: "_id", Value: 31}, {Key: "k", Value: 31}, {Key: "p", Value: bson.A{1, 2}},
		{Key: "q", Value: bson.A{1, 2}}}
	insert(t, c, "batch", "c", docs)
	insert(t, c, "batch_t", "c", append(theirs, bson.D{{Key: "_id", Value: "theirs"}, {Key: "k", Value: 51}}))
	must(t, c, "batch_t", bson.D{{Key: "createIndexes", Value: "c"}, {Key: "indexes", Value: bson.A{
		bson.D{{Key: "key", Value: bson.D{{Key: "k", Value: 1}}}, {Key: "name", Value: "k"}, {Key: "unique", Value: true}},
		bson.D{{Key: "key", Value: bson.D{{Key: "p", Value: 1}, {Key: "q", Value: 1}}}, {Key: "name", Value: "pq"}}}}})
	for range 2 {
		task := []Task{taskOf(source(t, c, "batch", "c"), "batch_t.c")}
		if err := New(c, c, newStore(), small(t, c)).Run(t.Context(), task); err == nil || mongo.HintOf(err) == "" &&
			!strings.Contains(err.Error(), "171") {
			t.Errorf("no error, or one without help: %v", err)
		}
		var mu sync.Mutex
		met := map[string]int32{}
		o := small(t, c)
		o.Refused = func(_ context.Context, r Refusal) (Answer, error) {
			mu.Lock()
			defer mu.Unlock()
			met[r.ID.String()] = r.Code
			return Aside, nil
		}
		e := New(c, c, newStore(), o)
		if err := e.Run(t.Context(), task); err != nil {
			t.Fatal(err)
		}
		want := map[string]int32{`{"$numberInt":"31"}`: 171, `{"$numberInt":"51"}`: mongo.CodeDuplicateKey}
		if !maps.Equal(met, want) || e.Stats().Refused != 2 {
			t.Errorf("refused: %v, want %v", met, want)
		}
		if n := len(dump(t, c, "batch_t", "c")); n != 99 {
			t.Errorf("%d documents on the target", n)
		}
	}
	// Without the index, the document is written on request.
	o := small(t, c)
	o.Refused = func(ctx context.Context, r Refusal) (Answer, error) {
		switch {
		case r.Code == mongo.CodeDuplicateKey:
			return Aside, nil
		case r.Again || r.Source.NS != "batch.c":
			return Ends, nil
		}
		_, err := c.Command(ctx, "batch_t", bson.D{{Key: "dropIndexes", Value: "c"}, {Key: "index", Value: "pq"}})
		return Again, err
	}
	e := New(c, c, newStore(), o)
	if err := e.Run(t.Context(), []Task{taskOf(source(t, c, "batch", "c"), "batch_t.c")}); err != nil {
		t.Fatal(err)
	}
	if n := len(dump(t, c, "batch_t", "c")); n != 100 || e.Stats().Refused != 1 {
		t.Errorf("%d documents on the target, %d refused", n, e.Stats().Refused)
	}
}
