package scan

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/wire"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/routed"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// routedBed is a sharded cluster of two shards that is read through its router.
type routedBed struct{ *routed.Bed }

func newRoutedBed(t *testing.T) routedBed {
	t.Helper()
	b := routedBed{routed.New(t, sharded.Options{Routers: 1, Options: lab.Options{Topology: "sharded:2x1",
		TestCommands: true}})}
	b.OK(b.Lab.CreateDatabase(t.Context(), "d", "s0"))
	return b
}

func byK(k int) bson.D { return bson.D{{Key: "k", Value: k}} }

// spread shards d.c by k, with the keys from 100 on on the second shard.
func (b routedBed) spread(name string) {
	b.Helper()
	must(b, b.C, "admin", bson.D{{Key: "shardCollection", Value: "d." + name}, {Key: "key", Value: byK(1)},
		{Key: "collation", Value: bson.D{{Key: "locale", Value: "simple"}}}})
	b.OK(b.Lab.Split(b.Context(), "d."+name, byK(100)))
	b.OK(b.Lab.MoveChunk(b.Context(), "d."+name, byK(100), "s1"))
}

// fill inserts documents, with twins a second one for every fifth _id, on the other shard.
func (b routedBed) fill(name string, ids []any, twins bool) *schema.Collection {
	b.Helper()
	var docs bson.A
	for i, id := range ids {
		doc := func(k int) bson.D {
			return bson.D{{Key: "_id", Value: id}, {Key: "k", Value: k}, {Key: "pad", Value: strings.Repeat("x", 60)}}
		}
		docs = append(docs, doc(i%200))
		if twins && i%5 == 0 {
			docs = append(docs, doc((i+100)%200))
		}
	}
	must(b, b.C, "d", bson.D{{Key: "insert", Value: name}, {Key: "documents", Value: docs}})
	return describe(b, b.C, "d", name)
}

func (b routedBed) reader() *Reader {
	b.Helper()
	conn, err := b.C.Pool.Checkout(b.Context(), wire.Primary())
	b.OK(err)
	b.Cleanup(conn.Release)
	at, err := b.C.ClusterTime(b.Context())
	b.OK(err)
	return &Reader{Conn: conn, Concern: Majority(at.TS), Routers: NewRouters(b.C)}
}

// documents are all of a collection, with how often each is there.
func (b routedBed) documents(name string) map[string]int {
	b.Helper()
	cur, err := b.C.Client.Database("d").Collection(name).Find(b.Context(), bson.D{})
	b.OK(err)
	all := map[string]int{}
	for cur.Next(b.Context()) {
		all[string(cur.Current)]++
	}
	b.OK(cur.Err())
	return all
}

// walked adds what a walk gives of a slice, after the first so many parts, and returns those.
func (b routedBed) walked(r *Reader, c *schema.Collection, s Slice, got map[string]int, most int) (parts []*Part) {
	b.Helper()
	w := r.Walk(c, &s, Want{Batch: 20, Measure: true})
	defer w.Close(b.Context())
	for len(parts) != most {
		p, err := w.Next(b.Context())
		b.OK(err)
		if p == nil {
			break
		}
		parts = append(parts, p)
		b.OK(p.Each(func(doc []byte) error { got[string(doc)]++; return nil }))
		if p.Last {
			break
		}
	}
	return parts
}

// all fails the test unless each document came, at most again times more often than it is there.
func (b routedBed) all(want, got map[string]int, again int) {
	b.Helper()
	for doc, n := range want {
		if got[doc] < n || got[doc] > n+again {
			b.Errorf("%s came %d times", bson.Raw(doc), got[doc])
		}
	}
	for doc := range got {
		if want[doc] == 0 {
			b.Errorf("%s is none of the collection's", bson.Raw(doc))
		}
	}
}

