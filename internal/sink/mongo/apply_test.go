package mongosink_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/expiry"
	"github.com/millrace/millrace/internal/mongo"
	mongosink "github.com/millrace/millrace/internal/sink/mongo"
	"github.com/millrace/millrace/internal/sink/mongo/resolve"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/dial"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
)

// pair is a source and a target server shared by the tests of this package.
type pair struct {
	src, dst *mongo.Cluster
	ctx      context.Context  // of replay, if not the test's
	batch    int              // bytes of the log read at once
	rules    transform.Config // of what is replayed
}

func newPair(t *testing.T) pair {
	t.Helper()
	connect := func() *mongo.Cluster {
		c := dial.Cluster(t, lab.ForTest(t, lab.Options{}).URI(), mongo.Options{})
		return c
	}
	return pair{src: connect(), dst: connect(), batch: 64 << 10}
}

func (p pair) position(t *testing.T) mongo.OpTime {
	t.Helper()
	pos, err := p.src.Positions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return pos.Last
}

// stats are all that an engine counts.
type stats struct {
	stream.SinkStats
	mongosink.Details
}

// alike are targets that all have the same traits.
type alike struct{ traits mongosink.Traits }

func (alike) Absent(string) bool { return false }

func (a alike) Traits(context.Context, string) (mongosink.Traits, error) { return a.traits, nil }

func (alike) Expiry(context.Context, *stream.Route) (expiry.Settings, func(n int64), error) {
	return nil, nil, nil
}

var errReached = errors.New("reached")

// replay applies the source's changes after from, up to and including to.
func (p pair) replay(t *testing.T, from, to mongo.OpTime, o mongosink.Options) (stats, error) {
	t.Helper()
	rules, err := transform.New(p.rules)
	if err != nil {
		t.Fatal(err)
	}
	stage := transform.NewStage(rules, stream.Position{At: from}, nil, nil)
	if o.Targets == nil {
		o.Targets = alike{}
	}
	o.Schema = func(context.Context, *stream.Event, mongo.OpTime, bool) error { return nil }
	txn, err := p.dst.NewTransactions()
	if err != nil {
		t.Fatal(err)
	}
	defer txn.End(t.Context())
	o.Write.Transactions = txn
	if o.Write.TransactionOps == 0 {
		o.Write.TransactionOps = 2
	}
	pos := oplog.Position(from, from)
	eng := mongosink.New(p.dst, pos, o)
	if p.ctx == nil {
		p.ctx = t.Context()
	}
	g, ctx := errgroup.WithContext(p.ctx)
	g.Go(func() error { return eng.Run(ctx) })
	g.Go(func() error {
		return oplog.New(p.src, oplog.Options{BatchBytes: p.batch}).Run(ctx, pos,
			func(ctx context.Context, b *stream.Batch) error {
				cut(b, to)
				stage.Batch(ctx, b)
				if err := eng.Feed(ctx, b); err != nil {
					return err
				}
				if held, limit := eng.Stats().Backlog, cmp.Or(o.Sizes.InFlight, 32<<20); held > max(limit, b.Held()) {
					return fmt.Errorf("%d bytes are in flight, of at most %d", held, limit)
				}
				if b.End.Before(to) {
					return nil
				}
				if err := eng.Drain(ctx); err != nil {
					return err
				}
				if got := eng.Applied(); got.At.Before(to) {
					return fmt.Errorf("drained, but applied is %s and not %s", got.At, to)
				}
				return errReached
			})
	})
	err = g.Wait()
	if errors.Is(err, errReached) {
		err = nil
	}
	return stats{eng.Stats(), eng.Details()}, err
}

// cut takes what is after a position off a batch.
func cut(b *stream.Batch, to mongo.OpTime) {
	for len(b.Events) > 0 && to.Before(b.Events[len(b.Events)-1].At) {
		b.Events = b.Events[:len(b.Events)-1]
	}
	if to.Before(b.End) {
		b.End = to
	}
}

