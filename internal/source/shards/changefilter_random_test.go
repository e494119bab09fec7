package shards_test

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/merge"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/source/shards"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// TestSchemaOnce: what users do to collections comes once, whatever the shards tell,
// and what chunks and databases do when they move does not come.
func TestSchemaOnce(t *testing.T) {
	lab.NeedServers(t)
	for _, version := range versions() {
		t.Run(version, func(t *testing.T) { schemaOnce(t, version) })
	}
}

func schemaOnce(t *testing.T, version string) {
	b := newBed(t, sharded.Options{Options: lab.Options{Topology: "sharded:3x1", Version: version,
		SetParameters: map[string]string{"orphanCleanupDelaySecs": "0"}}})
	all := b.lab.ShardNames()
	b.ok(b.lab.CreateDatabase(t.Context(), "d", all[0]))
	b.ok(b.lab.CreateDatabase(t.Context(), "e", all[1]))
	c := b.open()
	start, err := c.Start(t.Context())
	b.ok(err)
	db, other := b.router.Client.Database("d"), b.router.Client.Database("e")
	run := func(cmd ...bson.E) {
		t.Helper()
		b.ok(db.RunCommand(t.Context(), bson.D(cmd)).Err())
	}
	key := func(k int) bson.D { return bson.D{{Key: "k", Value: k}} }
	index := func(name string) bson.A {
		return bson.A{bson.D{{Key: "key", Value: bson.D{{Key: name, Value: 1}}}, {Key: "name", Value: name}}}
	}
	insert := func(coll string, ids ...int) {
		t.Helper()
		for _, id := range ids {
			_, err := db.Collection(coll).InsertOne(t.Context(), bson.D{{Key: "_id", Value: id}, {Key: "k", Value: id}})
			b.ok(err)
		}
	}

	b.ok(b.lab.ShardCollection(t.Context(), "d.c", sharded.Sharding{Key: key(1)}))
	b.ok(b.lab.Split(t.Context(), "d.c", key(10), key(20)))
	insert("c", 5, 15, 25)
	b.ok(b.lab.MoveChunk(t.Context(), "d.c", key(15), all[1]))
	b.ok(b.lab.MoveChunk(t.Context(), "d.c", key(25), all[2]))
	run(bson.E{Key: "createIndexes", Value: "c"}, bson.E{Key: "indexes", Value: index("a")})
	run(bson.E{Key: "collMod", Value: "c"}, bson.E{Key: "validationLevel", Value: "off"})
	run(bson.E{Key: "dropIndexes", Value: "c"}, bson.E{Key: "index", Value: "a"})
	run(bson.E{Key: "createIndexes", Value: "c"}, bson.E{Key: "indexes", Value: index("a")})
	run(bson.E{Key: "collMod", Value: "c"}, bson.E{Key: "validationLevel", Value: "strict"})
	name := "c"
	if version != "4.4" { // which renames no sharded collection
		name = "r"
		b.ok(b.router.Client.Database("admin").RunCommand(t.Context(),
			bson.D{{Key: "renameCollection", Value: "d.c"}, {Key: "to", Value: "d.r"}}).Err())
	}
	insert(name, 16, 26)

	run(bson.E{Key: "create", Value: "u"})
	run(bson.E{Key: "createIndexes", Value: "u"}, bson.E{Key: "indexes", Value: index("b")})
	insert("u", 1, 2)
	b.ok(b.lab.MovePrimary(t.Context(), "d", all[2]))
	insert("u", 3)
	run(bson.E{Key: "createIndexes", Value: "u"}, bson.E{Key: "indexes", Value: index("z")})
	b.ok(b.lab.MovePrimary(t.Context(), "d", all[0]))
	run(bson.E{Key: "drop", Value: "u"})
	run(bson.E{Key: "create", Value: "u"})

	run(bson.E{Key: "drop", Value: name})
	b.ok(b.lab.ShardCollection(t.Context(), "d."+name, sharded.Sharding{Key: bson.D{{Key: "_id", Value: "hashed"}},
		Chunks: 6}))
	b.ok(other.CreateCollection(t.Context(), "x"))
	b.ok(other.Drop(t.Context()))
	b.ok(other.CreateCollection(t.Context(), "x"))
	until, err := c.Start(t.Context())
	b.ok(err)

	want := []string{
		"create d.c", "createIndexes d.c k_1", "createIndexes d.c a", "collMod d.c", "dropIndexes d.c a",
		"createIndexes d.c a", "collMod d.c",
		"renameCollection d.c", "create d.u", "createIndexes d.u b",
		"createIndexes d.u b", "identity d.u", "createIndexes d.u z", // copies are made with the indexes that there are
		"createIndexes d.u b", "createIndexes d.u z", "identity d.u", "drop d.u", "create d.u", "drop d." + name,
		"create d." + name,
		"createIndexes d." + name + " _id_hashed", "create e.x", "drop e.x", "dropDatabase e", "create e.x",
	}
	if version == "4.4" {
		want = slices.DeleteFunc(want, func(s string) bool { return s == "renameCollection d.c" })
	}
	var got, raw []string
	documents := 0
	count := wrap(shards.NewChangeFilter(nil), func(_ context.Context, batch *stream.Batch) error {
		got = append(got, changes(batch)...)
		for _, ev := range batch.Events {
			if ev.Kind == stream.Insert {
				documents++
			}
		}
		return nil
	})
	err = c.Source(oplog.Options{}, merge.Options{}).Run(t.Context(), start,
		func(ctx context.Context, batch *stream.Batch) error {
			raw = append(raw, changes(batch)...)
			if err := count(ctx, batch); err != nil {
				return err
			}
			if batch.End.Before(until.At) {
				return nil
			}
			return errReached
		})
	if !errors.Is(err, errReached) {
		t.Fatal(err)
	}
	t.Logf("%d changes of %d that shards reported", len(got), len(raw))
	if !slices.Equal(got, want) {
		t.Errorf("got\n\t%s\nwant\n\t%s\nof\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"),
			strings.Join(raw, "\n\t"))
	}
	if documents != 8 {
		t.Errorf("%d inserts, want 8", documents)
	}
}

