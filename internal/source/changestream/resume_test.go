package changestream

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
)

// TestResume: from any position of a run, also inside transactions, the rest comes, and nothing twice.
func TestResume(t *testing.T) {
	for _, version := range lab.Versions("4.4") {
		t.Run(version, func(t *testing.T) { start(t, version).resume(testseed.Of(t)) })
	}
}

func (w world) resume(seed uint64) {
	before := w.position()
	w.play(seed, "resume", 300)
	w.interleaved("resume", 30)
	end := w.position()
	o := w.options("resume", "resume-x")
	o.BatchBytes = 1 // a batch for each event
	all := w.read(New(w.c, o), from(before), end)
	var positions []stream.Position
	for _, b := range all {
		positions = append(positions, b.Resume())
		for i := range b.Events {
			ev := &b.Events[i]
			positions = append(positions, stream.Position{At: ev.At, Mark: b.Mark}, from(ev.At))
			if ev.Change != nil {
				positions = append(positions, b.Resume().Past(ev))
			}
		}
	}
	r := rand.New(rand.NewPCG(seed, 1))
	r.Shuffle(len(positions), func(i, j int) { positions[i], positions[j] = positions[j], positions[i] })
	o.BatchBytes = 1 + r.IntN(2000)
	w.Logf("%d events, %d positions", len(of(all, "resume", "resume-x")), len(positions))
	for _, pos := range positions[:min(len(positions), 60)] {
		var want []stream.Event
		for _, ev := range of(all, "resume", "resume-x") {
			if pos.At.Before(ev.At) {
				want = append(want, ev)
			}
		}
		got := of(w.read(New(w.c, o), pos, end), "resume", "resume-x")
		kit.SameLines(w, lines(got), lines(want))
	}
}

// interleaved runs pairs of transactions at the same time, with writes outside of them.
func (w world) interleaved(db string, pairs int) {
	w.Helper()
	coll := w.c.Client.Database(db).Collection("txns")
	_, err := coll.InsertOne(w.Context(), d("_id", "first"))
	w.ok(err)
	for i := range pairs {
		a, b := w.begin(), w.begin()
		for n := range 3 {
			a.insert(coll, fmt.Sprintf("a%d-%d", i, n))
			b.insert(coll, fmt.Sprintf("b%d-%d", i, n))
			_, err := coll.InsertOne(w.Context(), d("_id", fmt.Sprintf("c%d-%d", i, n)))
			w.ok(err)
		}
		b.commit()
		a.commit()
	}
}

type transaction struct {
	world
	s   *driver.Session
	ctx context.Context
}

func (w world) begin() *transaction {
	w.Helper()
	s, err := w.c.Client.StartSession()
	w.ok(err)
	w.Cleanup(func() { s.EndSession(context.WithoutCancel(w.Context())) })
	w.ok(s.StartTransaction())
	return &transaction{w, s, driver.NewSessionContext(w.Context(), s)}
}

func (x *transaction) insert(coll *driver.Collection, id any, more ...bson.E) {
	x.Helper()
	_, err := coll.InsertOne(x.ctx, append(d("_id", id), more...))
	x.ok(err)
}

func (x *transaction) commit() {
	x.Helper()
	x.ok(x.s.CommitTransaction(x.ctx))
}

