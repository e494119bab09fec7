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
	"github.com/millrace/millrace/test/assigntest"
	"github.com/millrace/millrace/test/kit"
)

// assigning is a comparison for which others read slices.
type assigning struct {
	*bed
	assigntest.Counter
	t    *testing.T
	spec Spec
	docs int64 // of the source that are compared

	mu     sync.Mutex
	stats  func() Stats
	tokens map[string]string // of assistants of a test's own
	report *Report
	err    error
	ended  chan struct{}
}

// newAssigning fills both sides of a bed.
func newAssigning(t *testing.T, n int) (*assigning, map[string]expectation) {
	t.Helper()
	r := seeded(t)
	b := newBed(t, cluster(t, "6.0", "rs:1"), cluster(t, "5.0", "rs:1"))
	want := plantAll(t, b, r, idsOf(n, makeID), 100, true)
	left := make([]bson.Raw, 0, n/10) // by the filter
	for i := range cap(left) {
		left = append(left, kit.Raw(bson.D{{Key: "_id", Value: fmt.Sprint("left out ", i)}, {Key: "n", Value: 8}}))
	}
	insert(t, b.src, b.pair.Source, left...)
	db, _ := mongo.SplitNS(b.pair.Source)
	other, _ := mongo.SplitNS(b.pair.Target)
	l := &assigning{bed: b, t: t, tokens: map[string]string{}, ended: make(chan struct{})}
	for _, e := range want {
		if e.kind == Extra {
			l.docs--
		}
	}
	l.docs += int64(n)
	l.spec = Spec{Source: shared.labs["6.0 rs:1"].URI(), Target: shared.labs["5.0 rs:1"].URI(),
		Rules: transform.Config{Include: []string{db + ".*"}, Rename: []string{db + "=" + other},
			Filter: []string{db + `.*={"n": {"$ne": 8}}`}},
		Options: Options{Method: Digest, Workers: 2, RangeBytes: 4000, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}}
	return l, want
}

// begin begins the comparison, at a rate in bytes a second; 0 is any.
func (l *assigning) begin(rate int64) {
	spec := l.spec
	spec.Offer, spec.BytesPerSecond = l.Offer(5*time.Second), rate
	spec.Observe = func(stats func() Stats) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.stats = stats
	}
	go func() {
		defer close(l.ended)
		l.report, l.err = Clusters(l.t.Context(), spec)
	}()
	for l.now().Assignable == 0 {
		select {
		case <-l.ended:
			l.t.Fatalf("nothing was assigned: %v", l.err)
		case <-time.After(time.Millisecond):
		}
	}
}

// now is how far the comparison is.
func (l *assigning) now() (st Stats) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stats != nil {
		st = l.stats()
	}
	return st
}

// answer is what one hears that asks as an assistant of a test's own does.
type answer struct {
	Refused string `bson:"refused"`
	Terms   struct {
		Token string `bson:"token"`
	} `bson:"terms"`
	Part *partOf `bson:"part"`
	More bool    `bson:"more"`
}

// raw asks so, after it has joined.
func (l *assigning) raw(worker, kind string, report *partSums) (r answer) {
	l.t.Helper()
	ask := func(more ...bson.E) (r answer) {
		request := append(bson.D{{Key: "worker", Value: worker}, {Key: "version", Value: assigntest.Version}}, more...)
		raw, err := l.Ask(l.t.Context(), kit.Raw(request))
		if err == nil {
			err = bson.Unmarshal(raw, &r)
		}
		if err != nil {
			l.t.Fatal(err)
		}
		return r
	}
	if l.tokens[worker] == "" {
		l.tokens[worker] = ask(bson.E{Key: "kind", Value: "join"}).Terms.Token
	}
	return ask(bson.E{Key: "kind", Value: kind}, bson.E{Key: "token", Value: l.tokens[worker]},
		bson.E{Key: "report", Value: report})
}

// check waits for the end: all was found, and each document was read once.
func (l *assigning) check(want map[string]expectation) {
	l.t.Helper()
	<-l.ended
	if l.err != nil {
		l.t.Fatal(l.err)
	}
	checkFound(l.t, l.report, want)
	if c := l.report.Collections[0]; c.Method != Digest || c.SourceDocs != l.docs {
		l.t.Errorf("%d documents of the source compared by %s, want %d", c.SourceDocs, c.Method, l.docs)
	}
	for _, f := range l.now().Assistants {
		if f.Parts != 0 {
			l.t.Errorf("%+v has something still", f)
		}
	}
}

