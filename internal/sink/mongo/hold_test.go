package mongosink

import (
	"bytes"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/stream"
)

// TestHeldInserts: small inserts are held back as long as enough updates meet
// them; what is held owns its bytes.
func TestHeldInserts(t *testing.T) {
	const n = 100
	h := held{batch: newBatch()}
	one := &target{ns: "d.c", db: "d", coll: "c", seed: 1}
	of := func(op stream.Kind, doc bson.D, n int) []item {
		list := events(t, op, doc, n)
		for i := range list {
			list[i].t = one
		}
		return list
	}
	hold := func(pad int) (left int) {
		b := newBatch()
		list := of(stream.Insert, bson.D{{Key: "pad", Value: make([]byte, pad)}, {Key: "field1", Value: "old"}}, n)
		addAll(t, b, list)
		for _, nb := range b.order {
			h.split(nb)
			left += len(nb.ops)
		}
		for _, it := range list {
			clear(it.ev.Doc) // the reply's buffer is used again
		}
		return left
	}
	update := func(k int) {
		diff := bson.D{{Key: "$v", Value: int32(2)}, {Key: "diff", Value: bson.D{{Key: "u", Value: bson.D{{Key: "field1", Value: "new"}}}}}}
		for _, it := range of(stream.Update, diff, k) {
			if joined, ok, err := h.join(it); !joined || !ok || err != nil {
				t.Fatal(joined, ok, err)
			}
		}
	}

	if left := hold(10); left != 0 || h.inserts != n {
		t.Fatalf("%d left, %d held", left, h.inserts)
	}
	update(10)
	ids := events(t, stream.Insert, bson.D{}, n)
	for i, o := range h.order[0].ops {
		want := "old"
		if i < 10 {
			want = "new"
		}
		if got, _ := bson.Raw(o.doc).Lookup("field1").StringValueOK(); o.kind != opInsert || got != want || !bytes.Equal(o.id.Data, ids[i].ev.Key.ID.Data) {
			t.Errorf("operation %d: kind %d, %s", i, o.kind, bson.Raw(o.doc))
		}
	}
	h.sent()
	if left := hold(10); left != 0 {
		t.Errorf("%d of %d were not held back although updates met some", left, n)
	}
	update(2)
	h.sent()
	if left := hold(10); left != n {
		t.Errorf("%d of %d were held back although updates met next to none", n-left, n)
	}

	h = held{batch: newBatch()}
	if left := hold(smallInsert); left != n {
		t.Errorf("%d of %d large inserts were held back", n-left, n)
	}
}