// TestLargeTransaction: a transaction larger than a batch, and than an entry of the oplog, comes in parts, all of
// them of one position. No position is inside of it.
func TestLargeTransaction(t *testing.T) {
	w := start(t, "6.0")
	coll := w.c.Client.Database("large").Collection("c")
	_, err := coll.InsertOne(t.Context(), d("_id", "first"))
	w.ok(err)
	before := w.position()
	pad := bson.E{Key: "pad", Value: strings.Repeat("x", 1<<20)}
	big, small := w.begin(), w.begin()
	for i := range 40 {
		big.insert(coll, i, pad)
	}
	small.insert(coll, "small")
	small.insert(coll, "small2")
	big.commit()
	small.commit()
	end := w.position()
	bs := w.read(New(w.c, w.options("large")), from(before), end)
	var partial int
	var at []mongo.OpTime
	for _, b := range bs {
		if b.Partial {
			partial++
		}
		for _, ev := range b.Events {
			if len(at) == 0 || at[len(at)-1] != ev.At {
				at = append(at, ev.At)
			}
		}
	}
	events := of(bs, "large")
	if len(events) != 42 || len(at) != 2 || partial < 5 {
		t.Errorf("%d events at %d positions, %d partial batches", len(events), len(at), partial)
	}
	for i, ev := range events[:40] {
		if ev.Txn == nil || ev.Txn != events[0].Txn || ev.Key.ID.Int32() != int32(i) {
			t.Errorf("event %d: %s", i, describe(ev))
		}
	}
	if events[40].Txn == events[0].Txn || events[40].Txn != events[41].Txn {
		t.Errorf("%s\n%s", describe(events[40]), describe(events[41]))
	}
}

// TestIdle: an idle source emits empty batches, whose end moves on with the oplog. Start's position is before
// what is written next.
func TestIdle(t *testing.T) {
	for _, version := range lab.Versions("4.4", "5.0") {
		t.Run(version, func(t *testing.T) {
			w := start(t, version)
			w.run("idle", d("insert", "c", "documents", bson.A{d("_id", 0)}))
			was := w.position()
			pos, err := Start(t.Context(), w.c)
			w.ok(err)
			if pos.At.Before(was) || pos.Mark == "" {
				t.Fatalf("start %+v, before %s", pos, was)
			}
			w.run("idle", d("insert", "c", "documents", bson.A{d("_id", 1)}))
			written := w.position()
			s := New(w.c, w.options("idle"))
			var noted mongo.OpTime
			beats, events := 0, 0
			err = s.Run(t.Context(), pos, func(_ context.Context, b *stream.Batch) error {
				events += len(b.Events)
				beats++
				switch {
				case b.End.Before(written):
				case noted.IsZero():
					w.run("admin", d("appendOplogNote", 1, "data", d("n", 1)))
					noted = w.position()
				case beats > 5 && !b.End.Before(noted) && !b.Partial && len(b.Events) == 0:
					return errReached
				}
				return nil
			})
			if !errors.Is(err, errReached) || events != 1 {
				t.Fatalf("%d events: %v", events, err)
			}
			if st := s.Stats(); st.Events != 1 || st.Newest.Before(noted) {
				t.Errorf("stats %+v", st)
			}
		})
	}
}

// TestLook: a look gives what happened in a span, and all schema changes of it.
func TestLook(t *testing.T) {
	w := start(t, "6.0")
	w.run("look", d("insert", "c", "documents", bson.A{d("_id", 0)}))
	before := w.position()
	w.run("look", d("insert", "c", "documents", bson.A{d("_id", 1)}))
	w.run("look", d("create", "other"))
	w.run("look", d("insert", "other", "documents", bson.A{d("_id", 1)}))
	span := oplogSpan(before, w.position())
	w.run("look", d("insert", "c", "documents", bson.A{d("_id", 2)}))
	w.run("look", d("drop", "other"))
	w.position()
	var got []string
	o := w.options()
	o.Keep = func(ns string) bool { return ns == "look.c" }
	w.ok(Look(t.Context(), w.c, o, span, func(ev *stream.Event) error {
		got = append(got, fmt.Sprint(ev.Kind, " ", ev.NS))
		return nil
	}))
	if want := []string{"insert look.c", "schema look.other"}; !slices.Equal(got, want) {
		t.Errorf("look: %q, want %q", got, want)
	}
	got = nil
	w.ok(Changes(w.c, w.s)(t.Context(), span.After, span.Until, func(ch *stream.Change, at mongo.OpTime) error {
		got = append(got, fmt.Sprint(ch.Kind, " ", ch.NS))
		if !span.After.Before(at) || span.Until.Before(at) {
			t.Errorf("%s at %s", ch.Kind, at)
		}
		return nil
	}))
	if want := []string{"create look.other"}; !slices.Equal(got, want) {
		t.Errorf("changes: %q, want %q", got, want)
	}
}
