package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/workshop/lab/sharded"
)

// writers change the source until stop.
type writers struct {
	scripted
	client  *mongo.Client
	admin   *mongo.Database
	shop    *mongo.Database
	kinds   map[string]kind
	sharded *sharded.Cluster // nil of a replica set
	series  string           // of what is inserted
	changed int              // schema changes by writers before
	quit    context.CancelFunc
	running errgroup.Group

	inserts, updates, deletes            atomic.Int64 // documents
	transactions, trades, schema, chunks atomic.Int64
}

// startWriters starts all writers. stop lets each finish its operation, so that no outcome is unknown.
func (d *demo) startWriters(ctx context.Context) error {
	c := d.source.client
	w := &writers{scripted: d.scripted, client: c, admin: c.Database("admin"), shop: c.Database("shop"), kinds: d.kinds,
		series: d.series, changed: d.changed}
	rounds := []func(context.Context, *rand.Rand, int) error{w.insert, w.update, w.remove, w.transfer, w.trade, w.measure,
		w.changeSchema}
	if w.sharded, _ = d.source.cluster.(*sharded.Cluster); w.sharded != nil {
		if err := w.sharded.Balancer(ctx, true); err != nil {
			return err
		}
		rounds = append(rounds, w.move)
	}
	ctx = context.WithoutCancel(ctx)
	quit, cancel := context.WithCancel(ctx)
	w.quit, d.writes = cancel, w
	for i, round := range rounds {
		w.running.Go(func() error {
			random := rand.New(rand.NewPCG(uint64(i), 7))
			for n := 0; ; n++ {
				select {
				case <-quit.Done():
					return nil
				case <-time.After(10 * time.Millisecond): // so that two cores have something left for the copy
				}
				if err := round(ctx, random, n); err != nil {
					return fmt.Errorf("a writer of the demo: %w", err)
				}
			}
		})
	}
	return nil
}

// stop waits until each writer has finished its operation. Stopping twice does no harm.
func (w *writers) stop() error {
	w.quit()
	return w.running.Wait()
}

// total counts the operations so far.
func (w *writers) total() int64 {
	return w.inserts.Load() + w.updates.Load() + w.deletes.Load() + w.schema.Load()
}

func (w *writers) insert(ctx context.Context, _ *rand.Rand, n int) error {
	w.inserts.Add(10)
	return w.kinds["shop.orders"].insert(ctx, w.client, w.series, n*10, n*10+10)
}

// measure writes to the time-series and to the capped collection.
func (w *writers) measure(ctx context.Context, _ *rand.Rand, n int) error {
	w.inserts.Add(10)
	return errors.Join(w.kinds["logs.readings"].insert(ctx, w.client, w.series, n*5, n*5+5),
		w.kinds["logs.events"].insert(ctx, w.client, w.series, n*5, n*5+5))
}

// update changes documents in all the ways that there are.
func (w *writers) update(ctx context.Context, r *rand.Rand, _ int) error {
	var all []string
	for range 10 { // of few documents, so that they meet again and again
		all = append(all, fmt.Sprintf(`{"q": {"_id": %d}, "u": %s}`, r.IntN(1000),
			fill(w.Updates[r.IntN(len(w.Updates))], "", r.IntN(99))))
	}
	w.updates.Add(10)
	return run(ctx, w.shop, `{"update": "users", "updates": [%s]}`, strings.Join(all, ", "))
}

// remove deletes documents and puts some of them back under the same _id.
func (w *writers) remove(ctx context.Context, r *rand.Rand, _ int) error {
	coll, number := w.shop.Collection("mixed"), r.IntN(2000)
	res, err := coll.DeleteMany(ctx, bson.M{"n": bson.M{"$gte": number, "$lt": number + 3}})
	if err != nil {
		return err
	}
	w.deletes.Add(res.DeletedCount)
	doc := mixed(number)
	doc[len(doc)-1].Value = "back again"
	_, err = coll.ReplaceOne(ctx, bson.M{"_id": doc[0].Value}, doc, options.Replace().SetUpsert(true))
	w.inserts.Add(1)
	return err
}

var errAbort = errors.New("aborted on purpose")

