package mongosink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/expiry"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/testseed"
)

// routed is an engine without a server, whose partitions note what they get.
type routed struct {
	*Engine
	t      *testing.T
	traits map[string]Traits
	asked  []string // namespaces whose traits were asked for
	schema []string
	got    [][]item
}

func newRouted(t *testing.T, partitions int, o Options) *routed {
	r := &routed{t: t, traits: map[string]Traits{}, got: make([][]item, partitions)}
	o.Sizes.Partitions = partitions
	o.Targets = r
	o.Schema = func(_ context.Context, ev *stream.Event, before mongo.OpTime, last bool) error {
		r.schema = append(r.schema, fmt.Sprintf("%s before %d last %v", ev.NS, before.TS.T, last))
		return nil
	}
	r.Engine = New(&mongo.Cluster{}, stream.Position{At: at(1)}, o)
	return r
}

func (r *routed) Absent(ns string) bool { return strings.HasPrefix(ns, "absent.") }

func (r *routed) Traits(_ context.Context, ns string) (Traits, error) {
	r.asked = append(r.asked, ns)
	if ns == "dst.bad" {
		return Traits{}, errors.New("no such thing")
	}
	return r.traits[ns], nil
}

func (r *routed) Expiry(context.Context, *stream.Route) (expiry.Settings, func(n int64), error) {
	return nil, nil, nil
}

