package mongosink

import (
	"bytes"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// item is an event on its way to a partition.
type item struct {
	ev     *stream.Event
	seg    *segment
	t      *target
	hash   uint64
	window bool // the target may be ahead of this event
}

type opKind uint8

const (
	opInsert  opKind = iota + 1 // the document is new
	opReplace                   // the document exists and becomes doc
	opPut                       // the document becomes doc, whether it exists or not
	opUpdate                    // the document exists and delta applies to it
	opDelete
	opDeletes // several documents go, those that the query doc matches
)

// op is what a batch does to one document.
type op struct {
	kind   opKind
	window bool
	// owned: doc, of an opUpdate upd, is in the batch's memory and may be written over
	owned bool
	// guarded: the statement holds only for a document without the fields it inserts
	guarded bool
	// upsert: an opUpdate makes the document if it does not exist
	upsert bool
	// untried: it was parked behind another before it was sent
	untried bool
	// lasting: doc certainly holds no timestamp that the server replaces
	lasting bool

	hash uint64
	id   bsoncore.Value
	doc  []byte // the document; of an opUpdate its statement, once translated
	upd  delta.Delta
	at   mongo.OpTime // of the latest event in it
	// since is of the first event in it
	since bson.Timestamp
}

// size is what the op adds to a command, roughly.
func (o *op) size() int {
	n := len(o.doc)
	if o.kind == opUpdate {
		n = max(n, len(o.upd.Raw())) // before it is translated, and after
	}
	if o.guarded {
		n *= 2
	}
	return n + len(o.id.Data) + 32
}

// room is what a new doc or upd may be written over, nil for none.
func (o *op) room() []byte {
	switch {
	case !o.owned:
		return nil
	case o.kind == opUpdate:
		return o.upd.Raw()
	}
	return o.doc
}

// clone is the operation in memory of its own, before it is translated.
func (o *op) clone() op {
	c := *o
	c.owned, c.id.Data = false, bytes.Clone(o.id.Data)
	if o.kind == opUpdate {
		c.doc, c.upd = nil, o.upd.In(bytes.Clone(o.upd.Raw()))
	} else {
		c.doc = bytes.Clone(o.doc)
	}
	return c
}

// nsBatch holds one operation per document of one namespace. Serial
// namespaces keep every event, in order.
type nsBatch struct {
	t     *target
	ops   []op
	index table // positions in ops by document hash
}

// find returns the operation that has the hash of an item's document. same is
// false where that is another document, or the same _id in other bytes (1 and
// 1.0): their order matters and cannot be expressed in one batch.
func (nb *nsBatch) find(it item) (prev *op, same bool) {
	i, ok := nb.index.find(it.hash, nb.ops)
	if !ok {
		return nil, false
	}
	prev = &nb.ops[i]
	return prev, prev.id.Type == it.ev.Key.ID.Type && bytes.Equal(prev.id.Data, it.ev.Key.ID.Data)
}

// add takes in an operation whose hash it does not have.
func (nb *nsBatch) add(o op) {
	nb.ops = append(nb.ops, o)
	nb.index.add(len(nb.ops)-1, nb.ops)
}

// ack counts the events of a segment in a batch.
type ack struct {
	seg *segment
	n   int64
	// released: the memory of the events is needed no more.
	released bool
}

// batch collects operations of one partition until they are sent.
type batch struct {
	ns    map[*target]*nsBatch
	order []*nsBatch
	free  []*nsBatch // emptied, for reuse
	acks  []ack
	mem   memory
	ops   int
	bytes int
}

func newBatch() *batch { return &batch{ns: map[*target]*nsBatch{}} }

func (b *batch) empty() bool { return len(b.acks) == 0 }

func (b *batch) reset() {
	for _, nb := range b.order {
		clear(nb.ops)
		nb.ops = nb.ops[:0]
		nb.index.reset()
		nb.t = nil
	}
	b.free = append(b.free, b.order...)
	b.order = b.order[:0]
	clear(b.ns)
	clear(b.acks)
	b.acks = b.acks[:0]
	b.mem.reset()
	b.ops, b.bytes = 0, 0
}

func (b *batch) namespace(t *target) *nsBatch {
	if nb, ok := b.ns[t]; ok {
		return nb
	}
	var nb *nsBatch
	if n := len(b.free); n > 0 {
		nb, b.free = b.free[n-1], b.free[:n-1]
	} else {
		nb = &nsBatch{}
	}
	nb.t = t
	b.ns[t] = nb
	b.order = append(b.order, nb)
	return nb
}

// add takes the item in, folding it into an earlier operation of the same
// document. It returns false, changing nothing, when the batch has to be sent
// first to keep the document's order.
func (b *batch) add(it item) (ok, folded bool, err error) {
	next, err := newOp(it)
	if err != nil {
		return false, false, err
	}
	nb := b.namespace(it.t)
	if it.t.serial() {
		nb.ops = append(nb.ops, next)
		b.took(it, next.size())
		return true, false, nil
	}
	prev, same := nb.find(it)
	if prev == nil {
		nb.add(next)
		b.took(it, next.size())
		return true, false, nil
	}
	if !same {
		return false, false, nil
	}
	was := prev.size()
	if ok, err := fold(prev, next, &b.mem); !ok || err != nil {
		return false, false, err
	}
	b.took(it, prev.size()-was)
	b.ops--
	return true, true, nil
}

func (b *batch) took(it item, size int) {
	b.ops++
	b.bytes += size
	b.ack(it.seg, 1, false)
}

// ack counts n events that wait for the batch.
func (b *batch) ack(seg *segment, n int64, released bool) {
	if last := len(b.acks) - 1; last >= 0 && b.acks[last].seg == seg && b.acks[last].released == released {
		b.acks[last].n += n
		return
	}
	b.acks = append(b.acks, ack{seg, n, released})
}

// made is the document that an update with upsert starts from when there is
// none.
func (o *op) made() bson.Raw {
	return bson.Raw(bsoncore.NewDocumentBuilder().AppendValue("_id", o.id).Build())
}

func newOp(it item) (op, error) {
	ev := it.ev
	o := op{id: ev.Key.ID, hash: it.hash, window: it.window, at: ev.At, since: ev.At.TS}
	switch ev.Kind {
	case stream.Insert:
		o.kind, o.doc = opInsert, ev.Doc
	case stream.Replace:
		o.kind, o.doc = opReplace, ev.Doc
	case stream.Put:
		o.kind, o.doc = opPut, ev.Doc
	case stream.Delete:
		o.kind = opDelete
	default:
		d, err := delta.ParseAs(ev.Form, ev.Doc)
		if err != nil {
			return o, opError("parse update", it.t.ns, ev.Key.ID, ev.At, err)
		}
		o.kind, o.upd, o.upsert = opUpdate, d, ev.Kind == stream.Upsert
	}
	return o, nil
}
