package test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
)

// LoadChurn makes collections of several kinds for StartChurn, large enough that
// a copy takes a moment.
func LoadChurn(t *testing.T, db *mongo.Database) {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(db.CreateCollection(ctx, "log", options.CreateCollection().SetCapped(true).SetSizeInBytes(1<<20).
		SetMaxDocuments(2000)))
	must(db.CreateCollection(ctx, "ci", options.CreateCollection().
		SetCollation(&options.Collation{Locale: "en", Strength: 2})))
	pad := bytes.Repeat([]byte("x"), 900)
	for _, name := range []string{"big", "uniq", "log"} {
		n := map[string]int{"big": 60000, "uniq": 3000, "log": 3000}[name]
		for b := 0; b < n; b += 2000 {
			var docs []any
			for i := b; i < min(b+2000, n); i++ {
				docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}, {Key: "pad", Value: pad[:300+i%600]},
					{Key: "a", Value: bson.A{1, 2, 3}}})
			}
			_, err := db.Collection(name).InsertMany(ctx, docs)
			must(err)
		}
	}
	_, err := db.Collection("big").Indexes().CreateMany(ctx, []mongo.IndexModel{
		{Keys: bson.D{{Key: "k", Value: 1}}}, {Keys: bson.D{{Key: "n", Value: 1}, {Key: "k", Value: -1}}},
		{Keys: bson.D{{Key: "at", Value: 1}}, Options: options.Index().SetExpireAfterSeconds(3600)}})
	must(err)
	_, err = db.Collection("uniq").Indexes().
		CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "k", Value: 1}}, Options: options.Index().SetUnique(true)})
	must(err)
}

// Churn writes to a database until it is stopped.
type Churn struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	ops    atomic.Int64
	gate   sync.RWMutex // a writer holds it for each write, Hold until its end
}

// Hold keeps the writers from writing until the returned function is called: a
// job may need them to, on a machine that is busy with other things.
func (c *Churn) Hold() (release func()) {
	c.gate.Lock()
	return c.gate.Unlock
}

// Stop ends the writers and waits for them.
func (c *Churn) Stop() {
	c.cancel()
	c.wg.Wait()
}

// Operations is how many writes were done.
func (c *Churn) Operations() int64 { return c.ops.Load() }

// ChurnOptions shape StartChurn.
type ChurnOptions struct {
	Seed uint64
	// SchemaEvery is the pause after each schema change, default 20 ms. A
	// target of several members takes longer for one than a source for the
	// next, when none is made.
	SchemaEvery time.Duration
	// Pause is that of each writer after each write, default 1 ms, which leaves
	// the servers room for the copy.
	Pause time.Duration
	// Expected reports which errors do not fail the test; nil is none.
	Expected func(error) bool
}

// StartChurn lets several writers work on what LoadChurn made: every sort of
// write, traded unique keys, a capped collection, schema changes, transactions.
func StartChurn(t *testing.T, db *mongo.Database, o ChurnOptions) *Churn {
	t.Helper()
	if o.SchemaEvery == 0 {
		o.SchemaEvery = 20 * time.Millisecond
	}
	if o.Pause == 0 {
		o.Pause = time.Millisecond
	}
	ctx, cancel := context.WithCancel(t.Context())
	c := &Churn{cancel: cancel}
	t.Cleanup(c.Stop)
	const schema = 4
	for i, write := range []func(context.Context, *mongo.Database, *rand.Rand, int) error{churnBig, churnBig, churnUnique,
		churnLog, schema: churnSchema, churnTxn} {
		pause := o.Pause
		if i == schema {
			pause += o.SchemaEvery
		}
		c.wg.Go(func() {
			r := rand.New(rand.NewPCG(o.Seed, uint64(i)))
			for n := 0; ctx.Err() == nil; n++ {
				c.gate.RLock()
				err := write(ctx, db, r, n)
				c.gate.RUnlock()
				if err != nil && ctx.Err() == nil && (o.Expected == nil || !o.Expected(err)) {
					t.Errorf("writer %d: %v", i, err)
					return
				}
				if err == nil {
					c.ops.Add(1)
				}
				time.Sleep(pause)
			}
		})
	}
	return c
}

