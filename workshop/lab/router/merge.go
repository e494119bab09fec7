package router

import (
	"encoding/binary"
	"slices"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/shardkey"
)

// sortKey is the field in which shards hand over a document's sort key, an array
// of values as the servers compare them ({$meta: "sortKey"}).
const sortKey = "$sortKey"

// directions are those of a sort's parts; nil when there is nothing to merge by.
func directions(sort bson.Raw) []int {
	var order []int
	for e, ok := range bsonraw.Fields(sort) {
		switch {
		case !ok || string(e.Name) == "$natural":
			return nil
		case e.Type == bson.TypeEmbeddedDocument: // a score: the highest first
			order = append(order, -1)
		case number(valueOf(e)) < 0:
			order = append(order, -1)
		default:
			order = append(order, 1)
		}
	}
	return order
}

// compare orders two documents by their sort keys.
func (c *cursor) compare(a, b bson.Raw) int {
	ka, kb := sortValues(a), sortValues(b)
	for i, direction := range c.order {
		if i >= len(ka) || i >= len(kb) {
			return 0
		}
		if n := shardkey.Compare(ka[i], kb[i]); n != 0 {
			return n * direction
		}
	}
	return 0
}

func sortValues(doc bson.Raw) []bson.RawValue {
	e, _ := bsonraw.Field(doc, sortKey)
	var all []bson.RawValue
	for v, ok := range bsonraw.Fields(e.Value) {
		if ok {
			all = append(all, valueOf(v))
		}
	}
	return all
}

// withoutSortKey is a document as the client wants it.
func withoutSortKey(doc bson.Raw) bson.Raw {
	out := make(bson.Raw, 4, len(doc))
	for e, ok := range bsonraw.Fields(doc) {
		if ok && string(e.Name) != sortKey {
			out = append(out, e.Raw...)
		}
	}
	out = append(out, 0)
	binary.LittleEndian.PutUint32(out, uint32(len(out)))
	return out
}

// array encodes documents as an array.
func array(docs []bson.Raw) bson.RawValue {
	size := 5
	for _, d := range docs {
		size += len(d) + 8
	}
	out := make([]byte, 4, size)
	for i, d := range docs {
		out = append(out, byte(bson.TypeEmbeddedDocument))
		out = append(strconv.AppendInt(out, int64(i), 10), 0)
		out = append(out, d...)
	}
	out = append(out, 0)
	binary.LittleEndian.PutUint32(out, uint32(len(out)))
	return bson.RawValue{Type: bson.TypeArray, Value: out}
}

// cursorReply is a reply with a batch, the first or a next one.
func cursorReply(c *cursor, batch string, id int64, docs []bson.Raw) bson.D {
	d := bson.D{{Key: batch, Value: array(docs)}, {Key: "id", Value: id}, {Key: "ns", Value: c.db + "." + c.coll}}
	if c.at.Type != 0 {
		d = append(d, bson.E{Key: "atClusterTime", Value: c.at})
	}
	return bson.D{{Key: "cursor", Value: d}}
}

// distinctValues are the values that differ, in order.
func distinctValues(values []bson.RawValue) []bson.RawValue {
	slices.SortStableFunc(values, shardkey.Compare)
	return slices.CompactFunc(values, func(a, b bson.RawValue) bool { return shardkey.Compare(a, b) == 0 })
}
