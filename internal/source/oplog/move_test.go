package oplog

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// stalled is when a server stands still: after it has logged a copy's name, and before the
// drop that ends the rename.
const stalled = "hangDropCollectionBeforeLockAcquisition"

// moving is a rename between databases of a server that stands still.
type moving struct {
	t     *testing.T
	c     *mongo.Cluster
	name  string // of the source's database
	start mongo.OpTime
	ended chan error
}

// move begins to rename a collection of so many documents, and calls meanwhile until the
// server stands still. Another database has a collection with as many documents.
func move(t *testing.T, c *mongo.Cluster, docs int, meanwhile func(*moving)) *moving {
	t.Helper()
	m := &moving{t: t, c: c, name: "move" + bson.NewObjectID().Hex()[16:], ended: make(chan error, 1)}
	m.fill(m.name, docs)
	m.fill(m.other(), docs)
	m.start = position(t, c)
	m.fill(m.name+"w", 300) // from here on a filter leaves out what is not kept
	m.stall("alwaysOn")
	go func() {
		m.ended <- c.Client.Database("admin").RunCommand(t.Context(),
			bson.D{{Key: "renameCollection", Value: m.name + ".c"}, {Key: "to", Value: m.name + "x.c"}}).Err()
	}()
	for {
		meanwhile(m)
		n, err := c.Client.Database("local").Collection("oplog.rs").CountDocuments(t.Context(), m.entry())
		if ok(t, err); n == 1 {
			return m
		}
	}
}

func (m *moving) other() string { return m.name + "y" }

// entry is a filter for the entry by which the copy gets its name.
func (m *moving) entry() bson.D {
	return bson.D{{Key: "ts", Value: bson.D{{Key: "$gt", Value: m.start.TS}}}, {Key: "o.to", Value: m.name + "x.c"}}
}

func (m *moving) stall(mode string) {
	m.t.Helper()
	ok(m.t, m.c.Client.Database("admin").RunCommand(m.t.Context(),
		bson.D{{Key: "configureFailPoint", Value: stalled}, {Key: "mode", Value: mode}}).Err())
}

// dropped drops another database: that does not stand still.
func (m *moving) dropped(db string) {
	m.t.Helper()
	ok(m.t, m.c.Client.Database(db).Drop(m.t.Context()))
}

func (m *moving) fill(db string, docs int) {
	m.t.Helper()
	ok(m.t, m.c.Client.Database(db).CreateCollection(m.t.Context(), "c"))
	var list []any
	for i := range docs {
		list = append(list, doc(i))
	}
	if docs > 0 {
		_, err := m.c.Client.Database(db).Collection("c").InsertMany(m.t.Context(), list)
		ok(m.t, err)
	}
}

// renamed lets the server go on, and reads from which name the rename was.
func (m *moving) renamed() (from string, err error) {
	m.t.Helper()
	m.stall("off")
	ok(m.t, <-m.ended)
	end := position(m.t, m.c)
	o := Options{Keep: func(ns string) bool { return strings.HasPrefix(ns, m.name) }, JoinRenames: true}
	from, err = m.read(New(m.c, o), end)
	o.Prefixes = []string{m.name + ".", m.name + "x."}
	o.Keep = func(ns string) bool {
		return slices.ContainsFunc(o.Prefixes, func(p string) bool { return strings.HasPrefix(ns, p) })
	}
	filtered := New(m.c, o)
	filtered.sample = 1
	if again, fails := m.read(filtered, end); again != from || (fails == nil) != (err == nil) {
		m.t.Errorf("with a filter: renamed from %q, %v; without: %q, %v", again, fails, from, err)
	}
	return from, err
}

func (m *moving) read(o *Source, end mongo.OpTime) (from string, err error) {
	bs, err := readOr(m.t, o, Position(m.start, m.start), end)
	for _, b := range bs {
		for _, ev := range b.Events {
			if ev.Kind == stream.SchemaChange && ev.Change.Kind == stream.ChangeRename {
				from += ev.NS
			}
		}
	}
	return from, err
}

// wall is when the copy's name was logged, in milliseconds.
func (m *moving) wall() int64 {
	m.t.Helper()
	var e struct {
		Wall bson.DateTime `bson:"wall"`
	}
	ok(m.t, m.c.Client.Database("local").Collection("oplog.rs").FindOne(m.t.Context(), m.entry()).Decode(&e))
	return int64(e.Wall)
}

// awaitClock waits until the server's clock has come to a time, in milliseconds.
func (m *moving) awaitClock(until int64) {
	m.t.Helper()
	var r struct {
		LocalTime bson.DateTime `bson:"localTime"`
	}
	for int64(r.LocalTime) <= until {
		ok(m.t, m.c.Client.Database("admin").RunCommand(m.t.Context(), bson.D{{Key: "isMaster", Value: 1}}).Decode(&r))
	}
}

// TestMovesInDoubt: a server stands still between the two entries of a rename between
// databases, and another drop comes first. What the oplog proves tells it apart, or
// the source stops.
func TestMovesInDoubt(t *testing.T) {
	t.Parallel()
	for _, v := range lab.Versions("4.2", "4.4", "5.0") {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			movesInDoubt(t, connect(t, lab.ForTest(t, testServer(v)).URI()))
		})
	}
}

