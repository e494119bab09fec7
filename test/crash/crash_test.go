package crash

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"

	"github.com/millrace/millrace/internal/lab"
	"github.com/millrace/millrace/test"
)

// TestKillInEachPhase kills millrace with SIGKILL in each phase while the
// source is written to, starts it again, and wants an identical target.
func TestKillInEachPhase(t *testing.T) {
	src := lab.ForTest(t, lab.Options{})
	dst := lab.ForTest(t, lab.Options{})
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	bin := test.BuildMillrace(t, raceFlag()...)
	sc, dc := test.Connect(t, src.URI()), test.Connect(t, dst.URI())

	loadCrashData(t, sc.Database("crash"))
	churn := startChurn(t, sc.Database("crash"), seed)

	args := []string{"sync", "--source", src.URI(), "--target", dst.URI(), "--include", "crash.*", "--job", "crash", "--until"}
	r := rand.New(rand.NewPCG(seed, 7))
	for _, phase := range []string{"catalog", "creating", "copying", "copying", "indexing", "overlap", "following", "following", "following"} {
		p := test.Start(t, bin, append(args, "never")...)
		p.AwaitPhase(dc, "crash", phase)
		select { // somewhere inside the phase
		case <-time.After(time.Duration(r.IntN(700)) * time.Millisecond):
		case <-p.Done():
		}
		p.Kill()
	}
	churn.stop()
	p := test.Start(t, bin, append(args, "caught-up")...)
	p.AwaitPhase(dc, "crash", "finalizing")
	p.Kill()
	p = test.Start(t, bin, append(args, "caught-up")...)
	if err := p.Wait(2 * time.Minute); err != nil {
		t.Fatalf("last run: %v\n%s", err, p.Output())
	}
	t.Logf("%d operations written meanwhile", churn.ops)
	diffs, err := test.Compare(t.Context(), sc, dc, test.CompareOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range diffs {
		t.Errorf("seed %d: %s", seed, d)
	}
}

// loadCrashData makes collections of several kinds, large enough that the copy
// takes a moment.
func loadCrashData(t *testing.T, db *driver.Database) {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(db.CreateCollection(ctx, "log", options.CreateCollection().SetCapped(true).SetSizeInBytes(1<<20).SetMaxDocuments(2000)))
	must(db.CreateCollection(ctx, "ci", options.CreateCollection().SetCollation(&options.Collation{Locale: "en", Strength: 2})))
	pad := bytes.Repeat([]byte("x"), 900)
	for _, name := range []string{"big", "uniq", "log"} {
		n := map[string]int{"big": 60000, "uniq": 3000, "log": 3000}[name]
		for b := 0; b < n; b += 2000 {
			var docs []any
			for i := b; i < min(b+2000, n); i++ {
				docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}, {Key: "pad", Value: pad[:300+i%600]}, {Key: "a", Value: bson.A{1, 2, 3}}})
			}
			_, err := db.Collection(name).InsertMany(ctx, docs)
			must(err)
		}
	}
	_, err := db.Collection("big").Indexes().CreateMany(ctx, []driver.IndexModel{
		{Keys: bson.D{{Key: "k", Value: 1}}}, {Keys: bson.D{{Key: "n", Value: 1}, {Key: "k", Value: -1}}},
		{Keys: bson.D{{Key: "at", Value: 1}}, Options: options.Index().SetExpireAfterSeconds(3600)}})
	must(err)
	_, err = db.Collection("uniq").Indexes().CreateOne(ctx, driver.IndexModel{Keys: bson.D{{Key: "k", Value: 1}}, Options: options.Index().SetUnique(true)})
	must(err)
}

// churn writes to the source until stopped.
type churn struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	ops    int64
	mu     sync.Mutex
}

func (c *churn) stop() {
	c.cancel()
	c.wg.Wait()
}

func startChurn(t *testing.T, db *driver.Database, seed uint64) *churn {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := &churn{cancel: cancel}
	t.Cleanup(c.stop)
	for i, write := range []func(context.Context, *driver.Database, *rand.Rand, int) error{churnBig, churnBig, churnUnique, churnLog, churnSchema, churnTxn} {
		c.wg.Add(1)
		go func() {
			defer c.wg.Done()
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			for n := 0; ctx.Err() == nil; n++ {
				if err := write(ctx, db, r, n); err != nil && ctx.Err() == nil {
					t.Errorf("writer %d: %v", i, err)
					return
				}
				c.mu.Lock()
				c.ops++
				c.mu.Unlock()
				time.Sleep(time.Millisecond) // leaves the servers room for the copy
			}
		}()
	}
	return c
}

