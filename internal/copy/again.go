package copy

import (
	"bytes"
	"context"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
)

// missing are the documents of a chunk that have to be inserted: all, but of what is copied
// again to a sharded target those of which it has none. What it has otherwise is replaced,
// and what it has byte for byte is left: to have its insert refused, look on all shards for
// others of its _id and replace it costs a document three writes there, and the wait for a
// majority.
//
// The target is read with a majority, as all that was written to it before. One document
// is to have the _id: with more, under other shard keys, one of them is wrong.
func (w *writer) missing(ctx context.Context, ch *chunk) (documents, error) {
	c := ch.s.c
	if !c.Again || w.e.dst.Info.Kind != mongo.KindSharded {
		return ch.part.Each, nil
	}
	const atOnce = 1000
	var docs, missing [][]byte
	err := ch.part.Each(func(doc []byte) error { docs = append(docs, doc); return nil })
	for some := range slices.Chunk(docs, atOnce) {
		var new, other [][]byte
		if err == nil {
			new, other, err = w.compare(ctx, c, some)
		}
		if err == nil {
			err = w.replace(ctx, c, other)
		}
		missing = append(missing, new...)
		w.e.count.same.Add(int64(len(some) - len(new) - len(other)))
	}
	return func(each func(doc []byte) error) error {
		for _, doc := range missing {
			if err := each(doc); err != nil {
				return err
			}
		}
		return nil
	}, err
}

// compare parts documents into those that the target has none of, and those that it has
// otherwise; the rest is the same there.
func (w *writer) compare(ctx context.Context, c *collection, docs [][]byte) (missing, other [][]byte, err error) {
	ids, byID := bson.A{}, map[string][]byte{}
	key := func(doc []byte) string { return string(bsonraw.AppendID(nil, bsonraw.IDOf(doc))) }
	for _, doc := range docs {
		byID[key(doc)] = doc
		ids = append(ids, bsonraw.RawValue(bsonraw.IDOf(doc)))
	}
	has, same := map[string]int{}, map[string]bool{}
	_, coll := mongo.SplitNS(c.Target)
	err = w.Each(ctx, c.targetDB, bson.D{
		{Key: "find", Value: coll}, {Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}},
	}, len(docs), func(doc []byte) error {
		k := key(doc)
		has[k]++
		same[k] = bytes.Equal(doc, byID[k])
		return nil
	})
	for _, doc := range docs {
		switch k := key(doc); {
		case has[k] == 0:
			missing = append(missing, doc)
		case has[k] > 1 || !same[k]:
			other = append(other, doc)
		}
	}
	return missing, other, err
}
