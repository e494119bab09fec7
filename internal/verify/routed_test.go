package verify

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/origin"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/source/shards"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/routed"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// routedBed is a sharded cluster of three shards, of which only the routers are connected to.
type routedBed struct{ *routed.Bed }

func newRoutedBed(t *testing.T) routedBed {
	t.Helper()
	return routedBed{routed.New(t, sharded.Options{Routers: 2, Options: lab.Options{Topology: "sharded:3x1"}})}
}

// spread shards a collection by a field whose hashes go to all shards.
func (b routedBed) spread(ns, field string) {
	b.Helper()
	_, err := b.C.Command(b.Context(), "admin", bson.D{{Key: "shardCollection", Value: ns},
		{Key: "key", Value: bson.D{{Key: field, Value: "hashed"}}}, {Key: "numInitialChunks", Value: 6},
		{Key: "collation", Value: bson.D{{Key: "locale", Value: "simple"}}}})
	b.OK(err)
}

// TestPlantedRouted: each difference is found that is found directly, whichever side is read through routers.
func TestPlantedRouted(t *testing.T) {
	b := newRoutedBed(t)
	plain := cluster(t, "6.0", "rs:1")
	routed := map[string][2]*mongo.Cluster{"source": {b.C, plain}, "target": {plain, b.C}, "both": {b.C, b.C}}
	for name, sides := range routed {
		for _, tc := range plantedTests() {
			t.Run(name+" "+tc.name, func(t *testing.T) {
				lab.Share(t, 8)
				if strings.Contains(tc.name, "clustered") && !b.C.Info.Version.AtLeast(5, 3) {
					t.Skip("users cluster no collections")
				}
				b := routedBed{b.In(t)}
				bed := newBed(t, sides[0], sides[1])
				bed.create(tc.options...)
				for i, ns := range []string{bed.pair.Source, bed.pair.Target} {
					if sides[i] == b.C && !strings.Contains(tc.name, "capped") {
						b.spread(ns, "s")
					}
				}
				bed.planted(t, tc)
			})
		}
	}
}

// keyed is churn of documents of which the shard key is known, and changes.
func keyed(r *rand.Rand, n int) func() func(context.Context, *driver.Collection) error {
	keys := map[int]string{}
	return func() func(context.Context, *driver.Collection) error {
		i, v := r.IntN(n), r.Int64()
		s, there := keys[i]
		id := bson.D{{Key: "_id", Value: fmt.Sprintf("hot%03d", i)}, {Key: "s", Value: s}}
		set := bson.D{{Key: "v", Value: v}}
		switch n := r.IntN(4); {
		case !there:
			s = fmt.Sprint(v)
			keys[i] = s
			doc := bson.D{id[0], {Key: "s", Value: s}}
			return unorphaned(func(ctx context.Context, c *driver.Collection) error {
				_, err := c.InsertOne(ctx, doc)
				return err
			})
		case n == 0:
			delete(keys, i)
			return func(ctx context.Context, c *driver.Collection) error {
				_, err := c.DeleteOne(ctx, id)
				return err
			}
		case n < 3: // to another shard
			keys[i] = fmt.Sprint(v)
			set = bson.D{{Key: "s", Value: keys[i]}}
		}
		return unorphaned(func(ctx context.Context, c *driver.Collection) error {
			_, err := c.UpdateOne(ctx, id, bson.D{{Key: "$set", Value: set}})
			return err
		})
	}
}

// unorphaned repeats a write until its shard has no orphan of the document any more.
func unorphaned(write func(context.Context, *driver.Collection) error) func(context.Context, *driver.Collection) error {
	return func(ctx context.Context, c *driver.Collection) error {
		for {
			err := write(ctx, c)
			if !driver.IsDuplicateKeyError(err) || pace.Pause(ctx, 5*time.Millisecond) != nil {
				return err
			}
		}
	}
}

// TestOnlineRouted: while users write, and change shard keys, and while chunks move, what is planted is
// found and nothing else.
func TestOnlineRouted(t *testing.T) {
	b := newRoutedBed(t)
	for _, method := range []Method{Ranges, Digest} {
		t.Run(string(method), func(t *testing.T) {
			if method == Ranges {
				lab.Nightly(t) // TestOnline has both
			}
			bed := newBed(t, b.C, cluster(t, "6.0", "rs:1"))
			bed.create()
			b.spread(bed.pair.Source, "s")
			r := seeded(t)
			want := plantAll(t, bed, r, idsOf(400, makeID), 20, true)
			end := b.Moving(seeded(t), bed.pair.Source)
			rep := startReplica(bed, time.Second, keyed(r, 200))
			b.OK(rep.waitFor(t.Context(), 200))
			o := Options{Online: true, Method: method, RangeBytes: 5000, MaxBufferedBytes: 1 << 20,
				Recheck: RecheckOptions{Every: 30 * time.Millisecond, Quiet: 4 * time.Second, For: time.Minute}}
			report, st := bed.run(o)
			moved := end()
			rep.end(t)
			if lag := time.Duration(rep.lag.Load()); lag > o.Recheck.Quiet {
				t.Skipf("the machine is too slow: a lag of %s broke the premise of a quiet period of %s", lag, o.Recheck.Quiet)
			}
			checkFound(t, report, want)
			if st.Settled == 0 || moved == 0 {
				t.Errorf("%d mismatches were settled, %d chunks moved: the test shows nothing", st.Settled, moved)
			}
			if noted := len(report.Notes) > 0; noted == b.C.Info.Version.AtLeast(5, 0) {
				t.Errorf("notes: %q", report.Notes) // else shards are read as of one time
			}
		})
	}
}

