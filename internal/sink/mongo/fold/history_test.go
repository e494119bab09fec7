package fold

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/expiry"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/testseed"
)

// naive is a target: documents by _id, changed one operation at a time.
type naive map[int32]bson.Raw

// do executes an operation as a server would; what it refuses is an error.
func (n naive) do(t *Target, o *Op) error {
	id, _ := o.ID.AsInt32OK()
	if o.Spares(t, n[id]) {
		return nil
	}
	switch o.Kind {
	case stream.Insert:
		if n[id] != nil {
			return fmt.Errorf("insert of %d, which is there", id)
		}
		n[id] = bytes.Clone(o.Doc)
	case stream.Replace:
		if n[id] == nil {
			return fmt.Errorf("replacement of %d, which is missing", id)
		}
		n[id] = bytes.Clone(o.Doc)
	case stream.Put:
		n[id] = bytes.Clone(o.Doc)
	case stream.Delete:
		delete(n, id)
	case stream.Update:
		was := n[id]
		if was == nil && o.Upsert {
			was = o.Made()
		}
		if was == nil {
			return fmt.Errorf("update of %d, which is missing", id)
		}
		doc, skipped, err := delta.Apply(nil, was, o.Delta)
		if err != nil || skipped > 0 {
			return fmt.Errorf("update of %d: %d skipped, %w", id, skipped, err)
		}
		n[id] = doc
	}
	return nil
}

func (n naive) same(other naive) string {
	for id := range n {
		if !bytes.Equal(n[id], other[id]) {
			return fmt.Sprintf("_id %d: %s, want %s", id, other[id], n[id])
		}
	}
	if len(n) != len(other) {
		return fmt.Sprintf("%d documents, want %d", len(other), len(n))
	}
	return ""
}

// source makes random events that fit what is there.
type source struct {
	*rand.Rand
	t   *testing.T
	now naive
	to  *Target
	ops int
}

func newSource(t *testing.T, seed uint64) *source {
	s := &source{Rand: rand.New(rand.NewPCG(seed, 3)), t: t, now: naive{}, to: NewTarget("d.c")}
	if seed%2 == 0 { // some deletions are none
		s.to.Expiry = expiry.Settings{{Field: "at"}}
	}
	return s
}

func (s *source) raw(d bson.D) bson.Raw {
	b, err := bson.Marshal(d)
	if err != nil {
		s.t.Fatal(err)
	}
	return b
}

func (s *source) document(id int32) bson.Raw {
	d := bson.D{{Key: "_id", Value: id}}
	for _, f := range []string{"a", "b", "c"} {
		if s.IntN(2) == 0 {
			d = append(d, bson.E{Key: f, Value: s.IntN(1000)})
		}
	}
	if s.IntN(2) == 0 {
		d = append(d, bson.E{Key: "at", Value: bson.DateTime(s.IntN(10_000))})
	}
	return s.raw(append(d, bson.E{Key: "o", Value: bson.D{{Key: "x", Value: s.IntN(1000)}}},
		bson.E{Key: "pad", Value: make([]byte, s.IntN(700))}))
}

func (s *source) update(was bson.Raw) bson.Raw {
	f := string(rune('a' + s.IntN(4)))
	section := bson.E{Key: "u", Value: bson.D{{Key: f, Value: s.IntN(1000)}}}
	if _, err := was.LookupErr(f); err != nil {
		section.Key = "i"
	} else if s.IntN(4) == 0 {
		section = bson.E{Key: "d", Value: bson.D{{Key: f, Value: false}}}
	}
	diff := bson.D{section}
	if _, err := was.LookupErr("o"); err == nil && s.IntN(2) == 0 {
		diff = append(diff, bson.E{Key: "so", Value: bson.D{{Key: "u", Value: bson.D{{Key: "x", Value: s.IntN(1000)}}}}})
	}
	return s.raw(bson.D{{Key: "$v", Value: int32(2)}, {Key: "diff", Value: diff}})
}