// transfer moves an amount between two entries, and notes it, in a transaction; one of ten is aborted.
func (w *writers) transfer(ctx context.Context, r *rand.Rand, n int) error {
	from, amount := r.IntN(1000), r.IntN(50)
	err := w.transaction(ctx, func(ctx context.Context) error {
		err := run(ctx, w.shop, `{"update": "ledger", "updates": [
			{"q": {"_id": %d}, "u": {"$inc": {"amount": %d}}}, {"q": {"_id": %d}, "u": {"$inc": {"amount": %d}}}]}`,
			from, -amount, from+1, amount)
		if err == nil {
			err = run(ctx, w.shop, `{"insert": "transfers", "documents": [{"from": %d, "amount": %d}]}`, from, amount)
		}
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

// trade lets two users swap their e-mail addresses, which have a unique index: order between documents matters.
func (w *writers) trade(ctx context.Context, r *rand.Rand, _ int) error {
	a := 2000 + r.IntN(500)
	b := a + 500
	err := w.transaction(ctx, func(ctx context.Context) error {
		var was [2]struct{ Email string }
		for i, id := range []int{a, b} {
			if err := w.shop.Collection("users").FindOne(ctx, bson.M{"_id": id}).Decode(&was[i]); err != nil {
				return err
			}
		}
		return run(ctx, w.shop, `
		{"update": "users", "updates": [
			{"q": {"_id": %[1]d}, "u": {"$set": {"email": "on its way"}}},
			{"q": {"_id": %[2]d}, "u": {"$set": {"email": %[3]q}}}, {"q": {"_id": %[1]d}, "u": {"$set": {"email": %[4]q}}}]}`,
			a, b, was[0].Email, was[1].Email)
	})
	w.trades.Add(1)
	w.updates.Add(3)
	return err
}

func (w *writers) transaction(ctx context.Context, do func(context.Context) error) error {
	return w.client.UseSession(ctx, func(ctx context.Context) error {
		_, err := mongo.SessionFromContext(ctx).
			WithTransaction(ctx, func(ctx context.Context) (any, error) { return nil, do(ctx) })
		return err
	})
}

// changeSchema does another thing about every second.
func (w *writers) changeSchema(ctx context.Context, _ *rand.Rand, n int) error {
	const every = 100 // rounds
	if n%every != every/5 {
		return nil
	}
	w.schema.Add(1)
	number, on := n/every+w.changed, w.shop
	change := w.SchemaChanges[number%len(w.SchemaChanges)]
	if strings.Contains(string(change), "renameCollection") {
		on = w.admin
	}
	return run(ctx, on, "%s", fill(change, "", number))
}

// move moves any chunk to any other shard by force, five a second at most.
func (w *writers) move(ctx context.Context, random *rand.Rand, n int) error {
	if n%20 > 0 {
		return nil
	}
	names, ns := w.sharded.ShardNames(), []string{"shop.users", "shop.orders", "shop.mixed"}[random.IntN(3)]
	chunks, err := w.sharded.Chunks(ctx, ns)
	if err != nil {
		return err
	}
	chunk, to := chunks[random.IntN(len(chunks))], names[random.IntN(len(names))]
	if chunk.Shard == to {
		return nil
	}
	err = w.sharded.MoveChunk(ctx, ns, chunk.Min, to)
	if _, refused := errors.AsType[mongo.CommandError](err); refused {
		return nil // a schema change came in between, say: the chunk stays
	}
	w.chunks.Add(1)
	return err
}

// The burst is written right before the cut-over, so that changes are still in flight then.
const burstInserts, burstUpdates, burstDeletes = 12_000, 6_000, 2_000

func (d *demo) writeBurst(ctx context.Context) error {
	began := time.Now()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return d.kinds["shop.orders"].insert(gctx, d.source.client, "burst", 0, burstInserts) })
	g.Go(func() error {
		return run(gctx, d.writes.shop, `{"update": "users", "updates": [
			{"q": {"_id": {"$gte": 5000, "$lt": %d}}, "u": [{"$set": {"burst": "$_id"}}], "multi": true}]}`, 5000+burstUpdates)
	})
	g.Go(func() error {
		return run(gctx, d.writes.shop, `{"delete": "orders", "deletes": [
			{"q": {"_id": {"$gte": "order-", "$lt": "order-%08d"}}, "limit": 0}]}`, burstDeletes)
	})
	err := g.Wait()
	d.burstTook = time.Since(began)
	return err
}