// same compares a collection byte for byte.
func (p pair) same(t *testing.T, db, coll string) {
	t.Helper()
	src, dst := contents(t, p.src, db, coll), contents(t, p.dst, db, coll)
	sameContents(t, db+"."+coll, src, dst)
}

func sameContents(t *testing.T, name string, src, dst map[string]bson.Raw) {
	t.Helper()
	bad := 0
	for id, want := range src {
		if got := dst[id]; !bytes.Equal(want, got) {
			if bad++; bad < 4 {
				t.Errorf("%s %s:\nsource %s\ntarget %s", name, id, want, got)
			}
		}
	}
	for id := range dst {
		if src[id] == nil {
			if bad++; bad < 4 {
				t.Errorf("%s %s is only on the target", name, id)
			}
		}
	}
	if bad > 0 {
		t.Errorf("%s: %d of %d documents differ", name, bad, len(src))
	}
}

// history writes n random operations on few documents, so that they fold.
func history(t *testing.T, c *driver.Collection, r *rand.Rand, n int) {
	t.Helper()
	var models []driver.WriteModel
	for range n {
		id := bson.D{{Key: "_id", Value: r.IntN(60)}}
		f := func() string { return string(rune('a' + r.IntN(5))) }
		var m driver.WriteModel
		switch r.IntN(9) {
		case 0, 1:
			m = driver.NewReplaceOneModel().SetFilter(id).SetUpsert(true).
				SetReplacement(bson.D{{Key: f(), Value: r.IntN(9)}, {Key: "arr", Value: bson.A{1, 2, 3, 4, r.IntN(9)}},
					{Key: "o", Value: bson.D{{Key: "x", Value: 1}}}})
		case 2:
			m = driver.NewDeleteOneModel().SetFilter(id)
		case 3:
			m = driver.NewUpdateOneModel().SetFilter(id).SetUpdate(bson.D{{Key: "$unset", Value: bson.D{{Key: f(), Value: 1}}}})
		case 4:
			m = driver.NewUpdateOneModel().SetFilter(id).SetUpdate(bson.D{{Key: "$push",
				Value: bson.D{{Key: "arr", Value: bson.D{{Key: "$each", Value: bson.A{r.IntN(100)}},
					{Key: "$slice", Value: -1 - r.IntN(5)}}}}}, {Key: "$set", Value: bson.D{{Key: f(), Value: "s"}}}})
		case 5:
			m = driver.NewUpdateOneModel().SetFilter(id).SetUpdate(bson.A{bson.D{{Key: "$set",
				Value: bson.D{{Key: f(), Value: "p"}, {Key: "z" + f(), Value: r.IntN(5)}, {Key: "o.q", Value: 5}}}},
				bson.D{{Key: "$unset", Value: f()}}})
		case 6:
			m = driver.NewUpdateOneModel().SetFilter(id).SetUpsert(true).SetUpdate(bson.D{{Key: "$set",
				Value: bson.D{{Key: "o." + f(), Value: r.IntN(100)}}}})
		default:
			m = driver.NewUpdateOneModel().SetFilter(id).SetUpdate(bson.D{{Key: "$set",
				Value: bson.D{{Key: f(), Value: r.IntN(100)}}}, {Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
		}
		models = append(models, m)
	}
	if _, err := c.BulkWrite(t.Context(), models, options.BulkWrite().SetOrdered(false)); err != nil {
		t.Fatal(err)
	}
}

func TestHistoryFoldedEqualsSource(t *testing.T) {
	t.Parallel()
	testseed.Each(t, historyFoldedEqualsSource)
}

func historyFoldedEqualsSource(t *testing.T, first uint64) {
	p := newPair(t)
	for round := range uint64(4) {
		seed := first + round
		r := rand.New(rand.NewPCG(seed, 1))
		db := fmt.Sprintf("h%d", round)
		from := p.position(t)
		c := p.src.Client.Database(db).Collection("c")
		if _, err := c.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "first"}}); err != nil {
			t.Fatal(err)
		}
		history(t, c, r, 3000)
		to := p.position(t)
		st, err := p.replay(t, from, to, mongosink.Options{Sizes: mongosink.Sizes{Partitions: 1 + r.IntN(8),
			BatchOps: 1 + r.IntN(500)}})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		t.Logf("%+v", st)
		p.same(t, db, "c")
		// Once more from the start, with the target ahead of every event.
		if _, err = p.replay(t, from, to, mongosink.Options{Sizes: mongosink.Sizes{Partitions: 1 + r.IntN(8),
			BatchOps: 1 + r.IntN(500)}, Overlap: mongosink.Overlap{End: to}}); err != nil {
			t.Fatalf("seed %d, replayed: %v", seed, err)
		}
		p.same(t, db, "c")
	}
}

