package oplog

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/spool"
	"github.com/millrace/millrace/internal/wire"
)

// fetcher reads single oplog entries by position. It prefers the primary, which knows most of what is
// majority-committed.
type fetcher struct {
	cluster *mongo.Cluster
	conn    *wire.Conn
	spool   *Spooler     // nil is none
	record  spool.Record // the one read last
}

func (f *fetcher) close() {
	if f.conn != nil {
		f.conn.Release()
		f.conn = nil
	}
}

// entry reads the entry at a position; with bare only the fields that link a transaction's entries.
func (f *fetcher) entry(ctx context.Context, at mongo.OpTime, bare bool) (entry, error) {
	if e, found, err := f.fromSpool(at); found || err != nil {
		return e, err
	}
	if f.conn == nil {
		conn, err := f.cluster.Pool.Checkout(ctx, wire.ByReadPreference(readpref.PrimaryPreferred()))
		if err != nil {
			return entry{}, err
		}
		f.conn = conn
	}
	cmd := append(f.find(at), bson.E{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}})
	if bare {
		var fields bson.D
		for _, name := range []string{"ts", "t", "op", "ns", "lsid", "txnNumber", "prevOpTime"} {
			fields = append(fields, bson.E{Key: name, Value: 1})
		}
		cmd = append(cmd, bson.E{Key: "projection", Value: fields})
	}
	e, found, err := findOne(ctx, f.conn, cmd)
	if err == nil && !found {
		err = f.missing(ctx, at)
	} else if err == nil && !same(e.at, at) {
		err = rolledBack("an entry of a transaction", at, e.at)
	}
	if err != nil {
		return e, fmt.Errorf("read the oplog entry %s of a transaction: %w", at, err)
	}
	return e, nil
}

func (f *fetcher) find(at mongo.OpTime) bson.D {
	return append(bson.D{
		{Key: "find", Value: oplogColl}, {Key: "limit", Value: 1}, {Key: "singleBatch", Value: true},
		{Key: "filter", Value: bson.D{{Key: "ts", Value: bson.D{{Key: "$gte", Value: at.TS}, {Key: "$lte", Value: at.TS}}}}},
	}, seekHint(f.cluster)...)
}

// missing explains why there is no entry at a position.
func (f *fetcher) missing(ctx context.Context, at mongo.OpTime) error {
	// A new primary has the entry before it knows that it is committed.
	known, found, err := findOne(ctx, f.conn, f.find(at))
	if err != nil {
		return err
	}
	if found && same(known.at, at) {
		return mongo.Retry(f.conn.Addr()+" does not know yet that "+at.String()+" is committed", nil, "")
	}
	oldest, err := oplogEnd(ctx, f.conn, 1)
	if err != nil {
		return err
	}
	newest, err := oplogEnd(ctx, f.conn, -1)
	if err != nil {
		return err
	}
	switch {
	case at.Before(oldest.at):
		return tooOld("the start of a transaction", at, oldest.at)
	case newest.at.Before(at):
		return mongo.Retry(f.conn.Addr()+" lags behind "+at.String(), nil, "")
	}
	return rolledBack("an entry of a transaction", at, newest.at)
}

// chain follows a transaction's entries back from last and returns their positions, oldest first.
func (f *fetcher) chain(ctx context.Context, id txnID, last mongo.OpTime) ([]mongo.OpTime, error) {
	var parts []mongo.OpTime
	for at := last; !at.IsZero(); {
		e, err := f.entry(ctx, at, true)
		if err != nil {
			return nil, err
		}
		if !bytes.Equal(e.txn.lsid, id.lsid) || e.txn.number != id.number || !e.prev.Before(at) {
			return nil, fmt.Errorf("%w: the entry at %s does not belong to transaction %d that led to it", errMalformed, at,
				id.number)
		}
		parts = append(parts, at)
		at = e.prev
	}
	slices.Reverse(parts)
	return parts, nil
}