func churnBig(ctx context.Context, db *mongo.Database, r *rand.Rand, _ int) error {
	coll, id := db.Collection("big"), bson.D{{Key: "_id", Value: r.IntN(70000)}}
	var err error
	switch r.IntN(6) {
	case 0:
		_, err = coll.DeleteOne(ctx, id)
	case 1:
		_, err = coll.ReplaceOne(ctx, id, bson.D{{Key: "r", Value: r.IntN(1000)}, {Key: "a", Value: bson.A{5, 6, 7, 8}}},
			options.Replace().SetUpsert(true))
	case 2:
		_, err = coll.UpdateOne(ctx, id,
			bson.D{{Key: "$push",
				Value: bson.D{{Key: "a", Value: bson.D{{Key: "$each", Value: bson.A{r.IntN(10)}}, {Key: "$slice", Value: -4}}}}},
				{Key: "$set", Value: bson.D{{Key: "n", Value: r.IntN(100)}}}})
	case 3:
		_, err = coll.UpdateOne(ctx, id,
			bson.A{bson.D{{Key: "$set", Value: bson.D{{Key: "z", Value: 1}, {Key: "b", Value: r.IntN(9)}}}},
				bson.D{{Key: "$unset", Value: "pad"}}})
	default:
		_, err = coll.UpdateOne(ctx, id, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}, {Key: "sub.x", Value: 1}}}},
			options.UpdateOne().SetUpsert(true))
	}
	return err
}

// churnUnique lets two documents trade their unique keys.
func churnUnique(ctx context.Context, db *mongo.Database, r *rand.Rand, n int) error {
	coll := db.Collection("uniq")
	a, b := r.IntN(200), r.IntN(200)
	if a == b {
		return nil
	}
	var da, dbb struct{ K any }
	if err := coll.FindOne(ctx, bson.D{{Key: "_id", Value: a}}).Decode(&da); err != nil {
		return err
	}
	if err := coll.FindOne(ctx, bson.D{{Key: "_id", Value: b}}).Decode(&dbb); err != nil {
		return err
	}
	for _, step := range []struct {
		id int
		k  any
	}{{a, fmt.Sprint("tmp", n)}, {b, da.K}, {a, dbb.K}} {
		if _, err := coll.UpdateOne(ctx, bson.D{{Key: "_id", Value: step.id}},
			bson.D{{Key: "$set", Value: bson.D{{Key: "k", Value: step.k}}}}); err != nil {
			return err
		}
	}
	return nil
}

func churnLog(ctx context.Context, db *mongo.Database, r *rand.Rand, n int) error {
	_, err := db.Collection("log").InsertOne(ctx,
		bson.D{{Key: "_id", Value: 10_000 + n}, {Key: "pad", Value: make([]byte, r.IntN(2000))}})
	return err
}

// churnSchema makes, renames and drops collections, and indexes.
func churnSchema(ctx context.Context, db *mongo.Database, r *rand.Rand, n int) error {
	a, b := fmt.Sprintf("s%d", r.IntN(3)), fmt.Sprintf("s%d", r.IntN(3))
	var err error
	switch r.IntN(8) {
	case 0:
		err = db.Collection(a).Drop(ctx)
	case 1:
		err = db.Client().Database("admin").RunCommand(ctx, bson.D{{Key: "renameCollection", Value: db.Name() + "." + a},
			{Key: "to", Value: db.Name() + "." + b}, {Key: "dropTarget", Value: true}}).Err()
	case 2:
		_, err = db.Collection(a).Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "v", Value: 1}}})
	case 3:
		err = db.RunCommand(ctx, bson.D{{Key: "dropIndexes", Value: a}, {Key: "index", Value: "v_1"}}).Err()
	default:
		_, err = db.Collection(a).InsertOne(ctx, bson.D{{Key: "v", Value: n}})
	}
	var ce mongo.CommandError
	if errors.As(err, &ce) { // no such collection or index, same name twice
		return nil
	}
	return err
}

func churnTxn(ctx context.Context, db *mongo.Database, r *rand.Rand, n int) error {
	sess, err := db.Client().StartSession(options.Session().
		SetDefaultTransactionOptions(options.Transaction().SetReadConcern(readconcern.Snapshot())))
	if err != nil {
		return err
	}
	defer sess.EndSession(context.Background())
	_, err = sess.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		for i := range 5 {
			if _, err := db.Collection("ci").UpdateOne(ctx, bson.D{{Key: "_id", Value: fmt.Sprintf("Key%d", r.IntN(50))}},
				bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: n}, {Key: "i", Value: i}}}},
				options.UpdateOne().SetUpsert(true)); err != nil {
				return nil, err
			}
		}
		_, err := db.Collection("big").InsertOne(ctx, bson.D{{Key: "_id", Value: fmt.Sprint("txn", n)}})
		return nil, err
	})
	return err
}
