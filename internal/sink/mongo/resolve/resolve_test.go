package resolve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
	"github.com/millrace/millrace/internal/sink/mongo/write"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/wire"
)

func at(n int) mongo.OpTime {
	return mongo.OpTime{TS: bson.Timestamp{T: uint32(n), I: 1}, Term: 1}
}

func idValue(tb testing.TB, id any) bsoncore.Value {
	tb.Helper()
	typ, data, err := bson.MarshalValue(id)
	if err != nil {
		tb.Fatal(err)
	}
	return bsoncore.Value{Type: bsoncore.Type(typ), Data: data}
}

func docOf(tb testing.TB, id any, fields ...bson.E) bson.Raw {
	tb.Helper()
	raw, err := bson.Marshal(append(bson.D{{Key: "_id", Value: id}}, fields...))
	if err != nil {
		tb.Fatal(err)
	}
	return raw
}

func opOf(tb testing.TB, k stream.Kind, id any, pos int, fields ...bson.E) fold.Op {
	tb.Helper()
	o := fold.Op{Kind: k, ID: idValue(tb, id), At: at(pos)}
	switch k {
	case stream.Delete:
	case stream.Update:
		fields = append(fields, field("last", pos))
		raw, err := bson.Marshal(bson.D{{Key: "$v", Value: int32(2)},
			{Key: "diff", Value: bson.D{{Key: "u", Value: bson.D(fields)}}}})
		if err != nil {
			tb.Fatal(err)
		}
		if o.Delta, err = delta.ParseAs(delta.Diff, raw); err != nil {
			tb.Fatal(err)
		}
	default:
		o.Doc = docOf(tb, id, fields...)
	}
	return o
}

func field(name string, v any) bson.E { return bson.E{Key: name, Value: v} }

// duplicateOn is a server's word about a duplicate key.
func duplicateOn(name string) wire.WriteError {
	raw, _ := bson.Marshal(bson.D{{Key: "keyPattern", Value: bson.D{{Key: name, Value: 1}}},
		{Key: "keyValue", Value: bson.D{{Key: name, Value: 1}}},
		{Key: "errmsg", Value: "E11000 duplicate key error collection: d.c index: " + name + "_1 dup key: {}"}})
	return wire.WriteError{Code: mongo.CodeDuplicateKey, Message: "E11000", Raw: raw}
}

var letters = deadletter.New(nil, "test", nil)

