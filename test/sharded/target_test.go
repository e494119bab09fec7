package sharded_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
	"github.com/millrace/millrace/internal/sink/mongo/write"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/load"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// targetBed is a bed whose target is a sharded cluster behind two routers.
type targetBed struct {
	*bed
	routers []*routerProcess
}

// newBedTo is a bed whose target is a sharded cluster that holds nothing, and whose
// source has the collections of load.Writer: one sharded by a field that changes.
func newBedTo(t *testing.T, shape string, fromShards bool) *targetBed {
	t.Helper()
	lab.NeedServers(t)
	b := &bed{T: t, seed: testseed.Of(t)}
	if fromShards {
		b.lab, b.sourceURI, _ = b.newCluster(fmt.Sprintf("%dx1", times(2, 3)), routed())
		b.source = b.client(b.sourceURI)
		b.collections()
	} else {
		b.sourceURI = lab.ForTest(t, lab.Options{}).URI()
		b.source = b.client(b.sourceURI)
		for _, name := range []string{"ranged", "hashed", "plain"} {
			b.ok(b.source.Database("d").CreateCollection(t.Context(), name))
		}
	}
	to, uri, routers := b.newCluster(shape, false)
	b.to = to
	b.targetURI, b.target = uri, b.client(uri)
	return &targetBed{b, routers}
}

// spec is a job that has the target's collections sharded as load.Writer's are.
func (b *targetBed) spec() job.Spec {
	spec := b.bed.spec()
	if b.lab == nil {
		spec.Shard = []string{"d.ranged=k:1", "d.hashed=_id:hashed"}
	}
	return spec
}

// TestToShards: what a replica set and a sharded cluster hold arrives whole on a
// sharded one, although documents change their shard keys all the time and the job is
// broken off.
func TestToShards(t *testing.T) {
	for name, fromShards := range map[string]bool{"replica set": false, "shards": true} {
		t.Run(name, func(t *testing.T) {
			if fromShards {
				lab.Nightly(t)
			}
			b := newBedTo(t, "2x1", fromShards)
			b.fill(times(300, 2000))
			end := b.writing()
			spec := b.spec()
			b.brokenOff(spec, times(2, 8))
			j, done := b.start(spec)
			b.following(j, done)
			b.applies(j, done, 1000)
			end()
			b.finish(j, done)
			b.placed()
		})
	}
}

// TestMergeIntoShards: what others had on the target is replaced by what the source has,
// also where that belongs to another shard.
func TestMergeIntoShards(t *testing.T) {
	b := newBedTo(t, "2x1", false)
	b.ok(b.to.CreateDatabase(t.Context(), "d", b.to.ShardNames()[0]))
	b.ok(b.to.ShardCollection(t.Context(), "d.ranged", sharded.Sharding{Key: bson.D{{Key: "k", Value: 1}}}))
	b.ok(b.to.Split(t.Context(), "d.ranged", key(300)))
	b.ok(b.to.MoveChunk(t.Context(), "d.ranged", key(300), b.to.ShardNames()[1]))
	put := func(c *driver.Client, from, n, k int) {
		var docs []any
		for i := range n {
			docs = append(docs, bson.D{{Key: "_id", Value: from + i}, {Key: "k", Value: k}})
		}
		_, err := c.Database("d").Collection("ranged").InsertMany(t.Context(), docs)
		b.ok(err)
	}
	put(b.target, 0, 40, 500)
	put(b.source, 0, 20, 100) // in the copy
	spec := b.spec()
	spec.OnExisting = "merge"
	j, done := b.start(spec)
	b.following(j, done)
	put(b.source, 20, 20, 100) // in the changes
	b.finish(j, done)
}