// next is one event, done on what is there.
func (s *source) next() *Item {
	id := int32(s.IntN(8))
	s.ops++
	ev := &stream.Event{NS: "d.c", Key: stream.Key{ID: bsoncore.Value{Type: bsoncore.TypeInt32,
		Data: bsoncore.AppendInt32(nil, id)}},
		At: mongo.OpTime{TS: bson.Timestamp{T: uint32(s.ops)}, Term: 1}}
	switch was, k := s.now[id], s.IntN(12); {
	case k == 11:
		ev.Kind, ev.Doc = stream.Put, s.document(id)
	case k == 10:
		if was == nil {
			was = bson.Raw(bsoncore.NewDocumentBuilder().AppendInt32("_id", id).Build())
		}
		ev.Kind, ev.Form, ev.Doc = stream.Upsert, delta.Diff, s.update(was)
	case was == nil:
		ev.Kind, ev.Doc = stream.Insert, s.document(id)
	case k == 0:
		ev.Kind, ev.Wall = stream.Delete, int64(s.IntN(10_000))
	case k == 1:
		ev.Kind, ev.Doc = stream.Replace, s.document(id)
	default:
		ev.Kind, ev.Form, ev.Doc = stream.Update, delta.Diff, s.update(was)
	}
	it := &Item{Event: ev, Target: s.to, Hash: s.to.Hash(nil, ev.Key.ID)}
	o, err := NewOp(it)
	if err == nil {
		err = s.now.do(s.to, &o)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return it
}

// send does a batch's operations in a random order, as an unordered command may.
func (s *source) send(b *Batch, there naive) {
	s.t.Helper()
	for _, g := range b.Groups {
		for _, i := range s.Perm(len(g.Ops)) {
			if err := there.do(g.Target, &g.Ops[i]); err != nil {
				s.t.Fatalf("operation %d: %v", i, err)
			}
		}
	}
}

// TestHistories: what is folded into a batch does, in any order, what the events
// do one after the other.
func TestHistories(t *testing.T) { testseed.Each(t, histories) }

func histories(t *testing.T, first uint64) {
	for round := range uint64(8) {
		seed := first + round
		s, there, b := newSource(t, seed), naive{}, NewBatch()
		events, folds := 2000, 0
		for range events {
			it := s.next()
			for {
				ok, folded, err := b.Add(it)
				if err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				if folded {
					folds++
				}
				if ok {
					break
				}
				s.send(b, there)
				b.Reset()
			}
			if b.Ops > 5 && s.IntN(20) == 0 {
				s.send(b, there)
				b.Reset()
			}
		}
		s.send(b, there)
		if d := s.now.same(there); d != "" {
			t.Fatalf("seed %d: %s", seed, d)
		}
		if folds < events/4 {
			t.Errorf("seed %d: only %d of %d events were folded", seed, folds, events)
		}
	}
}

// TestCoalescedHistories: the same where updates are kept back over batches, whose
// events' memory is gone by then.
func TestCoalescedHistories(t *testing.T) { testseed.Each(t, coalescedHistories) }

func coalescedHistories(t *testing.T, first uint64) {
	for round := range uint64(8) {
		seed := first + round
		s, there, b, k := newSource(t, seed), naive{}, NewBatch(), NewCoalesced(20_000)
		now, joined := time.Unix(0, 0), 0
		var used []*Item
		all := func() {
			s.send(b, there)
			s.send(k.Batch, there)
			b.Reset()
			k.Sent()
			used = forget(used)
		}
		for range 3000 {
			it := s.next()
			for done := false; !done; {
				took, ok, err := k.Join(it)
				if err == nil && !took && ok {
					took, _, err = b.Add(it)
				} else if took {
					joined++
				}
				if err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				if done = took; !done {
					all()
				}
			}
			used = append(used, it)
			if s.IntN(10) > 0 {
				continue
			}
			now = now.Add(time.Duration(s.IntN(400)) * time.Millisecond)
			if !k.Flush() || k.Due(now) {
				all()
				continue
			}
			for _, g := range b.Groups {
				k.Split(g, now)
			}
			s.send(b, there)
			b.Reset()
			used = forget(used)
		}
		all()
		if d := s.now.same(there); d != "" {
			t.Fatalf("seed %d: %s", seed, d)
		}
		if joined == 0 {
			t.Errorf("seed %d: nothing was folded into what is kept back", seed)
		}
	}
}

// forget overwrites events as a buffer that is used again does.
func forget(used []*Item) []*Item {
	for _, it := range used {
		clear(it.Event.Doc)
		clear(it.Event.Key.ID.Data)
	}
	return nil
}

// TestFoldable: which successions become one operation, and which one.
func TestFoldable(t *testing.T) {
	s := newSource(t, 1)
	d, err := delta.ParseAs(delta.Diff, s.raw(bson.D{{Key: "$v", Value: int32(2)},
		{Key: "diff", Value: bson.D{{Key: "i", Value: bson.D{{Key: "n", Value: 1}}}}}}))
	if err != nil {
		t.Fatal(err)
	}
	doc := s.raw(bson.D{{Key: "_id", Value: int32(1)}})
	of := func(k stream.Kind) Op {
		o := Op{Kind: k, At: mongo.OpTime{TS: bson.Timestamp{T: 1}}}
		switch k {
		case stream.Update:
			o.Delta = d
		case stream.Delete:
		default:
			o.Doc = doc
		}
		return o
	}
	const (
		no                                   = stream.Kind(0)
		Insert, Replace, Put, Update, Delete = stream.Insert, stream.Replace, stream.Put, stream.Update, stream.Delete
	)
	for _, c := range []struct {
		prev, next, want stream.Kind
	}{
		{Insert, Insert, no}, {Insert, Replace, Insert}, {Insert, Put, Insert}, {Insert, Update, Insert},
		{Insert, Delete, Delete},
		{Replace, Insert, no}, {Replace, Replace, Replace}, {Replace, Put, Replace}, {Replace, Update, Replace},
		{Replace, Delete, Delete},
		{Put, Insert, no}, {Put, Replace, Put}, {Put, Put, Put}, {Put, Update, Put}, {Put, Delete, Delete},
		{Update, Insert, no}, {Update, Replace, Replace}, {Update, Put, Put}, {Update, Delete, Delete},
		{Delete, Insert, Put}, {Delete, Replace, no}, {Delete, Put, no}, {Delete, Update, no}, {Delete, Delete, no},
	} {
		prev, next := of(c.prev), of(c.next)
		next.At.TS.T = 2
		ok, err := fold(&prev, &next, docwrite.Key{}, &memory{})
		if err != nil || ok != (c.want != no) {
			t.Errorf("%s, then %s: %v, %v", c.prev, c.next, ok, err)
			continue
		}
		if !ok && (prev.Kind != c.prev || prev.At.TS.T != 1) {
			t.Errorf("%s, then %s are no one operation, but the first is changed to %s", c.prev, c.next, prev.Kind)
		}
		if ok && (prev.Kind != c.want || prev.At.TS.T != 2) {
			t.Errorf("%s, then %s: %s at %s, want %s", c.prev, c.next, prev.Kind, prev.At, c.want)
		}
		for name, change := range map[string]func(*Op){"overlap": func(o *Op) { o.Overlap = true },
			"upsert": func(o *Op) { o.Upsert = true }} {
			prev, next := of(c.prev), of(c.next)
			change(&next)
			if ok, _ := fold(&prev, &next, docwrite.Key{}, &memory{}); ok {
				t.Errorf("%s, then %s with %s: folded", c.prev, c.next, name)
			}
		}
	}
}

// TestTwins: events of two documents of one _id, which shards can have under different
// keys, do not become one operation.
func TestTwins(t *testing.T) {
	raw := func(d bson.D) bson.Raw {
		b, err := bson.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	pattern := raw(bson.D{{Key: "k", Value: 1}})
	to := NewTarget("d.c")
	to.Key = docwrite.KeyOf(pattern, false)
	doc := func(k, n int) bson.Raw {
		return raw(bson.D{{Key: "_id", Value: 1}, {Key: "k", Value: k}, {Key: "n", Value: n}})
	}
	event := func(kind stream.Kind, k int, doc bson.Raw) *Item {
		id := bsoncore.Value{Type: bsoncore.TypeInt32, Data: []byte{1, 0, 0, 0}}
		return &Item{Target: to, Hash: 7, Event: &stream.Event{Kind: kind, NS: "d.c", Doc: doc, Form: delta.KindOf(doc),
			Key: stream.Key{ID: id, Shard: raw(bson.D{{Key: "k", Value: k}, {Key: "_id", Value: 1}})}}}
	}
	set := func(f string, v int) bson.Raw {
		return raw(bson.D{{Key: "$v", Value: 2}, {Key: "diff", Value: bson.D{{Key: "u", Value: bson.D{{Key: f, Value: v}}}}}})
	}
	for _, c := range []struct {
		name       string
		prev, next *Item
		folds      bool
	}{
		{"updates", event(stream.Update, 5, set("n", 1)), event(stream.Update, 5, set("n", 2)), true},
		{"updates of two", event(stream.Update, 5, set("n", 1)), event(stream.Update, 6, set("n", 2)), false},
		{"an update where an update leads", event(stream.Update, 5, set("k", 6)), event(stream.Update, 6, set("n", 2)),
			false},
		{"an update after an insert", event(stream.Insert, 5, doc(5, 1)), event(stream.Update, 5, set("n", 2)), true},
		{"an update of another one than was inserted", event(stream.Insert, 5, doc(5, 1)),
			event(stream.Update, 6, set("n", 2)), false},
		{"an update of what a replacement leads to", event(stream.Replace, 5, doc(6, 1)),
			event(stream.Update, 6, set("n", 2)), true},
		{"a deletion of another one than was replaced", event(stream.Replace, 5, doc(5, 1)), event(stream.Delete, 6, nil),
			false},
		{"an insert after a deletion", event(stream.Delete, 5, nil), event(stream.Insert, 6, doc(6, 1)), true},
	} {
		b := NewBatch()
		if ok, _, err := b.Add(c.prev); !ok || err != nil {
			t.Fatal(c.name, ok, err)
		}
		if ok, folded, err := b.Add(c.next); folded != c.folds || ok != c.folds || err != nil {
			t.Errorf("%s: taken %v, folded %v, %v", c.name, ok, folded, err)
		}
	}
}

// TestSameHash: documents whose hashes are equal, and _ids that are equal in other
// bytes, do not become one.
func TestSameHash(t *testing.T) {
	s := newSource(t, 2)
	item := func(id any) *Item {
		v, data, err := bson.MarshalValue(id)
		if err != nil {
			t.Fatal(err)
		}
		ev := &stream.Event{Kind: stream.Put, NS: "d.c",
			Key: stream.Key{ID: bsoncore.Value{Type: bsoncore.Type(v), Data: data}}, Doc: s.document(1)}
		return &Item{Event: ev, Target: s.to, Hash: 7}
	}
	for _, c := range []struct {
		first, second any
		ok, folded    bool
	}{
		{int32(1), int32(1), true, true},
		{int32(1), int64(1), false, false},
		{int32(1), 1.0, false, false},
		{int32(1), int32(2), false, false},
		{"a", "a", true, true},
		{"a", "b", false, false},
	} {
		b := NewBatch()
		if ok, folded, err := b.Add(item(c.first)); !ok || folded || err != nil {
			t.Fatal(ok, folded, err)
		}
		ops, size := b.Ops, b.Bytes
		ok, folded, err := b.Add(item(c.second))
		if ok != c.ok || folded != c.folded || err != nil {
			t.Errorf("%T %v, then %T %v: %v, %v, %v", c.first, c.first, c.second, c.second, ok, folded, err)
		}
		if !ok && (b.Ops != ops || b.Bytes != size) {
			t.Errorf("%v, then %v: the batch was changed", c.first, c.second)
		}
		k := NewCoalesced(1 << 20)
		k.keep(s.to, &Op{Kind: stream.Update, Hash: 7, ID: item(c.first).Event.Key.ID, Delta: mustParse(t, s)}, time.Now())
		if joined, ok, err := k.Join(item(c.second)); joined != c.folded || ok != c.ok || err != nil {
			t.Errorf("%v is kept, then %v: %v, %v, %v", c.first, c.second, joined, ok, err)
		}
	}
}

func mustParse(t *testing.T, s *source) delta.Delta {
	d, err := delta.ParseAs(delta.Diff, s.update(s.document(1)))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestSerialGroup: where order is content all events stay, in order.
func TestSerialGroup(t *testing.T) {
	s, b := newSource(t, 3), NewBatch()
	s.to.Capped = true
	var want []mongo.OpTime
	for range 200 {
		it := s.next()
		if ok, folded, err := b.Add(it); !ok || folded || err != nil {
			t.Fatal(ok, folded, err)
		}
		want = append(want, it.Event.At)
	}
	if len(b.Groups) != 1 || b.Ops != 200 {
		t.Fatalf("%d groups, %d operations", len(b.Groups), b.Ops)
	}
	if !slices.EqualFunc(b.Groups[0].Ops, want, func(o Op, at mongo.OpTime) bool { return o.At == at }) {
		t.Error("the operations are not in the order of their events")
	}
	if h := s.to.Hash(nil, s.next().Event.Key.ID); h != s.to.Seed {
		t.Error("documents of a serial collection go to different partitions")
	}
}

// TestBatchIsReused: groups and sizes begin anew after Reset, for whatever target.
func TestBatchIsReused(t *testing.T) {
	b := NewBatch()
	for round := range 20 {
		targets := []*Target{NewTarget("d.a"), NewTarget("d.b"), NewTarget("other.c")}
		s := newSource(t, uint64(round))
		for i := range 60 {
			it := s.next()
			it.Target = targets[i%3]
			it.Event.Kind, it.Event.Doc = stream.Put, s.document(1)
			it.Hash = it.Target.Hash(nil, it.Event.Key.ID)
			if ok, _, err := b.Add(it); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
		if len(b.Groups) != 3 || b.Empty() {
			t.Fatalf("%d groups", len(b.Groups))
		}
		ops, size := 0, 0
		for _, g := range b.Groups {
			ops += len(g.Ops)
			for i := range g.Ops {
				size += g.Ops[i].size()
			}
		}
		if ops != b.Ops || size != b.Bytes {
			t.Errorf("%d operations of %d bytes are counted as %d of %d", ops, size, b.Ops, b.Bytes)
		}
		b.Reset()
		if !b.Empty() || b.Bytes != 0 || len(b.Groups) != 0 {
			t.Fatal("not empty after Reset")
		}
	}
}

// TestDue: what is kept back is sent when it is too much or too old.
func TestDue(t *testing.T) {
	s, k := newSource(t, 5), NewCoalesced(2000)
	now := time.Unix(100, 0)
	one := func(kind stream.Kind, id byte) *Op {
		o := &Op{Kind: kind, Hash: uint64(id), ID: bsoncore.Value{Type: bsoncore.TypeInt32, Data: []byte{id, 0, 0, 0}},
			Delta: mustParse(t, s)}
		if kind == stream.Insert {
			o.Delta, o.Doc = delta.Delta{}, make([]byte, 100)
		}
		return o
	}
	if k.Due(now.Add(time.Hour)) {
		t.Error("nothing is due")
	}
	k.keep(s.to, one(stream.Update, 1), now)
	for _, c := range []struct {
		after time.Duration
		due   bool
	}{{0, false}, {keepFor - 1, false}, {keepFor, true}} {
		if got := k.Due(now.Add(c.after)); got != c.due {
			t.Errorf("after %s: %v", c.after, got)
		}
	}
	id := byte(2)
	for ; !k.Due(now); id++ {
		k.keep(s.to, one(stream.Update, id), now)
	}
	if k.Bytes < 2000 {
		t.Errorf("due at %d bytes", k.Bytes)
	}
	k.keep(s.to, one(stream.Insert, id), now)
	if k.Due(now) {
		t.Error("with small inserts there is room for four times as much")
	}
	if never := NewCoalesced(-1); never.Flush() {
		t.Error("a negative limit keeps nothing back")
	}
	k.Sent() // no event met them
	for i := range pauseFor {
		if k.Flush() {
			t.Fatalf("flush %d after nothing folded keeps updates back", i)
		}
	}
	if !k.Flush() {
		t.Error("it is never tried again")
	}
}

// TestClone: what is cloned shares no memory.
func TestClone(t *testing.T) {
	s := newSource(t, 6)
	for _, o := range []Op{
		{Kind: stream.Put, ID: bsoncore.Value{Type: bsoncore.TypeInt32, Data: []byte{1, 0, 0, 0}}, Doc: s.document(1),
			owned: true},
		{Kind: stream.Update, ID: bsoncore.Value{Type: bsoncore.TypeInt32, Data: []byte{1, 0, 0, 0}}, Delta: mustParse(t, s),
			owned: true},
	} {
		c := o.Clone()
		doc, upd := bytes.Clone(c.Doc), bytes.Clone(c.Delta.Raw())
		clear(o.ID.Data)
		clear(o.Doc)
		clear(o.Delta.Raw())
		if c.owned || c.ID.Data[0] != 1 || !bytes.Equal(c.Doc, doc) || !bytes.Equal(c.Delta.Raw(), upd) {
			t.Errorf("%s: the clone shares memory", o.Kind)
		}
	}
}

// TestBadUpdate: an update that cannot be read names its document and position.
func TestBadUpdate(t *testing.T) {
	s := newSource(t, 7)
	it := s.next()
	it.Event.Kind, it.Event.Form, it.Event.Doc = stream.Update, delta.Diff, s.raw(bson.D{{Key: "$v", Value: int32(2)}})
	_, _, err := NewBatch().Add(it)
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range []string{"d.c", it.Event.At.String(), "_id"} {
		if !bytes.Contains([]byte(err.Error()), []byte(part)) {
			t.Errorf("%q does not name %s", err, part)
		}
	}
}
