package fold

import (
	"bytes"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/stream"
)

// TestKeptInserts: small inserts are kept back as long as enough updates meet
// them; what is kept owns its bytes.
func TestKeptInserts(t *testing.T) {
	const n = 100
	h := NewCoalesced(1 << 20)
	one := NewTarget("d.c")
	of := func(op stream.Kind, doc bson.D, n int) []Item {
		list := events(t, op, doc, n)
		for i := range list {
			list[i].Target = one
		}
		return list
	}
	keep := func(pad int) (left int) {
		b := NewBatch()
		list := of(stream.Insert, bson.D{{Key: "pad", Value: make([]byte, pad)}, {Key: "field1", Value: "old"}}, n)
		addAll(t, b, list)
		for _, g := range b.Groups {
			h.Split(g, time.Now())
			left += len(g.Ops)
		}
		for _, it := range list {
			clear(it.Event.Doc) // the reply's buffer is used again
		}
		return left
	}
	update := func(k int) {
		diff := bson.D{{Key: "$v", Value: int32(2)},
			{Key: "diff", Value: bson.D{{Key: "u", Value: bson.D{{Key: "field1", Value: "new"}}}}}}
		for _, it := range of(stream.Update, diff, k) {
			if joined, ok, err := h.Join(&it); !joined || !ok || err != nil {
				t.Fatal(joined, ok, err)
			}
		}
	}

	if left := keep(10); left != 0 || h.inserts != n {
		t.Fatalf("%d left, %d kept", left, h.inserts)
	}
	update(10)
	ids := events(t, stream.Insert, bson.D{}, n)
	for i, o := range h.Groups[0].Ops {
		want := "old"
		if i < 10 {
			want = "new"
		}
		if got, _ := bson.Raw(o.Doc).Lookup("field1").StringValueOK(); o.Kind != stream.Insert || got != want ||
			!bytes.Equal(o.ID.Data, ids[i].Event.Key.ID.Data) {
			t.Errorf("operation %d: kind %d, %s", i, o.Kind, bson.Raw(o.Doc))
		}
	}
	h.Sent()
	if left := keep(10); left != 0 {
		t.Errorf("%d of %d were not kept back although updates met some", left, n)
	}
	update(2)
	h.Sent()
	if left := keep(10); left != n {
		t.Errorf("%d of %d were kept back although updates met next to none", n-left, n)
	}

	h = NewCoalesced(1 << 20)
	if left := keep(smallInsert); left != n {
		t.Errorf("%d of %d large inserts were kept back", n-left, n)
	}
}

// TestMostKept: what is kept back never comes to more than it may, however large
// the operations of a batch are, and what events add to it is noticed at once.
func TestMostKept(t *testing.T) {
	const limit, n = 10_000, 200
	update := func(pad int) bson.D {
		return bson.D{{Key: "$v", Value: int32(2)},
			{Key: "diff", Value: bson.D{{Key: "u", Value: bson.D{{Key: "f", Value: make([]byte, pad)}}}}}}
	}
	for _, c := range []struct {
		name string
		pad  int
		kept bool
	}{{"small", 10, true}, {"a few", limit, true}, {"larger than all room", MostKept * limit, false}} {
		k, b := NewCoalesced(limit), NewBatch()
		list := events(t, stream.Update, update(c.pad), n)
		addAll(t, b, list)
		for _, g := range b.Groups {
			k.Split(g, time.Now())
			if k.Ops+len(g.Ops) != n {
				t.Errorf("%s: %d kept, %d left of %d", c.name, k.Ops, len(g.Ops), n)
			}
		}
		if k.Bytes > MostKept*limit || k.Full() || k.Empty() == c.kept {
			t.Errorf("%s: %d operations of %d bytes are kept, full: %v", c.name, k.Ops, k.Bytes, k.Full())
		}
		if !c.kept {
			continue
		}
		more := events(t, stream.Update, bson.D{{Key: "$v", Value: int32(2)},
			{Key: "diff", Value: bson.D{{Key: "u", Value: bson.D{{Key: "g", Value: make([]byte, MostKept*limit)}}}}}}, 1)
		more[0].Target = list[0].Target
		if joined, ok, err := k.Join(&more[0]); !joined || !ok || err != nil || !k.Full() {
			t.Errorf("%s: joined %v, %v, %v; full: %v", c.name, joined, ok, err, k.Full())
		}
	}
}
