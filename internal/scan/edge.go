package scan

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/stream"
)

// A capped collection goes on while it is read, and its order is content. To insert again what the
// copy has would put it behind newer documents, and could push others out of a full collection. So
// the copy ends at an edge, the newest document at a known position, and the replay begins there.
// The target then has nothing that the replay inserts, and never more than the source had. What the
// copy misses was deleted since.

// Edge is the newest document of a capped collection at a position.
type Edge struct {
	record int64 // its record id; later documents have larger ones
	At     mongo.OpTime
}

const noRecord = -1 << 63

type newest struct {
	record int64
	id     bson.RawValue
	at     mongo.OpTime // a position at or after that of the read
}

const edgeTries = 200

// FindEdge reads the newest document until it knows a position, first or later, at which it is the
// newest. That is so if nothing was inserted between two reads, or if inserted, which may be nil,
// finds its insertion. The edge is nil if record ids are no numbers.
func (r *Reader) FindEdge(ctx context.Context, c *schema.Collection, first mongo.OpTime,
	inserted stream.FindInsertion) (*Edge, error) {
	was, ok, err := r.newest(ctx, c, first)
	if err != nil || !ok {
		return nil, err
	}
	for range edgeTries {
		is, ok, err := r.newest(ctx, c, was.at)
		if err != nil || !ok {
			return nil, err
		}
		if is.record <= was.record {
			return &Edge{is.record, was.at}, nil
		}
		if inserted != nil {
			at, found, err := inserted(ctx, r.Command, stream.Insertion{UUID: c.UUID, ID: is.id, After: first, Until: is.at})
			if err != nil {
				return nil, err
			}
			if found {
				return &Edge{is.record, at}, nil
			}
		}
		first, was = was.at, is
	}
	return nil, fmt.Errorf("find the newest document of %s: it changes with each of %d reads", c.NS, edgeTries)
}

func (r *Reader) newest(ctx context.Context, c *schema.Collection, after mongo.OpTime) (n newest, ok bool, err error) {
	db, _ := mongo.SplitNS(c.DataNS())
	body, err := r.Command(ctx, db, bson.D{
		{Key: "find", Value: c.UUID}, {Key: "hint", Value: bson.D{{Key: "$natural", Value: -1}}}, {Key: "limit", Value: 1},
		{Key: "singleBatch", Value: true}, {Key: "showRecordId", Value: true},
		{Key: "readConcern", Value: Majority(after.TS)},
	})
	if err != nil {
		return n, false, err
	}
	raw := bson.Raw(body)
	t, i, ok := raw.Lookup("operationTime").TimestampOK()
	if !ok {
		return n, false, nil
	}
	n.at, n.record = mongo.OpTime{TS: bson.Timestamp{T: t, I: i}, Term: -1}, noRecord
	docs, err := raw.Lookup("cursor", "firstBatch").Array().Values()
	if err != nil || len(docs) == 0 {
		return n, err == nil, err
	}
	n.record, ok = docs[0].Document().Lookup("$recordId").AsInt64OK()
	n.id = docs[0].Document().Lookup("_id")
	return n, ok, nil
}