// TestDecide: what becomes of an operation that is not applied, by policy, in the
// overlap and after it.
func TestDecide(t *testing.T) {
	stop, skip := Policy{Letters: letters, OnConflict: deadletter.Stop},
		Policy{Letters: letters, OnConflict: deadletter.Skip}
	invalid := wire.WriteError{Code: mongo.CodeDocumentValidation, Message: "no"}
	type want int
	const (
		ends want = iota // the job, with a conflict
		refuses
		parks   // undecided
		refused // parked with its reason
		skips
	)
	plain, capped, collated := fold.NewTarget("d.c"), fold.NewTarget("d.c"), fold.NewTarget("d.c")
	capped.Capped, collated.Collated = true, true
	for i, c := range []struct {
		policy  Policy
		target  *fold.Target
		kind    stream.Kind
		outcome write.Outcome
		reply   wire.WriteError
		overlap bool
		want    want
	}{
		{Policy{}, plain, stream.Insert, write.Taken, duplicateOn("_id"), false, ends},
		{stop, plain, stream.Insert, write.Taken, duplicateOn("_id"), false, refused},
		{skip, plain, stream.Insert, write.Taken, duplicateOn("_id"), false, refused},
		{Policy{}, plain, stream.Update, write.Missing, wire.WriteError{}, false, ends},
		{Policy{}, plain, stream.Update, write.Missing, wire.WriteError{}, true, skips},
		{skip, plain, stream.Update, write.Missing, wire.WriteError{}, false, refused},
		{stop, plain, stream.Update, write.Misfit, wire.WriteError{}, false, refused},
		{skip, plain, stream.Update, write.Misfit, wire.WriteError{}, false, refused},
		{Policy{}, plain, stream.Update, write.Duplicate, duplicateOn("k"), false, parks},
		{stop, plain, stream.Insert, write.Duplicate, duplicateOn("k"), true, parks},
		{Policy{}, collated, stream.Insert, write.Duplicate, duplicateOn("k"), false, ends},
		{Policy{}, collated, stream.Insert, write.Duplicate, duplicateOn("k"), true, parks},
		{stop, collated, stream.Insert, write.Duplicate, duplicateOn("k"), false, parks},
		{stop, capped, stream.Insert, write.Duplicate, duplicateOn("k"), false, refused},
		{stop, capped, stream.Update, write.Duplicate, duplicateOn("k"), true, parks},
		{Policy{}, plain, stream.Insert, write.Refused, invalid, false, refuses},
		{stop, plain, stream.Put, write.Refused, invalid, true, refused},
		{stop, capped, stream.Insert, write.Refused, invalid, true, refused},
		{skip, plain, stream.Insert, write.Refused, invalid, false, refused},
	} {
		r := New(Options{Policy: c.policy})
		s := r.NewParked()
		o := opOf(t, c.kind, 1, 5, field("a", 1))
		o.Overlap = c.overlap
		err := s.Decide(t.Context(), nil, c.target, []write.Result{{Op: &o, Outcome: c.outcome, Reply: c.reply}})
		var conflict *ConflictError
		got := skips
		switch {
		case errors.As(err, &conflict):
			got = ends
			if conflict.NS != "d.c" || conflict.At != at(5) || conflict.Doc.Type == 0 || mongo.HintOf(err) == "" {
				t.Errorf("case %d: %+v", i, conflict)
			}
		case err != nil:
			got = refuses
			if mongo.HintOf(err) == "" || !strings.Contains(err.Error(), "d.c") {
				t.Errorf("case %d: %v", i, err)
			}
		case s.Len() == 1 && s.docs[0].refused != nil:
			got = refused
		case s.Len() == 1:
			got = parks
		}
		if got != c.want {
			t.Errorf("case %d: %d (%v), want %d", i, got, err, c.want)
		}
		if (got == parks || got == refused) != c.target.Contested.Load() {
			t.Errorf("case %d: contested is %v", i, c.target.Contested.Load())
		}
		if skipped := r.Skips() == 1; skipped != (got == skips) {
			t.Errorf("case %d: %d are counted as skipped", i, r.Skips())
		}
		c.target.Contested.Store(false)
	}
}

// TestParked: nothing overtakes what is parked; _ids of other bytes are documents
// of their own, and under a collation all that comes later waits.
func TestParked(t *testing.T) {
	r := New(Options{})
	plain, collated := fold.NewTarget("d.c"), fold.NewTarget("d.s")
	collated.Collated = true
	item := func(to *fold.Target, id any, pos int) *fold.Item {
		return &fold.Item{Target: to, Hash: 1, Event: &stream.Event{Kind: stream.Insert, NS: to.NS,
			Key: stream.Key{ID: idValue(t, id)}, Doc: docOf(t, id), At: at(pos)}}
	}
	s := r.NewParked()
	first := opOf(t, stream.Put, int32(1), 1, field("a", "old"))
	s.park(plain, &first, nil)
	s.park(plain, &first, nil) // once is enough
	clear(first.Doc)
	for _, c := range []struct {
		to    *fold.Target
		id    any
		waits bool
	}{{plain, int32(1), true}, {plain, 1.0, true}, {plain, int32(2), false}, {collated, int32(1), false}} {
		if got := s.Waits(c.to, idValue(t, c.id)); got != c.waits {
			t.Errorf("%s, %T %v: waits %v", c.to.NS, c.id, c.id, got)
		}
		taken, err := s.Join(item(c.to, c.id, 2))
		if taken != c.waits || err != nil {
			t.Errorf("%s, %v: %v, %v", c.to.NS, c.id, taken, err)
		}
	}
	if s.Len() != 2 || len(s.docs[0].Steps) != 2 || len(s.docs[1].Steps) != 1 {
		t.Fatalf("%d documents", s.Len())
	}
	if got, _ := bson.Raw(s.docs[0].Steps[0].Doc).Lookup("a").StringValueOK(); got != "old" {
		t.Error("what is parked points into the batch")
	}
	if s.docs[0].Steps[0].Untried || !s.docs[0].Steps[1].Untried || !s.docs[1].Steps[0].Untried {
		t.Error("which operations were tried is wrong")
	}
	if err := s.Park(item(collated, "a", 3)); err != nil || !s.Waits(collated, idValue(t, "other")) {
		t.Errorf("a collated collection does not wait as a whole: %v", err)
	}
	docs := s.Take()
	if s.Len() != 0 || s.Waits(plain, idValue(t, int32(1))) || s.Waits(collated, idValue(t, "a")) {
		t.Error("something is left after Take")
	}
	s.Adopt(docs)
	if s.Len() != 3 || !s.Waits(plain, idValue(t, int64(1))) {
		t.Error("what was carried is not parked again")
	}
	if order := deletesFirst([]*Document{docs[0], {Steps: []fold.Op{{Kind: stream.Insert}, {Kind: stream.Delete}}},
		docs[1]}); !order[0].deleted() || order[1] != docs[0] || order[2] != docs[1] {
		t.Error("deletes do not come first, the others in order")
	}
}

