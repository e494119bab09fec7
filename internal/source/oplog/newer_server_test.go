package oplog

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// forge writes entries into the oplog of a server of one member, right after its entry at a position, which must not
// be its newest. While it is not a member of its set the server takes them. It never applies them, for they are older
// than its data.
func forge(t *testing.T, server *lab.Cluster, entries []bson.D) {
	t.Helper()
	m := server.Members()[0]
	ok(t, m.Stop())
	dir := t.TempDir()
	ok(t, os.Mkdir(filepath.Join(dir, "0"), 0o700))
	ok(t, os.Symlink(m.DBPath, filepath.Join(dir, "0", "db")))
	alone, err := lab.Start(t.Context(), lab.Options{Topology: "standalone", Dir: dir, LeanJournal: true})
	ok(t, err)
	client, err := driver.Connect(options.Client().ApplyURI(alone.URI()))
	ok(t, err)
	_, err = client.Database(oplogDB).Collection(oplogColl).InsertMany(t.Context(), entries)
	ok(t, err)
	ok(t, client.Disconnect(t.Context()))
	ok(t, alone.Stop())
	ok(t, m.Start(t.Context()))
}

// follows makes an entry that comes after a position.
func follows(at mongo.OpTime, n uint32, op, ns string, o bson.D, more ...bson.E) bson.D {
	return append(bson.D{{Key: "ts", Value: bson.Timestamp{T: at.TS.T, I: at.TS.I + n}}, {Key: "t", Value: at.Term},
		{Key: "v", Value: int64(2)}, {Key: "wall", Value: bson.DateTime(int64(at.TS.T) * 1000)},
		{Key: "op", Value: op}, {Key: "ns", Value: ns}, {Key: "o", Value: o}}, more...)
}

// TestForgedOplog: a real oplog with made-up entries of newer servers is read through them, with and without a filter
// on the server, and not past one that is unknown.
func TestForgedOplog(t *testing.T) {
	t.Parallel()
	lab.NeedServers(t)
	server, err := lab.Start(t.Context(), lab.Options{LeanJournal: true})
	ok(t, err)
	t.Cleanup(func() { _ = server.Stop() })
	c := connect(t, server.URI())
	coll := c.Client.Database("kept").Collection("c")
	insert := func(id any) mongo.OpTime {
		t.Helper()
		_, err := coll.InsertOne(t.Context(), doc(id))
		ok(t, err)
		return position(t, c)
	}
	// roomAfter waits for a later second, so that other entries fit between.
	roomAfter := func(at mongo.OpTime) {
		t.Helper()
		kit.Until(t, "the next second", func() bool { return insert(bson.NewObjectID()).TS.T > at.TS.T })
	}
	start := insert("first")
	_, err = c.Client.Database("other").Collection("c").InsertOne(t.Context(), doc(1))
	ok(t, err)
	a := insert("a")
	roomAfter(a)
	b := insert("b")
	roomAfter(b)
	end := insert("end")

	key := bson.D{{Key: "k", Value: int64(7)}, {Key: "v", Value: bson.Binary{Data: []byte("x")}}}
	session := []bson.E{{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}}},
		{Key: "txnNumber", Value: int64(1)}, separately(),
		{Key: "prevOpTime", Value: bson.D{{Key: "ts", Value: ts(1)}, {Key: "t", Value: int64(1)}}}}
	forge(t, server, []bson.D{
		follows(a, 1, "ci", "kept.c", key), follows(a, 2, "cu", "kept.c", key),
		follows(a, 3, "i", "kept.c", doc("with a record id"), bson.E{Key: "rid", Value: int64(7)}),
		follows(a, 4, "c", "admin.$cmd", bson.D{{Key: "applyOps", Value: bson.A{groupedOp("i", "kept.c", doc("g1")),
			groupedOp("i", "other.c", doc("g")), groupedOp("d", "kept.c", doc("a"))}}}, session...),
		follows(a, 5, "km", "kept.c", key), follows(a, 6, "cd", "kept.c", key),
		follows(a, 7, "c", "admin.$cmd", bson.D{{Key: "dropIdent", Value: "collection-7--41"}}),
		follows(b, 1, "xi", "other.c", key),
	})
	c = connect(t, server.URI())
	conn, err := c.Checkout(t.Context(), c.Reader())
	ok(t, err)
	defer conn.Release()
	id := kit.Value("g1")
	at, found, err := FindInsertion(t.Context(), conn.Run, stream.Insertion{After: start, Until: end, ID: id,
		UUID: bson.Binary{Subtype: 4, Data: make([]byte, 16)}})
	if err != nil || !found || at.TS != (bson.Timestamp{T: a.TS.T, I: a.TS.I + 4}) {
		t.Errorf("g1 was inserted at %s, %v, %v", at, found, err)
	}
	for _, prefixes := range [][]string{nil, {"kept."}} {
		f := &filter{prefixes: prefixes, newer: true}
		passing, err := c.Client.Database(oplogDB).Collection(oplogColl).CountDocuments(t.Context(),
			bson.D{{Key: "ns", Value: "other.c"}, f.passing([]string{"other.c"}, end)})
		if err != nil || passing != 1 {
			t.Errorf("prefixes %q: %d entries of other.c pass the filter, %v", prefixes, passing, err)
		}
		s := New(c, Options{Keep: only("kept"), Prefixes: prefixes, BatchBytes: 1})
		bs, err := readOr(t, s, from(start), end)
		if err == nil || !strings.Contains(err.Error(), `op "xi" on other.c: unknown kind of operation`) {
			t.Errorf("prefixes %q: %v", prefixes, err)
		}
		var got []string
		for _, line := range schemaOf("kept", events(bs)) {
			if !strings.Contains(line, "$oid") {
				got = append(got, line)
			}
		}
		kit.SameLines(t, got, []string{`insert kept.c "a" {"_id":"a`, `insert kept.c "witharecordid" {"_id":"witharecordid`,
			`insert kept.c "g1" {"_id":"g1`, `delete kept.c "a"`, `insert kept.c "b" {"_id":"b`})
	}
}
