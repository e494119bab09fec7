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

// Where the shard key of a collection is more than the _id, each statement includes it. A
// statement without it goes to all shards, which do not check who owns what. While a chunk
// moves it may miss the document. A key that no event has reported is looked up.

// located has the statements of existing documents say where the target has them. Of
// deletes there is one for each place, none for documents that are not there. Updates of
// documents that are not there, or twice, go to all shards.
func (w *Writer) located(ctx context.Context, t *fold.Target, list []statement) ([]statement, error) {
	if t.Key.IsZero() || len(list) == 0 {
		return list, nil
	}
	var out, parts []statement
	for _, s := range list {
		if s.whole() {
			out = append(out, s)
		} else {
			parts = append(parts, s)
		}
	}
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

// elsewhere deletes the target's copies of complete documents where their shard keys do not
// belong. It does so before they are written where they do: shards do not know of each other's
// _ids. After a crash in between both are repeated. In the overlap an insert may find its
// document, with another key if a later event is folded into the insert. It may also find one
// of somebody else's.
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

// places returns where the target has the documents of statements: what events have reported,
// else what is found. Two places are an error but in the overlap.
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

// twice is the error that the target has two documents of one _id, of which nothing says
// which one an operation is for. In the overlap one of them is what the other is to become.
func twice(t *fold.Target, o *fold.Op) error {
	err := errors.New("the target has two documents of this _id, under different shard keys")
	return mongo.WithHint(o.Fail(o.Verb(), t.NS, err), "give one of them another _id on the source; "+
		"or begin anew with the shard key that the source has, which tells them apart")
}

// concerns are what reads of a target behind routers carry. They read what a majority has and
// at least what the writers have written, for else a deposed primary that has not learned of
// its fall would answer. They also carry the cluster's time, of which the router may not have
// heard.
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

// see takes the times of an answer.
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
