package shards

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
)

// tail reads the config servers' oplog from a time on: what it tells of writes to some
// collections. It is used by one goroutine at a time.
type tail struct {
	config *mongo.Cluster
	pass   func(context.Context, mongo.OpTime) error // has the config servers pass a time
	of     bson.A                                    // the collections' names
	take   func(context.Context, *configWrite) error
	known  bson.Timestamp // up to when it was read
}

// configWrite is one to a collection of the config servers.
type configWrite struct {
	op, ns string
	o, o2  bson.Raw
	at     bson.Timestamp
	wall   time.Time
}

// tail reads what is written to collections of the config servers.
func (c *Cluster) tail(config *mongo.Cluster, take func(context.Context, *configWrite) error, of ...any) tail {
	return tail{config: config, pass: c.mover(Shard{Name: configName, Cluster: config}), of: of, take: take}
}

// begin has it read on after a time, and makes sure that the oplog has all since then.
func (t *tail) begin(ctx context.Context, at bson.Timestamp) error {
	var oldest struct{ TS bson.Timestamp }
	err := t.config.Client.Database("local").Collection("oplog.rs").FindOne(ctx, bson.D{},
		options.FindOne().SetSort(bson.D{{Key: "$natural", Value: 1}}).SetProjection(bson.D{{Key: "ts", Value: 1}})).Decode(&oldest)
	if err != nil {
		return fmt.Errorf("read the oldest entry of the config servers' oplog: %w", err)
	}
	if at.Before(oldest.TS) {
		return mongo.WithHint(fmt.Errorf("the config servers' oplog begins at %d.%d, after %d.%d: who owned which documents then is not known",
			oldest.TS.T, oldest.TS.I, at.T, at.I), "the collections have to be copied again; a larger oplog of the config servers lets millrace stand still for longer")
	}
	t.known = at
	return nil
}

// reach reads up to a time at least, which any shard has reached.
func (t *tail) reach(ctx context.Context, at bson.Timestamp) error {
	if !t.known.Before(at) {
		return nil
	}
	if err := t.pass(ctx, mongo.OpTime{TS: at, Term: -1}); err != nil {
		return fmt.Errorf("have the config servers pass %d.%d: %w", at.T, at.I, err)
	}
	return mongo.Wrap(t.follow(ctx, at), "read the config servers' oplog")
}

// catchUp reads up to the newest time that the config servers know, which includes all
// that was read of them before.
func (t *tail) catchUp(ctx context.Context) error {
	at, err := t.config.Positions(ctx)
	if err != nil {
		return err
	}
	return t.follow(ctx, at.Majority.TS)
}

// follow reads up to a time at least, which the config servers have passed.
func (t *tail) follow(ctx context.Context, at bson.Timestamp) error {
	last := at
	in := bson.D{{Key: "$in", Value: t.of}}
	err := entries(ctx, t.config, bson.D{
		{Key: "ts", Value: bson.D{{Key: "$gt", Value: t.known}}},
		{Key: "$or", Value: bson.A{bson.D{{Key: "ns", Value: in}}, bson.D{{Key: "o.applyOps.ns", Value: in}}, bson.D{{Key: "op", Value: "n"}}}},
	}, at, func(entry bson.Raw) error {
		ts, err := t.entry(ctx, entry)
		if last.Before(ts) {
			last = ts
		}
		return err
	})
	if err == nil {
		t.known = last
	}
	return err
}

// entry takes one entry of the oplog, with the operations in it.
func (t *tail) entry(ctx context.Context, e bson.Raw) (bson.Timestamp, error) {
	sec, i, ok := e.Lookup("ts").TimestampOK()
	w := configWrite{at: bson.Timestamp{T: sec, I: i}}
	w.wall, _ = e.Lookup("wall").TimeOK()
	if !ok {
		return w.at, errors.New("an entry without a time")
	}
	all, err := operations(e)
	if err != nil {
		return w.at, fmt.Errorf("entry %d.%d: %w", sec, i, err)
	}
	for _, one := range all {
		w.op, _ = one.Lookup("op").StringValueOK()
		w.ns, _ = one.Lookup("ns").StringValueOK()
		w.o, _ = one.Lookup("o").DocumentOK()
		w.o2, _ = one.Lookup("o2").DocumentOK()
		if err := t.take(ctx, &w); err != nil {
			return w.at, fmt.Errorf("entry %d.%d: %w", sec, i, err)
		}
	}
	return w.at, nil
}

// id is the _id of the document that was written.
func (w *configWrite) id() string {
	key := w.o
	if w.op == "u" {
		key = w.o2
	}
	id, _ := key.Lookup("_id").StringValueOK()
	return id
}

// operations are an entry, or those in it.
func operations(e bson.Raw) ([]bson.Raw, error) {
	o, _ := e.Lookup("o").DocumentOK()
	ops, ok := o.Lookup("applyOps").ArrayOK()
	if !ok {
		return []bson.Raw{e}, nil
	}
	var all []bson.Raw
	for f, ok := range bsonraw.Fields(ops) {
		if !ok || f.Type != bson.TypeEmbeddedDocument {
			return nil, errors.New("an operation that is no document")
		}
		all = append(all, f.Value)
	}
	return all, nil
}

// entries calls fn for what the oplog of a set holds of a filter, as a majority has it
// after a time.
func entries(ctx context.Context, c *mongo.Cluster, filter bson.D, at bson.Timestamp, fn func(bson.Raw) error) error {
	cur, err := c.Client.Database("local").RunCommandCursor(ctx, bson.D{
		{Key: "find", Value: "oplog.rs"}, {Key: "filter", Value: filter}, {Key: "sort", Value: bson.D{{Key: "$natural", Value: 1}}},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}, {Key: "afterClusterTime", Value: at}}},
	})
	if err != nil {
		return err
	}
	defer func() { _ = cur.Close(context.WithoutCancel(ctx)) }()
	for cur.Next(ctx) {
		if err := fn(append(bson.Raw(nil), cur.Current...)); err != nil {
			return err
		}
	}
	return cur.Err()
}