// TestRoutedStrategies: slices read through a router hold every document, also several of one _id. That
// holds where cursors die on the way, and where a slice goes on at any position.
func TestRoutedStrategies(t *testing.T) {
	b := newRoutedBed(t)
	clustered := bson.E{Key: "clusteredIndex", Value: bson.D{{Key: "key", Value: bson.D{{Key: "_id", Value: 1}}},
		{Key: "unique", Value: true}}}
	collation := bson.E{Key: "collation", Value: bson.D{{Key: "locale", Value: "en"}, {Key: "strength", Value: 2}}}
	for i, tc := range []struct {
		name    string
		create  []bson.E
		sharded bool
	}{
		{"sharded", nil, true}, {"sharded, clustered", []bson.E{clustered}, true},
		{"sharded, collated", []bson.E{collation}, true}, {"plain", nil, false},
		{"clustered", []bson.E{clustered}, false}, {"collated", []bson.E{collation}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if strings.Contains(tc.name, "clustered") && !b.C.Info.Version.AtLeast(5, 3) {
				t.Skip("users cluster no collections")
			}
			b := routedBed{b.In(t)}
			name := fmt.Sprintf("c%d", i)
			must(t, b.C, "d", append(bson.D{{Key: "create", Value: name}}, tc.create...))
			if tc.sharded {
				b.spread(name)
			}
			col := b.fill(name, someIDs(1200), tc.sharded)
			b.testRouted(col, name)
		})
	}
	t.Run("time series", func(t *testing.T) {
		if !b.C.Info.Version.AtLeast(5, 0) {
			t.Skip("there are none")
		}
		b := routedBed{b.In(t)}
		must(t, b.C, "d", bson.D{{Key: "create", Value: "w"}, {Key: "timeseries",
			Value: bson.D{{Key: "timeField", Value: "t"}, {Key: "metaField", Value: "m"}}}})
		var docs bson.A
		for i := range 600 {
			docs = append(docs, bson.D{{Key: "t", Value: bson.DateTime(1.7e12 + i*1000)}, {Key: "m", Value: i}})
		}
		must(t, b.C, "d", bson.D{{Key: "insert", Value: "w"}, {Key: "documents", Value: docs}})
		b.testRouted(describe(t, b.C, "d", mongo.BucketsPrefix+"w"), mongo.BucketsPrefix+"w")
	})
}

func (b routedBed) testRouted(col *schema.Collection, name string) {
	b.Helper()
	want := b.documents(name)
	r := b.reader()
	reopened := 0
	r.Reopened = func(error) { reopened++ }
	strategy := ByID
	if col.Clustered() && !b.C.Info.Version.AtLeast(5, 3) {
		strategy = ByKey
	}
	bounds, served, err := r.Cut(b.Context(), col, ByStorage(col, b.C.Info), 9)
	if err != nil || served != strategy || len(bounds) != 8 {
		b.Fatalf("%d bounds by %s, %v", len(bounds), served, err)
	}
	plan := Slices(Slice{Strategy: strategy}, bounds)
	got := map[string]int{}
	for _, s := range plan {
		b.walked(r, col, s, got, -1)
	}
	b.all(want, got, 0)

	got = map[string]int{}
	for _, s := range append(plan, Slice{Strategy: strategy}) {
		if s.Of == 0 { // the whole
			b.all(want, got, 2)
			got = map[string]int{}
		}
		for _, shard := range b.Lab.ShardNames() {
			client, err := b.Lab.Direct(shard)
			b.OK(err)
			b.OK(client.Database("admin").RunCommand(b.Context(), bson.D{{Key: "configureFailPoint", Value: "failCommand"},
				{Key: "mode", Value: bson.D{{Key: "times", Value: 1}}},
				{Key: "data", Value: bson.D{{Key: "failCommands", Value: bson.A{"getMore"}},
					{Key: "errorCode", Value: codeCursorNotFound}, {Key: "namespace", Value: "d." + name}}}}).Err())
		}
		b.walked(r, col, s, got, -1)
	}
	b.all(want, got, 2)
	if reopened < len(plan) {
		b.Errorf("%d cursors died: the test shows nothing", reopened)
	}

	got = map[string]int{}
	for _, s := range plan { // go on after each part
		parts := b.walked(r, col, s, map[string]int{}, -1)
		for i, p := range parts {
			b.OK(p.Each(func(doc []byte) error { got[string(doc)]++; return nil }))
			if s.Advance(p.Progress); i == len(parts)/2 {
				break
			}
		}
		b.walked(r, col, s, got, -1)
	}
	b.all(want, got, 1)
}