// TestOverlapElsewhere: in the overlap the target has a document elsewhere than an
// operation has it, or at two places.
func TestOverlapElsewhere(t *testing.T) {
	b := newBedTo(t, "2x1", false)
	b.ok(b.to.CreateDatabase(t.Context(), "d", b.to.ShardNames()[0]))
	b.ok(b.to.ShardCollection(t.Context(), "d.ranged", sharded.Sharding{Key: bson.D{{Key: "k", Value: 1}}}))
	b.ok(b.to.Split(t.Context(), "d.ranged", key(300)))
	b.ok(b.to.MoveChunk(t.Context(), "d.ranged", key(300), b.to.ShardNames()[1]))
	// as writers do
	coll := b.target.Database("d").Collection("ranged", options.Collection().SetWriteConcern(writeconcern.Majority()))
	router, err := mongo.Connect(t.Context(), b.targetURI, mongo.Options{})
	b.ok(err)
	defer router.Close()
	target := fold.NewTarget("d.ranged")
	target.Key = docwrite.KeyOf(b.raw(bson.D{{Key: "k", Value: 1}}), false)
	w := write.NewWriters(write.Options{Target: router}).New()
	defer w.Release()
	diff := func(fields bson.D) bson.D {
		return bson.D{{Key: "$v", Value: 2}, {Key: "diff", Value: bson.D{{Key: "u", Value: fields}}}}
	}
	for _, c := range []struct {
		name  string
		kind  stream.Kind
		doc   bson.D // or the update
		has   []int  // keys of what the target has
		want  []int
		how   write.Outcome
		after bool // the overlap
	}{
		{"an insert with a later key", stream.Insert, bson.D{{Key: "_id", Value: 1}, {Key: "k", Value: 400}}, []int{100},
			[]int{400}, 0, false},
		{"an insert of what is there", stream.Insert, bson.D{{Key: "_id", Value: 1}, {Key: "k", Value: 100}}, []int{100},
			[]int{100}, write.Taken, false},
		{"a document at two places", stream.Put, bson.D{{Key: "_id", Value: 1}, {Key: "k", Value: 400}}, []int{100, 400},
			[]int{400}, 0, false},
		{"a replacement", stream.Replace, bson.D{{Key: "_id", Value: 1}, {Key: "k", Value: 100}}, []int{500}, []int{100}, 0,
			false},
		{"a changed key", stream.Update, diff(bson.D{{Key: "k", Value: 400}}), []int{100}, []int{400}, 0, false},
		{"a changed key of two", stream.Update, diff(bson.D{{Key: "k", Value: 400}}), []int{100, 500}, []int{400}, 0, false},
		{"another field of two", stream.Update, diff(bson.D{{Key: "n", Value: 2}}), []int{100, 500}, []int{100, 500}, 0,
			false},
		{"a delete of two", stream.Delete, nil, []int{100, 500}, nil, 0, false},
		{"a delete of none", stream.Delete, nil, nil, nil, 0, false},
		{"an update of none", stream.Update, diff(bson.D{{Key: "n", Value: 2}}), nil, nil, write.Missing, false},
		{"one of two is changed", stream.Update, diff(bson.D{{Key: "n", Value: 2}}), []int{100, 500}, []int{100, 500}, 0,
			true},
		{"one of two is replaced", stream.Replace, bson.D{{Key: "_id", Value: 1}, {Key: "k", Value: 400}}, []int{100, 500},
			[]int{100, 500}, 0, true},
		{"one of two is deleted", stream.Delete, nil, []int{100, 500}, []int{100, 500}, 0, true},
		{"a delete", stream.Delete, nil, []int{100}, nil, 0, true},
	} {
		_, err := coll.DeleteMany(t.Context(), bson.D{})
		b.ok(err)
		for _, k := range c.has {
			_, err := coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}, {Key: "k", Value: k}})
			b.ok(err)
		}
		ev := &stream.Event{Kind: c.kind, Form: delta.Diff,
			Key: stream.Key{ID: bsonraw.IDOf(b.raw(bson.D{{Key: "_id", Value: 1}}))}}
		if c.doc != nil {
			ev.Doc = b.raw(c.doc)
		}
		op, err := fold.NewOp(&fold.Item{Event: ev, Target: target, Overlap: !c.after})
		b.ok(err)
		results, err := w.Write(t.Context(), target, []fold.Op{op})
		if twice := c.after && len(c.has) > 1; !twice {
			b.ok(err)
		} else if err == nil || !strings.Contains(err.Error(), "two documents of this _id") || mongo.HintOf(err) == "" {
			t.Errorf("%s: %v", c.name, err)
		}
		if len(results) != min(int(c.how), 1) || len(results) == 1 && results[0].Outcome != c.how {
			t.Errorf("%s: %v", c.name, results)
		}
		var got []struct{ K int }
		cur, err := coll.Find(t.Context(), bson.D{}, options.Find().SetSort(bson.D{{Key: "k", Value: 1}}))
		b.ok(err)
		b.ok(cur.All(t.Context(), &got))
		var keys []int
		for _, d := range got {
			keys = append(keys, d.K)
		}
		if !slices.Equal(keys, c.want) {
			t.Errorf("%s: at %v, want %v", c.name, keys, c.want)
		}
	}
}

