package write

import (
	"context"
	"errors"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/wire"
)

// If the shard key is more than the _id, each statement includes it. Without it a statement goes to all
// shards, ignores ownership, and may miss the document of a moving chunk. A key that no event reported
// is looked up.

// located adds the target's shard keys to statements on existing documents. A delete becomes one for
// each place. Updates of documents in no place or two go to all shards.
func (w *Writer) located(ctx context.Context, t *fold.Target, list []statement) ([]statement, error) {
	if t.Key.IsZero() || len(list) == 0 {
		return list, nil
	}
	out, parts := split(list, (*statement).whole)
	places, err := w.places(ctx, t, parts)
	if err != nil {
		return nil, err
	}
	for i, s := range parts {
		if s.op.Kind == stream.Delete {
			for _, s.where = range places[i] {
				out = append(out, s)
			}
			continue
		}
		if s.where = nil; len(places[i]) == 1 {
			s.where = places[i][0]
		} else {
			w.Stats.Broadcast.Add(1)
		}
		out = append(out, s)
	}
	return out, nil
}

// elsewhere deletes complete documents at other shard keys before they are written, as shards do not
// know each other's _ids. After a crash both are repeated. In the overlap an insert may find its
// document under another key, or a foreign one.
func (w *Writer) elsewhere(ctx context.Context, t *fold.Target, list []statement) error {
	if t.Key.IsZero() {
		return nil
	}
	whole := slices.DeleteFunc(slices.Clone(list), func(s statement) bool {
		return !s.whole() || s.op.Kind == stream.Insert && !s.op.Overlap && !w.o.Others
	})
	places, err := w.places(ctx, t, whole)
	if err != nil {
		return err
	}
	var moved []statement
	for i, s := range whole {
		for _, where := range places[i] {
			if !t.Key.Stays(where, s.op.Doc) {
				moved = append(moved, statement{op: &fold.Op{Kind: stream.Delete, ID: s.op.ID, At: s.op.At}, where: where})
			}
		}
	}
	_, err = w.delete(ctx, "delete where it does not belong any more", t, moved)
	return err
}

// places returns the target's shard keys of documents, as events reported them or as found. Two for a
// document are an error outside the overlap.
func (w *Writer) places(ctx context.Context, t *fold.Target, list []statement) ([][][]byte, error) {
	all := make([][][]byte, len(list))
	asked := map[string]int{}
	in, size := bson.A{}, 0
	ask := func() error {
		if len(in) == 0 {
			return nil
		}
		find := bson.D{
			{Key: "find", Value: t.Coll},
			{Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: in}}}}},
			{Key: "projection", Value: t.Key.Fields()},
			{Key: "batchSize", Value: 2*len(in) + 1},
		}
		err := w.replies(ctx, t, find, func(b *wire.Batch) error {
			return b.Each(func(doc []byte) error {
				i, ok := asked[delta.KeyOf(bsonraw.IDOf(doc))]
				if !ok {
					return nil
				}
				if all[i] = append(all[i], t.Key.At(doc)); len(all[i]) > 1 && !list[i].op.Overlap {
					return twice(t, list[i].op)
				}
				return nil
			})
		})
		w.Stats.Located.Add(int64(len(in)))
		clear(asked)
		in, size = bson.A{}, 0
		return err
	}
	for i := range list {
		o := list[i].op
		if o.Where != nil {
			all[i] = [][]byte{o.Where}
			continue
		}
		if len(in) >= readDocs || size > readBytes {
			if err := ask(); err != nil {
				return nil, err
			}
		}
		asked[delta.KeyOf(o.ID)] = i
		in, size = append(in, bsonraw.RawValue(o.ID)), size+len(o.ID.Data)
	}
	return all, ask()
}

// twice is the error for two documents with one _id. In the overlap one is to become the other.
func twice(t *fold.Target, o *fold.Op) error {
	err := errors.New("the target has two documents of this _id, under different shard keys")
	return mongo.WithHint(o.Fail(o.Verb(), t.NS, err), "give one of them another _id on the source; "+
		"or start the job again with --restart and the shard key that the source has, which tells them apart")
}

// concerns returns read options behind routers. A majority read at the writers' time excludes deposed
// primaries. The cluster time is for routers that have not heard of it.
func (ws *Writers) concerns() bson.D {
	ws.seen.Lock()
	defer ws.seen.Unlock()
	concern := bson.D{{Key: "level", Value: "majority"}}
	if ws.seen.at.IsZero() {
		return bson.D{{Key: "readConcern", Value: concern}}
	}
	concern = append(concern, bson.E{Key: "afterClusterTime", Value: ws.seen.at})
	out := bson.D{{Key: "readConcern", Value: concern}}
	if ws.seen.clock != nil {
		out = append(out, bson.E{Key: "$clusterTime", Value: ws.seen.clock})
	}
	return out
}

// see records the times of a reply.
func (ws *Writers) see(reply bsoncore.Document) {
	t, i, ok := reply.Lookup("operationTime").TimestampOK()
	if at := (bson.Timestamp{T: t, I: i}); ok {
		clock, _ := reply.Lookup("$clusterTime").DocumentOK()
		ws.seen.Lock()
		defer ws.seen.Unlock()
		if at.After(ws.seen.at) {
			ws.seen.at, ws.seen.clock = at, bson.Raw(clock)
		}
	}
}