// TestRoutedEveryPosition goes on from each position of a collection in which each _id has two documents,
// MaxKey included.
func TestRoutedEveryPosition(t *testing.T) {
	b := newRoutedBed(t)
	b.spread("c")
	ids := someIDs(30)
	var docs bson.A
	for _, id := range ids {
		for _, k := range []int{50, 150} {
			docs = append(docs, bson.D{{Key: "_id", Value: id}, {Key: "k", Value: k}})
		}
	}
	must(t, b.C, "d", bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: docs}})
	col, r := describe(t, b.C, "d", "c"), b.reader()
	want := b.documents("c")
	w := r.Walk(col, &Slice{Strategy: ByID}, Want{Batch: 1, Measure: true})
	defer w.Close(t.Context())
	s, got := Slice{Strategy: ByID}, map[string]int{}
	for n := 0; ; n++ {
		p, err := w.Next(t.Context())
		b.OK(err)
		if p == nil || p.Docs == 0 {
			break
		}
		b.OK(p.Each(func(doc []byte) error { got[string(doc)]++; return nil }))
		s.Advance(p.Progress)
		seen := map[string]int{}
		for doc := range got {
			seen[doc] = 1
		}
		b.walked(b.reader(), col, s, seen, -1)
		b.all(want, seen, 1)
	}
	b.all(want, got, 0)
}

// TestRoutedBounds: _ids that are equal, in other bytes, may be neighbouring bounds.
func TestRoutedBounds(t *testing.T) {
	b := newRoutedBed(t)
	b.spread("c")
	col := b.fill("c", idsOf(100), true)
	want, got := b.documents("c"), map[string]int{}
	var bounds []Bound
	for _, id := range []any{10, 10.0, int64(10), 50, 40, 60} {
		bounds = append(bounds, Bound{at: kit.Raw(bson.D{{Key: "_id", Value: id}})})
	}
	r := b.reader()
	for _, s := range Slices(Slice{Strategy: ByID}, bounds) {
		b.walked(r, col, s, got, -1)
	}
	b.all(want, got, 1)
}

