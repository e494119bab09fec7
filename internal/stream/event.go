// Package stream defines events of a source, their batches, the position of a consumer, and what sources
// and sinks must do. It holds only types. It knows no oplog, no change stream and no target.
package stream

import (
	"bytes"

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
	// Put and Upsert come from users' applyOps commands, where the document may exist or not.
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

// Event is one change of a document, or one schema change. Its bytes alias a buffer that is not reused.
type Event struct {
	Kind Kind
	Form delta.Kind // of Update and Upsert: delta.Diff or delta.Modifiers
	// Rekeyed marks a Put that stands for an update of the shard key. Key.Shard is the old key.
	Rekeyed bool
	NS      string    // the source's, such as "db.coll" or "db.system.buckets.x"
	Route   *Route    // set by package transform; nil for a SchemaChange, which is in source terms
	UUID    *[16]byte // of the collection; nil where the source does not say
	Key     Key       // unset for SchemaChange
	Doc     bson.Raw
	Change  *Change // of a SchemaChange
	// Txn is the event's transaction, nil for none. All its events share the pointer and one position.
	Txn *Transaction
	At  mongo.OpTime // where in the source's history the event took effect
	// Until is set if the event was made of a later read: Doc may contain the document's events after At
	// up to Until.
	Until mongo.OpTime
	// Wall is the source's time, in milliseconds since 1970, of a Delete that may be an expiry. It is 0
	// for users' deletions, or if unknown.
	Wall int64

	checked *byte // where the Doc begins that Update has found to be an update, nil for none
}

// Update returns the change of an Update or Upsert as a view of Doc, which it checks once.
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

// Route says where a source namespace goes and what rules do. It is immutable.
type Route struct {
	Source, Target string // namespaces; Target is "" where it is not known
	Filtered       bool   // of the documents those of a filter go there: an update may be of another one
	MayFail        bool   // rules may be unable to map documents
	Stale          bool   // some operations are left out: an update may not fit
	KeepsExpired   bool   // documents stay there that expire on the source
}

// Partial reports that documents may be missing: a filter drops them, or, with leavesOut, rules cannot
// map them.
func (r *Route) Partial(leavesOut bool) bool { return r.Filtered || leavesOut && r.MayFail }

// Key identifies a document within its collection.
type Key struct {
	ID bsoncore.Value
	// Shard is the complete document key as the source reports it: the shard key's fields and _id, or
	// _id alone. It is nil if unknown, as for inserts before 6.0.
	Shard bson.Raw
}

// Transaction names a transaction of the source.
type Transaction struct {
	Session bson.Raw // the logical session's id
	Number  int64
}

// Origin is a namespace of the target with the source collection that goes there, at a position. Both
// names may mean other collections by now, so it is no Route.
type Origin struct {
	NS     string      `bson:"ns"`               // on the target
	Source string      `bson:"source,omitempty"` // namespace on the source; empty where no event said
	UUID   bson.Binary `bson:"uuid,omitempty"`   // of the source's collection; empty where no event said
}

// Origin returns that of a routed event, with bytes of its own.
func (ev *Event) Origin() Origin {
	o := Origin{NS: ev.Route.Target, Source: ev.NS}
	if ev.UUID != nil {
		o.UUID = bson.Binary{Subtype: bson.TypeBinaryUUID, Data: bytes.Clone(ev.UUID[:])}
	}
	return o
}

// Place is a document of the target, at an event's position.
type Place struct {
	Origin `bson:",inline"`
	ID     bson.RawValue `bson:"id"`
	At     mongo.OpTime  `bson:"at"`
}
