package verify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/kit"
)

// lending is a comparison whose slices others read.
type lending struct {
	*bed
	t      *testing.T
	spec   Spec
	lender *Lender
	docs   int64 // of the source that are compared

	report *Report
	err    error
	ended  chan struct{}
}

// newLending fills both sides of a bed. The one that lends reads slowly.
func newLending(t *testing.T, n int) (*lending, map[string]expectation) {
	t.Helper()
	r := seeded(t)
	b := newBed(t, cluster(t, "6.0", "rs:1"), cluster(t, "5.0", "rs:1"))
	want := plantAll(t, b, r, idsOf(n, makeID), 100, true)
	left := make([]bson.Raw, 0, n/10) // by the filter
	for i := range cap(left) {
		left = append(left, kit.Raw(bson.D{{Key: "_id", Value: fmt.Sprint("left out ", i)}, {Key: "n", Value: 8}}))
	}
	insert(t, b.src, b.pair.SourceNS, left...)
	db, _ := mongo.SplitNS(b.pair.SourceNS)
	other, _ := mongo.SplitNS(b.pair.TargetNS)
	l := &lending{bed: b, t: t, lender: NewLender("v1", time.Second), ended: make(chan struct{})}
	for _, e := range want {
		if e.kind == Extra {
			l.docs--
		}
	}
	l.docs += int64(n)
	l.spec = Spec{Source: shared.labs["6.0 rs:1"].URI(), Target: shared.labs["5.0 rs:1"].URI(),
		Rules:   transform.Config{Include: []string{db + ".*"}, Rename: []string{db + "=" + other}, Filter: []string{db + `.*={"n": {"$ne": 8}}`}},
		Options: Options{Method: Digest, Workers: 2, RangeBytes: 4000, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}}
	return l, want
}

// begin begins the comparison, at a rate in bytes a second; 0 is any.
func (l *lending) begin(rate int64) {
	spec := l.spec
	spec.Lender, spec.BytesPerSecond = l.lender, rate
	go func() {
		defer close(l.ended)
		l.report, l.err = Clusters(l.t.Context(), spec)
	}()
	for l.lender.Waiting() == 0 {
		select {
		case <-l.ended:
			l.t.Fatalf("nothing was lent: %v", l.err)
		case <-time.After(time.Millisecond):
		}
	}
}

// ask is how a borrower of one life asks.
func (l *lending) ask(ctx context.Context, request []byte) ([]byte, error) {
	select {
	case <-l.ended:
		return nil, errors.New("nobody answers")
	default:
		return l.lender.Answer(ctx, request), nil
	}
}

// raw asks as a borrower of a test's own does.
func (l *lending) raw(a loanAsk) (r loanReply) {
	l.t.Helper()
	a.Borrower, a.Version = a.Worker, "v1"
	if err := bson.Unmarshal(l.lender.Answer(l.t.Context(), kit.Raw(a)), &r); err != nil {
		l.t.Fatal(err)
	}
	return r
}

// check waits for the end: all was found, and each document was read once.
func (l *lending) check(want map[string]expectation) {
	l.t.Helper()
	<-l.ended
	if l.err != nil {
		l.t.Fatal(l.err)
	}
	checkFound(l.t, l.report, want)
	if c := l.report.Collections[0]; c.Method != Digest || c.SourceDocs != l.docs {
		l.t.Errorf("%d documents of the source compared by %s, want %d", c.SourceDocs, c.Method, l.docs)
	}
	for _, h := range l.lender.Helpers() {
		if h.Slices != 0 {
			l.t.Errorf("%+v has something still", h)
		}
	}
}