// TestRoutedNames: a collection is read under its present name, whatever has its old one.
func TestRoutedNames(t *testing.T) {
	b := newRoutedBed(t)
	for _, isSharded := range []bool{false, true} {
		if isSharded && !b.C.Info.Version.AtLeast(5, 0) {
			continue // is not renamed
		}
		name := fmt.Sprintf("names%t", isSharded)
		if isSharded {
			b.spread(name)
		} else {
			must(t, b.C, "d", bson.D{{Key: "create", Value: name}})
		}
		rename := func(to string) {
			must(t, b.C, "admin", bson.D{{Key: "renameCollection", Value: "d." + name}, {Key: "to", Value: "d." + to}})
			must(t, b.C, "d", bson.D{{Key: "insert", Value: name}, {Key: "documents",
				Value: bson.A{bson.D{{Key: "_id", Value: "another collection's"}}}}})
		}
		col := b.fill(name, someIDs(600), isSharded)
		want := b.documents(name)
		r := b.reader()
		w := r.Walk(col, &Slice{Strategy: ByID}, Want{Batch: 20, Measure: true})
		got := map[string]int{}
		for n := 0; ; n++ {
			p, err := w.Next(t.Context())
			b.OK(err)
			if p == nil {
				break
			}
			b.OK(p.Each(func(doc []byte) error { got[string(doc)]++; return nil }))
			if n == 2 {
				rename(name + "_new")
			}
			if p.Last {
				break
			}
		}
		b.all(want, got, 1)
		got = map[string]int{}
		b.walked(b.reader(), col, Slice{Strategy: ByID}, got, -1) // by a reader who does not know of it yet
		b.all(want, got, 0)

		must(t, b.C, "d", bson.D{{Key: "drop", Value: name + "_new"}})
		must(t, b.C, "d", bson.D{{Key: "drop", Value: name}})
		for _, r := range []*Reader{r, b.reader()} {
			w := r.Walk(col, &Slice{Strategy: ByID}, Want{Batch: 20})
			if _, err := w.Next(t.Context()); !mongo.IsCode(err, mongo.CodeNamespaceNotFound) {
				t.Errorf("dropped: %v", err)
			}
			if gone, err := r.Routers.Gone(t.Context(), col); err != nil || !gone {
				t.Errorf("dropped: gone %t, %v", gone, err)
			}
		}
	}

	col := b.fill("moves", someIDs(300), false)
	want, r := b.documents("moves"), b.reader()
	b.OK(b.Lab.MovePrimary(t.Context(), "d", "s1"))
	if now := describe(t, b.C, "d", "moves"); now.UUID.Equal(col.UUID) {
		t.Error("movePrimary leaves the UUID: the test shows nothing")
	}
	got := map[string]int{}
	b.walked(r, col, Slice{Strategy: ByID}, got, -1)
	b.all(want, got, 0)
	if gone, err := r.Routers.Gone(t.Context(), col); err != nil || gone {
		t.Errorf("moved: gone %t, %v", gone, err)
	}
}

// TestRoutedSnapshots: each cursor of a walk reads at a time of its own. Whatever shard keys users change,
// each document comes once, also where the time of a cursor is forgotten.
func TestRoutedSnapshots(t *testing.T) {
	b := newRoutedBed(t)
	if !b.C.Info.Version.AtLeast(5, 0) {
		t.Skip("there are no reads as of a time")
	}
	b.spread("c")
	col := b.fill("c", idsOf(400), false)
	r := b.reader()
	opened := 0
	r.Fresh = func(ctx context.Context) (bson.D, error) {
		opened++
		at, err := b.C.ClusterTime(ctx)
		return bson.D{{Key: "level", Value: "snapshot"}, {Key: "atClusterTime", Value: at.TS}}, err
	}
	w := r.Walk(col, &Slice{Strategy: ByID}, Want{Batch: 20, Measure: true})
	defer w.Close(t.Context())
	n, keys := map[string]int{}, map[int]int{}
	for id := range 400 {
		keys[id] = id % 200
	}
	for i := 0; ; i++ {
		p, err := w.Next(t.Context())
		b.OK(err)
		if p == nil {
			break
		}
		b.OK(p.Each(func(doc []byte) error { n[bson.Raw(doc).Lookup("_id").String()]++; return nil }))
		if p.Last {
			break
		}
		for id := range 400 { // to the other shard
			if (id+i)%31 == 0 {
				_, err := b.C.Client.Database("d").Collection("c").UpdateOne(t.Context(), bson.D{{Key: "_id", Value: id},
					{Key: "k", Value: keys[id]}}, bson.D{{Key: "$set", Value: byK(199 - keys[id])}})
				b.OK(err)
				keys[id] = 199 - keys[id]
			}
		}
		if i == 5 {
			w.Close(t.Context()) // as after an error
		}
	}
	for id := range 400 {
		key := kit.Value(id).String()
		if n[key] < 1 || n[key] > 2 {
			t.Errorf("document %d came %d times", id, n[key])
		}
	}
	if len(n) != 400 || opened != 3 { // the last one looks for MaxKey
		t.Errorf("%d documents, %d cursors", len(n), opened)
	}
}

func idsOf(n int) (ids []any) {
	for i := range n {
		ids = append(ids, i)
	}
	return ids
}