// TestRoutersSeeWhatWasAcknowledged: what a shard has acknowledged before the comparison began is read
// through another router.
func TestRoutersSeeWhatWasAcknowledged(t *testing.T) {
	lab.NeedServers(t)
	c := sharded.ForTest(t, sharded.Options{Routers: 2, Options: lab.Options{Topology: "sharded:2x1",
		Args: []string{"--journalCommitInterval", "300"}}})
	b := routedBed{&routed.Bed{T: t, Lab: c}}
	var sides [2]*mongo.Cluster
	for i, r := range c.Routers() {
		sides[i] = connect(t, r.URI(), nil)
	}
	b.C = sides[0]
	b.OK(c.CreateDatabase(t.Context(), "d", "s0"))
	b.spread("d.c", "_id")
	for i := range 6 {
		writeOne(t, sides[0], "d.c", i, 1)
		e := New(sides[1], sides[1], Options{})
		b.OK(e.advance(t.Context()))
		s, err := e.describe(t.Context(), source, "d.c")
		b.OK(err)
		n := counts{of: map[string]int{}}
		b.OK(s.scanSlice(t.Context(), s.entire(), n.reading()))
		if len(n.of) != i+1 {
			t.Errorf("%d documents, want %d", len(n.of), i+1)
		}
	}
}

// TestVia: shards are read where they permit it, unless routers are chosen.
func TestVia(t *testing.T) {
	b := newRoutedBed(t)
	b.OK(b.Lab.CreateDatabase(t.Context(), "d", "s0"))
	b.spread("d.c", "_id")
	insert(t, b.C, "d.c", docsOfIDs(100)...)
	plain := cluster(t, "6.0", "rs:1")
	insert(t, plain, "d.c", docsOfIDs(99)...)
	t.Cleanup(func() { _ = plain.Client.Database("d").Drop(context.Background()) })
	target := shared.labs["6.0 rs:1"].URI()
	for via, routed := range map[origin.Via]bool{"": false, origin.ViaAuto: false, origin.ViaShards: false,
		origin.ViaRouters: true} {
		r, err := Clusters(t.Context(), Spec{Source: b.Lab.URI(), Target: target, SourceVia: via, TargetVia: via,
			Rules: transform.Config{Include: []string{"d.*"}}})
		b.OK(err)
		noted := slices.ContainsFunc(r.Notes,
			func(s string) bool { return strings.Contains(s, "read through its routers") })
		if r.Count != 1 || noted != routed {
			t.Errorf("%q: %d differences, notes %q", via, r.Count, r.Notes)
		}
	}
	refused := shards.Options{URI: strings.Replace(b.Lab.URI(), "mongodb://", "mongodb://nobody:none@", 1), Data: true,
		Mongo: mongo.Options{ServerSelectionTimeout: time.Second}}
	of, why, err := origin.OpenShards(t.Context(), b.C, origin.ViaAuto, refused)
	if of != nil || why == nil || err != nil {
		t.Errorf("auto: %v, %v, %v", of, why, err)
	}
	of, why, err = origin.OpenShards(t.Context(), b.C, origin.ViaShards, refused)
	if of != nil || why != nil || err == nil {
		t.Errorf("shards: %v, %v, %v", of, why, err)
	}
	refused.Shards = map[string]string{"s0": "mongodb://127.0.0.1:1"}
	if _, why, err = origin.OpenShards(t.Context(), b.C, origin.ViaRouters, refused); why != nil ||
		mongo.HintOf(err) == "" {
		t.Errorf("routers: %v, %v", why, err)
	}
	spec := Spec{Source: b.Lab.URI(), Target: target, SourceVia: origin.ViaRouters, Options: Options{Users: true}}
	if _, err := Clusters(t.Context(), spec); mongo.HintOf(err) == "" || !strings.Contains(err.Error(), "users") {
		t.Errorf("users: %v", err)
	}
}

// TestViaRefused: shards that refuse direct reads, as those of 8.0 do, are left to the routers.
func TestViaRefused(t *testing.T) {
	lab.NeedServers(t)
	b := routedBed{routed.New(t, sharded.Options{Options: lab.Options{Topology: "sharded:2x1"}, Routers: 1,
		RefuseDirect: true})}
	b.OK(b.Lab.CreateDatabase(t.Context(), "d", "s0"))
	b.spread("d.c", "_id")
	insert(t, b.C, "d.c", docsOfIDs(100)...)
	plain := cluster(t, "6.0", "rs:1")
	t.Cleanup(func() { _ = plain.Client.Database("d").Drop(context.Background()) })
	insert(t, plain, "d.c", docsOfIDs(99)...)
	for _, via := range []origin.Via{origin.ViaAuto, origin.ViaRouters, origin.ViaShards} {
		r, err := Clusters(t.Context(), Spec{Source: b.Lab.URI(), Target: shared.labs["6.0 rs:1"].URI(), SourceVia: via,
			Rules: transform.Config{Include: []string{"d.*"}}})
		if via == origin.ViaShards {
			if !mongo.IsCode(err, mongo.CodeUnauthorized) || !strings.Contains(mongo.HintOf(err), "directShardOperations") {
				t.Errorf("%v: %s", err, mongo.HintOf(err))
			}
			continue
		}
		b.OK(err)
		refused := slices.ContainsFunc(r.Notes, func(s string) bool { return strings.Contains(s, "directly to a shard") })
		if r.Count != 1 || refused != (via == origin.ViaAuto) {
			t.Errorf("%s: %d differences, notes %q", via, r.Count, r.Notes)
		}
	}
}

func docsOfIDs(n int) (docs []bson.Raw) {
	for i := range n {
		docs = append(docs, kit.Raw(bson.D{{Key: "_id", Value: i}}))
	}
	return docs
}
