package verify

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
)

// cut is a document at which a collection is parted in the order of its
// storage: the last one of its slice.
type cut struct {
	record int64
	id     string // as appendID makes it
}

// slice is a part of a collection in the order of its storage: the records
// after `after` (0: from the beginning) up to `until` (nil: to the end). Where
// the document at its end has been deleted it gives a few more, which the next
// slice gives as well: then their groups differ and are looked into.
type slice struct {
	after int64
	until *cut
}

// eachSlice calls fn for the parts between cuts, so many at a time.
func eachSlice(ctx context.Context, cuts []cut, readers int, fn func(context.Context, slice) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readers)
	prev := int64(0)
	for i := range cuts {
		sl := slice{prev, &cuts[i]}
		g.Go(func() error { return fn(ctx, sl) })
		prev = cuts[i].record
	}
	g.Go(func() error { return fn(ctx, slice{prev, nil}) })
	return g.Wait()
}

// readersOf is how many readers share a side: at most one for each range's worth
// of bytes, and one where the server lets no scan begin in the middle (before
// 4.4, through mongos, of a clustered collection).
func (e *Engine) readersOf(s *side) int {
	if !s.exists || s.access != byIndex || s.clustered ||
		!s.cluster.Info.Version.AtLeast(4, 4) || s.cluster.Info.Kind == mongo.KindSharded {
		return 1
	}
	return int(max(min(s.bytes/e.o.RangeBytes, int64(e.o.Workers)), 1))
}

const (
	// slicesPerReader keeps all readers busy to the end, although slices are
	// not of the same size. A slice costs half a reply that is not its own.
	slicesPerReader = 4
	samplesPerSlice = 20
)

// recordCuts parts a side for so many readers.
func recordCuts(ctx context.Context, s *side, readers int) ([]cut, error) {
	if readers < 2 {
		return nil, nil
	}
	n := readers * slicesPerReader
	ids, err := sample(ctx, s, n*samplesPerSlice)
	if err != nil {
		return nil, err
	}
	found, err := locate(ctx, s, ids)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(found, func(a, b cut) int { return cmp.Compare(a.record, b.record) })
	found = slices.CompactFunc(found, func(a, b cut) bool { return a.record == b.record })
	if len(found) < n {
		return nil, nil
	}
	var cuts []cut
	for i := 1; i < n; i++ {
		cuts = append(cuts, found[i*len(found)/n])
	}
	return cuts, nil
}

// locate finds where documents are stored, those that still exist.
func locate(ctx context.Context, s *side, ids []bson.RawValue) ([]cut, error) {
	in := make(bson.A, 0, len(ids))
	for _, id := range ids {
		if id.Type != bson.TypeUndefined { // refused in a $in
			in = append(in, id)
		}
	}
	conn, err := s.checkout(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	// With a field that the index does not hold, the ids come from the documents:
	// an index gives back any NaN as one and the same.
	cur, err := openCursor(ctx, conn, s, s.majority(bson.D{{Key: "find", Value: s.coll},
		{Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: in}}}}},
		{Key: "projection", Value: bson.D{{Key: "_id", Value: 1}, {Key: "\x01", Value: 1}}},
		{Key: "showRecordId", Value: true}, {Key: "batchSize", Value: len(in) + 1}}), 0)
	if err != nil {
		return nil, err
	}
	defer closeCursor(ctx, cur)
	var found []cut
	for {
		b, err := cur.Next(ctx)
		if err != nil {
			return nil, fmt.Errorf("locate documents of %s on %s: %w", s.ns, s.cluster.Address(), err)
		}
		err = b.Each(func(doc []byte) error {
			key, ok := appendID(nil, doc)
			if rid := recordID(doc); ok && rid != 0 {
				found = append(found, cut{rid, string(key)})
			}
			return nil
		})
		if err != nil || b.Done {
			return found, err
		}
	}
}

// recordID reads the record id of a resume token, or what showRecordId gave; 0
// when there is none.
func recordID(doc []byte) int64 {
	e, ok := bsonraw.Field(doc, "$recordId")
	if !ok {
		return 0
	}
	n, _ := bson.RawValue{Type: e.Type, Value: e.Value}.AsInt64OK()
	return n
}

// command reads the slice, or its ids alone.
func (sl slice) command(s *side, idsOnly bool, batch int) bson.D {
	cmd := bson.D{{Key: "find", Value: s.coll}, {Key: "hint", Value: bson.D{{Key: "$natural", Value: 1}}},
		{Key: "batchSize", Value: batch}}
	if idsOnly {
		cmd = append(cmd, bson.E{Key: "projection", Value: bson.D{{Key: "_id", Value: 1}}})
	}
	if sl.after > 0 || sl.until != nil {
		cmd = append(cmd, bson.E{Key: "$_requestResumeToken", Value: true})
	}
	if sl.after > 0 {
		cmd = append(cmd, bson.E{Key: "$_resumeAfter", Value: bson.D{{Key: "$recordId", Value: sl.after}}})
	}
	return s.majority(cmd)
}

// scanSlice reads a slice. It calls each for every document with its key, and
// end after each reply; both get what is valid during the call.
func (w *worker) scanSlice(ctx context.Context, s *side, sl slice, idsOnly bool, each func(doc, key []byte) error, end func()) error {
	size := s.averageSize()
	if idsOnly {
		size = min(size, 64)
	}
	batch := max(w.e.limits.scan/size, 2)
	return w.e.eachReply(ctx, s, sl.command(s, idsOnly, sl.next(sl.after, batch)), batch, func(b *wire.Batch) (more int, err error) {
		w.e.c.hold(b.Size)
		at, err := sl.walk(s, b, each)
		w.e.c.hold(-b.Size)
		end()
		return sl.next(at, batch), err
	})
}

// next is how many documents to ask for after a record, batch at most: those of
// the slice are no more than the numbers to its end. It is 0 at the end.
func (sl slice) next(at int64, batch int) int {
	if sl.until == nil {
		return batch
	}
	return int(max(min(sl.until.record-at, int64(batch)), 0))
}

// walk calls each for the documents of a reply that belong to the slice, and
// returns the record that the reply ends with; of the last slice, 0.
func (sl slice) walk(s *side, b *wire.Batch, each func(doc, key []byte) error) (at int64, err error) {
	over := false
	if sl.until != nil {
		if at = recordID(b.Token); at == 0 && !b.Done {
			return 0, fmt.Errorf("read %s on %s: a reply in record order has no resume token", s.ns, s.cluster.Address())
		}
		over = b.Done || at >= sl.until.record
	}
	ended := false
	var key []byte
	err = b.Each(func(doc []byte) error {
		if ended {
			return nil
		}
		var ok bool
		if key, ok = appendID(key[:0], doc); !ok {
			return errMalformed(s.ns)
		}
		ended = over && string(key) == sl.until.id
		return each(doc, key)
	})
	return at, err
}