func churnBig(ctx context.Context, db *driver.Database, r *rand.Rand, _ int) error {
	coll, id := db.Collection("big"), bson.D{{Key: "_id", Value: r.IntN(70000)}}
	var err error
	switch r.IntN(6) {
	case 0:
		_, err = coll.DeleteOne(ctx, id)
	case 1:
		_, err = coll.ReplaceOne(ctx, id, bson.D{{Key: "r", Value: r.IntN(1000)}, {Key: "a", Value: bson.A{5, 6, 7, 8}}}, options.Replace().SetUpsert(true))
	case 2:
		_, err = coll.UpdateOne(ctx, id, bson.D{{Key: "$push", Value: bson.D{{Key: "a", Value: bson.D{{Key: "$each", Value: bson.A{r.IntN(10)}}, {Key: "$slice", Value: -4}}}}}, {Key: "$set", Value: bson.D{{Key: "n", Value: r.IntN(100)}}}})
	case 3:
		_, err = coll.UpdateOne(ctx, id, bson.A{bson.D{{Key: "$set", Value: bson.D{{Key: "z", Value: 1}, {Key: "b", Value: r.IntN(9)}}}}, bson.D{{Key: "$unset", Value: "pad"}}})
	default:
		_, err = coll.UpdateOne(ctx, id, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}, {Key: "sub.x", Value: 1}}}}, options.UpdateOne().SetUpsert(true))
	}
	return err
}

// churnUnique lets two documents trade their unique keys.
func churnUnique(ctx context.Context, db *driver.Database, r *rand.Rand, n int) error {
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
		if _, err := coll.UpdateOne(ctx, bson.D{{Key: "_id", Value: step.id}}, bson.D{{Key: "$set", Value: bson.D{{Key: "k", Value: step.k}}}}); err != nil {
			return err
		}
	}
	return nil
}

func churnLog(ctx context.Context, db *driver.Database, r *rand.Rand, n int) error {
	_, err := db.Collection("log").InsertOne(ctx, bson.D{{Key: "_id", Value: 10_000 + n}, {Key: "pad", Value: make([]byte, r.IntN(2000))}})
	return err
}

// churnSchema makes, renames and drops collections, and indexes.
func churnSchema(ctx context.Context, db *driver.Database, r *rand.Rand, n int) error {
	a, b := fmt.Sprintf("s%d", r.IntN(3)), fmt.Sprintf("s%d", r.IntN(3))
	var err error
	switch r.IntN(8) {
	case 0:
		err = db.Collection(a).Drop(ctx)
	case 1:
		err = db.Client().Database("admin").RunCommand(ctx, bson.D{{Key: "renameCollection", Value: db.Name() + "." + a}, {Key: "to", Value: db.Name() + "." + b}, {Key: "dropTarget", Value: true}}).Err()
	case 2:
		_, err = db.Collection(a).Indexes().CreateOne(ctx, driver.IndexModel{Keys: bson.D{{Key: "v", Value: 1}}})
	case 3:
		err = db.RunCommand(ctx, bson.D{{Key: "dropIndexes", Value: a}, {Key: "index", Value: "v_1"}}).Err()
	default:
		_, err = db.Collection(a).InsertOne(ctx, bson.D{{Key: "v", Value: n}})
	}
	var ce driver.CommandError
	if errors.As(err, &ce) { // no such collection or index, same name twice
		return nil
	}
	time.Sleep(20 * time.Millisecond)
	return err
}

func churnTxn(ctx context.Context, db *driver.Database, r *rand.Rand, n int) error {
	sess, err := db.Client().StartSession(options.Session().SetDefaultTransactionOptions(options.Transaction().SetReadConcern(readconcern.Snapshot())))
	if err != nil {
		return err
	}
	defer sess.EndSession(context.Background())
	_, err = sess.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		for i := range 5 {
			if _, err := db.Collection("ci").UpdateOne(ctx, bson.D{{Key: "_id", Value: fmt.Sprintf("Key%d", r.IntN(50))}},
				bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: n}, {Key: "i", Value: i}}}}, options.UpdateOne().SetUpsert(true)); err != nil {
				return nil, err
			}
		}
		_, err := db.Collection("big").InsertOne(ctx, bson.D{{Key: "_id", Value: fmt.Sprint("txn", n)}})
		return nil, err
	})
	return err
}

// raceFlag builds the program under test as the test itself is built.
func raceFlag() []string {
	if raceEnabled {
		return []string{"-race"}
	}
	return nil
}
