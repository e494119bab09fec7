package verify

import (
	"bytes"
	"context"
	"encoding/binary"
	"slices"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
)

// slice is a part of a collection in the order of its storage: the records
// after `after` (0: from the beginning) up to `until` (0: to the end).
type slice struct {
	after, until int64
	parted       bool // record ids are known and asked for
}

// sliced is a document of a slice.
type sliced struct {
	doc     []byte // as read, perhaps with a record id at its end
	content []byte // its fields' bytes, without length, record id and terminator
}

// eachSlice calls fn for the parts between cuts, side by side.
func eachSlice(ctx context.Context, cuts []int64, fn func(context.Context, slice) error) error {
	g, ctx := errgroup.WithContext(ctx)
	prev := int64(0)
	for _, c := range cuts {
		sl := slice{prev, c, true}
		g.Go(func() error { return fn(ctx, sl) })
		prev = c
	}
	g.Go(func() error { return fn(ctx, slice{prev, 0, len(cuts) > 0}) })
	return g.Wait()
}

// recordCuts parts a large collection by record ids, where the server lets a
// scan begin after one (4.4, not through mongos, not clustered).
func recordCuts(ctx context.Context, s *side, least int64) ([]int64, error) {
	if !s.exists || s.access != byIndex || s.clustered || s.bytes < slicesPerSide*least ||
		!s.cluster.Info.Version.AtLeast(4, 4) || s.cluster.Info.Kind == mongo.KindSharded {
		return nil, nil
	}
	ids, err := sample(ctx, s, slicesPerSide*samplesPerRange)
	if err != nil {
		return nil, err
	}
	records, err := recordIDs(ctx, s, ids)
	if err != nil || len(records) < slicesPerSide {
		return nil, err
	}
	slices.Sort(records)
	var cuts []int64
	for i := 1; i < slicesPerSide; i++ {
		cuts = append(cuts, records[i*len(records)/slicesPerSide])
	}
	return slices.Compact(cuts), nil
}

// recordIDs looks up where documents are stored.
func recordIDs(ctx context.Context, s *side, ids []bson.RawValue) ([]int64, error) {
	conn, err := s.checkout(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	var records []int64
	for _, id := range ids {
		cur, err := openCursor(ctx, conn, s, bson.D{{Key: "find", Value: s.coll},
			{Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$eq", Value: id}}}}},
			{Key: "projection", Value: bson.D{{Key: "_id", Value: 1}}},
			{Key: "showRecordId", Value: true}, {Key: "limit", Value: 1}, {Key: "singleBatch", Value: true}}, 0)
		if err != nil {
			return nil, err
		}
		b, err := cur.Next(ctx)
		if err != nil {
			return nil, err
		}
		err = b.Each(func(doc []byte) error {
			if n, ok := recordID(doc); ok {
				records = append(records, n)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return records, nil
}

// recordIDSize is what showRecordId appends before a document's terminator:
// type, "$recordId" and an int64.
const recordIDSize = 1 + 10 + 8

func recordID(doc []byte) (int64, bool) {
	at := len(doc) - 1 - recordIDSize
	if at < 4 || doc[at] != byte(bson.TypeInt64) || !bytes.Equal(doc[at+1:at+11], []byte("$recordId\x00")) {
		return 0, false
	}
	return int64(binary.LittleEndian.Uint64(doc[at+11:])), true
}

// command reads the slice, or its ids alone.
func (sl slice) command(s *side, idsOnly bool, batch int) bson.D {
	cmd := bson.D{{Key: "find", Value: s.coll}, {Key: "hint", Value: bson.D{{Key: "$natural", Value: 1}}},
		{Key: "batchSize", Value: batch}}
	if idsOnly {
		cmd = append(cmd, bson.E{Key: "projection", Value: bson.D{{Key: "_id", Value: 1}}})
	}
	if sl.parted {
		cmd = append(cmd, bson.E{Key: "showRecordId", Value: true}, bson.E{Key: "$_requestResumeToken", Value: true})
		if sl.after > 0 {
			cmd = append(cmd, bson.E{Key: "$_resumeAfter", Value: bson.D{{Key: "$recordId", Value: sl.after}}})
		}
	}
	return s.majority(cmd)
}

// scanSlice reads a slice and hands its documents on, page by page.
func (w *worker) scanSlice(ctx context.Context, s *side, sl slice, idsOnly bool, fn func([]sliced) error) error {
	ctx, cancel := context.WithCancel(ctx)
	st := newStream(w.e)
	var reader sync.WaitGroup
	defer func() {
		cancel() // the slice may end before its cursor does
		reader.Wait()
		st.drop()
	}()
	size := s.averageSize()
	if idsOnly {
		size = min(size, 64)
	}
	batch := max(w.e.limits.batch/slicesPerSide/size, 2)
	reader.Go(func() { _ = st.fill(ctx, s, sl.command(s, idsOnly, batch), batch) })
	var page []sliced
	for {
		docs, err := st.page(ctx)
		if err != nil || docs == nil {
			return err
		}
		page = page[:0]
		ended := false
		for _, doc := range docs {
			d := sliced{doc: doc, content: doc[4 : len(doc)-1]}
			if sl.parted {
				id, ok := recordID(doc)
				if !ok {
					return errMalformed(s.ns)
				}
				if ended = sl.until > 0 && id > sl.until; ended {
					break
				}
				d.content = doc[4 : len(doc)-1-recordIDSize]
			}
			page = append(page, d)
		}
		if err := fn(page); err != nil || ended {
			return err
		}
	}
}

// page returns the next reply's documents, nil at the end. They are valid
// until the next call.
func (st *stream) page(ctx context.Context) ([][]byte, error) {
	head, err := st.peek(ctx)
	if err != nil || head == nil {
		return nil, err
	}
	st.next = len(st.cur.docs)
	return st.cur.docs, nil
}