// changes names the schema changes of a batch.
func changes(b *stream.Batch) (all []string) {
	for _, ev := range b.Events {
		if ev.Kind != stream.SchemaChange || strings.HasPrefix(ev.NS, "config.") {
			continue
		}
		s := string(ev.Change.Kind) + " " + ev.Change.NS
		for _, ix := range ev.Change.Indexes {
			s += " " + ix.Name
		}
		all = append(all, s)
	}
	return all
}

// TestOnceMoves: the collections that are there when the stream begins are known, a
// move of a database that comes to nothing is nothing, and what is gone is forgotten.
func TestOnceMoves(t *testing.T) {
	id := func(n uint32) bson.Binary {
		return bson.Binary{Subtype: 4, Data: binary.BigEndian.AppendUint32(make([]byte, 12), n)}
	}
	once := shards.NewChangeFilter([]shards.Collection{{NS: "d.u", UUID: id(1)}})
	happened := func(kind stream.ChangeKind, ns string, n uint32, indexes ...stream.Index) bool {
		news := false
		b := &stream.Batch{Events: []stream.Event{{Kind: stream.SchemaChange, NS: ns,
			Change: &stream.Change{Kind: kind, NS: ns, UUID: id(n), Indexes: indexes}}}}
		err := wrap(once, func(_ context.Context, b *stream.Batch) error {
			news = len(b.Events) > 0
			return nil
		})(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		return news
	}
	ix := stream.Index{Name: "a", Spec: bson.Raw{5, 0, 0, 0, 0}}
	for i, step := range []struct {
		news bool
		want bool
	}{
		{happened(stream.ChangeCreate, "d.u", 2), false},           // a copy
		{happened(stream.ChangeCreateIndexes, "d.u", 2, ix), true}, // its own, or a user's
		{happened(stream.ChangeDrop, "d.u", 2), false},             // that came to nothing
		{happened(stream.ChangeCreate, "d.u", 3), false},
		{happened(stream.ChangeDrop, "d.u", 1), true}, // the old one: another UUID, which a position has to have
		{happened(stream.ChangeCreateIndexes, "d.u", 3, stream.Index{Name: "b", Spec: ix.Spec}), true},
		{happened(stream.ChangeDrop, "d.u", 3), true},
		{happened(stream.ChangeDrop, "d.u", 3), false},
		{happened(stream.ChangeCreate, "d.u", 4), true},
		{happened(stream.ChangeCreateIndexes, "d."+"system.resharding.x", 9, ix), false},
	} {
		if step.news != step.want {
			t.Errorf("step %d: news is %t", i, step.news)
		}
	}
	hides := func() bool {
		b := &stream.Batch{Events: []stream.Event{{Kind: stream.SchemaChange, NS: "d.u",
			Change: &stream.Change{Kind: stream.ChangeCollMod, NS: "d.u", UUID: id(4), Options: bson.Raw{5, 0, 0, 0, 0}}}}}
		if err := wrap(once, func(context.Context, *stream.Batch) error { return nil })(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		return len(b.Events) > 0
	}
	if !happened(stream.ChangeCreateIndexes, "d.u", 4, ix) || !hides() || hides() ||
		!happened(stream.ChangeDropIndexes, "d.u", 4, ix) || !happened(stream.ChangeCreateIndexes, "d.u", 4, ix) || !hides() {
		t.Error("a collMod is not reported again for an index that was made anew")
	}
	b := &stream.Batch{Events: []stream.Event{{Kind: stream.SchemaChange, NS: "d.v",
		Change: &stream.Change{Kind: stream.ChangeRename, NS: "d.v", To: "d.u", UUID: id(8)}}}}
	for _, want := range []int{1, 0} { // of the first shard, which had nothing of that name, and of the next
		b := &stream.Batch{Events: slices.Clone(b.Events)}
		if err := wrap(once, func(_ context.Context, b *stream.Batch) error {
			if len(b.Events) != want || want > 0 && !b.Events[0].Change.DropTarget {
				t.Errorf("a rename: %+v", b.Events)
			}
			return nil
		})(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	if happened(stream.ChangeDrop, "d.u", 4) {
		t.Error("what a rename has replaced is dropped once more")
	}
	for n := uint32(100); n < 30_000; n++ {
		if !happened(stream.ChangeCreate, "d.x", n) || !happened(stream.ChangeDrop, "d.x", n) {
			t.Fatal(n)
		}
	}
	if known := once.Known(); known > 10_010 {
		t.Errorf("%d collections are known", known)
	}
}

// TestDropsCountOnTheDatabasesShard: a drop is a user's where the database is, and the
// end of a move elsewhere, also where a move that died has left a copy behind.
func TestDropsCountOnTheDatabasesShard(t *testing.T) {
	id := func(n byte) bson.Binary { return bson.Binary{Subtype: 4, Data: append(make([]byte, 15), n)} }
	for _, c := range []struct {
		name     string
		sure     bool
		happened []stream.Change
		want     string
	}{
		{"dropped by a user, a copy is left", true, []stream.Change{{Kind: stream.ChangeCreate, UUID: id(2), Shard: "s1"},
			{Kind: stream.ChangeDrop, UUID: id(1), Shard: "s0"}}, "drop"},
		{"moved before the stream began", true, []stream.Change{{Kind: stream.ChangeDrop, UUID: id(1), Shard: "s1"}}, ""},
		{"moved", true, []stream.Change{{Kind: stream.ChangeCreate, UUID: id(2), Shard: "s0"},
			{Kind: stream.ChangeDrop, UUID: id(1), Shard: "s1"}}, "identity"},
		{"moved, then dropped", true, []stream.Change{{Kind: stream.ChangeCreate, UUID: id(2), Shard: "s0"},
			{Kind: stream.ChangeDrop, UUID: id(1), Shard: "s1"},
			{Kind: stream.ChangeDrop, UUID: id(2), Shard: "s0"}}, "identity drop"},
		{"a sharded one", true, []stream.Change{{Kind: stream.ChangeDrop, UUID: id(1), Shard: "s1"},
			{Kind: stream.ChangeDrop, UUID: id(1), Shard: "s2"},
			{Kind: stream.ChangeDrop, UUID: id(1), Shard: "s0"}}, "drop"},
		{"views that moved", true, []stream.Change{{Kind: stream.ChangeDropAllViews, Shard: "s1"}}, ""},
		{"views that a user drops", true, []stream.Change{{Kind: stream.ChangeDropAllViews, Shard: "s0"}}, "dropAllViews"},
		{"long ago, moved", false, []stream.Change{{Kind: stream.ChangeCreate, UUID: id(2), Shard: "s0"},
			{Kind: stream.ChangeDrop, UUID: id(1), Shard: "s1"}}, "identity"},
		{"long ago, moved, and the database is back", false,
			[]stream.Change{{Kind: stream.ChangeCreate, UUID: id(2), Shard: "s1"},
				{Kind: stream.ChangeDrop, UUID: id(1), Shard: "s0"}}, "error"},
		{"long ago, dropped", false, []stream.Change{{Kind: stream.ChangeDrop, UUID: id(1), Shard: "s0"}}, "drop"},
		{"long ago, nobody knows", false, []stream.Change{{Kind: stream.ChangeDrop, UUID: id(1), Shard: "s1"}}, "error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			once := shards.NewChangeFilter([]shards.Collection{{NS: "d.u", UUID: id(1)}})
			once.Primary(func(context.Context, string, mongo.OpTime) (string, bool, error) { return "s0", c.sure, nil })
			var got []string
			for _, ch := range c.happened {
				ch.NS = "d.u"
				b := &stream.Batch{Events: []stream.Event{{Kind: stream.SchemaChange, NS: ch.NS, Change: &ch}}}
				err := wrap(once, func(_ context.Context, b *stream.Batch) error {
					for _, ev := range b.Events {
						got = append(got, string(ev.Change.Kind))
					}
					return nil
				})(t.Context(), b)
				if err != nil {
					got = append(got, "error")
				}
			}
			if text := strings.Join(got, " "); strings.TrimPrefix(text, "create ") != c.want {
				t.Errorf("%s, want %s", text, c.want)
			}
		})
	}
}

// wrap filters batches before emit.
func wrap(f *shards.ChangeFilter,
	emit func(context.Context, *stream.Batch) error) func(context.Context, *stream.Batch) error {
	return func(ctx context.Context, b *stream.Batch) (err error) {
		b.Events = slices.DeleteFunc(b.Events, func(ev stream.Event) bool {
			if ev.Kind != stream.SchemaChange || err != nil {
				return false
			}
			var passes bool
			passes, err = f.Passes(ctx, &ev)
			return !passes
		})
		return errors.Join(err, emit(ctx, b))
	}
}
