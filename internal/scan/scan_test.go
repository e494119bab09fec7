package scan

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/wire"
	"github.com/millrace/millrace/test/dial"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// servers are started on first use and shared by the package's tests.
type servers struct {
	mu  sync.Mutex
	lab map[string]*lab.Cluster
	all map[string]*mongo.Cluster
}

var shared = servers{lab: map[string]*lab.Cluster{}, all: map[string]*mongo.Cluster{}}

func TestMain(m *testing.M) {
	code := m.Run()
	for v, c := range shared.all {
		c.Close()
		if err := shared.lab[v].Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func server(t testing.TB, version string) *mongo.Cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a mongod")
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if c := shared.all[version]; c != nil {
		return c
	}
	l, err := lab.Start(context.Background(), lab.Options{Version: version, LeanJournal: true, TestCommands: true})
	if err != nil {
		t.Fatal(err)
	}
	c, err := mongo.Connect(context.Background(), l.URI(), mongo.Options{})
	if err != nil {
		_ = l.Stop()
		t.Fatal(err)
	}
	shared.lab[version], shared.all[version] = l, c
	return c
}

func must(t testing.TB, c *mongo.Cluster, db string, cmd bson.D) bson.Raw {
	t.Helper()
	raw, err := c.Command(t.Context(), db, cmd)
	if err != nil {
		t.Fatalf("%v: %v", cmd[0], err)
	}
	if errs := wire.ParseWriteResult([]byte(raw)).Errors; len(errs) > 0 {
		t.Fatalf("%v: %s", cmd[0], errs[0].Message)
	}
	return raw
}

func remove(t testing.TB, c *mongo.Cluster, db string, ids ...any) {
	t.Helper()
	var list bson.A
	for _, id := range ids {
		list = append(list, bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$eq", Value: id}}}}},
			{Key: "limit", Value: 1}})
	}
	must(t, c, db, bson.D{{Key: "delete", Value: "c"}, {Key: "deletes", Value: list}})
}

// payload is a NaN that is not the usual one.
func payload() float64 { return math.Float64frombits(0x7ff8000000000123) }

// someIDs are n _ids of many types, the extremes among them.
func someIDs(n int) []any {
	ids := []any{bson.MinKey{}, bson.MaxKey{}, payload(), math.Inf(1), true, bson.Timestamp{T: 1},
		bson.D{{Key: "a", Value: 1}}, ""}
	for i := len(ids); i < n; i++ {
		switch i % 4 {
		case 0:
			ids = append(ids, int32(i))
		case 1:
			ids = append(ids, fmt.Sprintf("s%d", i*7919))
		case 2:
			ids = append(ids, float64(i)+0.5)
		default:
			var id bson.ObjectID
			binary.BigEndian.PutUint64(id[:], uint64(i)*0x9E3779B97F4A7C15)
			ids = append(ids, id)
		}
	}
	return ids
}

// fill makes db.c with documents of these _ids and describes it.
func fill(t testing.TB, c *mongo.Cluster, db string, ids []any, create ...bson.E) *schema.Collection {
	t.Helper()
	t.Cleanup(func() { _ = c.Client.Database(db).Drop(context.Background()) })
	must(t, c, db, append(bson.D{{Key: "create", Value: "c"}}, create...))
	for part := range slices.Chunk(ids, 2000) {
		var docs bson.A
		for _, id := range part {
			docs = append(docs, bson.D{{Key: "_id", Value: id}, {Key: "pad", Value: strings.Repeat("x", 60)}})
		}
		must(t, c, db, bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: docs}})
	}
	return describe(t, c, db, "c")
}

func describe(t testing.TB, c *mongo.Cluster, db, name string) *schema.Collection {
	t.Helper()
	d := must(t, c, db, bson.D{{Key: "listCollections", Value: 1},
		{Key: "filter", Value: bson.D{{Key: "name", Value: name}}}}).
		Lookup("cursor", "firstBatch", "0").Document()
	col := &schema.Collection{NS: db + "." + name, Type: schema.TypeCollection, Options: d.Lookup("options").Document()}
	sub, uuid := d.Lookup("info", "uuid").Binary()
	col.UUID = bson.Binary{Subtype: sub, Data: uuid}
	col.IDIndex = !col.Clustered()
	col.Bytes, col.Count = SizeOf(must(t, c, db, bson.D{{Key: "collStats", Value: name}}))
	return col
}