func movesInDoubt(t *testing.T, c *mongo.Cluster) {
	t.Helper()
	nothing := func(*moving) {}
	wants := func(what string, m *moving) {
		t.Helper()
		if from, err := m.renamed(); err != nil || from != m.name+".c" {
			t.Errorf("%s: renamed from %q, %v; want %s.c", what, from, err, m.name)
		}
	}
	m := move(t, c, 5, nothing)
	wants("alone", m)

	m = move(t, c, 0, nothing)
	m.fill(m.name+"z", 3)
	m.dropped(m.name + "z")
	wants("one with documents, of an empty one", m)

	m = move(t, c, 3, nothing)
	m.fill(m.name+"z", 3)
	m.dropped(m.name + "z")
	wants("one that was created after the copy", m)

	m = move(t, c, 8000, func(m *moving) {
		_, err := c.Client.Database(m.other()).Collection("c").UpdateOne(t.Context(), doc(1),
			bson.D{{Key: "$inc", Value: bson.D{{Key: "v", Value: 1}}}})
		ok(t, err)
	})
	m.dropped(m.other())
	wants("one that was written to during the copy", m)

	m = move(t, c, 3, nothing)
	logged := m.wall()
	m.awaitClock(logged + doubt)
	m.dropped(m.other())
	m.awaitClock(logged + 3*doubt)
	if from, err := m.renamed(); err == nil || !strings.Contains(err.Error(), "cannot determine whether the drop of") {
		t.Errorf("a server that stood still: renamed from %q, %v", from, err)
	}
}

// TestMoveOfChangedSource: the source was written to between the copy and its drop, which
// then counts other documents than were copied.
func TestMoveOfChangedSource(t *testing.T) {
	id := func(n byte) bson.E {
		return bson.E{Key: "ui", Value: bson.Binary{Subtype: 4, Data: slices.Repeat([]byte{n}, 16)}}
	}
	at := uint32(1)
	var got []string
	a := offline(discard, Options{JoinRenames: true, Keep: func(string) bool { return true }})
	entry := func(op, ns string, o bson.D, more ...bson.E) error {
		t.Helper()
		at++
		d := bson.D{{Key: "op", Value: op}, {Key: "ns", Value: ns}, {Key: "o", Value: o}, {Key: "ts", Value: ts(at)},
			{Key: "t", Value: int64(1)}, {Key: "wall", Value: bson.DateTime(1_000_000)}}
		return a.entry(t.Context(), kit.Raw(append(d, more...)))
	}
	records := func(n int64) bson.E { return bson.E{Key: "o2", Value: bson.D{{Key: "numRecords", Value: n}}} }
	const copied = "tmpABCDE.renameCollection"
	ok(t, entry("c", "x.$cmd", bson.D{{Key: "create", Value: copied}}, id(9)))
	for i := range 3 {
		ok(t, entry("i", "x."+copied, doc(i), id(9)))
	}
	ok(t, entry("i", "d.c", doc(7), id(1)))
	ok(t, entry("c", "x.$cmd", bson.D{{Key: "renameCollection", Value: "x." + copied}, {Key: "to", Value: "x.c"}}, id(9)))
	ok(t, entry("i", "d.c", doc(8), id(1)))
	ok(t, entry("c", "admin.$cmd", bson.D{{Key: "applyOps", Value: bson.A{
		bson.D{{Key: "op", Value: "d"}, {Key: "ns", Value: "d.c"}, id(1), {Key: "o", Value: doc(7)}},
	}}}, bson.E{Key: "lsid", Value: doc(1)}, bson.E{Key: "txnNumber", Value: int64(1)}))
	ok(t, entry("c", "d.$cmd", bson.D{{Key: "drop", Value: "c"}}, id(1), records(4)))
	for _, ev := range a.events {
		if ev.Kind == stream.SchemaChange && ev.Change.Kind == stream.ChangeRename {
			got = append(got, ev.NS+" to "+ev.Change.To)
		}
	}
	if fmt.Sprint(got) != "[d.c to x.c]" {
		t.Errorf("%v", got)
	}
}

// TestMoveLapses: whether a drop can still belong to a rename depends on the server's clock.
// The cluster's time jumps ahead where a member whose clock is ahead is elected or a client
// tells of it, and then stands still until the clock has caught up.
func TestMoveLapses(t *testing.T) {
	one := moved{at: mongo.OpTime{TS: bson.Timestamp{T: 1000}, Term: 1}, wall: 1000_000, db: "to"}
	for _, c := range []struct {
		name string
		t    uint32
		wall int64
		over bool
	}{
		{"at once", 1000, 1000_020, false},
		{"later", 1011, 1011_000, true},
		{"the time jumps ahead", 4600, 1000_020, false},
		{"the time stands still", 1000, 1011_000, true},
	} {
		e := &entry{at: mongo.OpTime{TS: bson.Timestamp{T: c.t}, Term: 1}, wall: c.wall}
		if over := one.over(e, &nsInfo{db: "from"}); over != c.over {
			t.Errorf("%s: over %t", c.name, over)
		}
	}
}

// TestFilterAfterSpool: a rename between databases in the spool comes after the source has decided for a filter. It
// reads on from there, and nothing twice.
func TestFilterAfterSpool(t *testing.T) {
	c := connect(t, sharedURI)
	nothing := func(*moving) {}
	m := move(t, c, 3, nothing)
	m.stall("off")
	ok(t, <-m.ended)
	m.fill(m.name+"z", 3)
	end := position(t, c)
	prefixes := []string{m.name + ".", m.name + "x."}
	o := Options{JoinRenames: true, Prefixes: prefixes, Keep: func(ns string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(ns, p) })
	}}
	want := withAt(read(t, c, o, from(m.start), end))
	o.Spool = fillSpool(t, c, m.start, end)
	filtered := New(c, o)
	filtered.sample = 1
	bs, err := readOr(t, filtered, from(m.start), end)
	ok(t, err)
	kit.SameLines(t, withAt(bs), want)
}