// TestJudge: the verdict on a refusal.
func TestJudge(t *testing.T) {
	key, id, refused := &refusal{cause: deadletter.CauseKey}, &refusal{cause: deadletter.CauseID},
		&refusal{cause: deadletter.CauseRefused}
	open, undecided := &deadletter.Letter{State: deadletter.Open}, &deadletter.Letter{State: deadletter.Undecided}
	inside, outside := Barrier{Fed: at(5), Overlap: at(9)}, Barrier{Fed: at(9), Overlap: at(9)}
	must := inside
	must.Must = true
	for i, c := range []struct {
		policy  deadletter.Policy // "" is none, without letters
		b       Barrier
		overlap bool // of the document
		capped  bool
		letter  *deadletter.Letter
		until   int
		why     *refusal
		want    verdict
	}{
		{"", inside, true, false, nil, 0, key, verdictCarry},
		{"", must, true, false, nil, 0, key, verdictStop},
		{"", outside, true, false, nil, 0, key, verdictStop},
		{"", inside, false, false, nil, 0, key, verdictStop},
		{deadletter.Stop, must, true, false, nil, 0, key, verdictUndecided},
		{deadletter.Stop, outside, true, false, nil, 0, key, verdictStop},
		{deadletter.Stop, outside, false, false, open, 0, key, verdictOpen},
		{deadletter.Stop, outside, false, false, undecided, 0, key, verdictStop},
		{deadletter.Skip, outside, false, false, nil, 0, key, verdictOpen},
		{deadletter.Skip, inside, true, false, undecided, 0, key, verdictUndecided},
		{deadletter.Skip, inside, true, false, open, 0, key, verdictOpen},
		{deadletter.Overwrite, outside, false, false, nil, 0, key, verdictOverwrite},
		{deadletter.Overwrite, outside, false, false, open, 0, id, verdictOverwrite},
		{deadletter.Overwrite, outside, false, false, nil, 0, refused, verdictOpen},
		{deadletter.Overwrite, outside, false, true, nil, 0, key, verdictStop},
		{deadletter.Overwrite, outside, false, true, open, 0, key, verdictOpen},
		{deadletter.Overwrite, outside, false, false, nil, 12, key, verdictUndecided},
	} {
		o := Options{Policy: Policy{OnConflict: c.policy}}
		if c.policy != "" {
			o.Policy.Letters = letters
		}
		r := &round{Resolver: New(o), b: c.b}
		g := &goal{Document: &Document{Target: &fold.Target{Capped: c.capped}}, letter: c.letter, overlap: c.overlap,
			until: at(c.until)}
		if got := r.judge(g, c.why); got != c.want {
			t.Errorf("case %d: %d, want %d", i, got, c.want)
		}
	}
}

