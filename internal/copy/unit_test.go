package copy

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/wire"
)

func TestNewestPlans(t *testing.T) {
	st := func(coll string, n, of int, plan int64) scan.Slice {
		return scan.Slice{Collection: coll, N: n, Of: of, Plan: plan}
	}
	plans, generation := newestPlans([]scan.Slice{
		st("whole", 1, 2, 1), st("whole", 0, 2, 1),
		st("torn", 0, 3, 1), st("torn", 2, 3, 1),
		st("replanned", 0, 1, 2), st("replanned", 1, 2, 1),
		st("half replanned", 0, 2, 2), st("half replanned", 1, 2, 1),
	})
	if len(plans) != 2 || len(plans["whole"]) != 2 || plans["whole"][0].N != 0 || len(plans["replanned"]) != 1 {
		t.Errorf("plans %v", plans)
	}
	if generation["torn"] != 1 || generation["half replanned"] != 2 {
		t.Errorf("generations %v", generation)
	}
}

func TestSliceMovesOverUnbrokenRunsOnly(t *testing.T) {
	r := newRun(New(nil, &mongo.Cluster{}, newStore(), Options{}))
	c := &collection{progress: CollectionStats{Slices: 1}}
	s := newSlice(r, c, scan.Slice{Strategy: scan.ByRecord})
	at := func(rid int64) scan.Progress {
		return scan.Progress{Position: mustMarshal(t, bson.D{{Key: "r", Value: rid}}), Docs: 1}
	}
	s.ack(1, at(20))
	s.ack(3, at(40))
	if got := s.state(); len(got.Position) != 0 || got.Docs != 0 {
		t.Errorf("moved past an open chunk: %+v", got)
	}
	s.ack(0, at(10))
	if got := s.state(); scan.Record(got.Position) != 20 || got.Docs != 2 || len(got.Back) != 1 || got.Back[0] != 10 {
		t.Errorf("got %+v", got)
	}
	s.end(4, false)
	if s.state().Done {
		t.Error("done with a chunk under way")
	}
	s.ack(2, at(30))
	if got := s.state(); !got.Done || scan.Record(got.Position) != 40 || c.progress.SlicesDone != 1 {
		t.Errorf("got %+v", got)
	}
}

func mustMarshal(t *testing.T, v any) []byte {
	t.Helper()
	raw, err := bson.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestBudget(t *testing.T) {
	b := newBudget(100)
	ctx := t.Context()
	if err := b.take(ctx, 1000); err != nil { // larger than all, alone
		t.Fatal(err)
	}
	short, cancel := context.WithCancel(ctx)
	waiting := make(chan error, 1)
	go func() { waiting <- b.take(short, 1) }()
	cancel()
	if err := <-waiting; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	b.adjust(-1000)
	var peak, now atomic.Int64
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			n := int64(1 + i%40)
			if err := b.take(ctx, n); err != nil {
				t.Error(err)
				return
			}
			if v := now.Add(n); v > peak.Load() {
				peak.Store(v)
			}
			runtime.Gosched()
			now.Add(-n)
			b.adjust(-n)
		})
	}
	wg.Wait()
	if b.used.Load() != 0 || peak.Load() > 100 {
		t.Errorf("in flight %d, peak %d", b.used.Load(), peak.Load())
	}
}

func TestScheduleHandsOutLargestFirst(t *testing.T) {
	s := newSchedule()
	for _, size := range []int64{3, 9, 5} {
		s.push(job{size: size})
	}
	for _, want := range []int64{9, 5, 3} {
		if j, ok := s.pop(t.Context()); !ok || j.size != want {
			t.Errorf("got %d, %v; want %d", j.size, ok, want)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, ok := s.pop(ctx); ok {
		t.Error("a job out of nothing")
	}
	for range 3 {
		s.finished()
	}
	if _, ok := s.pop(t.Context()); ok {
		t.Error("a job after the end")
	}
}

// TestFramingAllocates holds the budget of the hot path: framing a chunk costs no allocation a document.
func TestFramingAllocates(t *testing.T) {
	c := server(t, "6.0")
	var docs []any
	for i := range 2000 {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "a", Value: "text"}, {Key: "b", Value: 1.5}})
	}
	insert(t, c, "allocs", "c", docs)
	conn, err := c.Pool.Checkout(t.Context(), wire.Primary())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	r := newRun(New(c, c, newStore(), Options{}))
	from := source(t, c, "allocs", "c")
	rd := scan.Reader{Conn: conn}
	w := writer{run: r}
	col := newCollection(t.Context(), taskOf(schema.Collection{}, "x.y"), r.e)
	s := newSlice(r, col, scan.Slice{Strategy: scan.ByID})
	walk := rd.Walk(&from, &s.st, scan.Want{Batch: 5000, Measure: true})
	p, err := walk.Next(t.Context())
	if err != nil || p.Docs != len(docs) {
		t.Fatal(p, err)
	}
	n := testing.AllocsPerRun(20, func() {
		if _, err := w.frame(s.c, p.Each); err != nil {
			t.Fatal(err)
		}
	})
	if n > 20 {
		t.Errorf("%.0f allocations a chunk of %d documents", n, len(docs))
	}
}

func TestWritersFor(t *testing.T) {
	for _, c := range []struct {
		near, want int
		away       time.Duration
	}{{4, 4, 200 * time.Microsecond}, {4, 5, 10 * time.Millisecond}, {4, 8, 40 * time.Millisecond}, {4, 16,
		300 * time.Millisecond}, {16, 16, time.Second}, {4, 16, time.Hour}} {
		if got := writersFor(c.near, c.away); got != c.want {
			t.Errorf("%d writers for a target %v away, want %d", got, c.away, c.want)
		}
	}
}
