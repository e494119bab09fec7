// Package fold combines all events of a document into one operation, so that a batch holds each document
// once and needs no order.
//
// It is pure and does no I/O. It knows events, updates and bytes, but no server, command or policy.
package fold

import (
	"bytes"
	"fmt"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/expiry"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// Target is a collection that events go to.
type Target struct {
	stream.Origin
	DB, Coll  string
	Capped    bool // document order is content
	Collated  bool // _ids of different bytes can be equal
	Partial   bool // of the source's documents it holds those of a filter: an update may be of another one
	Stale     bool // some operations are left out: an update may not fit
	Key       docwrite.Key
	Expiry    expiry.Settings // of the source, where documents stay that have expired
	Left      func(n int64)   // counts those, roughly; may be nil
	Seed      uint64          // hash of the name
	Contested atomic.Bool     // documents of it were parked: order matters, nothing is kept back
}

func NewTarget(ns string) *Target {
	db, coll := mongo.SplitNS(ns)
	return &Target{Origin: stream.Origin{NS: ns}, DB: db, Coll: coll, Seed: delta.Hash([]byte(ns))}
}

// Serial reports that operations on the collection must keep their order.
func (t *Target) Serial() bool { return t.Capped || t.Collated }

// Hash returns what selects a document's partition. key is scratch space.
func (t *Target) Hash(key []byte, id bsoncore.Value) uint64 {
	if t.Serial() {
		return t.Seed
	}
	return t.Seed ^ delta.Hash(delta.AppendKey(key[:0], id))
}

// Item is an event on its way into a batch.
type Item struct {
	Event   *stream.Event
	Target  *Target
	Hash    uint64
	Overlap bool // the target may be ahead of this event
}

// Op is what a batch does to one document. Kind is Insert, Replace, Put, Update or Delete.
type Op struct {
	Kind    stream.Kind
	Overlap bool  // the target may be ahead of it
	Upsert  bool  // an Update makes the document if it does not exist
	Untried bool  // it was parked behind another before it was sent
	owned   bool  // Doc, of an Update Delta, is in the batch's memory and may be written over
	folds   uint8 // updates that were folded into it, at most foldsOfLarge

	Hash  uint64
	ID    bsoncore.Value
	Where []byte // where the target has the document, as docwrite.Key.Of gave it; nil if not known
	Doc   []byte
	Delta delta.Delta
	At    mongo.OpTime // of the latest event in it
	since bson.Timestamp
	// Wall, unless 0, limits a deletion to a document that had not expired then, in ms since 1970.
	Wall int64
}

func NewOp(it *Item) (Op, error) {
	ev := it.Event
	o := Op{Kind: ev.Kind, ID: ev.Key.ID, Hash: it.Hash, Overlap: it.Overlap, At: ev.At, since: ev.At.TS}
	if !it.Overlap { // else the target may have it elsewhere
		o.Where = it.Target.Key.Of(ev.Key.Shard)
	}
	if len(it.Target.Expiry) > 0 {
		o.Wall = ev.Wall
	}
	switch ev.Kind {
	case stream.Insert, stream.Replace, stream.Put:
		o.Doc = ev.Doc
	case stream.Delete:
	default:
		d, err := ev.Update()
		if err != nil {
			return o, o.Fail("parse update", it.Target.NS, err)
		}
		o.Kind, o.Delta, o.Upsert = stream.Update, d, ev.Kind == stream.Upsert
	}
	return o, nil
}

func (o *Op) Verb() string {
	if o.Kind == stream.Put {
		return stream.Replace.String()
	}
	return o.Kind.String()
}

func (o *Op) Fail(what, ns string, err error) error {
	return fmt.Errorf("%s in %s, _id %s, at %s: %w", what, ns, bsonraw.IDText(o.ID), o.At, err)
}

// First returns the position of the operation's first event.
func (o *Op) First() mongo.OpTime { return mongo.OpTime{TS: o.since, Term: o.At.Term} }

// Become returns the operation that replaces o and makes the document doc.
func (o *Op) Become(k stream.Kind, doc []byte) *Op {
	return &Op{Kind: k, ID: o.ID, Where: o.Where, Hash: o.Hash, Doc: doc, At: o.At, since: o.since, Overlap: o.Overlap}
}

// Made returns the document that an Upsert starts from.
func (o *Op) Made() bson.Raw {
	return bson.Raw(bsoncore.NewDocumentBuilder().AppendValue("_id", o.ID).Build())
}

func (o *Op) Clone() Op {
	c := *o
	c.owned, c.ID, c.Where, c.Doc = false, bsonraw.Clone(o.ID), bytes.Clone(o.Where), bytes.Clone(o.Doc)
	if o.Kind == stream.Update {
		c.Delta = o.Delta.In(bytes.Clone(o.Delta.Raw()))
	}
	return c
}

// size is roughly the operation's size in a batch.
func (o *Op) size() int { return max(len(o.Doc), len(o.Delta.Raw())) + len(o.ID.Data) + 32 }

// Folding an update into an operation costs as much as the operation is long; to join two updates costs more than to
// change a document. So a large one takes at most foldsOfLarge: else the cost of setting each element of a large array
// would grow with the square of their number.
const (
	largeOp      = 64 << 10
	largeUpdate  = 16 << 10
	foldsOfLarge = 16
)

// full reports that no further update should be folded into the operation.
func (o *Op) full() bool {
	large := largeOp
	if o.Kind == stream.Update {
		large = largeUpdate
	}
	return o.folds == foldsOfLarge && o.size() > large
}

// Spares reports that the operation leaves doc alone, as it has expired.
func (o *Op) Spares(t *Target, doc bson.Raw) bool {
	return o.Wall != 0 && t.Expiry.Expired(doc, o.Wall)
}

// room returns the bytes that a new Doc or Delta may overwrite, or nil.
func (o *Op) room() []byte {
	switch {
	case !o.owned:
		return nil
	case o.Kind == stream.Update:
		return o.Delta.Raw()
	}
	return o.Doc
}

// NewMissing returns an operation for an update that found no document.
func NewMissing(id bsoncore.Value, at mongo.OpTime) Op {
	return Op{Kind: stream.Update, ID: id, At: at, since: at.TS}
}

// table finds a document's operation by hash. It uses open addressing with eight bytes a slot, as cache
// misses cost more than anything else done to an operation. The zero value is ready.
type table struct {
	slots []uint64 // 0 is free; else the lower half of the hash, then the position in ops, plus one
	used  int
}

const tableSlots = 16

func (t *table) find(hash uint64, ops []Op) (int, bool) {
	if t.used == 0 {
		return 0, false
	}
	mask := uint64(len(t.slots) - 1)
	for p := hash >> 32 & mask; t.slots[p] != 0; p = (p + 1) & mask {
		if s := t.slots[p]; uint32(s>>32) == uint32(hash) {
			if i := int(uint32(s)) - 1; ops[i].Hash == hash {
				return i, true
			}
		}
	}
	return 0, false
}

// add adds ops[i], whose hash is new. The table has all operations before it.
func (t *table) add(i int, ops []Op) {
	if 2*(t.used+1) > len(t.slots) {
		t.grow(ops[:i])
	}
	t.put(ops[i].Hash, i)
	t.used++
}

func (t *table) put(hash uint64, i int) {
	mask := uint64(len(t.slots) - 1)
	p := hash >> 32 & mask
	for t.slots[p] != 0 {
		p = (p + 1) & mask
	}
	t.slots[p] = hash<<32 | uint64(uint32(i+1))
}

// grow makes room for more than ops, which the table has.
func (t *table) grow(ops []Op) {
	n := max(2*len(t.slots), tableSlots)
	if cap(t.slots) < n {
		t.slots = make([]uint64, n)
	}
	t.slots = t.slots[:n]
	clear(t.slots)
	for i := range ops {
		t.put(ops[i].Hash, i)
	}
}

// reset empties the table. It halves an oversized one, as emptying costs as much as its size.
func (t *table) reset() {
	clear(t.slots)
	if 16*t.used < len(t.slots) && len(t.slots) > tableSlots {
		t.slots = t.slots[:len(t.slots)/2]
	}
	t.used = 0
}

// fold makes prev do what prev and then next do. It returns false, changing nothing, if one operation
// cannot.
func fold(prev, next *Op, key docwrite.Key, m *memory) (bool, error) {
	if !foldable(prev, next) || !follows(prev, next, key) {
		return false, nil
	}
	switch next.Kind {
	case stream.Delete:
		// In the overlap the document may have existed before the insert.
		prev.Kind, prev.Doc, prev.Delta, prev.owned = stream.Delete, nil, delta.Delta{}, false
	case stream.Insert:
		prev.Kind, prev.Doc, prev.owned = stream.Put, next.Doc, false
	case stream.Replace, stream.Put:
		if prev.Kind == stream.Update { // which may be of a document that is not there
			prev.Kind = next.Kind
		}
		prev.Doc, prev.Delta, prev.owned = next.Doc, delta.Delta{}, false
	case stream.Update:
		if prev.full() {
			return false, nil
		}
		if ok, err := prev.update(next.Delta, m); !ok {
			return false, err
		}
		prev.folds = min(prev.folds+1, foldsOfLarge)
	}
	prev.At = next.At
	return true, nil
}

// update makes o also do d, in memory of m. It returns false, changing nothing, if one operation cannot.
func (o *Op) update(d delta.Delta, m *memory) (bool, error) {
	if o.Kind == stream.Update {
		out, both, ok := delta.Compose(m.scratch[:0], o.Delta, d)
		if !ok {
			return false, nil
		}
		o.Delta, o.owned = both.In(m.place(o.room(), both.Raw())), true
		m.result(out)
		return true, nil
	}
	out, skipped, err := delta.Apply(m.scratch[:0], o.Doc, d)
	if err != nil {
		return false, err
	}
	if skipped == 0 { // else it is not what the source did: let the target decide
		o.Doc, o.owned = m.place(o.room(), out), true
	}
	m.result(out)
	return skipped == 0, nil
}

// foldable excludes sequences that a source cannot produce. They occur in the overlap, where the target
// must see them one by one, as it must where the document's state matters (Wall, Upsert).
func foldable(prev, next *Op) bool {
	return prev.Wall == 0 && next.Wall == 0 && prev.Overlap == next.Overlap && !prev.Upsert && !next.Upsert &&
		(prev.Kind == stream.Delete) == (next.Kind == stream.Insert)
}

// follows reports whether next may be on the document that prev leaves. Shards can have two documents
// with one _id under different keys, and updates of a key do not tell them apart.
func follows(prev, next *Op, key docwrite.Key) bool {
	if key.IsZero() || next.Where == nil || prev.Kind == stream.Delete {
		return true
	}
	if prev.Kind == stream.Update {
		return prev.Where == nil || key.Same(prev.Where, next.Where)
	}
	return key.Stays(next.Where, prev.Doc)
}