func reader(t testing.TB, c *mongo.Cluster) *Reader {
	t.Helper()
	conn, err := c.Pool.Checkout(t.Context(), wire.Primary())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Release)
	at, err := c.Committed(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return &Reader{Conn: conn, Concern: Majority(at.TS)}
}

// given is what a walk gives of a slice: the keys of the _ids.
func given(t testing.TB, r *Reader, c *schema.Collection, s Slice, want Want) (ids []string, parts []*Part) {
	t.Helper()
	w := r.Walk(c, &s, want)
	defer w.Close(t.Context())
	for {
		p, err := w.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if p == nil {
			return ids, parts
		}
		parts = append(parts, p)
		_ = p.Each(func(doc []byte) error { ids = append(ids, idKey(bsonraw.IDOf(doc))); return nil })
		if p.Last {
			return ids, parts
		}
	}
}

func keys(t testing.TB, ids []any) (out []string) {
	t.Helper()
	for _, id := range ids {
		typ, data, err := bson.MarshalValue(id)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, idKey(bsoncore.Value{Type: bsoncore.Type(typ), Data: data}))
	}
	return out
}

// once fails the test unless each _id was given once.
func once(t testing.TB, want, got []string) {
	t.Helper()
	n := map[string]int{}
	for _, k := range got {
		n[k]++
	}
	for _, k := range want {
		if n[k] != 1 {
			t.Errorf("_id %x was given %d times", k, n[k])
		}
		delete(n, k)
	}
	for k := range n {
		t.Errorf("_id %x is none of the collection's", k)
	}
}

// failGetMore has getMores of db.c fail as those of a cursor that is gone.
func failGetMore(t testing.TB, c *mongo.Cluster, ns string, times int) {
	t.Helper()
	must(t, c, "admin", bson.D{{Key: "configureFailPoint", Value: "failCommand"},
		{Key: "mode", Value: bson.D{{Key: "times", Value: times}}},
		{Key: "data", Value: bson.D{{Key: "failCommands", Value: bson.A{"getMore"}},
			{Key: "errorCode", Value: codeCursorNotFound}, {Key: "namespace", Value: ns}}}})
}

// TestStrategies: whatever the server and the kind of collection, slices hold every
// document once, also where cursors die on the way, and a slice goes on behind any
// position that it has told.
func TestStrategies(t *testing.T) {
	ids := someIDs(1200)
	clustered := bson.E{Key: "clusteredIndex", Value: bson.D{{Key: "key", Value: bson.D{{Key: "_id", Value: 1}}},
		{Key: "unique", Value: true}}}
	collation := bson.E{Key: "collation", Value: bson.D{{Key: "locale", Value: "en"}, {Key: "strength", Value: 2}}}
	for i, tc := range []struct {
		version  string
		strategy Strategy
		create   []bson.E
	}{
		{"4.2", ByID, nil}, {"4.4", ByRecord, nil}, {"5.0", ByRecord, nil}, {"6.0", ByRecord, nil}, {"6.0", ByID, nil},
		{"6.0", ByID, []bson.E{clustered}}, {"6.0", ByID, []bson.E{collation}},
	} {
		t.Run(fmt.Sprintf("%s %s %d", tc.version, tc.strategy, len(tc.create)), func(t *testing.T) {
			c := server(t, tc.version)
			db := fmt.Sprintf("strategies%d", i)
			col := fill(t, c, db, ids, tc.create...)
			if got := ByStorage(col, c.Info); got != tc.strategy && (tc.strategy == ByRecord || col.Clustered()) {
				t.Errorf("the strategy is %s", got)
			}
			testStrategy(t, c, col, tc.strategy, keys(t, ids))
		})
	}
	for i, version := range []string{"5.0", "6.0"} {
		t.Run("buckets "+version, func(t *testing.T) {
			c := server(t, version)
			col, want := buckets(t, c, fmt.Sprintf("buckets%d", i))
			if strategy := ByStorage(col, c.Info); strategy != map[string]Strategy{"5.0": ByKey, "6.0": ByID}[version] ||
				strategy != ByOrder(col, c.Info) {
				t.Errorf("the strategy is %s", strategy)
			}
			testStrategy(t, c, col, ByStorage(col, c.Info), want)
		})
	}
}

