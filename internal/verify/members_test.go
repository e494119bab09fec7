package verify

import (
	"os"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/test/dial"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// TestMembersDiffer: the members of the source have other record ids than each
// other. Whichever are read, every document that only the source has is found.
func TestMembersDiffer(t *testing.T) {
	if testing.Short() {
		t.Skip("starts servers")
	}
	l := lab.ForTest(t, lab.Options{Topology: "rs:3"})
	src := connect(t, l.URI(), nil)
	dst := cluster(t, "6.0", "rs:1")
	b := newBed(t, src, dst)
	db, coll := mongo.SplitNS(b.pair.Source)
	var docs, target []bson.Raw
	want := map[string]expectation{}
	for i := range 4000 {
		d := kit.Raw(bson.D{{Key: "_id", Value: i}, {Key: "pad", Value: make([]byte, 200)}})
		docs = append(docs, d)
		if i >= 1500 && i%100 == 0 {
			k, _ := appendID(nil, d)
			want[string(k)] = expectation{Missing, "missing"}
		} else if i >= 1500 {
			target = append(target, d)
		}
	}
	insert(t, src, b.pair.Source, docs...)
	if _, err := src.Command(t.Context(), db, bson.D{{Key: "delete", Value: coll},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: 3}}},
		{Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id",
			Value: bson.D{{Key: "$lt", Value: 1500}}}}}, {Key: "limit", Value: 0}}}}}); err != nil {
		t.Fatal(err)
	}
	insert(t, dst, b.pair.Target, target...)
	resync(t, l)
	b.src = connect(t, l.URI(), readpref.Secondary())
	for range 8 {
		rep, _ := b.run(Options{Method: Digest, RangeBytes: 20_000, Workers: 4})
		if m := rep.Collections[0].Method; m != Digest {
			t.Errorf("compared by %s", m)
		}
		checkFound(t, rep, want)
	}
}

func connect(t *testing.T, uri string, from *readpref.ReadPref) *mongo.Cluster {
	return dial.Cluster(t, uri, mongo.Options{ReadPreference: from})
}

// resync has a secondary copy everything anew, which numbers its records from 1.
func resync(t *testing.T, l *lab.Cluster) {
	t.Helper()
	primary, err := l.Primary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := (primary + 1) % 3
	m := l.Members()[i]
	if err := m.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(m.DBPath); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(m.DBPath, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := m.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	cl, err := driver.Connect(options.Client().ApplyURI(l.DirectURI(i)))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Disconnect(t.Context())
	for end := time.Now().Add(3 * time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		raw, err := cl.Database("admin").RunCommand(t.Context(), bson.D{{Key: "isMaster", Value: 1}}).Raw()
		if err == nil && raw.Lookup("secondary").Boolean() {
			return
		}
	}
	t.Fatal("the member is no secondary yet")
}
