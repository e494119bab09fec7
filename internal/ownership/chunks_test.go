package ownership

import (
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/test/kit"
)

func key(k any) bson.Raw { return kit.Raw(kit.D("k", k)) }

// chunkOf is a chunk that its shard has had since a time; 0 does not say since when.
func chunkOf(min, max any, shard string, version, since uint32) Chunk {
	c := Chunk{Min: key(min), Max: key(max), Shard: shard, Version: bson.Timestamp{T: version}}
	if since > 0 {
		c.History = append(c.History, struct {
			After bson.Timestamp `bson:"validAfter"`
			Shard string         `bson:"shard"`
		}{bson.Timestamp{T: since}, shard})
	}
	return c
}

func tableOf(server mongo.Version, chunks ...Chunk) *Table {
	return &Table{NS: "d.c", Key: key(1), Epoch: bson.ObjectID{1}, Timestamp: bson.Timestamp{T: 9}, Chunks: chunks,
		server: server}
}

// TestTableFollows: a table is read in one piece if its chunks have neither gap nor overlap.
func TestTableFollows(t *testing.T) {
	a, b, c := chunkOf(0, 10, "s0", 1, 1), chunkOf(10, 20, "s1", 2, 1), chunkOf(20, 30, "s0", 3, 1)
	for _, one := range []struct {
		chunks []Chunk
		want   bool
	}{{[]Chunk{a, b, c}, true}, {[]Chunk{a, c}, false}, {[]Chunk{a, a}, false}, {nil, false}, {[]Chunk{b}, true}} {
		if got := tableOf(mongo.Version{Major: 7}, one.chunks...).follows(); got != one.want {
			t.Errorf("%v: %t", one.chunks, got)
		}
	}
}

// TestTableOwners: who has chunks, and with which version a shard is asked by each server.
func TestTableOwners(t *testing.T) {
	chunks := []Chunk{chunkOf(0, 10, "s1", 1, 1), chunkOf(10, 20, "s0", 4, 1), chunkOf(20, 30, "s1", 3, 1)}
	tb := tableOf(mongo.Version{Major: 7}, chunks...)
	if !slices.Equal(tb.Owners(), []string{"s0", "s1"}) {
		t.Errorf("owners %v", tb.Owners())
	}
	for _, c := range []struct {
		server mongo.Version
		want   any
	}{
		{mongo.Version{Major: 4, Minor: 4}, kit.D("v", bson.A{bson.Timestamp{T: 3}, bson.ObjectID{1}})},
		{mongo.Version{Major: 5}, kit.D("v", bson.A{bson.Timestamp{T: 3}, bson.ObjectID{1}, bson.Timestamp{T: 9}})},
		{mongo.Version{Major: 6}, kit.D("v", kit.D("e", bson.ObjectID{1}, "t", bson.Timestamp{T: 9},
			"v", bson.Timestamp{T: 3}))},
	} {
		v := tableOf(c.server, chunks...).Version("s1")
		if got := kit.Raw(kit.D("v", v.Shard)); got.String() != kit.Raw(c.want).String() || v.Name != "c" {
			t.Errorf("%v: %s of %s", c.server, got, v.Name)
		}
	}
}

// TestTableMoved: what may have changed its shard since a table was read, and no more: chunks that
// were split have newer versions, too, but came to their shard before. Neighbours are one part.
func TestTableMoved(t *testing.T) {
	const then = 10_000 // when the table stood
	was := tableOf(mongo.Version{Major: 7}, chunkOf(0, 100, "s0", 5, 1))
	since := was.Stand(at(then))
	if since.Version.T != 5 || since.At.T != then || since.Epoch != was.Epoch {
		t.Fatalf("stood at %+v", since)
	}
	now := tableOf(mongo.Version{Major: 7},
		chunkOf(0, 10, "s0", 5, 1),         // as it was
		chunkOf(10, 20, "s0", 6, 1),        // split, or kept by a donor
		chunkOf(20, 30, "s1", 6, then),     // moved
		chunkOf(30, 40, "s1", 7, then+5),   // moved
		chunkOf(40, 50, "s2", 7, then-100), // said to have come before, of which the config servers heard later
		chunkOf(50, 60, "s2", 8, 0),        // nothing says since when
		chunkOf(60, 100, "s2", 5, then))    // an old version
	none := func(Chunk) bool { return false }
	parts := now.Moved(since, none)
	want := []string{"s1 20 40 2", "s2 40 60 2"}
	var got []string
	for _, p := range parts {
		got = append(got, p.Shard+" "+text(p.Min)+" "+text(p.Max)+" "+string(rune('0'+len(p.Chunks))))
	}
	if !slices.Equal(got, want) {
		t.Errorf("moved %q, want %q", got, want)
	}
	left := now.Moved(since, func(c Chunk) bool { return c.Shard == "s1" })
	if len(left) != 1 || left[0].Shard != "s2" {
		t.Errorf("but for s1: %v", left)
	}
	if now.Epoch = (bson.ObjectID{2}); len(now.Moved(since, none)) != 3 {
		t.Error("of a collection that was sharded anew not all is read again")
	}
}