// TestAssignedSlices: others read slices, and the result is the same. One dies with slices in
// its hands and another one is late: what they had is read by somebody else, and counts once.
func TestAssignedSlices(t *testing.T) {
	l, want := newAssigning(t, 6000)
	l.begin(200_000)
	late, half := l.raw("late", "next", nil).Part, l.raw("half", "next", nil).Part
	if late == nil || half == nil {
		t.Fatal("nothing is assigned")
	}
	some := make([]byte, groupCost*min(half.Groups/2, pieceGroups))
	for i := range some {
		some[i] = byte(i)
	}
	if r := l.raw("half", "report", &partSums{ID: half.ID, Groups: some}); r.More || r.Refused != "" {
		t.Fatalf("%+v", r)
	}

	var asked atomic.Int64
	dead := errors.New("the process is dead")
	var helping sync.WaitGroup
	helping.Go(func() {
		err := Assist(t.Context(), l.spec, "dies", assigntest.Version,
			func(ctx context.Context, request []byte) ([]byte, error) {
				if asked.Add(1) > 9 {
					return nil, dead
				}
				return l.Ask(ctx, request)
			})
		if mongo.Classify(err) != mongo.ClassRetry { // dead, or given up on a busy machine before it asks
			t.Errorf("the one that dies: %v", err)
		}
	})
	for _, name := range []string{"w1", "w2"} {
		helping.Go(func() {
			err := Assist(t.Context(), l.spec, name, assigntest.Version, l.Ask)
			if errors.Is(err, assigntest.ErrNobody) {
				<-l.ended // the owner ceases to serve just before it ends
			}
			if err != nil && l.running() {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	kit.Until(t, "the late one is given up", func() bool {
		late := assigntest.Of("late", l.now().Assistants)
		return late.Why != "" && late.Parts == 0
	})
	full := make([]byte, groupCost*late.Groups)
	r := l.raw("late", "report", &partSums{ID: late.ID, Groups: full[:groupCost*min(late.Groups, pieceGroups)]})
	if !strings.Contains(r.Refused, "revoked this worker") {
		t.Errorf("late sums: %+v", r)
	}
	helping.Wait()
	l.check(want)
	byName := map[string]int64{}
	for _, f := range l.now().Assistants {
		byName[f.Worker] = f.Docs
	}
	if byName["w1"]+byName["w2"] == 0 || byName["late"]+byName["half"] != 0 {
		t.Errorf("helped: %v", byName)
	}
}

func (l *assigning) running() bool {
	select {
	case <-l.ended:
		return false
	default:
		return true
	}
}

// TestAssistantsRefused: who does not compare the same, or sends what cannot be, has no part in
// the result.
func TestAssistantsRefused(t *testing.T) {
	l, want := newAssigning(t, 2000)
	l.begin(300_000)
	rules := l.spec
	rules.Rules.Filter = nil
	turned := l.spec
	turned.Source, turned.Target = turned.Target, turned.Source
	for why, one := range map[string]struct {
		spec    Spec
		version string
	}{"version": {l.spec, "v2"}, "rules": {rules, assigntest.Version}, "clusters": {turned, assigntest.Version}} {
		if err := Assist(t.Context(), one.spec, why, one.version, l.Ask); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("another %s: %v", why, err)
		}
	}
	for name, a := range map[string]partSums{
		"beginning": {From: 1, Groups: make([]byte, groupCost)},
		"length":    {Groups: make([]byte, groupCost+1)},
		"none":      {},
		"end":       {Docs: -1},
	} {
		p := l.raw(name, "next", nil).Part
		if p == nil {
			t.Fatal("nothing is assigned")
		}
		if a.ID = p.ID; a.Docs < 0 {
			a.Groups = make([]byte, groupCost*(p.Groups+1))
		}
		if r := l.raw(name, "report", &a); r.Refused == "" {
			t.Errorf("sums of another %s: %+v", name, r)
		}
	}
	p := l.raw("counts", "next", nil).Part
	for from := 0; from < p.Groups; from += pieceGroups {
		n := min(pieceGroups, p.Groups-from)
		r := l.raw("counts", "report", &partSums{ID: p.ID, From: from, Groups: make([]byte, groupCost*n), Docs: 5})
		if last := from+n == p.Groups; last != (r.Refused != "") {
			t.Errorf("sums of no documents that are said to be 5: %+v", r)
		}
	}
	if l.raw("back", "next", nil).Part != nil {
		l.raw("back", "leave", nil)
	}
	l.check(want)
}
