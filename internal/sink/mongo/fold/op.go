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

// NewTarget returns the target of a namespace.
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
	Overlap bool // the target may be ahead of it
	Upsert  bool // an Update makes the document if it does not exist
	Untried bool // it was parked behind another before it was sent
	owned   bool // Doc, of an Update Delta, is in the batch's memory and may be written over

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

// NewOp returns the operation of one event.
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

// Verb names the operation in errors.
func (o *Op) Verb() string {
	if o.Kind == stream.Put {
		return stream.Replace.String()
	}
	return o.Kind.String()
}

// Fail returns an error about the operation, on target namespace ns.
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

// Clone copies the operation with its bytes.
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
