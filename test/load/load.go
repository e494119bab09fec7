// Package load writes to a sharded cluster as tests need it: single documents and many,
// transactions over shards, and changed shard keys.
package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// Writer writes documents of its own into three collections of a database: ranged, of
// the shard key {k: 1}, hashed, of {_id: "hashed"}, and plain, which is not sharded.
// It is used by one goroutine.
type Writer struct {
	*rand.Rand
	client *driver.Client
	db     string
	first  int
}

// Keys are how many shard keys there are of ranged, from 0.
const Keys = 600

// New makes the nth writer of a run.
func New(client *driver.Client, db string, seed uint64, n int) *Writer {
	return &Writer{Rand: rand.New(rand.NewPCG(seed, uint64(n))), client: client, db: db, first: 1000 * (n + 1)}
}

// Run has some writers write to a database until ctx ends or one fails. What is
// under way when ctx ends is not broken off.
func Run(ctx context.Context, client *driver.Client, db string, seed uint64) error {
	const (
		writers = 3
		pause   = 3 * time.Millisecond // so that something is left of the machine
	)
	var g errgroup.Group
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	for n := range writers {
		w := New(client, db, seed, n)
		g.Go(func() error {
			defer stop()
			for ctx.Err() == nil {
				if err := w.Step(context.WithoutCancel(ctx)); err != nil {
					return fmt.Errorf("writer %d: %w", n, err)
				}
				time.Sleep(pause)
			}
			return nil
		})
	}
	return g.Wait()
}

func (w *Writer) coll() *driver.Collection {
	return w.client.Database(w.db).Collection([]string{"ranged", "ranged", "hashed", "plain"}[w.IntN(4)])
}

// Step is one write, or a transaction of some. Those that only meet others' are none.
func (w *Writer) Step(ctx context.Context) error {
	id := w.first + w.IntN(60)
	c := w.coll()
	var err error
	switch w.IntN(8) {
	case 0, 1:
		// Two shards take documents of one _id and different keys; nobody else writes this one.
		if err = c.FindOne(ctx, bson.D{{Key: "_id", Value: id}}).Err(); errors.Is(err, driver.ErrNoDocuments) {
			_, err = c.InsertOne(ctx, bson.D{{Key: "_id", Value: id}, {Key: "k", Value: w.IntN(Keys)}, {Key: "n", Value: 0}})
		}
	case 2:
		_, err = c.UpdateOne(ctx, bson.D{{Key: "_id", Value: id}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}},
			{Key: "$set", Value: bson.D{{Key: "f" + fmt.Sprint(w.IntN(3)), Value: w.IntN(100)}}}})
	case 3:
		_, err = c.DeleteOne(ctx, bson.D{{Key: "_id", Value: id}})
	case 4:
		err = w.rekey(ctx, id)
	case 5:
		err = w.transaction(ctx)
	case 6:
		_, err = c.UpdateMany(ctx,
			bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: w.first}, {Key: "$lt", Value: w.first + 60}}}},
			bson.D{{Key: "$inc", Value: bson.D{{Key: "m", Value: 1}}}})
	case 7:
		_, err = c.DeleteMany(ctx,
			bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: w.first}, {Key: "$lt", Value: w.first + 60}}},
				{Key: "n", Value: bson.D{{Key: "$mod", Value: bson.A{7, w.IntN(7)}}}}})
	}
	return harmless(err)
}

// harmless passes over what a client has to expect.
func harmless(err error) error {
	var labeled driver.LabeledError
	switch {
	case err == nil, driver.IsDuplicateKeyError(err), mongo.Classify(err) == mongo.ClassRetry,
		mongo.IsCode(err, 283), // WouldChangeOwningShard: another was faster
		mongo.IsCode(err, 319), // MovePrimaryInProgress
		errors.As(err, &labeled) && labeled.HasErrorLabel("TransientTransactionError"):
		return nil
	}
	return err
}

// rekey changes a document's shard key, with which it may change its shard.
func (w *Writer) rekey(ctx context.Context, id int) error {
	var doc struct {
		K int `bson:"k"`
	}
	c := w.client.Database(w.db).Collection("ranged")
	if err := c.FindOne(ctx, bson.D{{Key: "_id", Value: id}}).Decode(&doc); err != nil {
		if errors.Is(err, driver.ErrNoDocuments) {
			return nil
		}
		return err
	}
	_, err := c.UpdateOne(ctx, bson.D{{Key: "_id", Value: id}, {Key: "k", Value: doc.K}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "k", Value: w.IntN(Keys)}}}})
	return err
}

// transaction writes to several shards.
func (w *Writer) transaction(ctx context.Context) error {
	s, err := w.client.StartSession()
	if err != nil {
		return err
	}
	defer s.EndSession(ctx)
	if err := s.StartTransaction(); err != nil {
		return err
	}
	sctx := driver.NewSessionContext(ctx, s)
	for range 1 + w.IntN(4) {
		id := w.first + 100 + w.IntN(60)
		_, err := w.coll().ReplaceOne(sctx, bson.D{{Key: "_id", Value: id}},
			bson.D{{Key: "_id", Value: id}, {Key: "k", Value: id % Keys}, {Key: "n", Value: w.IntN(100)}},
			options.Replace().SetUpsert(true))
		if err != nil {
			_ = s.AbortTransaction(ctx)
			return err
		}
	}
	if w.IntN(4) == 0 {
		return s.AbortTransaction(ctx)
	}
	return s.CommitTransaction(sctx)
}

// Measure writes a measurement of a sharded time series to the shard that owns the bucket of its meta
// value, as a mongos does: to the buckets' name, and marked as meant for the time series. The shard
// key is {meta: 1}.
func Measure(ctx context.Context, c *sharded.Cluster, ns string, meta any, document bson.D) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	var last error
	err := lab.Poll(ctx, 20*time.Millisecond, func() (bool, error) {
		last = measure(ctx, c, ns, bson.D{{Key: "meta", Value: meta}}, document)
		return !mongo.IsCode(last, 63) && !mongo.IsCode(last, 150) && !mongo.IsCode(last, 249) && !mongo.IsCode(last, 13388),
			nil
	})
	return mongo.Wrap(errors.Join(err, last), "write a measurement of %s", ns)
}

func measure(ctx context.Context, c *sharded.Cluster, ns string, key, document bson.D) error {
	db, name, _ := strings.Cut(ns, ".")
	buckets := "system.buckets." + name
	owner, err := c.OwnerOf(ctx, db+"."+buckets, key)
	if err != nil {
		return err
	}
	at, err := c.ShardVersion(ctx, db+"."+buckets, owner)
	if err != nil {
		return err
	}
	// Of a version that was read after the chunk has gone the shard takes the document for an orphan.
	if still, err := c.OwnerOf(ctx, db+"."+buckets, key); err != nil || still != owner {
		return cmp.Or(err, error(driver.CommandError{Code: 13388, Message: "the chunk moved"}))
	}
	shard, err := c.Direct(owner)
	if err != nil {
		return err
	}
	return shard.Database(db).RunCommand(ctx, bson.D{
		{Key: "insert", Value: buckets}, {Key: "documents", Value: bson.A{document}},
		{Key: "isTimeseriesNamespace", Value: true},
		{Key: "shardVersion", Value: at}, {Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}},
	}).Err()
}