func (b *bed) raw(d bson.D) bson.Raw {
	b.Helper()
	raw, err := bson.Marshal(d)
	b.ok(err)
	return raw
}

// placed checks that what is sharded is on both shards, and that the balancer may move
// it again.
func (b *targetBed) placed() {
	b.Helper()
	keys := map[string]string{"ranged": `{"k": {"$numberInt":"1"}}`, "hashed": `{"_id": "hashed"}`, "plain": ""}
	for name, want := range keys {
		var coll struct {
			Key       bson.Raw
			NoBalance bool        `bson:"noBalance"`
			UUID      bson.Binary `bson:"uuid"`
		}
		err := b.target.Database("config").Collection("collections").
			FindOne(b.Context(), bson.D{{Key: "_id", Value: "d." + name}}).Decode(&coll)
		if want == "" {
			if err == nil {
				b.Errorf("%s is sharded", name)
			}
			continue
		}
		b.ok(err)
		if coll.Key.String() != want || coll.NoBalance {
			b.Errorf("%s: key %s, left alone %v", name, coll.Key, coll.NoBalance)
		}
		for _, shard := range b.to.Shards() {
			n, err := b.client(shard.URI()).Database("d").Collection(name).CountDocuments(b.Context(), bson.D{})
			b.ok(err)
			if n == 0 {
				b.Errorf("%s: nothing on shard %s", name, shard.Name())
			}
		}
	}
}

// TestTargetDies: shards, config servers and routers of the target are killed and come
// back, and chunks move there, while a job copies and follows.
func TestTargetDies(t *testing.T) {
	lab.Nightly(t)
	t.Run("replica set", func(t *testing.T) { targetDies(t, false) })
	if os.Getenv("MILLRACE_SOAK") != "" {
		t.Run("shards", func(t *testing.T) { targetDies(t, true) })
	}
}

func targetDies(t *testing.T, fromShards bool) {
	b := newBedTo(t, "2x1", fromShards)
	b.fill(times(500, 1500))
	end := b.writing()
	spec := b.spec()
	spec.Limits.Bytes = 1 << 20
	j, done := b.start(spec)
	r := rand.New(rand.NewPCG(b.seed, 4))
	for range times(4, 15) {
		b.trouble(r)
	}
	b.following(j, done)
	j.SetLimits(t.Context(), pace.Rates{})
	for range times(4, 15) {
		b.trouble(r)
	}
	b.shared(j, done)
	end()
	b.finish(j, done)
}

// shared wants each router to get its share, also one that has died and come back.
func (b *targetBed) shared(j *job.Job, done <-chan error) {
	b.Helper()
	taken := func() (all []int64) {
		for _, r := range b.routers {
			t := r.Taken()
			all = append(all, t.Inserts+t.Updates+t.Deletes)
		}
		return all
	}
	began := taken()
	b.until(done, func() bool { // the job knows of both
		now := taken()
		return now[0] > began[0] && now[1] > began[1]
	})
	began = taken()
	b.applies(j, done, j.Status().Follow.Operations+1000)
	var first, second int64
	// Bytes are shared out, within 5 % (TestSpread of wire). A statement is a small part
	// of a batch, so that their numbers come together only after a while.
	b.until(done, func() bool {
		now := taken()
		first, second = now[0]-began[0], now[1]-began[1]
		share := 100 * first / max(first+second, 1)
		return 40 <= share && share <= 60
	})
	b.Logf("the routers took %d and %d statements", first, second)
}