// take plays the partitions: it acknowledges what they were sent.
func (r *routed) take(ctx context.Context) {
	done := make(chan struct{})
	for i, p := range r.partitions {
		go func() {
			defer func() { done <- struct{}{} }()
			for {
				select {
				case m := <-p.in:
					for _, it := range m.items {
						r.got[i] = append(r.got[i], it)
						r.shared.acknowledge(acks{{seg: it.seg, n: 1}})
					}
					if m.quiesce != nil {
						m.quiesce <- waiting{}
					}
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	r.t.Cleanup(func() {
		for range r.partitions {
			<-done
		}
	})
}

func idOf(n int) bsoncore.Value {
	return bsoncore.Value{Type: bsoncore.TypeInt64, Data: binary.LittleEndian.AppendUint64(nil, uint64(n))}
}

func insertAt(ns string, id, pos int) stream.Event {
	doc := bsoncore.NewDocumentBuilder().AppendInt64("_id", int64(id)).Build()
	target := strings.Replace(ns, "src.", "dst.", 1)
	if strings.HasPrefix(ns, "out.") {
		target = ""
	}
	return stream.Event{Kind: stream.Insert, NS: ns, Route: &stream.Route{Source: ns, Target: target},
		Key: stream.Key{ID: idOf(id)}, Doc: bson.Raw(doc), At: at(pos)}
}

func dropAt(ns string, pos int) stream.Event {
	return stream.Event{Kind: stream.SchemaChange, NS: ns, At: at(pos),
		Change: &stream.Change{Kind: stream.ChangeDrop, NS: ns}}
}

func batchOf(start, end int, events ...stream.Event) *stream.Batch {
	return &stream.Batch{Events: events, Start: at(start), End: at(end), Bytes: 10 * len(events)}
}

func (r *routed) feed(ctx context.Context, batches ...*stream.Batch) {
	r.t.Helper()
	for _, b := range batches {
		if err := r.Feed(ctx, b); err != nil {
			r.t.Fatal(err)
		}
	}
}

// TestRouterOrder: all events of a document come to one partition, in their order,
// also where its _id comes in other bytes, and serial collections to one as a whole.
func TestRouterOrder(t *testing.T) {
	testseed.Each(t, routerOrder)
}

func routerOrder(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := newRouted(t, 5, Options{})
	r.traits["dst.ring"] = Traits{Capped: true}
	r.traits["dst.folded"] = Traits{Collated: true}
	r.take(ctx)
	const n = 3000
	pos := 1
	for pos < n {
		var events []stream.Event
		start := pos
		for range 1 + rnd.IntN(400) {
			pos++
			ns := []string{"src.a", "src.b", "src.ring", "src.folded", "out.x", "absent.x"}[rnd.IntN(6)]
			ev := insertAt(ns, rnd.IntN(50), pos)
			if rnd.IntN(2) == 0 { // the same number in other bytes
				ev.Key.ID = bsoncore.Value{Type: bsoncore.TypeDouble, Data: bsoncore.AppendDouble(nil, float64(ev.Key.ID.Int64()))}
			}
			events = append(events, ev)
		}
		r.feed(ctx, batchOf(start, pos, events...))
	}
	if err := r.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	if got := r.Applied().At; got != at(pos) {
		t.Errorf("applied %s, want %s", got, at(pos))
	}
	cancel()
	where, last := map[string]int{}, map[string]mongo.OpTime{}
	total := 0
	for i, list := range r.got {
		total += len(list)
		for _, it := range list {
			key := it.Target.NS + string(delta.AppendKey(nil, it.Event.Key.ID))
			if it.Target.Serial() {
				key = it.Target.NS
			}
			if p, seen := where[key]; seen && p != i {
				t.Fatalf("seed %d: %q is in partitions %d and %d", seed, key, p, i)
			}
			where[key] = i
			if it.Event.At.Before(last[key]) {
				t.Fatalf("seed %d: %q: %s after %s", seed, key, it.Event.At, last[key])
			}
			last[key] = it.Event.At
			if strings.HasPrefix(it.Event.NS, "out.") || !strings.HasPrefix(it.Target.NS, "dst.") {
				t.Fatalf("an event of %s went to %s", it.Event.NS, it.Target.NS)
			}
		}
	}
	if st := r.Stats(); st.Operations != int64(total) {
		t.Errorf("%d operations, %d came", st.Operations, total)
	}
	if slices.Sort(r.asked); len(r.asked) != len(slices.Compact(slices.Clone(r.asked))) {
		t.Errorf("traits were asked for again: %v", r.asked)
	}
}

// TestRouterAhead: in the overlap the target may be ahead, but of a document that
// stopped an earlier run not from there on.
func TestRouterAhead(t *testing.T) {
	id := idOf(7)
	r := newRouted(t, 1, Options{Overlap: Overlap{End: at(10),
		Refused: []stream.Place{{Origin: stream.Origin{NS: "dst.c"},
			ID: bson.RawValue{Type: bson.TypeInt64, Value: id.Data}, At: at(5)}}}})
	for _, c := range []struct {
		ns      string
		id, pos int
		ahead   bool
	}{
		{"dst.c", 1, 10, true}, {"dst.c", 1, 11, false}, {"dst.c", 7, 4, true}, {"dst.c", 7, 5, false},
		{"dst.c", 7, 9, false}, {"dst.d", 7, 9, true},
	} {
		ev := insertAt(c.ns, c.id, c.pos)
		if got := r.ahead(c.ns, &ev); got != c.ahead {
			t.Errorf("%s %d at %d: ahead %v", c.ns, c.id, c.pos, got)
		}
	}
	r.SetOverlap(at(20))
	if ev := insertAt("dst.c", 1, 15); !r.ahead("dst.c", &ev) {
		t.Error("the overlap has not moved")
	}
}

// TestBarrierWithinBatch: at the second schema change of a batch what was fed reaches as far as
// what is applied. Else a letter that is due by the one is not by the other, and never is.
func TestBarrierWithinBatch(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := newRouted(t, 2, Options{})
	r.take(ctx)
	met := 0
	r.o.Schema = func(context.Context, *stream.Event, mongo.OpTime, bool) error {
		met++
		if b := r.barrier(true); b.Fed.Before(b.Applied) || met == 2 && b.Fed.Before(at(6)) {
			t.Errorf("at change %d: fed up to %s, applied %s", met, b.Fed, b.Applied)
		}
		return nil
	}
	r.feed(ctx, batchOf(1, 10, insertAt("src.a", 1, 5), dropAt("src.b", 6), insertAt("src.a", 2, 7), dropAt("src.b", 8)))
	if met != 2 || r.Sent() != at(7) {
		t.Errorf("%d changes, sent up to %s", met, r.Sent())
	}
	cancel()
}

// TestRouterSchema: a schema change is a barrier; what it is told of positions is
// true, and what was known of namespaces is asked for again.
func TestRouterSchema(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r := newRouted(t, 3, Options{})
	r.take(ctx)
	r.feed(ctx,
		batchOf(1, 4, insertAt("src.a", 1, 2), insertAt("src.a", 2, 3), dropAt("src.a", 4)),
		batchOf(4, 6, dropAt("src.b", 5), dropAt("src.c", 5), insertAt("src.a", 1, 6)),
		batchOf(6, 6, dropAt("src.d", 7)), // goes on in the next batch
		batchOf(6, 7, dropAt("src.e", 7)),
	)
	cancel()
	want := []string{"src.a before 3 last true", "src.b before 4 last false", "src.c before 4 last true",
		"src.d before 6 last false", "src.e before 6 last true"}
	if !slices.Equal(r.schema, want) {
		t.Errorf("schema changes %q\nwant %q", r.schema, want)
	}
	if !slices.Equal(r.asked, []string{"dst.a", "dst.a"}) {
		t.Errorf("traits asked of %v", r.asked)
	}
	if st := r.Stats(); st.Schema != 5 || r.Applied().At != at(7) {
		t.Errorf("%+v, applied %s", st, r.Applied().At)
	}
}

// TestRouterSchemaInParts: a batch that goes on in several has the position of the one
// before until its last part, and a schema change in a later part does not come before
// the changes of an earlier one.
func TestRouterSchemaInParts(t *testing.T) {
	part := func(events ...stream.Event) *stream.Batch {
		b := batchOf(1, 1, events...)
		b.Partial = true
		return b
	}
	ctx, cancel := context.WithCancel(t.Context())
	r := newRouted(t, 3, Options{})
	r.take(ctx)
	r.feed(ctx,
		part(dropAt("src.a", 2), insertAt("src.a", 1, 2)),
		part(dropAt("src.b", 3), insertAt("src.b", 1, 4)),
		part(),
		part(dropAt("src.c", 4), insertAt("src.c", 1, 4)),
		part(dropAt("src.d", 4)),
		batchOf(1, 6, dropAt("src.e", 5), insertAt("src.e", 1, 6)),
		batchOf(6, 8, dropAt("src.f", 7)),
	)
	cancel()
	want := []string{"src.a before 1 last false", "src.b before 2 last false", "src.c before 3 last false",
		"src.d before 3 last false", "src.e before 4 last true", "src.f before 6 last true"}
	if !slices.Equal(r.schema, want) {
		t.Errorf("schema changes %q\nwant %q", r.schema, want)
	}
}

// TestRouterCapped: events of a capped collection that the target has are left out.
func TestRouterCapped(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	starts := map[string]CappedStart{"dst.ring": {Past: at(3), Then: 1}}
	r := newRouted(t, 2, Options{Overlap: Overlap{Capped: starts}})
	r.traits["dst.ring"] = Traits{Capped: true}
	r.take(ctx)
	r.feed(ctx, batchOf(1, 6, insertAt("src.ring", 1, 2), insertAt("src.ring", 2, 3), insertAt("src.ring", 3, 4),
		insertAt("src.ring", 4, 5), insertAt("src.a", 1, 6)))
	if err := r.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	r.StartCapped("dst.ring", CappedStart{Past: at(8)})
	r.feed(ctx, batchOf(6, 9, dropAt("src.x", 7), insertAt("src.ring", 5, 8), insertAt("src.ring", 6, 9)))
	if err := r.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	cancel()
	var came []int64
	for _, it := range slices.Concat(r.got...) {
		if it.Target.Capped {
			came = append(came, it.Event.Key.ID.Int64())
		}
	}
	if !slices.Equal(came, []int64{4, 6}) || r.Details().Skipped != 4 {
		t.Errorf("%v came, %d were skipped", came, r.Details().Skipped)
	}
	if starts["dst.ring"].Then != 1 || r.Applied().At != at(9) {
		t.Errorf("the caller's starts are %v, applied %s", starts, r.Applied().At)
	}
}

// TestRouterFails: an error names the namespace, and one of the partitions is told
// rather than the cancellation that it caused.
func TestRouterFails(t *testing.T) {
	r := newRouted(t, 1, Options{})
	if err := r.Feed(t.Context(), batchOf(1, 2, insertAt("src.bad", 1, 2))); err == nil ||
		!strings.Contains(err.Error(), "dst.bad") {
		t.Errorf("%v", err)
	}
	cause := errors.New("the disk is gone")
	r.shared.stop(cause)
	for name, fn := range map[string]func() error{
		"drain": func() error { return r.Drain(t.Context()) },
		"feed": func() error {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			for i := range 100 { // until the partition's queue is full
				if err := r.Feed(ctx, batchOf(2+i, 3+i, insertAt("src.a", i, 3+i))); err != nil {
					return err
				}
			}
			return nil
		},
	} {
		// A partition's queue may still take a message: then the answer is missing.
		if err := fn(); !errors.Is(err, cause) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRouterThrottles: under a limit a batch comes in portions, each whole.
func TestRouterThrottles(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r := newRouted(t, 2, Options{Limit: pace.New(pace.Rates{Docs: 400})})
	r.take(ctx)
	var events []stream.Event
	for i := range 450 {
		events = append(events, insertAt("src.a", i, 2+i))
	}
	began := time.Now()
	r.feed(ctx, batchOf(1, 451, events...))
	if took := time.Since(began); took < 50*time.Millisecond {
		t.Errorf("450 events at 400 a second took %s", took)
	}
	if r.shared.backlog.lasts() {
		t.Error("a limited engine takes itself for behind")
	}
	cancel()
}

// TestRouterAllocations: routing costs an event no allocation.
func TestRouterAllocations(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := newRouted(t, 4, Options{})
	for _, p := range r.partitions {
		go func() {
			for {
				select {
				case m := <-p.in:
					for i := range m.items {
						p.acknowledge(acks{{seg: m.items[i].seg, n: 1}})
					}
					clear(m.items)
					p.free <- m.items[:0]
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	var events []stream.Event
	const n = 5000
	for i := range n {
		events = append(events, insertAt("src.a", i, 2))
	}
	b := batchOf(1, 2, events...)
	run := func() { r.feed(ctx, b) }
	run()
	if got := testing.AllocsPerRun(10, run) / n; got > 0.01 {
		t.Errorf("%.4f allocations an event", got)
	}
}

// TestBacklog: it is assumed until a moment, or until that is said anew.
func TestBacklog(t *testing.T) {
	b := backlog{began: time.Now()}
	if b.lasts() {
		t.Error("there is a backlog at the start")
	}
	b.until(1<<63 - 1)
	if !b.lasts() {
		t.Error("there is none while a batch waits")
	}
	b.until(20 * time.Millisecond)
	if !b.lasts() {
		t.Error("it ended at once")
	}
	time.Sleep(30 * time.Millisecond)
	if b.lasts() {
		t.Error("it does not end")
	}
}
