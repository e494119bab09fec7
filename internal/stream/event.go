// Package stream defines what happened at a source. It has events, their batches, the position
// of a consumer, and what a source and a sink have to do. It holds types and no behaviour
// beyond them. It knows no oplog, no change stream and no target.
package stream

import (
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
)

// Kind is what an event does.
type Kind uint8

// The kinds of events.
const (
	Insert       Kind = iota + 1 // the document is new: Doc
	Replace                      // the document exists and becomes Doc
	Update                       // the document exists and Doc, in the form Form, applies to it
	Delete                       // the document is gone
	SchemaChange                 // Change is set; everything before it comes first, everything after it later
	// Put and Upsert are what a server makes of a user's applyOps command, which
	// does not say whether the document is there.
	Put    // the document becomes Doc
	Upsert // as Update; a document that is missing is made of its _id and the update
)

// String names the kind for people.
func (k Kind) String() string {
	names := [...]string{Insert: "insert", Replace: "replace", Update: "update", Delete: "delete", SchemaChange: "schema",
		Put: "put", Upsert: "upsert"}
	if int(k) >= len(names) || names[k] == "" {
		return "unknown"
	}
	return names[k]
}

// Event is one change of one document, or one schema change. Its byte fields
// alias a buffer that nothing reuses.
type Event struct {
	Kind Kind
	Form delta.Kind // of Update and Upsert: delta.Diff or delta.Modifiers
	// Rekeyed is of a Put that an update is: it has given the document another shard key,
	// and so another shard. Key.Shard is that of before.
	Rekeyed bool
	NS      string // the source's, such as "db.coll" or "db.system.buckets.x"
	// Route says where the event goes, which package transform finds. A SchemaChange has
	// none: it is in the source's terms.
	Route *Route
	UUID  *[16]byte // of the collection; nil where the source does not say
	Key   Key       // unset for SchemaChange
	Doc   bson.Raw
	// Change belongs to SchemaChange.
	Change *Change
	// Txn is the transaction that the event belonged to, nil if it was none. All
	// events of a transaction have one pointer and one position.
	Txn *Transaction
	// At is where in the source's history the event took effect.
	At mongo.OpTime
	// Until is set on an event that was made of a later read of the document's state on the
	// source. Events of the document after At and up to Until may be in it.
	Until mongo.OpTime
	// Wall is the source's time of day, in milliseconds since 1970, of a Delete that may be an
	// expiry. It is 0 for a known deletion of a user, and where the source does not say.
	Wall int64

	checked *byte // where the Doc begins that Update has found to be an update, nil for none
}

// Update is the change that an Update or Upsert makes, as a view of Doc. It is checked once,
// whoever asks first, until Doc is another one.
func (ev *Event) Update() (delta.Delta, error) {
	if ev.checked != nil && len(ev.Doc) > 0 && ev.checked == &ev.Doc[0] {
		return delta.View(ev.Form, ev.Doc), nil
	}
	d, err := delta.ParseAs(ev.Form, ev.Doc)
	if err == nil {
		ev.checked = &ev.Doc[0]
	}
	return d, err
}

// Route says where the changes of a source namespace go, and what rules make of them. It is
// immutable.
type Route struct {
	Source, Target string // namespaces; Target is "" where it is not known
	Filtered       bool   // of the documents those of a filter go there: an update may be of another one
	MayFail        bool   // rules may be unable to map documents
	Stale          bool   // some operations are left out: an update may not fit
	KeepsExpired   bool   // documents stay there that expire on the source
}

// Partial reports that of the documents some may not be there: a filter keeps others, or, with
// leavesOut, the target goes without those that rules cannot map.
func (r *Route) Partial(leavesOut bool) bool { return r.Filtered || leavesOut && r.MayFail }

// Key identifies a document within its collection.
type Key struct {
	ID bsoncore.Value
	// Shard is the complete document key, as the source reports it. For a sharded collection it
	// has the fields of the shard key and _id, for others _id alone. It is nil where the source
	// reports none, as for inserts before 6.0.
	Shard bson.Raw
}

// Transaction names a transaction of the source.
type Transaction struct {
	Session bson.Raw // the logical session's id
	Number  int64
}

// Place is a document of the namespace NS of the target, at the position of an event.
type Place struct {
	NS string        `bson:"ns"`
	ID bson.RawValue `bson:"id"`
	At mongo.OpTime  `bson:"at"`
	// Source and UUID are those of the source's collection, as far as known.
	Source string      `bson:"source,omitempty"`
	UUID   bson.Binary `bson:"uuid,omitempty"`
}