// TestTargetRollsBack: a shard's primary takes documents that no other member gets, and
// dies. Its successor gets them again.
func TestTargetRollsBack(t *testing.T) {
	lab.Nightly(t)
	b := newBedTo(t, "2x3", false)
	b.fill(20)
	j, done := b.start(b.spec())
	b.following(j, done)
	own, err := b.to.Primary(t.Context(), "millrace")
	b.ok(err)
	var name string // of a shard that has no positions: these are durable
	for _, n := range b.to.ShardNames() {
		if n != own {
			name = n
		}
	}
	shard := b.to.Shard(name)
	first, err := shard.Primary(t.Context())
	b.ok(err)
	b.receives(shard, first, false)
	before, applied := b.count(shard, first), j.Status().Follow.Applied
	var docs []any
	for i := range 100 {
		docs = append(docs, bson.D{{Key: "_id", Value: 5000 + i}, {Key: "k", Value: i}})
	}
	_, err = b.source.Database("d").Collection("hashed").InsertMany(t.Context(), docs)
	b.ok(err)
	b.until(done, func() bool { return b.count(shard, first) > before+20 })
	// A job that believes the primary notes now that they are there.
	noted := func() bool {
		f := j.Status().Follow
		return f.LagSeconds == 0 && f.Applied != applied && f.Operations >= 100
	}
	for began := time.Now(); time.Since(began) < 3*time.Second && !noted(); pause(20) {
	}
	b.ok(shard.Members()[first].Kill())
	b.receives(shard, first, true)
	b.until(done, func() bool {
		second, err := shard.Primary(t.Context())
		return err == nil && second != first
	})
	b.ok(shard.Members()[first].Start(t.Context()))
	b.finish(j, done)
}

// receives lets the other members of a shard receive what one writes, or not.
func (b *targetBed) receives(shard *lab.Cluster, from int, on bool) {
	b.Helper()
	for i := range shard.Members() {
		if i != from {
			b.ok(b.client(shard.DirectURI(i)).Database("admin").
				RunCommand(b.Context(), bson.D{{Key: "configureFailPoint", Value: "stopReplProducer"},
					{Key: "mode", Value: map[bool]string{true: "off", false: "alwaysOn"}[on]}}).Err())
		}
	}
}

// count is how many documents of d.hashed one member of a shard has.
func (b *targetBed) count(shard *lab.Cluster, member int) int64 {
	b.Helper()
	n, err := b.client(shard.DirectURI(member)).Database("d").Collection("hashed").EstimatedDocumentCount(b.Context())
	b.ok(err)
	return n
}

// trouble has one thing happen to the target.
func (b *targetBed) trouble(r *rand.Rand) {
	b.Helper()
	defer pause(r.IntN(1500))
	switch r.IntN(4) {
	case 0: // what it has acknowledged and not yet flushed is gone
		sets := append(b.to.Shards(), b.to.Config())
		member := sets[r.IntN(len(sets))].Members()[0]
		b.ok(member.Kill())
		pause(r.IntN(1000))
		b.ok(member.Start(b.Context()))
	case 1:
		p := b.routers[r.IntN(len(b.routers))]
		at := p.Host()
		b.ok(p.Close())
		pause(r.IntN(1000))
		p.start(at)
	default:
		names := b.to.ShardNames()
		if err := b.to.MoveChunk(b.Context(), "d.ranged", key(r.IntN(load.Keys)), names[r.IntN(len(names))]); err != nil {
			b.Log("a chunk did not move:", err)
		}
	}
}

// brokenOff runs a job some times, each time for a moment.
func (b *bed) brokenOff(spec job.Spec, runs int) {
	b.Helper()
	r := rand.New(rand.NewPCG(b.seed, 8))
	for range runs {
		_, ended, end := b.begin(spec)
		select {
		case err := <-ended:
			b.history(err)
			b.Fatalf("seed %d: the job ended: %v", b.seed, err)
		case <-time.After(time.Duration(500+r.IntN(times(2000, 4000))) * time.Millisecond):
		}
		end()
	}
}