func text(k bson.Raw) string { return kit.Raw(k).Lookup("k").String()[len(`{"$numberInt":"`):][:2] }

// TestPartMeets: chunks that have keys of a part; their upper bounds are excluded.
func TestPartMeets(t *testing.T) {
	p := Part{Min: key(10), Max: key(20)}
	for _, c := range []struct {
		min, max int
		want     bool
	}{{0, 10, false}, {0, 11, true}, {12, 13, true}, {19, 30, true}, {20, 30, false}, {0, 30, true}} {
		if got := p.Meets(chunkOf(c.min, c.max, "s", 1, 1)); got != c.want {
			t.Errorf("%d to %d: %t", c.min, c.max, got)
		}
	}
}

// TestPartRange: the range of an index that has more fields than the shard key begins before all of
// what has the key of the lower bound, and ends before all of the upper one.
func TestPartRange(t *testing.T) {
	p := Part{Min: key(10), Max: key(20)}
	r, err := p.Range(&Index{Key: kit.Raw(kit.D("k", 1, "x", -1)), Hint: "k_1_x_-1"})
	if err != nil || r.Hint != "k_1_x_-1" {
		t.Fatal(r, err)
	}
	if want := kit.Raw(kit.D("k", 10, "x", bson.MinKey{})); r.Lower.String() != want.String() {
		t.Errorf("from %s", r.Lower)
	}
	if want := kit.Raw(kit.D("k", 20, "x", bson.MinKey{})); r.Upper.String() != want.String() {
		t.Errorf("to %s", r.Upper)
	}
}

// TestKeyIndex: an index serves if it begins with the shard key and holds every document.
func TestKeyIndex(t *testing.T) {
	tb := &Table{Key: kit.Raw(kit.D("k", 1, "h", "hashed"))}
	keys := kit.D("k", 1, "h", "hashed", "more", 1)
	good := kit.Raw(kit.D("key", keys, "name", "good", "sparse", false))
	for name, spec := range map[string]bson.D{
		"another field": kit.D("key", kit.D("h", "hashed", "k", 1), "name", "x"),
		"too short":     kit.D("key", kit.D("k", 1), "name", "x"),
		"descending":    kit.D("key", kit.D("k", -1, "h", "hashed"), "name", "x"), "not hashed": kit.D("key",
			kit.D("k", 1, "h", 1), "name", "x"),
		"sparse": kit.D("key", keys, "name", "x", "sparse", true), "hidden": kit.D("key", keys, "name", "x", "hidden", true),
		"partial":   kit.D("key", keys, "name", "x", "partialFilterExpression", kit.D("a", 1)),
		"collation": kit.D("key", keys, "name", "x", "collation", kit.D("locale", "en")), "no key": kit.D("name", "x"),
	} {
		if ix := tb.KeyIndex([]bson.Raw{kit.Raw(spec)}); ix != nil {
			t.Errorf("%s: %v", name, ix)
		}
		if ix := tb.KeyIndex([]bson.Raw{kit.Raw(spec), good}); ix == nil || ix.Hint != "good" {
			t.Errorf("after %s: %v", name, ix)
		}
	}
	double := kit.Raw(kit.D("key", kit.D("k", 1.0, "h", "hashed")))
	if ix := tb.KeyIndex([]bson.Raw{double}); ix == nil {
		t.Error("a direction is a number of any type")
	} else if hint, ok := ix.Hint.(bson.Raw); !ok || hint.String() != double.Lookup("key").Document().String() {
		t.Errorf("without a name it is hinted by its pattern, not %v", ix.Hint)
	}
}

// TestChunkSince: a chunk whose newest history is another shard's may have come at any time.
func TestChunkSince(t *testing.T) {
	c := chunkOf(0, 1, "s0", 1, 77)
	if c.since().T != 77 {
		t.Errorf("since %v", c.since())
	}
	if c.Shard = "s1"; c.since().T != 1<<32-1 {
		t.Errorf("since %v though that was another shard", c.since())
	}
}
