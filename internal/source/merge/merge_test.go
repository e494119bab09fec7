package merge

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/testseed"
)

func at(n int) mongo.OpTime {
	return mongo.OpTime{TS: bson.Timestamp{T: 1000 + uint32(n/7), I: 1 + uint32(n%7)}, Term: 1}
}

// record is an entry of an invented part: its events, or a transaction that it
// prepares, whose events come with the record that decides it.
type record struct {
	at       mongo.OpTime
	events   []stream.Event
	prepares bool
	decides  mongo.OpTime // where what it commits or aborts was prepared
}

// invented is a part with a history. Of what lies after its last record it tells
// only when it was asked to move on.
type invented struct {
	seed    uint64
	records []record

	mu     sync.Mutex
	passed mongo.OpTime
	woken  chan struct{}
	runs   int
}

func (p *invented) Stats() stream.SourceStats { return stream.SourceStats{Events: 1} }

func (p *invented) advance(_ context.Context, at mongo.OpTime) error {
	p.mu.Lock()
	p.passed = mongo.MaxOpTime(p.passed, at)
	p.mu.Unlock()
	select {
	case p.woken <- struct{}{}:
	default:
	}
	return nil
}

// Run brings batches cut at random, transactions in several, and those that were
// prepared before the position again.
func (p *invented) Run(ctx context.Context, pos stream.Position,
	emit func(context.Context, *stream.Batch) error) error {
	p.runs++
	r := rand.New(rand.NewPCG(p.seed, uint64(p.runs)))
	b := &stream.Batch{Start: pos.At, End: pos.At}
	var open []mongo.OpTime
	send := func(partial bool) error {
		b.Partial, b.Mark, b.Bytes = partial, "m"+b.End.String(), 100*len(b.Events)+10
		b.Undecided = mongo.OpTime{}
		for _, o := range open {
			if b.Undecided.IsZero() || o.Before(b.Undecided) {
				b.Undecided = o
			}
		}
		sent := b
		b = &stream.Batch{Start: b.End, End: b.End}
		return emit(ctx, sent)
	}
	for _, rec := range p.records {
		if rec.prepares {
			open = append(open, rec.at)
		}
		open = slices.DeleteFunc(open, func(o mongo.OpTime) bool { return o == rec.decides })
		if !pos.At.Before(rec.at) {
			continue
		}
		for i, ev := range rec.events {
			b.Events = append(b.Events, ev)
			if i < len(rec.events)-1 && r.IntN(4) == 0 {
				if err := send(true); err != nil {
					return err
				}
			}
		}
		b.End = rec.at
		if r.IntN(3) == 0 {
			if err := send(false); err != nil {
				return err
			}
		}
	}
	for {
		p.mu.Lock()
		b.End = mongo.MaxOpTime(b.End, p.passed)
		p.mu.Unlock()
		if err := send(false); err != nil {
			return err
		}
		select {
		case <-p.woken:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// world is a cluster of invented parts and what its merged stream has to be.
type world struct {
	parts []*invented
	want  []string
}

func name(part int, ev *stream.Event) string { return fmt.Sprintf("%s of %d: %s", ev.At, part, ev.NS) }

// invent makes n moments in which parts write: alone, the same moment on several,
// many documents at once, and transactions prepared on several parts, decided
// later on each, of the time of the last one to prepare.
func invent(seed uint64, parts, n int) *world {
	r := rand.New(rand.NewPCG(seed, 5))
	w := &world{}
	for i := range parts {
		w.parts = append(w.parts, &invented{seed: seed*31 + uint64(i), woken: make(chan struct{}, 1)})
	}
	type pending struct {
		part      int
		prepared  mongo.OpTime
		committed mongo.OpTime
		aborted   bool
	}
	type known struct {
		ev    stream.Event
		part  int
		order int
	}
	var all []known
	var open []pending
	count := 0
	events := func(part int, when mongo.OpTime) (evs []stream.Event) {
		k := 1
		if r.IntN(6) == 0 {
			k = 2 + r.IntN(12)
		}
		for range k {
			ev := stream.Event{Kind: stream.Insert, NS: "e" + strconv.Itoa(count), At: when}
			evs, all = append(evs, ev), append(all, known{ev, part, count})
			count++
		}
		return evs
	}
	for i := 1; i <= n; i++ {
		now := at(i)
		busy := map[int]bool{}
		switch {
		case r.IntN(12) == 0: // prepared on two parts, at this moment and the next
			a, b := r.IntN(parts), r.IntN(parts)
			if a == b {
				break
			}
			i++
			later, aborted := at(i), r.IntN(4) == 0
			w.parts[a].records = append(w.parts[a].records, record{at: now, prepares: true})
			w.parts[b].records = append(w.parts[b].records, record{at: later, prepares: true})
			open = append(open, pending{a, now, later, aborted}, pending{b, later, later, aborted})
			continue
		case len(open) > 0 && r.IntN(3) == 0:
			k := r.IntN(len(open))
			o := open[k]
			open = slices.Delete(open, k, k+1)
			rec := record{at: now, decides: o.prepared}
			if !o.aborted {
				rec.events = events(o.part, o.committed)
			}
			w.parts[o.part].records = append(w.parts[o.part].records, rec)
			busy[o.part] = true
		}
		for p := range parts {
			if busy[p] || r.IntN(parts+p*p) > 1 { // the later ones are idle for long
				continue
			}
			w.parts[p].records = append(w.parts[p].records, record{at: now, events: events(p, now)})
		}
	}
	for _, o := range open {
		n++
		w.parts[o.part].records = append(w.parts[o.part].records, record{at: at(n + 10), decides: o.prepared})
	}
	slices.SortStableFunc(all, func(a, b known) int {
		if c := a.ev.At.Compare(b.ev.At); c != 0 || a.part == b.part {
			return c
		}
		return a.part - b.part
	})
	for _, k := range all {
		w.want = append(w.want, name(k.part, &k.ev))
	}
	return w
}

func (w *world) source(o Options) *Source {
	var parts []Part
	for i, p := range w.parts {
		parts = append(parts, Part{Name: "s" + strconv.Itoa(i), Source: p, Advance: p.advance})
	}
	return New(parts, o)
}

func (w *world) start(t *testing.T) stream.Position {
	t.Helper()
	names, from := []string{}, map[string]stream.Position{}
	for i := range w.parts {
		names = append(names, "s"+strconv.Itoa(i))
		from[names[i]] = stream.Position{At: at(0)}
	}
	pos, err := Position(at(0), names, from)
	if err != nil {
		t.Fatal(err)
	}
	return pos
}

// owner finds the part of an event by its name.
func (w *world) owner() map[string]int {
	of := map[string]int{}
	for i, p := range w.parts {
		for _, rec := range p.records {
			for _, ev := range rec.events {
				of[ev.NS] = i
			}
		}
	}
	return of
}

// TestOrder: whatever parts there are and however their batches are cut, the events
// come in one order, once, also for a consumer that begins again at any batch.
func TestOrder(t *testing.T) { testseed.Each(t, orders) }

func orders(t *testing.T, first uint64) {
	for seed := first; seed != first+150; seed++ {
		r := rand.New(rand.NewPCG(seed, 1))
		w := invent(seed, 1+r.IntN(5), 20+r.IntN(300))
		o := Options{AheadBytes: 1 + r.Int64N(3000), BatchBytes: 1 + r.Int64N(3000), HeldBytes: 1 << 30,
			Beat: 5 * time.Millisecond}
		if err := w.consume(t, r, o); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

var errEnough = errors.New("enough")

// consume reads the merged stream to its end, and begins again now and then from
// the last batch, of which it keeps what is whole.
func (w *world) consume(t *testing.T, r *rand.Rand, o Options) error {
	owner, pos := w.owner(), w.start(t)
	var whole []string
	for len(whole) < len(w.want) {
		got := slices.Clone(whole)
		last := pos.At
		batches := r.IntN(40)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		err := w.source(o).Run(ctx, pos, func(_ context.Context, b *stream.Batch) error {
			if b.Start != last || b.End.Before(b.Start) {
				return fmt.Errorf("a batch from %s to %s follows %s", b.Start, b.End, last)
			}
			last = b.End
			for i := range b.Events {
				if !b.Partial && b.End.Before(b.Events[i].At) {
					return fmt.Errorf("an event at %s in a batch that ends at %s", b.Events[i].At, b.End)
				}
				got = append(got, name(owner[b.Events[i].NS], &b.Events[i]))
			}
			if !b.Partial {
				whole, pos = slices.Clone(got), b.Resume()
			}
			if batches--; batches < 0 && (len(b.Events) > 0 || len(whole) == len(w.want)) || len(whole) == len(w.want) {
				if b.Partial { // what is at or before End is whole all the same
					pos = b.Resume()
					whole = w.upTo(b.End)
				}
				return errEnough
			}
			return nil
		})
		cancel()
		for i := range got {
			if i >= len(w.want) || got[i] != w.want[i] {
				return fmt.Errorf("event %d is %q, want %q", i, got[i], w.want[min(i, len(w.want)-1)])
			}
		}
		if !errors.Is(err, errEnough) {
			return fmt.Errorf("%d of %d events: %w", len(got), len(w.want), err)
		}
	}
	return nil
}

// upTo is what a consumer has that has everything up to a position.
func (w *world) upTo(end mongo.OpTime) (have []string) {
	for _, s := range w.want {
		when, _, _ := strings.Cut(s, " ")
		if p, err := mongo.ParseOpTime(when); err != nil || end.Before(p) {
			break
		}
		have = append(have, s)
	}
	return have
}

// TestPast: a part that tells of what is past is an error: its events would be lost.
func TestPast(t *testing.T) {
	w := &world{parts: []*invented{{records: []record{{at: at(5), events: []stream.Event{{At: at(5)}}},
		{at: at(6), events: []stream.Event{{At: at(3)}}}}, woken: make(chan struct{}, 1)}}}
	w.parts[0].seed = 3
	err := w.source(Options{}).Run(t.Context(), w.start(t), func(context.Context, *stream.Batch) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "s0 emits") {
		t.Error(err)
	}
}

// TestUndecided: what a prepared transaction holds back is bounded.
func TestUndecided(t *testing.T) {
	p := &invented{records: []record{{at: at(1), prepares: true}}, woken: make(chan struct{}, 1)}
	for i := 2; i < 500; i++ {
		p.records = append(p.records, record{at: at(i), events: []stream.Event{{At: at(i)}}})
	}
	w := &world{parts: []*invented{p}}
	events := 0
	err := w.source(Options{AheadBytes: 1000, HeldBytes: 3000}).Run(t.Context(), w.start(t),
		func(_ context.Context, b *stream.Batch) error {
			events += len(b.Events)
			return nil
		})
	if err == nil || mongo.Classify(err) != mongo.ClassRetry ||
		!strings.Contains(err.Error(), "s0: a transaction prepared at 1000:2") || events != 0 {
		t.Errorf("%d events, %v", events, err)
	}
}

// TestWaits: who holds the others up is said, and asked to move on.
func TestWaits(t *testing.T) {
	busy, idle := &invented{woken: make(chan struct{}, 1)}, &invented{woken: make(chan struct{}, 1)}
	busy.records = []record{{at: at(3), events: []stream.Event{{At: at(3)}}}}
	w := &world{parts: []*invented{busy, idle}}
	s := w.source(Options{Beat: time.Millisecond})
	s.parts[1].Advance = nil
	ctx, cancel := context.WithCancelCause(t.Context())
	err := s.Run(ctx, w.start(t), func(_ context.Context, b *stream.Batch) error {
		if len(b.Events) > 0 {
			t.Error("an event came while it was not known whether it is the first")
		}
		if wait := s.Waits(); wait.Part == "s1" && wait.Since == at(0) && s.Stats().Waits == wait {
			cancel(errEnough)
		}
		return nil
	})
	if !errors.Is(err, errEnough) || s.Waits().Part != "" {
		t.Error(err, s.Waits())
	}
}

// TestWaitsForAll: a transaction that all parts have prepared at one time, and none has
// decided, holds up what comes after it.
func TestWaitsForAll(t *testing.T) {
	w := &world{}
	for range 2 {
		w.parts = append(w.parts, &invented{woken: make(chan struct{}, 1), records: []record{{at: at(2), prepares: true}}})
	}
	w.parts[1].records = append(w.parts[1].records, record{at: at(3), events: []stream.Event{{At: at(3)}}})
	s := w.source(Options{Beat: time.Millisecond})
	ctx, cancel := context.WithCancelCause(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- s.Run(ctx, w.start(t), func(context.Context, *stream.Batch) error { return nil }) }()
	for wait := s.Waits(); wait.Part == "" || !wait.Undecided || wait.Since != at(2).Previous(); wait = s.Waits() {
		select {
		case err := <-ran:
			t.Fatal(err)
		case <-t.Context().Done():
			t.Fatalf("%+v", wait)
		case <-time.After(time.Millisecond):
		}
	}
	cancel(errEnough)
	if err := <-ran; !errors.Is(err, errEnough) {
		t.Error(err)
	}
}

func TestPositions(t *testing.T) {
	w := invent(1, 3, 5)
	for text, pos := range map[string]stream.Position{
		"of 2 parts":   {At: at(1), Mark: `[{"name":"s0","t":1,"i":1},{"name":"s1","t":1,"i":1}]`},
		"twice":        {At: at(1), Mark: `[{"name":"s0"},{"name":"s0"}]`},
		"does not say": {At: at(1)}, "where s2 goes on": {At: at(1),
			Mark: `[{"name":"s0","t":1,"i":1},{"name":"s1","t":1,"i":1},{"name":"x","t":1,"i":1}]`},
	} {
		if err := w.source(Options{}).Run(t.Context(), pos, nil); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := Position(at(1), []string{"a"}, map[string]stream.Position{"a": {At: at(2)}}); err == nil {
		t.Error("a part stands after the whole")
	}
}

// memory is a part whose batches are there already.
type memory struct {
	batches, events int
	index           int
}

func (p memory) Stats() stream.SourceStats { return stream.SourceStats{} }

func (p memory) Run(ctx context.Context, _ stream.Position, emit func(context.Context, *stream.Batch) error) error {
	last, n := at(0), 0
	for range p.batches {
		b := &stream.Batch{Start: last, Events: make([]stream.Event, p.events), Bytes: 1000 * p.events}
		for i := range b.Events {
			n++
			b.Events[i].At = at(2*n + (n*7+p.index)%2)
		}
		last = b.Events[p.events-1].At
		b.End = last
		if err := emit(ctx, b); err != nil {
			return err
		}
	}
	if err := emit(ctx, &stream.Batch{Start: last, End: at(1 << 30)}); err != nil {
		return err
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// BenchmarkMerge is of three parts whose events alternate; alone is what making and
// reading them costs without a merge. Processor time counts, not that of a clock:
// the parts run beside the merge.
func BenchmarkMerge(b *testing.B) {
	b.Run("merged", benchmarkMerged)
	b.Run("alone", benchmarkAlone)
}

const events = 4000

// benchmarkAlone reads the same batches one part after the other.
func benchmarkAlone(b *testing.B) {
	const parts = 3
	before := ownCPU()
	for i := range parts {
		left := b.N/events/parts + 1
		err := memory{batches: left, events: events, index: i}.Run(b.Context(), stream.Position{},
			func(context.Context, *stream.Batch) error {
				if left--; left < 0 {
					return errEnough
				}
				return nil
			})
		if !errors.Is(err, errEnough) {
			b.Fatal(err)
		}
	}
	b.ReportMetric((ownCPU()-before)*1e9/float64(b.N), "cpu-ns/op")
}

// ownCPU is the processor time of this process in seconds.
func ownCPU() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return (time.Duration(u.Utime.Nano()) + time.Duration(u.Stime.Nano())).Seconds()
}

func benchmarkMerged(b *testing.B) {
	var parts []Part
	names, from := []string{"s0", "s1", "s2"}, map[string]stream.Position{}
	for i, name := range names {
		parts = append(parts, Part{Name: name, Source: memory{batches: b.N/events/len(names) + 1, events: events, index: i}})
		from[name] = stream.Position{At: at(0)}
	}
	pos, err := Position(at(0), names, from)
	if err != nil {
		b.Fatal(err)
	}
	want := 3 * (b.N/events/len(names) + 1) * events
	b.ReportAllocs()
	b.ResetTimer()
	before := ownCPU()
	err = New(parts, Options{}).Run(b.Context(), pos, func(_ context.Context, batch *stream.Batch) error {
		if want -= len(batch.Events); want == 0 {
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) {
		b.Fatal(err)
	}
	b.ReportMetric((ownCPU()-before)*1e9/float64(b.N), "cpu-ns/op")
}