// buckets are those of a time-series collection.
func buckets(t *testing.T, c *mongo.Cluster, db string) (*schema.Collection, []string) {
	t.Helper()
	t.Cleanup(func() { _ = c.Client.Database(db).Drop(context.Background()) })
	must(t, c, db, bson.D{{Key: "create", Value: "w"}, {Key: "timeseries",
		Value: bson.D{{Key: "timeField", Value: "t"}, {Key: "metaField", Value: "m"}}}})
	var docs bson.A
	for i := range 600 {
		docs = append(docs, bson.D{{Key: "t", Value: bson.DateTime(1.7e12 + i*1000)}, {Key: "m", Value: i}})
	}
	must(t, c, db, bson.D{{Key: "insert", Value: "w"}, {Key: "documents", Value: docs}})
	col := describe(t, c, db, mongo.BucketsPrefix+"w")
	all, _ := given(t, reader(t, c), col, Slice{Strategy: Serial}, Want{Batch: 1000})
	if len(all) != 600 {
		t.Fatalf("%d buckets", len(all))
	}
	return col, all
}

func testStrategy(t *testing.T, c *mongo.Cluster, col *schema.Collection, strategy Strategy, want []string) {
	r := reader(t, c)
	reopened := 0
	r.Reopened = func(error) { reopened++ }
	bounds, served, err := r.Cut(t.Context(), col, strategy, 9)
	if err != nil || served != strategy || len(bounds) != 8 {
		t.Fatalf("%d bounds by %s, %v", len(bounds), served, err)
	}
	plan := Slices(Slice{Strategy: strategy}, bounds)
	for _, measure := range []bool{false, true} {
		var all []string
		for _, s := range append(plan, Slice{Strategy: strategy, Done: true}) {
			failGetMore(t, c, col.NS, 2)
			ids, _ := given(t, r, col, s, Want{Batch: 20, Measure: measure})
			if s.Done { // the whole
				once(t, want, ids)
			} else {
				all = append(all, ids...)
			}
		}
		once(t, want, all)
	}
	if reopened < 2*len(plan) {
		t.Errorf("%d cursors died: the test shows nothing", reopened)
	}
	var all []string
	for _, s := range plan {
		_, parts := given(t, r, col, s, Want{Batch: 20, Measure: true})
		_ = parts[0].Each(func(doc []byte) error { all = append(all, idKey(bsonraw.IDOf(doc))); return nil })
		if parts[0].Last {
			continue
		}
		s.Advance(Progress{Position: parts[0].Position}) // of all slices, in the middle of them
		ids, _ := given(t, r, col, s, Want{Batch: 20})
		all = append(all, ids...)
	}
	once(t, want, all)
}

// TestEveryPosition goes on from each position of a slice, MaxKey included.
func TestEveryPosition(t *testing.T) {
	ids := someIDs(60)
	for _, tc := range []struct {
		version  string
		strategy Strategy
		create   []bson.E
	}{{"4.2", ByID, nil}, {"6.0", ByRecord, nil}, {"6.0", ByID, nil},
		{"6.0", ByID, []bson.E{{Key: "clusteredIndex", Value: bson.D{{Key: "key", Value: bson.D{{Key: "_id", Value: 1}}},
			{Key: "unique", Value: true}}}}}} {
		c := server(t, tc.version)
		col := fill(t, c, "positions", ids, tc.create...)
		r := reader(t, c)
		all, parts := given(t, r, col, Slice{Strategy: tc.strategy}, Want{Batch: 1, Measure: true})
		once(t, keys(t, ids), all)
		s := Slice{Strategy: tc.strategy}
		n := 0
		for _, p := range parts {
			n += p.Docs
			s.Advance(p.Progress)
			if rest, _ := given(t, r, col, s, Want{Batch: 7}); !slices.Equal(rest, all[n:]) {
				t.Errorf("%s %s: behind document %d there are %d, want %d", tc.version, tc.strategy, n, len(rest), len(all)-n)
			}
		}
		_ = c.Client.Database("positions").Drop(t.Context())
	}
}

// TestBoundsAreTaken: a collection whose sample holds the extremes gives bounds that
// the server takes.
func TestBoundsAreTaken(t *testing.T) {
	for _, version := range []string{"4.2", "6.0"} {
		c := server(t, version)
		ids := []any{bson.MinKey{}, 1, bson.MaxKey{}}
		col := fill(t, c, "extremes", ids)
		r := reader(t, c)
		bounds, _, err := r.Cut(t.Context(), col, ByID, 3)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, s := range Slices(Slice{Strategy: ByID}, bounds) {
			got, _ := given(t, r, col, s, Want{Batch: 5})
			all = append(all, got...)
		}
		once(t, keys(t, ids), all)
	}
}