func TestUniqueKeysTraded(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	for _, c := range []*mongo.Cluster{p.src, p.dst} {
		if _, err := c.Client.Database("u").Collection("c").Indexes().CreateOne(t.Context(),
			driver.IndexModel{Keys: bson.D{{Key: "k", Value: 1}}, Options: options.Index().SetUnique(true)}); err != nil {
			t.Fatal(err)
		}
	}
	from := p.position(t)
	c := p.src.Client.Database("u").Collection("c")
	const docs = 20
	for i := range docs {
		if _, err := c.InsertOne(t.Context(), bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i},
			{Key: "n", Value: 0}}); err != nil {
			t.Fatal(err)
		}
	}
	seed := testseed.Of(t)
	r := rand.New(rand.NewPCG(seed, 2))
	set := func(id int, k any) {
		t.Helper()
		if _, err := c.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: id}},
			bson.D{{Key: "$set", Value: bson.D{{Key: "k", Value: k}}},
				{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}); err != nil {
			t.Fatal(err)
		}
	}
	key := make([]int, docs)
	for i := range key {
		key[i] = i
	}
	mid := from
	for i := range 400 {
		a, b := r.IntN(docs), r.IntN(docs)
		if a == b {
			continue
		}
		set(a, "tmp")
		set(b, key[a])
		set(a, key[b])
		key[a], key[b] = key[b], key[a]
		if i == 200 {
			mid = p.position(t)
		}
	}
	to := p.position(t)
	// Of two documents a batch: else all updates may be folded into the inserts.
	st, err := p.replay(t, from, to, mongosink.Options{Sizes: mongosink.Sizes{Partitions: 4, BatchOps: 2, Coalesce: -1}})
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	t.Logf("%+v", st)
	if st.Parked == 0 {
		t.Error("no operation was parked: the test shows nothing")
	}
	p.same(t, "u", "c")
	if _, err := p.replay(t, mid, to, mongosink.Options{Sizes: mongosink.Sizes{Partitions: 4, BatchOps: 20},
		Overlap: mongosink.Overlap{End: to}}); err != nil {
		t.Fatalf("seed %d, replayed: %v", seed, err)
	}
	p.same(t, "u", "c")
}

func TestConflictsAreErrors(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	from := p.position(t)
	c := p.src.Client.Database("x").Collection("c")
	if _, err := c.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: 1}}); err != nil {
		t.Fatal(err)
	}
	inserted := p.position(t)
	if _, err := c.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: 1}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "a", Value: 2}}}}); err != nil {
		t.Fatal(err)
	}
	to := p.position(t)
	var conflict *resolve.ConflictError
	if _, err := p.replay(t, inserted, to, mongosink.Options{}); !errors.As(err, &conflict) {
		t.Errorf("update of a missing document: %v", err)
	}
	if _, err := p.dst.Client.Database("x").Collection("c").InsertOne(t.Context(),
		bson.D{{Key: "_id", Value: 1}, {Key: "other", Value: true}}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.replay(t, from, inserted, mongosink.Options{}); !errors.As(err, &conflict) {
		t.Errorf("insert of an existing _id: %v", err)
	}
	if _, err := p.replay(t, from, to, mongosink.Options{Overlap: mongosink.Overlap{End: to}}); err != nil {
		t.Errorf("inside the window: %v", err)
	}
	p.same(t, "x", "c")
}