// TestLentSlices: others read slices, and the result is the same. One dies with slices in
// its hands and another one is late: what they had is read by somebody else, and counts once.
func TestLentSlices(t *testing.T) {
	l, want := newLending(t, 6000)
	l.begin(200_000)
	late := l.raw(loanAsk{Kind: askSlice, Worker: "late"}).Slice
	half := l.raw(loanAsk{Kind: askSlice, Worker: "half"}).Slice
	if late == nil || half == nil {
		t.Fatal("nothing is lent")
	}
	some := make([]byte, groupCost*min(half.Groups/2, pieceGroups))
	for i := range some {
		some[i] = byte(i)
	}
	if r := l.raw(loanAsk{Kind: askSums, Worker: "half", Loan: half.Loan, Groups: some}); r.Gone || r.More || r.Refused != "" {
		t.Fatalf("%+v", r)
	}

	var asked atomic.Int64
	dead := errors.New("the process is dead")
	var helping sync.WaitGroup
	helping.Go(func() {
		err := Borrow(t.Context(), l.spec, "dies", "v1", func(ctx context.Context, request []byte) ([]byte, error) {
			if asked.Add(1) > 9 {
				return nil, dead
			}
			return l.ask(ctx, request)
		})
		if !errors.Is(err, dead) {
			t.Errorf("the one that dies: %v", err)
		}
	})
	for _, name := range []string{"w1", "w2"} {
		helping.Go(func() {
			if err := Borrow(t.Context(), l.spec, name, "v1", l.ask); err != nil && l.running() {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	for given := true; given; time.Sleep(time.Millisecond) { // until it is given up
		l.raw(loanAsk{Kind: askAlive, Worker: "other"})
		l.lender.mu.Lock()
		given = l.lender.loans[late.Loan] != nil
		l.lender.mu.Unlock()
	}
	whole := appendGroups(nil, make([]group, late.Groups))
	if r := l.raw(loanAsk{Kind: askSums, Worker: "late", Loan: late.Loan, Groups: whole[:groupCost*min(late.Groups, pieceGroups)]}); !r.Gone {
		t.Errorf("late sums: %+v", r)
	}
	helping.Wait()
	l.check(want)
	byName := map[string]int64{}
	for _, h := range l.lender.Helpers() {
		byName[h.Worker] = h.Docs
	}
	if byName["w1"]+byName["w2"] == 0 || byName["late"]+byName["half"] != 0 {
		t.Errorf("helped: %v", byName)
	}
}

func (l *lending) running() bool {
	select {
	case <-l.ended:
		return false
	default:
		return true
	}
}

// TestLentRefused: who does not compare the same, or sends what cannot be, has no part in
// the result.
func TestLentRefused(t *testing.T) {
	l, want := newLending(t, 2000)
	l.begin(300_000)
	rules := l.spec
	rules.Rules.Filter = nil
	turned := l.spec
	turned.Source, turned.Target = turned.Target, turned.Source
	for why, one := range map[string]struct {
		spec    Spec
		version string
	}{"version": {l.spec, "v2"}, "rules": {rules, "v1"}, "clusters": {turned, "v1"}} {
		if err := Borrow(t.Context(), one.spec, why, one.version, l.ask); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("another %s: %v", why, err)
		}
	}
	for name, a := range map[string]loanAsk{
		"beginning": {From: 1, Groups: make([]byte, groupCost)},
		"length":    {Groups: make([]byte, groupCost+1)},
		"none":      {},
		"end":       {Docs: -1},
	} {
		slice := l.raw(loanAsk{Kind: askSlice, Worker: name}).Slice
		if slice == nil {
			t.Fatal("nothing is lent")
		}
		a.Kind, a.Worker, a.Loan = askSums, name, slice.Loan
		if a.Docs < 0 {
			a.Groups = make([]byte, groupCost*(slice.Groups+1))
		}
		if r := l.raw(a); r.Refused == "" {
			t.Errorf("sums of another %s: %+v", name, r)
		}
	}
	slice := l.raw(loanAsk{Kind: askSlice, Worker: "counts"}).Slice
	for from := 0; from < slice.Groups; from += pieceGroups {
		n := min(pieceGroups, slice.Groups-from)
		r := l.raw(loanAsk{Kind: askSums, Worker: "counts", Loan: slice.Loan, From: from, Groups: make([]byte, groupCost*n), Docs: 5})
		if last := from+n == slice.Groups; last != (r.Refused != "") {
			t.Errorf("sums of no documents that are said to be 5: %+v", r)
		}
	}
	if got := l.raw(loanAsk{Kind: askSlice, Worker: "back"}).Slice; got != nil {
		l.raw(loanAsk{Kind: askBack, Worker: "back", Loan: got.Loan})
	}
	l.check(want)
}
