package oplog

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/spool"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/wire"
)

// Span is a range of positions: after After, up to and including Until.
type Span struct{ After, Until mongo.OpTime }

func (s Span) contains(at mongo.OpTime) bool { return s.After.Before(at) && !s.Until.Before(at) }

func (s Span) filter(or ...any) bson.D {
	return bson.D{{Key: "ts", Value: bson.D{{Key: "$gt", Value: s.After.TS}, {Key: "$lte", Value: s.Until.TS}}},
		{Key: "$or", Value: bson.A(or)}}
}

// Look reads events of a few collections from the oplog and from the spool, which may be nil.
type Look struct {
	Cluster      *mongo.Cluster
	Spool        *Spooler
	Collections  []string
	SkipMigrated bool // leaves out the writes of chunk migrations
}

// Each calls fn, in order, for the span's events of the collections and for all schema changes; those
// that cannot be followed have kind and names only. It leaves out transactions. fn must not keep the
// event.
func (l *Look) Each(ctx context.Context, span Span, fn func(*stream.Event) error) error {
	of := bson.D{{Key: "$in", Value: l.Collections}}
	known := map[string]bool{}
	for _, ns := range l.Collections {
		known[ns] = true
	}
	in := newInterpreter(l.Cluster, Options{Keep: func(ns string) bool { return known[ns] }, SkipMigrated: l.SkipMigrated})
	in.namesAlone = true
	entry := func(doc []byte) error {
		e, err := parseEntry(doc)
		// Retryable writes look like transactions.
		if err != nil || !span.contains(e.at) || string(e.op) == "c" && e.inTransaction() {
			return err
		}
		span.After = e.at // one seen in the spool and again in the oplog says nothing new
		return in.each(ctx, &e, fn)
	}
	if s := l.Spool.spool(); spooled(s, span.After) { // the oplog may begin later
		if unread, err := eachSpooled(s, span, entry); unread != nil || err != nil {
			if unread != nil {
				err = l.Spool.abandon(unread)
			}
			return err
		}
	}
	const transactions = "admin.$cmd" // above all
	return l.Cluster.EachEntry(ctx, span.filter(
		bson.D{{Key: "ns", Value: of}},
		bson.D{{Key: "op", Value: "c"}, {Key: "ns", Value: bson.D{{Key: "$ne", Value: transactions}}}},
		bson.D{{Key: "op", Value: "c"}, {Key: "o.applyOps.ns", Value: of}},
		// Operations with a UUID may belong to other names.
		bson.D{{Key: "op", Value: "c"}, {Key: "o.applyOps.ui", Value: bson.D{{Key: "$exists", Value: true}}},
			{Key: "lsid", Value: bson.D{{Key: "$exists", Value: false}}}},
	), span.Until.TS, func(raw bson.Raw) error { return entry(raw) })
}

// eachSpooled calls fn for the spooled entries of a span; unread is an error of the spool.
func eachSpooled(s *spool.Spool, span Span, fn func([]byte) error) (unread, err error) {
	rd := s.From(spoolKey(span.After))
	defer rd.Close()
	for {
		rec, ok, err := rd.Next()
		if err != nil || !ok || spoolKey(span.Until) < rec.First {
			return err, nil
		}
		if err := wire.BatchOf(rec.Payload).Each(fn); err != nil {
			return nil, err
		}
	}
}

type onChange = func(*stream.Change, mongo.OpTime) error

// Changes returns a function that calls fn for the schema changes after a position, up to another. They
// include those of aborted transactions. Changes that cannot be followed have kind and names only.
func Changes(c *mongo.Cluster) func(ctx context.Context, after, until mongo.OpTime, fn onChange) error {
	return func(ctx context.Context, after, until mongo.OpTime, fn onChange) error {
		in := newInterpreter(c, Options{Keep: func(string) bool { return false }})
		in.namesAlone = true
		filter := Span{after, until}.filter(bson.D{{Key: "op", Value: "c"}},
			bson.D{{Key: "ns", Value: bson.Regex{Pattern: `\.system\.views$`}}})
		err := c.EachEntry(ctx, filter, until.TS, func(doc bson.Raw) error {
			e, err := parseEntry(doc)
			if err != nil {
				return err
			}
			return in.each(ctx, &e, func(ev *stream.Event) error { return fn(ev.Change, ev.At) })
		})
		if err != nil {
			return fmt.Errorf("read oplog of %s for schema changes: %w", c.Address(), err)
		}
		return nil
	}
}

// each calls fn for an entry's events, those inside applyOps included.
func (in *interpreter) each(ctx context.Context, e *entry, fn func(*stream.Event) error) error {
	at, users := e.at, false
	if string(e.op) == "c" && !e.inTransaction() {
		c, err := parseCommand(e.o)
		if err != nil {
			return err
		}
		users = c.ops != nil && in.usersOwn(e, c)
		in.migrated = c.ops != nil && e.fromMigrate && in.skipMigrated
		defer func() { in.migrated = false }()
	}
	err := in.operation(e, 0, -1, func(e *entry, _ int) error {
		if users {
			if err := in.identify(ctx, e, at); err != nil {
				return err
			}
		}
		ev := stream.Event{At: at}
		if wanted, err := in.event(&ev, e, in.ns.lookup(e.ns)); err != nil || !wanted {
			return err
		}
		return fn(&ev)
	})
	return mongo.Wrap(err, "oplog entry %s, op %q on %s", e.at, e.op, e.ns)
}

// FindInsertion is a stream.FindInsertion. A group of inserts becomes visible at once, at the position of its entry.
func FindInsertion(ctx context.Context, run func(context.Context, string, bson.D) (bsoncore.Document, error),
	in stream.Insertion) (at mongo.OpTime, found bool, err error) {
	insert := bson.D{{Key: "op", Value: "i"}, {Key: "ui", Value: in.UUID},
		{Key: "o._id", Value: bson.D{{Key: "$eq", Value: in.ID}}}}
	body, err := run(ctx, "local", bson.D{
		{Key: "find", Value: "oplog.rs"}, {Key: "limit", Value: 2}, {Key: "singleBatch", Value: true},
		{Key: "filter", Value: bson.D{
			{Key: "ts", Value: bson.D{{Key: "$gt", Value: in.After.TS}, {Key: "$lte", Value: in.Until.TS}}},
			{Key: "$or", Value: bson.A{insert, bson.D{{Key: "op", Value: "c"}, {Key: "multiOpType", Value: 1},
				{Key: "o.applyOps", Value: bson.D{{Key: "$elemMatch", Value: insert}}}}}},
		}},
		{Key: "projection", Value: bson.D{{Key: "ts", Value: 1}}},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}},
	})
	if err != nil {
		return at, false, fmt.Errorf("read the oplog: %w", err)
	}
	docs, err := bson.Raw(body).Lookup("cursor", "firstBatch").Array().Values()
	if err != nil || len(docs) != 1 {
		return at, false, err
	}
	t, i, ok := docs[0].Document().Lookup("ts").TimestampOK()
	return mongo.OpTime{TS: bson.Timestamp{T: t, I: i}, Term: -1}, ok, nil
}
