package copy

import (
	"bytes"
	"context"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
)

// askAtOnce and largestAsked bound what the target is asked for at once: so many _ids, of so
// many bytes each. A command takes 16 MB.
const (
	askAtOnce    = 1000
	largestAsked = 8 << 10
)

// missing returns the documents of a chunk that have to be inserted. That is all of them,
// unless the copy to a sharded target is repeated: then it is the documents that the target
// lacks. A document that differs on the target is replaced, and an identical one is left alone.
// A refused insert, a search on all shards for its _id and a replacement would cost three
// writes per document, and the wait for a majority.
//
// The target is read with majority read concern, as everything written to it before. One
// document must have the _id: if there are more, under other shard keys, one of them is wrong.
func (w *writer) missing(ctx context.Context, ch *chunk) (documents, error) {
	c := ch.s.c
	// Of a clustered collection $in would walk the whole.
	if !c.Again || w.e.dst.Info.Kind != mongo.KindSharded || c.Source.Clustered() {
		return ch.part.Each, nil
	}
	docs, err := documents(ch.part.Each).all()
	if err != nil {
		return nil, err
	}
	var missing [][]byte
	for some := range slices.Chunk(docs, askAtOnce) {
		none, other, err := w.compare(ctx, c, some)
		if err == nil {
			err = w.replace(ctx, c, other)
		}
		if err != nil {
			return nil, err
		}
		missing = append(missing, none...)
		w.e.count.same.Add(int64(len(some) - len(none) - len(other)))
	}
	return func(each func(doc []byte) error) error {
		for _, doc := range missing {
			if err := each(doc); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// compare parts documents into those of which the target has none, and those that it has
// otherwise; the rest is the same there. What it cannot be asked for counts as none: its
// insert tells.
func (w *writer) compare(ctx context.Context, c *collection, docs [][]byte) (none, other [][]byte, err error) {
	ids, byID := bson.A{}, map[string][]byte{}
	key := func(doc []byte) string { return string(bsonraw.AppendID(nil, bsonraw.IDOf(doc))) }
	for _, doc := range docs {
		id := bsonraw.RawValue(bsonraw.IDOf(doc))
		if id.Type != bson.TypeUndefined && len(id.Value) <= largestAsked { // refused in a $in
			ids = append(ids, id)
			byID[key(doc)] = doc
		}
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
	if mongo.IsCode(err, mongo.CodeBadValue) { // an _id that looks like an operator
		return docs, nil, nil
	}
	for _, doc := range docs {
		switch k := key(doc); {
		case has[k] == 0:
			none = append(none, doc)
		case has[k] > 1 || !same[k]:
			other = append(other, doc)
		}
	}
	return none, other, err
}
