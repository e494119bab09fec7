package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"
)

// writers change the source until stop.
type writers struct {
	client *mongo.Client
	shop   *mongo.Database
	logs   *mongo.Database
	quit   chan struct{}
	wg     sync.WaitGroup

	mu   sync.Mutex
	errs []error

	inserts, updates, deletes    atomic.Int64 // documents
	transactions, trades, schema atomic.Int64
}

// pause lies between two rounds of a writer, so that a machine with two cores
// has something left for the copy.
const pause = 10 * time.Millisecond

// startWriters starts all of them. An operation under way is always finished:
// stop never leaves one whose outcome is unknown.
func startWriters(ctx context.Context, client *mongo.Client) *writers {
	w := &writers{client: client, shop: client.Database("shop"), logs: client.Database("logs"), quit: make(chan struct{})}
	ctx = context.WithoutCancel(ctx)
	for i, round := range []func(context.Context, *rand.Rand, int) error{w.insert, w.update, w.remove, w.transfer, w.trade, w.measure, w.changeSchema} {
		w.wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 7))
			for n := 0; ; n++ {
				select {
				case <-w.quit:
					return
				case <-time.After(pause):
				}
				if err := round(ctx, random, n); err != nil {
					w.fail(err)
					return
				}
			}
		})
	}
	return w
}

func (w *writers) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.errs = append(w.errs, fmt.Errorf("a writer of the demo: %w", err))
}

// stop waits until each writer has finished its operation. Stopping twice does
// no harm.
func (w *writers) stop() error {
	w.mu.Lock()
	select {
	case <-w.quit:
	default:
		close(w.quit)
	}
	w.mu.Unlock()
	w.wg.Wait()
	err := errors.Join(w.errs...)
	w.errs = nil
	return err
}

// total counts the operations so far.
func (w *writers) total() int64 {
	return w.inserts.Load() + w.updates.Load() + w.deletes.Load() + w.schema.Load()
}

func (w *writers) insert(ctx context.Context, _ *rand.Rand, n int) error {
	var docs []any
	for i := range 10 {
		o := order(n*10 + i)
		o[0].Value = fmt.Sprintf("new-%08d", n*10+i)
		docs = append(docs, o)
	}
	_, err := w.shop.Collection("orders").InsertMany(ctx, docs)
	w.inserts.Add(int64(len(docs)))
	return err
}

// update changes documents in all the ways that there are.
func (w *writers) update(ctx context.Context, r *rand.Rand, _ int) error {
	var models []mongo.WriteModel
	for range 10 {
		id := bson.D{{Key: "_id", Value: r.IntN(1000)}} // few, so that they meet again and again
		var u any
		switch r.IntN(6) {
		case 0:
			u = bson.D{{Key: "$inc", Value: bson.D{{Key: "logins", Value: 1}}}}
		case 1:
			u = bson.D{{Key: "$set", Value: bson.D{{Key: "address.street", Value: fmt.Sprintf("New street %d", r.IntN(99))}, {Key: "tags.1", Value: r.IntN(9)}}}}
		case 2:
			u = bson.D{{Key: "$push", Value: bson.D{{Key: "tags", Value: bson.D{{Key: "$each", Value: bson.A{r.IntN(9)}}, {Key: "$slice", Value: -5}}}}}}
		case 3:
			u = bson.D{{Key: "$unset", Value: bson.D{{Key: "about", Value: ""}}}, {Key: "$set", Value: bson.D{{Key: "seen", Value: time.Now()}}}}
		case 4:
			u = mongo.Pipeline{{{Key: "$set", Value: bson.D{{Key: "tags", Value: bson.D{{Key: "$slice", Value: bson.A{"$tags", 2}}}}, {Key: "address.geo", Value: bson.A{r.Float64()}}}}}}
		default:
			u = bson.D{{Key: "$rename", Value: bson.D{{Key: "about", Value: "was"}}}, {Key: "$currentDate", Value: bson.D{{Key: "seen", Value: true}}}}
		}
		models = append(models, mongo.NewUpdateOneModel().SetFilter(id).SetUpdate(u))
	}
	_, err := w.shop.Collection("users").BulkWrite(ctx, models)
	w.updates.Add(int64(len(models)))
	return err
}

// remove deletes documents and puts some of them back under the same _id.
func (w *writers) remove(ctx context.Context, r *rand.Rand, _ int) error {
	mixedIDs := w.shop.Collection("mixed")
	number := r.IntN(2000)
	res, err := mixedIDs.DeleteMany(ctx, bson.D{{Key: "n", Value: bson.D{{Key: "$gte", Value: number}, {Key: "$lt", Value: number + 3}}}})
	if err != nil {
		return err
	}
	w.deletes.Add(res.DeletedCount)
	doc := mixed(number)
	doc[len(doc)-1].Value = "back again"
	_, err = mixedIDs.ReplaceOne(ctx, bson.D{{Key: "_id", Value: doc[0].Value}}, doc, options.Replace().SetUpsert(true))
	w.inserts.Add(1)
	return err
}

