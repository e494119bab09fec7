package oplog

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/dial"
	"github.com/millrace/millrace/workshop/lab"
)

// sharedURI is the replica set of one member that most tests share; each test
// uses a database of its own.
var sharedURI string

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	flag.Parse()
	if flag.Lookup("test.fuzz").Value.String() != "" || lab.Short() {
		return m.Run() // in many processes, none of which needs a server
	}
	o := testServer("")
	o.CacheGB = 2 // one test has a transaction of 64 MB, beside those that others leave open
	c, err := lab.Start(context.Background(), o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = c.Stop() }()
	sharedURI = c.URI()
	return m.Run()
}

// testServer describes a server on which transactions can be prepared and
// failures be provoked.
func testServer(version string) lab.Options {
	return lab.Options{Version: version, LeanJournal: true, SetParameters: map[string]string{
		"enableTestCommands": "1", "ttlMonitorSleepSecs": "1",
	}}
}

// connect opens a cluster for the time of the test.
func connect(t testing.TB, uri string) *mongo.Cluster {
	lab.NeedServers(t)
	return dial.Cluster(t, uri, mongo.Options{AppName: t.Name()})
}

// position waits until everything written is majority-committed and returns
// the newest position.
func position(t testing.TB, c *mongo.Cluster) mongo.OpTime {
	t.Helper()
	first, err := c.Positions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for p := first; p.Majority.Before(first.Last); {
		time.Sleep(time.Millisecond)
		if p, err = c.Positions(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return first.Last
}

func from(p mongo.OpTime) stream.Position { return Position(p, p) }

// errReached ends a run.
var errReached = errors.New("reached")

// read runs a source until a batch ends at or after until, checks what must
// hold of every run's batches, and returns them.
func read(t testing.TB, c *mongo.Cluster, o Options, pos stream.Position, until mongo.OpTime) []*stream.Batch {
	t.Helper()
	bs, err := readOr(t, New(c, o), pos, until)
	if err != nil {
		t.Fatalf("read from %+v: %v (hint: %s)", pos, err, mongo.HintOf(err))
	}
	return bs
}

func readOr(t testing.TB, o *Source, pos stream.Position, until mongo.OpTime) ([]*stream.Batch, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	var bs []*stream.Batch
	err := o.Run(ctx, pos, func(_ context.Context, b *stream.Batch) error {
		bs = append(bs, b)
		if until.IsZero() || b.End.Before(until) {
			return nil
		}
		return errReached
	})
	checkBatches(t, bs, pos)
	if errors.Is(err, errReached) {
		err = nil
	}
	return bs, err
}

// checkBatches checks contiguity, order and the ends of partial batches.
func checkBatches(t testing.TB, bs []*stream.Batch, pos stream.Position) {
	t.Helper()
	end, at := pos.At, pos.At
	var commit mongo.OpTime // of the entry that is delivered in parts
	for i, b := range bs {
		if b.Start != end {
			t.Fatalf("batch %d starts at %s, the one before ended at %s", i, b.Start, end)
		}
		if b.End.Before(b.Start) || b.End.Before(openAt(t, b)) {
			t.Fatalf("batch %d: start %s, end %s, open %s", i, b.Start, b.End, openAt(t, b))
		}
		if !b.End.Before(commit) {
			commit = mongo.OpTime{}
		}
		for _, ev := range b.Events {
			if ev.At.Before(at) || !pos.At.Before(ev.At) {
				t.Fatalf("batch %d: event at %s after one at %s, applied %s", i, ev.At, at, pos.At)
			}
			at = ev.At
			if b.End.Before(at) {
				if !b.Partial || !commit.IsZero() && commit != at {
					t.Fatalf("batch %d: event at %s beyond its end %s", i, at, b.End)
				}
				commit = at
			}
		}
		end = b.End
	}
}

// events formats the events of batches, one a line.
func events(bs []*stream.Batch) []string {
	var out []string
	for _, b := range bs {
		for _, ev := range b.Events {
			out = append(out, format(ev))
		}
	}
	return out
}

func format(ev stream.Event) string {
	if ev.Kind == stream.SchemaChange {
		return fmt.Sprintf("schema %s %s", ev.Change.Kind, ev.NS)
	}
	if len(ev.Doc) > 1<<20 {
		ev.Doc = nil
	}
	s := fmt.Sprintf("%s %s %s", map[stream.Kind]string{stream.Insert: "insert", stream.Update: "update",
		stream.Replace: "update", stream.Delete: "delete", stream.Put: "put", stream.Upsert: "upsert"}[ev.Kind], ev.NS,
		shorten(ev.Key.ID.String()))
	if ev.Doc != nil {
		s += " " + shorten(ev.Doc.String())
	}
	return s
}

// shorten makes extended JSON readable and cuts filler.
func shorten(s string) string {
	s = strings.NewReplacer(`{"$numberInt":"`, "", `"}`, "", " ", "").Replace(s)
	if i := strings.Index(s, "xxxxxxxx"); i >= 0 {
		s = s[:i] + strings.TrimLeft(s[i:], "x")
	}
	return s
}

// withAt formats events with their positions.
func withAt(bs []*stream.Batch) []string {
	var out []string
	for _, b := range bs {
		for _, ev := range b.Events {
			out = append(out, ev.At.String()+" "+format(ev))
		}
	}
	return out
}

// only keeps the namespaces of one database.
func only(db string) func(string) bool {
	return func(ns string) bool { return strings.HasPrefix(ns, db+".") }
}

// schemaOf drops schema changes of other databases, as the consumer's rules do.
func schemaOf(db string, lines []string) []string {
	return slices.DeleteFunc(lines, func(s string) bool {
		if !strings.Contains(s, "schema ") {
			return false
		}
		f := strings.Fields(s)
		ns := f[len(f)-1]
		return ns != db && !strings.HasPrefix(ns, db+".")
	})
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// transaction is one open transaction, driven step by step.
type transaction struct {
	t   testing.TB
	c   *mongo.Cluster
	s   *driver.Session
	ctx context.Context
}

func begin(t testing.TB, c *mongo.Cluster) *transaction {
	t.Helper()
	s, err := c.Client.StartSession()
	ok(t, err)
	t.Cleanup(func() { s.EndSession(context.WithoutCancel(t.Context())) })
	ok(t, s.StartTransaction())
	return &transaction{t: t, c: c, s: s, ctx: driver.NewSessionContext(t.Context(), s)}
}

func (x *transaction) insert(db, coll string, docs ...any) *transaction {
	x.t.Helper()
	_, err := x.c.Client.Database(db).Collection(coll).InsertMany(x.ctx, docs)
	ok(x.t, err)
	return x
}

func (x *transaction) commit() {
	x.t.Helper()
	ok(x.t, x.s.CommitTransaction(x.ctx))
}

func (x *transaction) abort() {
	x.t.Helper()
	ok(x.t, x.s.AbortTransaction(x.ctx))
}

// prepare prepares the transaction as a coordinator of several shards does,
// and returns its commit function.
func (x *transaction) prepare() (commit func()) {
	x.t.Helper()
	admin := x.c.Client.Database("admin")
	var r struct {
		TS bson.Timestamp `bson:"prepareTimestamp"`
	}
	ok(x.t, admin.RunCommand(x.ctx, bson.D{{Key: "prepareTransaction", Value: 1}}).Decode(&r))
	return func() {
		x.t.Helper()
		for {
			err := admin.RunCommand(x.ctx, bson.D{{Key: "commitTransaction", Value: 1},
				{Key: "commitTimestamp", Value: r.TS}}).Err()
			if err == nil {
				return
			}
			// Before 5.0 the prepare entry has to be majority-committed first.
			if !mongo.IsCode(err, 72) || !strings.Contains(err.Error(), "majority") {
				x.t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
	}
}

func doc(id any, more ...any) bson.D {
	d := bson.D{{Key: "_id", Value: id}}
	for i := 0; i+1 < len(more); i += 2 {
		d = append(d, bson.E{Key: more[i].(string), Value: more[i+1]})
	}
	return d
}

// openAt is the first entry of the oldest transaction open at a batch's end, that
// end if there is none.
func openAt(t testing.TB, b *stream.Batch) mongo.OpTime {
	t.Helper()
	at, err := ReadFrom(b.Resume())
	if err != nil {
		t.Fatal(err)
	}
	return at
}