// TestLocate: what is located is met again by a walk, byte for byte, whatever the
// _id; those that a query does not take are left out.
func TestLocate(t *testing.T) {
	for _, version := range []string{"4.4", "5.0", "6.0"} {
		c := server(t, version)
		ids := someIDs(140)
		col := fill(t, c, "locate", ids)
		r := reader(t, c)
		var asked []bson.RawValue
		for _, id := range ids {
			typ, data, err := bson.MarshalValue(id)
			if err != nil {
				t.Fatal(err)
			}
			asked = append(asked, bson.RawValue{Type: typ, Value: data})
		}
		marks, err := r.locate(t.Context(), col, asked)
		if err != nil {
			t.Fatal(err)
		}
		var found []string
		for _, m := range marks {
			found = append(found, idKey(markID(m)))
		}
		once(t, keys(t, ids), found)
		for _, odd := range []bson.RawValue{{Type: bson.TypeUndefined}, kit.Value(bson.D{{Key: "$foo", Value: 1}})} {
			if marks, err := r.locate(t.Context(), col, []bson.RawValue{odd}); err != nil || len(marks) > 0 {
				t.Errorf("%s: %v located, %v", odd, marks, err)
			}
		}
	}
}

// TestBoundDeleted: where the documents at a slice's bounds were deleted, and those
// near them, it gives what is left, at most with some of its neighbours'.
func TestBoundDeleted(t *testing.T) {
	c := server(t, "6.0")
	ids := someIDs(1200)
	col := fill(t, c, "deleted", ids)
	r := reader(t, c)
	bounds, _, err := r.Cut(t.Context(), col, ByRecord, 6)
	if err != nil || len(bounds) != 5 {
		t.Fatal(bounds, err)
	}
	gone := map[string]bool{}
	for _, b := range bounds[:3] { // and all places to start from in place of the first
		gone[idKey(markID(b.at))] = true
	}
	all, _ := given(t, r, col, Slice{Strategy: ByRecord}, Want{Batch: 1})
	for _, rid := range bounds[0].back {
		gone[all[rid-1]] = true
	}
	r.Concern = nil // sees the deletion at once
	for i, k := range keys(t, ids) {
		if gone[k] {
			remove(t, c, "deleted", ids[i])
		}
	}
	seen := map[string]bool{}
	for _, s := range Slices(Slice{Strategy: ByRecord}, bounds) {
		got, _ := given(t, r, col, s, Want{Batch: 20})
		for _, k := range got {
			seen[k] = true
		}
	}
	for _, k := range keys(t, ids) {
		if seen[k] == gone[k] {
			t.Errorf("_id %x: given %v, deleted %v", k, seen[k], gone[k])
		}
	}
}

// TestGrowsBehindItsEnd: what comes behind a slice's end while it is read is none of
// it, also in the last reply.
func TestGrowsBehindItsEnd(t *testing.T) {
	c := server(t, "6.0")
	col := fill(t, c, "grows", someIDs(100))
	r := reader(t, c)
	r.Concern = nil
	all, parts := given(t, r, col, Slice{Strategy: ByRecord}, Want{Batch: 1000, Measure: true})
	s := Slice{Strategy: ByRecord, Upper: parts[0].Position}
	var more bson.A
	for i := range 50 {
		more = append(more, bson.D{{Key: "_id", Value: fmt.Sprint("more", i)}})
	}
	must(t, c, "grows", bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: more}})
	remove(t, c, "grows", someIDs(20)[10]) // fewer documents than numbers
	if got, _ := given(t, r, col, s, Want{Batch: 1000}); len(got) != len(all)-1 {
		t.Errorf("%d documents, want %d", len(got), len(all)-1)
	}
}

