package mongosink

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/testseed"
)

// batchTo is a batch of n events that ends at a position.
func batchTo(end, n, bytes int) *stream.Batch {
	return &stream.Batch{Events: make([]stream.Event, n), End: at(end), Mark: fmt.Sprint("mark ", end), Bytes: bytes}
}

func neverRelieve(context.Context) error { return errors.New("nothing is parked") }

func mustAdmit(t *testing.T, l *ledger, b *stream.Batch) *segment {
	t.Helper()
	s, err := l.admit(t.Context(), b, neverRelieve, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestLedgerPosition: the position moves over segments that are complete with all
// before them, however they complete.
func TestLedgerPosition(t *testing.T) { testseed.Each(t, ledgerPositions) }

func ledgerPositions(t *testing.T, first uint64) {
	for round := range uint64(200) {
		seed := first + round
		r := rand.New(rand.NewPCG(seed, 1))
		l := newLedger(1<<40, stream.Position{At: at(1)})
		type part struct {
			seg, n int
		}
		var segs []*segment
		var parts []part
		left := map[int]int{}
		for i := range 1 + r.IntN(20) {
			n := r.IntN(6)
			segs = append(segs, mustAdmit(t, l, batchTo(10+i, n, r.IntN(50))))
			for all := n + 1; all > 0; {
				k := 1 + r.IntN(all)
				parts = append(parts, part{i, k})
				all -= k
			}
			left[i] = n + 1
		}
		r.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
		for _, p := range parts {
			l.release(segs[p.seg], int64(p.n))
			l.done(segs[p.seg], int64(p.n))
			left[p.seg] -= p.n
			want := stream.Position{At: at(1)}
			for i := 0; i < len(segs) && left[i] == 0; i++ {
				want = stream.Position{At: at(10 + i), Mark: fmt.Sprint("mark ", 10+i)}
			}
			if got := l.current(); got != want {
				t.Fatalf("seed %d: position %v, want %v", seed, got, want)
			}
		}
		if backlog := l.bytes.Load(); backlog != 0 || l.admitted.Load() < 0 || len(l.open) != 0 {
			t.Fatalf("seed %d: %d bytes and %d segments are left", seed, backlog, len(l.open))
		}
	}
}

// TestLedgerAdvance: a schema change inside a segment moves the position forward,
// never back, and keeps the mark, which may only be too early.
func TestLedgerAdvance(t *testing.T) {
	l := newLedger(100, stream.Position{At: at(5), Mark: "five"})
	for _, c := range []struct{ to, want int }{{3, 5}, {7, 7}, {6, 7}, {8, 8}} {
		l.advance(at(c.to))
		if got := l.current(); got.At != at(c.want) || got.Mark != "five" {
			t.Errorf("after %d: %v", c.to, got)
		}
	}
	l.pass(&stream.Event{At: at(8), Change: &stream.Change{Mark: "passed"}})
	if got := l.current(); got.Mark != "five" {
		t.Errorf("what is not after the position moved it: %v", got)
	}
	l.pass(&stream.Event{At: at(9), Change: &stream.Change{}})
	if got := l.current(); got.At != at(9) || got.Mark != "five" {
		t.Errorf("after a schema change without a mark: %v", got)
	}
	l.pass(&stream.Event{At: at(10), Change: &stream.Change{Mark: "ten"}})
	if got := l.current(); got.At != at(10) || got.Mark != "ten" {
		t.Errorf("after a schema change: %v", got)
	}
	s := mustAdmit(t, l, batchTo(7, 0, 1)) // a batch that ends before what a change moved to
	l.release(s, 1)
	l.done(s, 1)
	if got := l.current(); got.At != at(10) {
		t.Errorf("the position went back to %v", got)
	}
}

// TestLedgerAdmits: a batch waits until the memory of others is free, and one is
// always admitted when nothing is in use.
func TestLedgerAdmits(t *testing.T) {
	l := newLedger(100, stream.Position{})
	first := mustAdmit(t, l, batchTo(1, 2, 1000)) // larger than the limit
	if !l.full(batchTo(2, 1, 1)) {
		t.Error("there is room beside a batch beyond the limit")
	}
	admitted := make(chan *segment)
	go func() {
		s, _ := l.admit(t.Context(), batchTo(2, 0, 60), neverRelieve, nil)
		admitted <- s
	}()
	select {
	case <-admitted:
		t.Fatal("admitted beyond the limit")
	case <-time.After(20 * time.Millisecond):
	}
	l.release(first, 3) // the memory is free, though nothing is acknowledged
	second := <-admitted
	if l.full(batchTo(3, 0, 40)) || !l.full(batchTo(3, 0, 41)) {
		t.Error("100 bytes are the limit")
	}
	l.done(second, 1)
	if got := l.current(); !got.At.IsZero() {
		t.Errorf("the position passed an open segment: %v", got)
	}
	l.done(first, 3)
	if got := l.current(); got.At != at(2) {
		t.Errorf("position %v, want 2", got)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	mustAdmit(t, l, batchTo(4, 0, 40))
	if _, err := l.admit(ctx, batchTo(5, 0, 41), neverRelieve, nil); err == nil || err.Error() != "enough" {
		t.Errorf("after the end: %v", err)
	}
}

// TestLedgerHolds: never is more in flight than the limit, one batch aside that is
// larger, and batches of a transaction count with what was read before.
func TestLedgerHolds(t *testing.T) {
	const limit = 1000
	r := rand.New(rand.NewPCG(testseed.Of(t), 2))
	l := newLedger(limit, stream.Position{})
	var open []*segment
	for i := range 2000 {
		b := batchTo(i+1, 0, r.IntN(300))
		switch {
		case i%7 == 0:
			b.EventBytes = b.Bytes + r.IntN(300)
		case i%50 == 1:
			b.Bytes = limit + r.IntN(limit)
		}
		for l.full(b) {
			l.release(open[0], 1)
			open = open[1:]
		}
		open = append(open, mustAdmit(t, l, b))
		if used := l.bytes.Load(); used > limit && used != b.Held() {
			t.Fatalf("%d bytes are in flight, of a batch of %d", used, b.Held())
		}
	}
	for _, s := range open {
		l.release(s, 1)
	}
	if used := l.bytes.Load(); used != 0 {
		t.Errorf("%d bytes are left", used)
	}
}

// TestLedgerRelieves: when parked operations hold the memory, a batch that waits
// has them resolved, a second time where the first was not enough.
func TestLedgerRelieves(t *testing.T) {
	l := newLedger(100, stream.Position{})
	s := mustAdmit(t, l, batchTo(1, 0, 100))
	wake := make(chan struct{}, 1)
	wake <- struct{}{}
	calls := 0
	_, err := l.admit(t.Context(), batchTo(2, 0, 50), func(context.Context) error {
		if calls++; calls == 2 {
			l.release(s, 1)
		}
		return nil
	}, wake)
	if err != nil || calls != 2 {
		t.Errorf("%d calls, %v", calls, err)
	}
	wake <- struct{}{}
	if _, err = l.admit(t.Context(), batchTo(3, 0, 100), neverRelieve, wake); err == nil {
		t.Error("the error of relieve is lost")
	}
}

// TestLedgerConcurrently: partitions acknowledge at once.
func TestLedgerConcurrently(t *testing.T) {
	l := newLedger(1000, stream.Position{})
	s := &shared{ledger: l}
	var wg sync.WaitGroup
	const batches, workers = 300, 4
	in := make(chan ack, 100)
	for range workers {
		wg.Go(func() {
			for a := range in {
				s.acknowledge(acks{a})
			}
		})
	}
	for i := range batches {
		seg := mustAdmit(t, l, batchTo(i+1, 3, 300))
		for range 4 {
			in <- ack{seg: seg, n: 1}
		}
	}
	close(in)
	wg.Wait()
	if got := l.current(); got.At != at(batches) || s.operations.Load() != 4*batches {
		t.Errorf("position %v, %d operations", got, s.operations.Load())
	}
}

// TestAcks: what belongs together is one entry.
func TestAcks(t *testing.T) {
	one, two := &segment{}, &segment{}
	var a acks
	for _, x := range []ack{{one, 1, false}, {one, 2, false}, {one, 1, true}, {two, 1, true}, {two, 4, true},
		{one, 1, true}} {
		a.add(x.seg, x.n, x.released)
	}
	want := acks{{one, 3, false}, {one, 1, true}, {two, 5, true}, {one, 1, true}}
	if len(a) != len(want) {
		t.Fatalf("%v", a)
	}
	for i := range want {
		if a[i] != want[i] {
			t.Errorf("entry %d: %v, want %v", i, a[i], want[i])
		}
	}
	if a.reset(); len(a) != 0 {
		t.Error("not empty after reset")
	}
}
