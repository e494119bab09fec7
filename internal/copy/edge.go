package copy

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
)

// A capped collection goes on while it is read, and order is content: to insert
// again what the copy has would put it behind newer documents, and in a full
// collection let others go. So the copy ends at an edge, the document that was
// the newest at a known position, and the replay begins there. Nothing that it
// inserts is there then, and never more than there was on the source: what the
// copy misses was deleted since.

// edge is the newest document of a capped collection at a position.
type edge struct {
	record int64 // its record id; later documents have larger ones
	at     mongo.OpTime
}

// noRecord is the edge of an empty collection.
const noRecord = -1 << 63

// newest is the document that a read found to be the newest.
type newest struct {
	record int64
	id     bson.RawValue
	at     mongo.OpTime // a position at or after that of the read
}

// edgeTries bounds how often the newest document is read while the source
// inserts others.
const edgeTries = 200

// findEdge finds where the copy of a capped collection ends, if changes follow.
func (sc *scan) findEdge(ctx context.Context) error {
	if !sc.c.Source.Capped() || sc.r.e.opts.AfterClusterTime.IsZero() || sc.r.e.src.Info.Kind != mongo.KindReplicaSet {
		return nil
	}
	e, ok, err := sc.r.findEdge(ctx, sc.c)
	if err != nil || !ok {
		return err
	}
	sc.edge = &e
	sc.s.mu.Lock()
	sc.s.st.At = e.at
	sc.s.mu.Unlock()
	if widen := sc.r.e.opts.Widen; widen != nil {
		return widen(ctx, sc.c.Task)
	}
	return nil
}

// findEdge reads the newest document until it knows as of which position it is
// the newest: where nothing was inserted between two reads, or where the entry
// tells. ok is false where record ids are no numbers.
func (r *reader) findEdge(ctx context.Context, c *collection) (e edge, ok bool, err error) {
	first := r.e.opts.AfterClusterTime
	was, ok, err := r.newest(ctx, c, first)
	if err != nil || !ok {
		return e, ok, err
	}
	for range edgeTries {
		is, ok, err := r.newest(ctx, c, was.at)
		if err != nil || !ok {
			return e, ok, err
		}
		if is.record <= was.record {
			return edge{is.record, was.at}, true, nil
		}
		at, found, err := r.insertedAt(ctx, c, is, first)
		if err != nil || found {
			return edge{is.record, at}, found, err
		}
		first, was = was.at, is
	}
	return e, false, fmt.Errorf("find the newest document of %s: it changes with each of %d reads", c.Source.NS, edgeTries)
}

// newest reads the newest document at or after a position.
func (r *reader) newest(ctx context.Context, c *collection, after mongo.OpTime) (n newest, ok bool, err error) {
	body, err := r.command(ctx, c.sourceDB, bson.D{
		{Key: "find", Value: c.Source.UUID}, {Key: "hint", Value: bson.D{{Key: "$natural", Value: -1}}}, {Key: "limit", Value: 1},
		{Key: "singleBatch", Value: true}, {Key: "showRecordId", Value: true},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}, {Key: "afterClusterTime", Value: after.TS}}},
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

// insertedAt finds the entry that inserted a document, between a position and
// the one that its read told. More than one leaves open which.
func (r *reader) insertedAt(ctx context.Context, c *collection, n newest, after mongo.OpTime) (at mongo.OpTime, found bool, err error) {
	body, err := r.command(ctx, "local", bson.D{
		{Key: "find", Value: "oplog.rs"}, {Key: "limit", Value: 2}, {Key: "singleBatch", Value: true},
		{Key: "filter", Value: bson.D{
			{Key: "ts", Value: bson.D{{Key: "$gt", Value: after.TS}, {Key: "$lte", Value: n.at.TS}}},
			{Key: "op", Value: "i"}, {Key: "ui", Value: c.Source.UUID}, {Key: "o._id", Value: bson.D{{Key: "$eq", Value: n.id}}},
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

// recordSuffix is what showRecordId appends to a document: a name, a number, the
// end.
const (
	recordName   = "\x12$recordId\x00"
	recordSuffix = len(recordName) + 8 + 1
)

// recordOf is the record id that showRecordId put at the end of a document.
func recordOf(doc []byte) (int64, bool) {
	at := len(doc) - recordSuffix
	if at < 4 || string(doc[at:at+len(recordName)]) != recordName {
		return 0, false
	}
	return int64(binary.LittleEndian.Uint64(doc[at+len(recordName):])), true
}

// withoutRecord is a copy of the document as the source has it.
func withoutRecord(doc []byte) []byte {
	out := bytes.Clone(doc[:len(doc)-recordSuffix+1])
	out[len(out)-1] = 0
	binary.LittleEndian.PutUint32(out, uint32(len(out)))
	return out
}
