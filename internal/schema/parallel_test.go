package schema

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

func TestShares(t *testing.T) {
	build := func(bytes int64, n int) Build { return Build{Bytes: bytes, Indexes: make([]stream.Index, n)} }
	for _, c := range []struct {
		builds []Build
		most   int
		want   []int
	}{
		{[]Build{build(1000, 10)}, 4, []int{3}},
		{[]Build{build(1000, 2)}, 4, []int{2}},
		{[]Build{build(1000, 10)}, 1, []int{1}},
		{[]Build{build(1000, 5), build(1000, 5)}, 4, []int{2, 2}},
		{[]Build{build(9000, 5), build(100, 5), build(100, 5)}, 4, []int{3, 1, 1}},
		{[]Build{build(1, 5), build(1, 5), build(1, 5), build(1, 5), build(1, 5)}, 4, []int{1, 1, 1, 1, 1}},
		{[]Build{build(0, 1)}, 4, []int{1}},
	} {
		if got := shares(c.builds, c.most); !slices.Equal(got, c.want) {
			t.Errorf("%d commands for %+v: %v, want %v", c.most, c.builds, got, c.want)
		}
	}
}

// TestIndexesInParts: the indexes of a large collection are built by several
// commands; a document that one of them refuses holds back that one's alone, and
// a failure leaves what others built.
func TestIndexesInParts(t *testing.T) {
	t.Parallel()
	db := newDB()
	r := newReplica(t, newRules(t, transform.Config{}), db)
	coll := dst.Client.Database(db).Collection("c")
	for i := range 17 {
		_, err := coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: i}, {Key: "u", Value: max(i, 1)},
			{Key: "v", Value: max(i, 1)},
			{Key: "d", Value: "no place"}, {Key: "filler", Value: make([]byte, 1<<20)}})
		if err != nil {
			t.Fatal(err)
		}
	}
	var idx []stream.Index
	for _, key := range []string{`{"a":1}`, `{"b":1}`, `{"c":1}`, `{"d":"2dsphere"}`, `{"e":1}`} {
		name := key[2:3]
		idx = append(idx, stream.Index{Name: name, Spec: js(t, `{"v":2,"key":`+key+`,"name":"`+name+`"}`)})
	}
	for _, name := range []string{"u", "v"} {
		idx = append(idx, stream.Index{Name: name, Spec: js(t,
			`{"v":2,"unique":true,"key":{"`+name+`":1},"name":"`+name+`"}`)})
	}
	var log bytes.Buffer
	r.target.o.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	have := func() (names []string) {
		built, _, err := indexes(t.Context(), dst, db+".c")
		if err != nil {
			t.Fatal(err)
		}
		for _, ix := range built {
			names = append(names, ix.Name)
		}
		slices.Sort(names)
		return names
	}
	heldBack := func() (names []string) {
		held, err := r.target.Deferred.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range held {
			if h.Unbuilt {
				names = append(names, h.Index)
			}
		}
		slices.Sort(names)
		return names
	}

	if err := r.target.Indexes.BuildAll(t.Context(), []Build{{NS: db + ".c", Indexes: idx}}, BeforeConsistent,
		DefaultBuilds); err != nil {
		t.Fatal(err)
	}
	// a and d are the first of three commands.
	if got, held := have(), heldBack(); !slices.Equal(got, []string{"b", "c", "e"}) ||
		!slices.Equal(held, []string{"a", "d", "u", "v"}) {
		t.Errorf("built %v, held back %v", got, held)
	}
	if n := strings.Count(log.String(), "built indexes"); n != 2 {
		t.Errorf("%d commands succeeded, want 2\n%s", n, &log)
	}

	err := r.target.Indexes.BuildDeferred(t.Context())
	if err == nil || mongo.HintOf(err) == "" {
		t.Fatalf("documents that do not fit: %v", err)
	}
	fits := bson.D{{Key: "u", Value: 100}, {Key: "v", Value: 100}}
	if _, err := coll.UpdateByID(t.Context(), 0, bson.D{{Key: "$set", Value: fits}}); err != nil {
		t.Fatal(err)
	}
	if _, err := coll.UpdateMany(t.Context(), bson.D{},
		bson.D{{Key: "$unset", Value: bson.D{{Key: "d", Value: 1}}}}); err != nil {
		t.Fatal(err)
	}
	if err := r.target.Indexes.BuildDeferred(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, held := have(), heldBack(); len(got) != len(idx) || len(held) != 0 {
		t.Errorf("in the end: built %v, held back %v", got, held)
	}
}