// TestSampleRefused: without a sample there is one slice; a sample that fails by
// chance is drawn again.
func TestSampleRefused(t *testing.T) {
	c := server(t, "6.0")
	col := fill(t, c, "sample", someIDs(1000))
	r := reader(t, c)
	for _, tc := range []struct {
		code, times int
		bounds      int
	}{{mongo.CodeSampleFailed, 2, 3}, {mongo.CodeSampleFailed, 5, 0}, {292, 1, 0}} {
		must(t, c, "admin", bson.D{{Key: "configureFailPoint", Value: "failCommand"},
			{Key: "mode", Value: bson.D{{Key: "times", Value: tc.times}}},
			{Key: "data", Value: bson.D{{Key: "failCommands", Value: bson.A{"aggregate"}}, {Key: "errorCode", Value: tc.code},
				{Key: "namespace", Value: "sample.c"}}}})
		for _, strategy := range []Strategy{ByRecord, ByID} {
			if tc.bounds == 0 && strategy == ByID {
				continue // the failures are used up
			}
			if bounds, _, err := r.Cut(t.Context(), col, strategy, 4); err != nil || len(bounds) != tc.bounds {
				t.Errorf("code %d, %d times: %d bounds, %v", tc.code, tc.times, len(bounds), err)
			}
		}
	}
}

// TestCutOfRenamed: queries that a rename kills are asked again.
func TestCutOfRenamed(t *testing.T) {
	c := server(t, "6.0")
	col := fill(t, c, "renamedcut", someIDs(1000))
	r := reader(t, c)
	for _, command := range []string{"find", "aggregate"} {
		for _, strategy := range []Strategy{ByRecord, ByID} {
			must(t, c, "admin", bson.D{{Key: "configureFailPoint", Value: "failCommand"},
				{Key: "mode", Value: bson.D{{Key: "times", Value: 3}}},
				{Key: "data", Value: bson.D{{Key: "failCommands", Value: bson.A{command}},
					{Key: "errorCode", Value: mongo.CodeQueryPlanKilled}}}})
			if bounds, served, err := r.Cut(t.Context(), col, strategy, 4); err != nil || served != strategy ||
				len(bounds) != 3 {
				t.Errorf("%s, %s: %d bounds by %s, %v", command, strategy, len(bounds), served, err)
			}
		}
	}
}

// TestRecordOrderRefused: a server that does not read in record order is cut by _id.
func TestRecordOrderRefused(t *testing.T) {
	c := server(t, "4.2")
	col := fill(t, c, "refused", someIDs(500))
	bounds, strategy, err := reader(t, c).Cut(t.Context(), col, ByRecord, 4)
	if err != nil || strategy != ByID || len(bounds) != 3 {
		t.Errorf("%d bounds by %s, %v", len(bounds), strategy, err)
	}
}

// TestStrategyOfVersions: comparisons lose _ids of other types, so that they are for
// servers alone which cluster nothing but buckets.
func TestStrategyOfVersions(t *testing.T) {
	plain := &schema.Collection{IDIndex: true}
	clustered := &schema.Collection{Type: schema.TypeTimeSeries}
	bare := &schema.Collection{}
	for _, tc := range []struct {
		version        string
		kind           mongo.Kind
		col            *schema.Collection
		storage, order Strategy
	}{
		{"4.2.6", mongo.KindReplicaSet, plain, ByID, ByID}, {"4.4.0", mongo.KindReplicaSet, plain, ByRecord, ByID},
		{"6.0.5", mongo.KindStandalone, plain, ByRecord, ByID}, {"6.0.5", mongo.KindSharded, plain, ByID, ByID},
		{"5.0.4", mongo.KindReplicaSet, clustered, ByKey, ByKey}, {"5.2.1", mongo.KindReplicaSet, clustered, ByKey, ByKey},
		{"5.3.0", mongo.KindReplicaSet, clustered, ByID, ByID}, {"6.0.5", mongo.KindSharded, clustered, ByID, ByID},
		{"4.2.6", mongo.KindReplicaSet, bare, Sorted, Sorted}, {"6.0.5", mongo.KindReplicaSet, bare, ByRecord, Sorted},
	} {
		v, err := mongo.ParseVersion(tc.version)
		if err != nil {
			t.Fatal(err)
		}
		info := mongo.Info{Version: v, Kind: tc.kind}
		if s, o := ByStorage(tc.col, info), ByOrder(tc.col, info); s != tc.storage || o != tc.order {
			t.Errorf("%s: by storage %s, by order %s; want %s, %s", tc.version, s, o, tc.storage, tc.order)
		}
	}
}

