package ownership

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
)

// Entry is one write in an oplog.
type Entry struct {
	Op, NS string
	O, O2  bson.Raw
	At     bson.Timestamp
	wall   time.Time
}

// ParseEntry reads an entry, or one of the operations in it, which have no time.
func ParseEntry(raw bson.Raw) (e Entry) {
	e.Op, _ = raw.Lookup("op").StringValueOK()
	e.NS, _ = raw.Lookup("ns").StringValueOK()
	e.O, _ = raw.Lookup("o").DocumentOK()
	e.O2, _ = raw.Lookup("o2").DocumentOK()
	e.At.T, e.At.I, _ = raw.Lookup("ts").TimestampOK()
	e.wall, _ = raw.Lookup("wall").TimeOK()
	return e
}

// Key returns the document key, of an insert the document.
func (e *Entry) Key() bson.Raw {
	if e.Op == "u" {
		return e.O2
	}
	return e.O
}

// Replaces reports an update with the complete document.
func (e *Entry) Replaces() bool {
	_, ok := bsonraw.Field(e.O, "_id")
	return e.Op == "u" && ok
}

// id is the document's _id, "" if that is no string.
func (e *Entry) id() string {
	id, _ := e.Key().Lookup("_id").StringValueOK()
	return id
}

// Operations returns the operations in an entry, or the entry.
func Operations(entry bson.Raw) ([]bson.Raw, error) {
	o, _ := entry.Lookup("o").DocumentOK()
	ops, ok := o.Lookup("applyOps").ArrayOK()
	if !ok {
		return []bson.Raw{entry}, nil
	}
	var all []bson.Raw
	for f, ok := range bsonraw.Fields(ops) {
		if !ok || f.Type != bson.TypeEmbeddedDocument {
			return nil, errors.New("an operation that is not a document")
		}
		all = append(all, f.Value)
	}
	return all, nil
}

// EachEntry is mongo.Cluster.EachEntry with bytes that fn may keep.
func EachEntry(ctx context.Context, c *mongo.Cluster, filter bson.D, at bson.Timestamp, fn func(bson.Raw) error) error {
	return c.EachEntry(ctx, filter, at, func(e bson.Raw) error { return fn(bytes.Clone(e)) })
}

// HasField reports whether a document has a field at any depth.
func HasField(doc []byte, name string) bool {
	for e, ok := range bsonraw.Fields(doc) {
		nested := e.Type == bson.TypeEmbeddedDocument || e.Type == bson.TypeArray
		if !ok || string(e.Name) == name || nested && HasField(e.Value, name) {
			return true
		}
	}
	return false
}

// Config is how the config servers are read.
type Config struct {
	*mongo.Cluster
	// Advance makes their oplog pass a time.
	Advance func(context.Context, mongo.OpTime) error
}

// configOplog reads writes to some collections in the config servers' oplog. One goroutine at a time uses it.
type configOplog struct {
	Config
	namespaces bson.A
	apply      func(context.Context, *Entry) error
	readTo     bson.Timestamp
}

// startAt sets the time from which it reads, and checks that the oplog has all entries since then.
func (c *configOplog) startAt(ctx context.Context, at bson.Timestamp) error {
	oldest, _, err := c.OldestEntry(ctx)
	if err != nil {
		return fmt.Errorf("config servers: %w", err)
	}
	if at.Before(oldest.TS) {
		return mongo.WithHint(fmt.Errorf(
			"the config servers' oplog begins at %d.%d, after %d.%d: the owners of documents at that time are unknown",
			oldest.TS.T, oldest.TS.I, at.T, at.I),
			"copy the collections again; a larger oplog of the config servers permits longer stops")
	}
	c.readTo = at
	return nil
}

// readUntil reads at least up to a time, which some shard has reached.
func (c *configOplog) readUntil(ctx context.Context, at bson.Timestamp) error {
	if !c.readTo.Before(at) {
		return nil
	}
	if err := c.Advance(ctx, mongo.OpTime{TS: at, Term: -1}); err != nil {
		return fmt.Errorf("have the config servers pass %d.%d: %w", at.T, at.I, err)
	}
	return mongo.Wrap(c.read(ctx, at), "read the config servers' oplog")
}

// catchUp reads up to the config servers' present time, which includes all that was read from them before.
func (c *configOplog) catchUp(ctx context.Context) error {
	at, err := c.Positions(ctx)
	if err != nil {
		return err
	}
	return c.read(ctx, at.Majority.TS)
}

// read reads at least up to a time, which the config servers have passed.
func (c *configOplog) read(ctx context.Context, at bson.Timestamp) error {
	last := at
	in := bson.D{{Key: "$in", Value: c.namespaces}}
	err := EachEntry(ctx, c.Cluster, bson.D{
		{Key: "ts", Value: bson.D{{Key: "$gt", Value: c.readTo}}},
		{Key: "$or", Value: bson.A{
			bson.D{{Key: "ns", Value: in}}, bson.D{{Key: "o.applyOps.ns", Value: in}}, bson.D{{Key: "op", Value: "n"}},
		}},
	}, at, func(raw bson.Raw) error {
		ts, err := c.entry(ctx, raw)
		if last.Before(ts) {
			last = ts
		}
		return err
	})
	if err == nil {
		c.readTo = last
	}
	return err
}

func (c *configOplog) entry(ctx context.Context, raw bson.Raw) (bson.Timestamp, error) {
	outer := ParseEntry(raw)
	if outer.At.IsZero() {
		return outer.At, errors.New("an entry without a time")
	}
	all, err := Operations(raw)
	for _, one := range all {
		e := ParseEntry(one)
		e.At, e.wall = outer.At, outer.wall
		if err = c.apply(ctx, &e); err != nil {
			break
		}
	}
	return outer.At, mongo.Wrap(err, "entry %d.%d", outer.At.T, outer.At.I)
}