// TestReplay: parked operations make of a document what the source had, or say why
// they cannot.
func TestReplay(t *testing.T) {
	old := docOf(t, 1, field("a", "old"))
	for i, c := range []struct {
		overwrite bool
		doc       bson.Raw
		op        fold.Op
		overlap   bool
		untried   bool
		want      bson.Raw
		cause     deadletter.Cause
	}{
		{doc: old, op: opOf(t, stream.Put, 1, 1, field("a", 2)), want: docOf(t, 1, field("a", 2))},
		{doc: old, op: opOf(t, stream.Delete, 1, 1)},
		{doc: old, op: opOf(t, stream.Insert, 1, 1), want: docOf(t, 1)},
		{doc: old, op: opOf(t, stream.Insert, 1, 1), untried: true, want: old, cause: deadletter.CauseID},
		{doc: old, op: opOf(t, stream.Insert, 1, 1), untried: true, overlap: true, want: docOf(t, 1)},
		{doc: old, op: opOf(t, stream.Insert, 1, 1), untried: true, overwrite: true, want: docOf(t, 1)},
		{op: opOf(t, stream.Insert, 1, 1), untried: true, want: docOf(t, 1)},
		{doc: old, op: opOf(t, stream.Update, 1, 1, field("a", "new")),
			want: docOf(t, 1, field("a", "new"), field("last", 1))},
		{op: opOf(t, stream.Update, 1, 1, field("a", 2)), cause: deadletter.CauseMissing},
		{op: opOf(t, stream.Update, 1, 1, field("a", 2)), overlap: true},
	} {
		r := &round{Resolver: New(Options{Policy: Policy{Overwrite: c.overwrite}})}
		g := &goal{Document: &Document{Target: fold.NewTarget("d.c")}, doc: bytes.Clone(c.doc)}
		c.op.Overlap, c.op.Untried = c.overlap, c.untried
		why, err := r.replay(g, &c.op)
		if err != nil || !bytes.Equal(g.doc, c.want) {
			t.Errorf("case %d: %s (%v), want %s", i, bson.Raw(g.doc), err, c.want)
		}
		if why == nil && c.cause != "" || why != nil && why.cause != c.cause {
			t.Errorf("case %d: %+v, want %s", i, why, c.cause)
		}
	}
}

// TestSkippedList: the list keeps the first place of a document, follows renames
// and reports when it changes.
func TestSkippedList(t *testing.T) {
	r := New(Options{Source: Source{Has: func(context.Context, stream.Origin, []bson.RawValue, mongo.OpTime) ([]bool,
		error) {
		return nil, nil
	}}})
	a, b := fold.NewTarget("d.a"), fold.NewTarget("d.b")
	a.Source = "s.a"
	version := func() int { _, v := r.Skipped(); return v }
	one := opOf(t, stream.Update, 1, 5)
	again := opOf(t, stream.Update, 1.0, 7)
	r.skip(a, &one)
	v := version()
	r.skip(a, &again)
	clear(one.ID.Data)
	list, _ := r.Skipped()
	if len(list) != 1 || list[0].At != at(5) || list[0].ID.AsInt64() != 1 || list[0].Source != "s.a" || version() != v ||
		r.Skips() != 2 {
		t.Errorf("%+v, %d skips", list, r.Skips())
	}
	if !r.excused(a, &again) || r.excused(b, &again) || !r.Due(at(1)) {
		t.Error("what is on the list is not excused")
	}
	r.Renamed("d.a", "d.b")
	if r.excused(a, &again) || !r.excused(b, &again) || version() == v {
		t.Error("the list does not follow a rename")
	}
	r.Renamed("d.b", "")
	if list, _ = r.Skipped(); len(list) != 0 || r.skipped.bytes != 0 || r.Due(at(1)) {
		t.Errorf("%v is left of a dropped collection, %d bytes", list, r.skipped.bytes)
	}
	for i := range manySkipped {
		if r.Crowded() {
			t.Fatalf("%d are a crowd", i)
		}
		o := opOf(t, stream.Update, i, 5)
		r.skip(a, &o)
	}
	if !r.Crowded() || r.skipped.asked() || r.Crowded() {
		t.Error("the source is not asked, or again at once")
	}
	nobody := New(Options{})
	if nobody.skip(a, &again); nobody.Due(at(1)) || nobody.Skips() != 1 {
		t.Error("a list is kept that nobody asks about")
	}
}

// TestConflictText: an error names all that an operator needs.
func TestConflictText(t *testing.T) {
	o := opOf(t, stream.Update, "x", 7)
	err := fmt.Errorf("job: %w", conflict("d.c", &o, "it is gone"))
	for _, part := range []string{"update", "d.c", `"x"`, at(7).String(), "it is gone"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not tell %q", err, part)
		}
	}
	var c *ConflictError
	if !errors.As(err, &c) || c.Doc.StringValue() != "x" || c.Undecided {
		t.Errorf("%+v", c)
	}
	if got := refusedBy(duplicateOn("k")); got.cause != deadletter.CauseKey || got.dup.Index() != "k_1" {
		t.Errorf("%+v", got)
	}
	if got := refusedBy(duplicateOn("_id")); got.cause != deadletter.CauseID {
		t.Errorf("%+v", got)
	}
	if got := bsonraw.IDText(o.ID); got != `"x"` {
		t.Errorf("%s", got)
	}
}