// TestReplyWithoutEnd: a slice whose last document was deleted after the cutting
// gives the rest of the reply too: some documents twice, none never.
func TestReplyWithoutEnd(t *testing.T) {
	var elements []byte
	var ids []bsoncore.Value
	for i := range 5 {
		doc, err := bson.Marshal(bson.D{{Key: "_id", Value: i}})
		if err != nil {
			t.Fatal(err)
		}
		elements = append(append(elements, byte(bson.TypeEmbeddedDocument), 0), doc...)
		ids = append(ids, bsonraw.IDOf(doc))
	}
	reply := func(record int64, last bool) *wire.Batch {
		b := wire.BatchOf(elements)
		b.Done = last
		if record != 0 {
			b.Token = bson.Raw(bsoncore.NewDocumentBuilder().AppendInt64("$recordId", record).Build())
		}
		return b
	}
	gone := bsoncore.Value{Type: bsoncore.TypeString, Data: bsoncore.AppendString(nil, "gone")}
	for _, tt := range []struct {
		name  string
		upper bson.Raw
		b     *wire.Batch
		docs  int
		over  bool
	}{
		{"no end", nil, reply(50, false), 5, false},
		{"before the end", mark(ByRecord, 51, ids[2]), reply(50, false), 5, false},
		{"the end within", mark(ByRecord, 48, ids[2]), reply(50, false), 3, true},
		{"the end is last", mark(ByRecord, 50, ids[4]), reply(50, false), 5, true},
		{"the end deleted", mark(ByRecord, 48, gone), reply(50, false), 5, true},
		{"the last reply", mark(ByRecord, 48, ids[1]), reply(0, true), 2, true},
		{"the last reply, the end deleted", mark(ByRecord, 60, gone), reply(50, true), 5, true},
	} {
		for _, measure := range []bool{false, true} {
			w := (&Reader{}).Walk(&schema.Collection{}, &Slice{Strategy: ByRecord, Upper: tt.upper},
				Want{Batch: 10, Measure: measure})
			p, err := w.part(tt.b)
			n := 0
			if err == nil {
				err = p.Each(func([]byte) error { n++; return nil })
			}
			if err != nil || n != tt.docs || p.Last != tt.over || measure && p.Docs != n {
				t.Errorf("%s: %d documents, over %v, error %v; want %d, %v", tt.name, n, p.Last, err, tt.docs, tt.over)
			}
		}
	}
	for _, tt := range []struct{ upper, at, want int64 }{{0, 7, 10}, {50, 7, 10}, {50, 47, 3}, {50, 50, 1}} {
		s := Slice{Strategy: ByRecord}
		if tt.upper > 0 {
			s.Upper = mark(ByRecord, tt.upper, ids[0])
		}
		w := (&Reader{}).Walk(&schema.Collection{}, &s, Want{Batch: 10})
		if w.token = tt.at; int64(w.wanted()) != tt.want {
			t.Errorf("%d documents are asked for after record %d of %d, want %d", w.wanted(), tt.at, tt.upper, tt.want)
		}
	}
	w := (&Reader{}).Walk(&schema.Collection{}, &Slice{Strategy: ByRecord}, Want{Batch: 10})
	if _, err := w.part(reply(0, false)); err == nil {
		t.Error("a reply without a resume token was taken")
	}
	n := testing.AllocsPerRun(20, func() {
		w := (&Reader{}).Walk(&schema.Collection{}, &Slice{Strategy: ByRecord}, Want{Batch: 10, Measure: true})
		if _, err := w.part(reply(50, false)); err != nil {
			t.Fatal(err)
		}
	})
	if n > 12 {
		t.Errorf("%.0f allocations a reply", n)
	}
}

// TestChoose: bounds are distinct, ascending and no more than asked for.
func TestChoose(t *testing.T) {
	var marks []bson.Raw
	for i := range 7 {
		marks = append(marks, mark(ByRecord, int64(i+1), bsoncore.Value{Type: bsoncore.TypeNull}))
	}
	for n := range 12 {
		bounds := choose(marks, n)
		if len(bounds) > max(n-1, 0) || n <= len(marks)+1 && n > 0 && len(bounds) != n-1 {
			t.Errorf("%d bounds for %d slices", len(bounds), n)
		}
		last := int64(0)
		for _, b := range bounds {
			if Record(b.at) <= last || slices.ContainsFunc(b.back, func(rid int64) bool { return rid >= Record(b.at) }) {
				t.Errorf("%d: bound %d after %d, back %v", n, Record(b.at), last, b.back)
			}
			last = Record(b.at)
		}
	}
	if got := choose(nil, math.MaxInt8); len(got) != 0 {
		t.Error(got)
	}
}

