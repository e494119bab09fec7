package oplog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/merge"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/testseed"
)

// committing is the entry that commits what applyOpsEntry prepared at another.
func committing(t *testing.T, i, prepared uint32, session int64, at uint32) bson.Raw {
	t.Helper()
	return oplogEntry(t, i, "c", "admin.$cmd", bson.D{{Key: "commitTransaction", Value: 1},
		{Key: "commitTimestamp", Value: ts(at)}},
		bson.E{Key: "lsid", Value: bson.D{{Key: "id", Value: session}}}, bson.E{Key: "txnNumber", Value: 10 + session},
		bson.E{Key: "prevOpTime", Value: bson.D{{Key: "ts", Value: ts(prepared)}, {Key: "t", Value: int64(1)}}})
}

// TestCommitTimes: what a prepared transaction did has the time of its commit, and
// until it is known that it committed, a batch says so.
func TestCommitTimes(t *testing.T) {
	insert := func(id int) bson.D { return inner("i", doc(id), nil) }
	prepare := bson.D{{Key: "prepare", Value: true}}
	var got []*stream.Batch
	a := offline(func(_ context.Context, b *stream.Batch) error { got = append(got, b); return nil },
		Options{CommitTimes: true})
	for i, step := range []struct {
		entry     bson.Raw
		undecided uint32
		at        []uint32
	}{
		{applyOpsEntry(t, 2, 1, 0, prepare, insert(1), insert(2)), 2, nil},
		{oplogEntry(t, 3, "i", "d.c", doc(3)), 2, []uint32{3}},
		{applyOpsEntry(t, 4, 2, 0, prepare, insert(4)), 2, nil},
		{committing(t, 6, 2, 1, 5), 4, []uint32{5, 5}},
		{oplogEntry(t, 7, "i", "d.c", doc(7)), 4, []uint32{7}},
		{committing(t, 8, 4, 2, 4), 0, []uint32{4}},
	} {
		ok(t, a.entry(t.Context(), step.entry))
		ok(t, a.flush(t.Context(), false, false))
		b := got[len(got)-1]
		var at []uint32
		for _, ev := range b.Events {
			at = append(at, ev.At.TS.I)
		}
		if b.Undecided.TS.I != step.undecided || !slices.Equal(at, step.at) {
			t.Errorf("entry %d: undecided %s, events at %v; want %d, %v", i, b.Undecided, at, step.undecided, step.at)
		}
	}
	timeless := oplogEntry(t, 9, "c", "admin.$cmd", bson.D{{Key: "commitTransaction", Value: 1}},
		bson.E{Key: "prevOpTime", Value: bson.D{{Key: "ts", Value: ts(8)}}})
	if err := a.entry(t.Context(), timeless); !errors.Is(err, errMalformed) {
		t.Errorf("a commit without a time: %v", err)
	}
}

// TestMergedHistory: a random history of a real server, merged as that of one part
// and begun again at random, is the same in the order of commit times.
func TestMergedHistory(t *testing.T) { testseed.Each(t, mergedHistory) }

func mergedHistory(t *testing.T, seed uint64) {
	c := connect(t, sharedURI)
	db := fmt.Sprint("merged", seed)
	ok(t, c.Client.Database(db).CreateCollection(t.Context(), "c"))
	r := rand.New(rand.NewPCG(seed, 3))
	start := position(t, c)
	randomHistory(t, c, db, r, 150)
	until := position(t, c)
	o := Options{Keep: only(db)}
	want := withAt(read(t, c, o, from(start), until))

	o.CommitTimes, o.BatchBytes, o.TxnBufferBytes = true, 1500, 2000
	pos, err := merge.Position(start, []string{"s0"}, map[string]stream.Position{"s0": from(start)})
	ok(t, err)
	var got []stream.Event
	for pos.At.Before(until) {
		batches := r.IntN(6)
		whole, last := got, pos
		s := merge.New([]merge.Part{{Name: "s0", Source: New(c, o)}},
			merge.Options{AheadBytes: 2000, BatchBytes: 1000, HeldBytes: 1 << 30})
		err := s.Run(t.Context(), pos, func(_ context.Context, b *stream.Batch) error {
			got = append(got, b.Events...)
			last = b.Resume()
			whole = slices.DeleteFunc(slices.Clone(got), func(ev stream.Event) bool { return b.End.Before(ev.At) })
			if batches--; batches < 0 || !b.End.Before(until) {
				return errReached
			}
			return nil
		})
		if !errors.Is(err, errReached) {
			t.Fatalf("seed %d: %v", seed, err)
		}
		got, pos = whole, last
	}
	compareMerged(t, seed, got, want)
}

// compareMerged compares events in the order of commit times with what they are,
// in that of the oplog.
func compareMerged(t *testing.T, seed uint64, got []stream.Event, want []string) {
	t.Helper()
	var last mongo.OpTime
	entries := map[string]bool{}
	for _, w := range want {
		_, what, _ := strings.Cut(w, " ")
		entries[what] = true
	}
	moved := 0
	for i := range got {
		if got[i].At.Before(last) {
			t.Fatalf("seed %d: event at %s after %s", seed, got[i].At, last)
		}
		last = got[i].At
		what := format(got[i])
		if !entries[what] {
			t.Fatalf("seed %d: %s came twice, or never was", seed, what)
		}
		delete(entries, what)
		if got[i].Txn != nil {
			moved++
		}
	}
	if len(entries) > 0 || moved == 0 || len(got) != len(want) {
		t.Errorf("seed %d: %d of %d events are missing, %d of transactions", seed, len(entries), len(want), moved)
	}
}