// transfer moves an amount between two entries, and notes it, in a transaction;
// one of ten is aborted.
func (w *writers) transfer(ctx context.Context, r *rand.Rand, n int) error {
	from, amount := r.IntN(1000), r.IntN(50)
	err := w.transaction(ctx, func(ctx context.Context) error {
		ledger := w.shop.Collection("ledger")
		for id, by := range map[int]int{from: -amount, from + 1: amount} {
			if _, err := ledger.UpdateByID(ctx, id, bson.D{{Key: "$inc", Value: bson.D{{Key: "amount", Value: by}}}}); err != nil {
				return err
			}
		}
		_, err := w.shop.Collection("transfers").InsertOne(ctx, bson.D{{Key: "from", Value: from}, {Key: "amount", Value: amount}})
		if err == nil && n%10 == 9 {
			err = errAbort
		}
		return err
	})
	if errors.Is(err, errAbort) {
		return nil
	}
	w.transactions.Add(1)
	w.updates.Add(2)
	w.inserts.Add(1)
	return err
}

var errAbort = errors.New("aborted on purpose")

// trade lets two users trade their e-mail addresses, which a unique index has:
// tools that apply in parallel without care fail here, or lose one.
func (w *writers) trade(ctx context.Context, r *rand.Rand, _ int) error {
	users := w.shop.Collection("users")
	a := 2000 + r.IntN(500)
	b := a + 500
	err := w.transaction(ctx, func(ctx context.Context) error {
		var was [2]struct {
			Email string `bson:"email"`
		}
		for i, id := range []int{a, b} {
			if err := users.FindOne(ctx, bson.D{{Key: "_id", Value: id}}).Decode(&was[i]); err != nil {
				return err
			}
		}
		for _, step := range []struct {
			id    int
			email string
		}{{a, "on its way"}, {b, was[0].Email}, {a, was[1].Email}} {
			if _, err := users.UpdateByID(ctx, step.id, bson.D{{Key: "$set", Value: bson.D{{Key: "email", Value: step.email}}}}); err != nil {
				return err
			}
		}
		return nil
	})
	w.trades.Add(1)
	w.updates.Add(3)
	return err
}

func (w *writers) transaction(ctx context.Context, do func(context.Context) error) error {
	s, err := w.client.StartSession()
	if err != nil {
		return err
	}
	defer s.EndSession(ctx)
	_, err = s.WithTransaction(ctx, func(ctx context.Context) (any, error) { return nil, do(ctx) })
	return err
}

// measure writes to the time-series and to the capped collection.
func (w *writers) measure(ctx context.Context, r *rand.Rand, n int) error {
	var readings, events []any
	for i := range 5 {
		readings = append(readings, bson.D{{Key: "at", Value: time.Now()}, {Key: "sensor", Value: r.IntN(50)}, {Key: "value", Value: r.Float64()}})
		events = append(events, event(1_000_000+n*5+i))
	}
	_, err1 := w.logs.Collection("readings").InsertMany(ctx, readings)
	_, err2 := w.logs.Collection("events").InsertMany(ctx, events)
	w.inserts.Add(10)
	return errors.Join(err1, err2)
}

// changeSchema does another thing about every second.
func (w *writers) changeSchema(ctx context.Context, _ *rand.Rand, n int) error {
	const every = 100 // rounds
	if n%every != every/5 {
		return nil
	}
	w.schema.Add(1)
	number := n / every
	switch number % 6 {
	case 0: // the documents come along under the new name
		return w.rename(ctx, "drafts", "published")
	case 1:
		_, err := w.shop.Collection("orders").Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "total", Value: 1}, {Key: "x", Value: number}}})
		return err
	case 2:
		return w.shop.RunCommand(ctx, bson.D{{Key: "create", Value: "temporary"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}}).Err()
	case 3:
		return w.shop.RunCommand(ctx, bson.D{{Key: "collMod", Value: "orders"}, {Key: "validator", Value: bson.D{{Key: "total", Value: bson.D{{Key: "$gte", Value: -number}}}}}}).Err()
	case 4:
		return w.shop.Collection("temporary").Drop(ctx)
	default:
		return w.rename(ctx, "published", "drafts")
	}
}

func (w *writers) rename(ctx context.Context, from, to string) error {
	return w.client.Database("admin").RunCommand(ctx, bson.D{{Key: "renameCollection", Value: "shop." + from}, {Key: "to", Value: "shop." + to}}).Err()
}

// burst is what is written right before the cut-over, as fast as the source
// takes it: what is still on its way at that moment is what tools lose.
type burst struct {
	operations int64
	took       time.Duration
}

func writeBurst(ctx context.Context, client *mongo.Client) (burst, error) {
	const inserts, updates, deletes = 12_000, 6_000, 2_000
	began := time.Now()
	shop := client.Database("shop")
	var models, changes []mongo.WriteModel
	for i := range inserts {
		o := order(i)
		o[0].Value = fmt.Sprintf("burst-%08d", i)
		models = append(models, mongo.NewInsertOneModel().SetDocument(o))
	}
	for i := range deletes {
		models = append(models, mongo.NewDeleteOneModel().SetFilter(bson.D{{Key: "_id", Value: fmt.Sprintf("order-%08d", i)}}))
	}
	for i := range updates {
		changes = append(changes, mongo.NewUpdateOneModel().SetFilter(bson.D{{Key: "_id", Value: 5000 + i}}).
			SetUpdate(bson.D{{Key: "$set", Value: bson.D{{Key: "burst", Value: i}}}}))
	}
	g, gctx := errgroup.WithContext(ctx)
	const parts = 3
	for coll, models := range map[string][]mongo.WriteModel{"orders": models, "users": changes} {
		for part := range slices.Chunk(models, len(models)/parts+1) {
			g.Go(func() error {
				_, err := shop.Collection(coll).BulkWrite(gctx, part, options.BulkWrite().SetOrdered(false))
				return err
			})
		}
	}
	err := g.Wait()
	return burst{operations: inserts + updates + deletes, took: time.Since(began)}, err
}