// TestAdvance: recent positions are remembered, and the far ones of the plan.
func TestAdvance(t *testing.T) {
	at := func(rid int64) bson.Raw { return mark(ByRecord, rid, bsoncore.Value{Type: bsoncore.TypeNull}) }
	s := Slice{Strategy: ByRecord, Lower: at(100), Back: []int64{90, 80, 70, 60, 50, 40, 30, 20}}
	for i := range int64(30) {
		before := s
		kept := slices.Clone(before.Back)
		s.Advance(Progress{Position: at(1000 + i)})
		if !slices.Equal(before.Back, kept) {
			t.Fatal("a saved state has changed")
		}
		s.Advance(Progress{})
	}
	if want := []int64{1028, 1027, 1026, 1025, 1024, 1023, 1022, 90, 80, 70, 60, 50, 40, 30,
		20}; Record(s.Position) != 1029 || !slices.Equal(s.Back, want) {
		t.Errorf("at %d, back %v", Record(s.Position), s.Back)
	}
}

// TestStoredSlice: what an earlier version has stored means the same.
func TestStoredSlice(t *testing.T) {
	stored, err := bson.Marshal(bson.D{{Key: "collection", Value: "ab"}, {Key: "n", Value: 1}, {Key: "of", Value: 3},
		{Key: "plan", Value: int64(2)},
		{Key: "ns", Value: "a.b"}, {Key: "strategy", Value: "record"}, {Key: "node", Value: "h:1"},
		{Key: "life", Value: "x/1"},
		{Key: "lower", Value: bson.D{{Key: "r", Value: int64(5)}, {Key: "_id", Value: 1}}},
		{Key: "back", Value: bson.A{int64(4)}},
		{Key: "done", Value: false}, {Key: "docs", Value: int64(7)}, {Key: "bytes", Value: int64(8)}})
	if err != nil {
		t.Fatal(err)
	}
	var s Slice
	if err := bson.Unmarshal(stored, &s); err != nil {
		t.Fatal(err)
	}
	if s.N != 1 || s.Member != (Member{"h:1", "x/1"}) || Record(s.Lower) != 5 || s.Back[0] != 4 || s.Docs != 7 ||
		s.Bytes != 8 {
		t.Errorf("%+v", s)
	}
	again, err := bson.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range []string{"collection", "n", "of", "plan", "ns", "strategy", "node", "life", "lower", "back", "done",
		"docs", "bytes"} {
		if was, is := bson.Raw(stored).Lookup(e), bson.Raw(again).Lookup(e); was.String() != is.String() &&
			is.String() != was.String() {
			t.Errorf("%s is %s, was %s", e, is, was)
		}
	}
}

// TestMemberLives: record ids are void when the member was restarted.
func TestMemberLives(t *testing.T) {
	l := lab.ForTest(t, lab.Options{})
	c := dial.Cluster(t, l.URI(), mongo.Options{})
	ask := func(fn func(conn *wire.Conn) error) error {
		conn, err := c.Pool.Checkout(t.Context(), wire.ByReadPreference(readpref.Nearest()))
		if err != nil {
			return err
		}
		defer conn.Release()
		return fn(conn)
	}
	var m Member
	err := ask(func(conn *wire.Conn) (err error) { m, err = MemberOf(t.Context(), conn); return err })
	if err != nil || m.Life == "" {
		t.Fatal(m, err)
	}
	lives := func(conn *wire.Conn) error { return m.Lives(t.Context(), conn) }
	if err := ask(lives); err != nil {
		t.Error(err)
	}
	if err := l.Members()[0].Kill(); err != nil {
		t.Fatal(err)
	}
	if err := l.Members()[0].Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Primary(t.Context()); err != nil {
		t.Fatal(err)
	}
	for {
		err := ask(lives)
		if err == nil {
			t.Fatal("another life is taken for the same")
		}
		if strings.Contains(err.Error(), "restarted") {
			if mongo.Classify(err) != mongo.ClassRetry {
				t.Errorf("%v is of class %s", err, mongo.Classify(err))
			}
			return
		}
	}
}
