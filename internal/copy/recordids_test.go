package copy

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/wire"
	"github.com/millrace/millrace/test/dial"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// TestMemberRestarted goes on with the copy of a collection after the member that
// was read was killed: what it had not written to its files it has applied
// again, under other record ids.
func TestMemberRestarted(t *testing.T) {
	l := lab.ForTest(t, lab.Options{})
	src := dial.Cluster(t, l.URI(), mongo.Options{})
	dst := server(t, "6.0")
	docs := mixedDocs(3000)
	insert(t, src, "killed", "c", docs[:len(docs)-200])
	must(t, src, "admin", bson.D{{Key: "fsync", Value: 1}})
	insert(t, src, "killed", "c", docs[len(docs)-200:])
	task := taskOf(source(t, src, "killed", "c"), "killed_t.c")
	store := newStore()
	if err := New(src, dst, store, small(t, src)).Run(t.Context(), []Task{task}); err != nil {
		t.Fatal(err)
	}
	missing := halfway(t, src, dst, store, len(docs))

	m := l.Members()[0]
	if err := m.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := m.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Primary(t.Context()); err != nil {
		t.Fatal(err)
	}
	kit.Until(t, "the source", func() bool { _, err := src.Positions(t.Context()); return err == nil })
	err := New(src, dst, store, small(t, src)).Run(t.Context(), []Task{task})
	for ; mongoRetry(err); err = New(src, dst, store, small(t, src)).Run(t.Context(), []Task{task}) {
		t.Log("again after:", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	same(t, dump(t, src, "killed", "c"), dump(t, dst, "killed_t", "c"))
	t.Log(missing, "documents had not been copied")
}

// halfway makes a finished copy one that has come to the middle of the last
// slice's share of the 200 newest documents. The document that it came to is
// deleted since.
func halfway(t *testing.T, src, dst *mongo.Cluster, store *memStore, n int) (missing int) {
	t.Helper()
	ids := recordIDs(t, src, "killed", "c")
	at := int64(0)
	for k, st := range store.states {
		if st.N != st.Of-1 {
			continue
		}
		lower := scan.Record(st.Lower) // drawn by the server: about the 2,800th
		if lower == 0 || lower > int64(n-10) {
			t.Fatalf("the last slice begins at record %d", lower)
		}
		at = (max(lower, int64(n-200)) + int64(n)) / 2
		id := ids[at]
		raw, err := bson.Marshal(bson.D{{Key: "r", Value: at}, {Key: "_id", Value: id}})
		if err != nil {
			t.Fatal(err)
		}
		st.Done, st.Position, st.Back = false, raw, nil
		store.states[k] = st
	}
	for _, c := range []struct {
		c  *mongo.Cluster
		db string
	}{{src, "killed"}, {dst, "killed_t"}} {
		for rid, id := range ids {
			if rid == at || rid > at && c.c == dst {
				must(t, c.c, c.db, bson.D{{Key: "delete", Value: "c"}, {Key: "deletes", Value: bson.A{bson.D{
					{Key: "q", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$eq", Value: id}}}}}, {Key: "limit", Value: 1}}}}})
				missing++
			}
		}
	}
	return missing - 1
}

// TestLife: a rollback begins another life of the same process.
func TestLife(t *testing.T) {
	l := lab.ForTest(t, lab.Options{Topology: "rs:3", Proxy: true})
	old, err := l.Primary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c := dial.Cluster(t, l.DirectURI(old), mongo.Options{})
	lives := func() (scan.Member, error) {
		conn, err := c.Pool.Checkout(t.Context(), wire.ByReadPreference(readpref.Nearest()))
		if err != nil {
			return scan.Member{}, err
		}
		defer conn.Release()
		return scan.MemberOf(t.Context(), conn)
	}
	before, err := lives()
	if again, err2 := lives(); err != nil || err2 != nil || before.Life == "" || again != before {
		t.Fatalf("%q, then %q: %v, %v", before, again, err, err2)
	}
	if err := l.Isolate(old); err != nil {
		t.Fatal(err)
	}
	must(t, c, "life", bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{}}}, w1})
	kit.Until(t, "another primary", func() bool {
		now, err := l.Primary(t.Context())
		return err == nil && now != old
	})
	if err := l.Rejoin(old); err != nil {
		t.Fatal(err)
	}
	kit.Until(t, "another life", func() bool {
		now, err := lives()
		return err == nil && now != before
	})
	after, err := lives()
	if err != nil || after.Life[:24] != before.Life[:24] {
		t.Errorf("%q, then %q: %v", before, after, err)
	}
}
