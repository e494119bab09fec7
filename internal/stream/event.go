// Package stream defines events of a source, their batches, the position of a consumer, and what sources
// and sinks must do. It holds only types. It knows no oplog, no change stream and no target.
package stream

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

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
// names may mean other collections by now, so an Origin is not a Route.
type Origin struct {
	NS     string      `bson:"ns"`               // on the target
	Source string      `bson:"source,omitempty"` // namespace on the source; empty where no event said
	UUID   bson.Binary `bson:"uuid,omitempty"`   // of the source's collection; empty where no event said
}

// AppendDocument appends what identifies the document of an event: its collection and its _id.
func (ev *Event) AppendDocument(dst []byte) []byte {
	if ev.UUID != nil {
		dst = append(dst, ev.UUID[:]...)
	} else {
		dst = append(append(dst, ev.NS...), 0)
	}
	return delta.AppendKey(dst, ev.Key.ID)
}

// SameUUID reports that two events name the same collection, or both none.
func (ev *Event) SameUUID(other *Event) bool {
	if ev.UUID == nil || other.UUID == nil {
		return ev.UUID == other.UUID
	}
	return *ev.UUID == *other.UUID
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

// ChangeKind names a schema change.
type ChangeKind string

// The schema changes, as translated from commands and writes to system.views.
const (
	ChangeCreate        ChangeKind = "create"       // collection, or time-series collection
	ChangeDrop          ChangeKind = "drop"         // collection
	ChangeDropDatabase  ChangeKind = "dropDatabase" // what is left of a database
	ChangeRename        ChangeKind = "renameCollection"
	ChangeCreateIndexes ChangeKind = "createIndexes" // also commitIndexBuild
	ChangeDropIndexes   ChangeKind = "dropIndexes"
	ChangeCollMod       ChangeKind = "collMod"
	ChangeView          ChangeKind = "view" // view created or redefined
	ChangeDropView      ChangeKind = "dropView"
	ChangeDropAllViews  ChangeKind = "dropAllViews" // system.views dropped
	// ChangeIdentity: the collection has another UUID, as a cluster moved it to another shard.
	ChangeIdentity ChangeKind = "identity"
)

// Change is one schema change in source terms.
type Change struct {
	Kind ChangeKind
	// NS is "db.coll", or "db" for DropDatabase and DropAllViews. A time-series collection has its own
	// name, not that of its buckets.
	NS string
	// Buckets: the entry named a system.buckets collection, so index specifications are those of the
	// buckets.
	Buckets bool
	// A rename sets To and DropTarget. The drop of a CommandMove's staging collection has the names of
	// the user's rename in From and To.
	From, To   string
	DropTarget bool
	// DropAssumed says that the source does not tell what DropTarget is.
	DropAssumed bool
	// Command is the user's command, if servers end it with a rename. NS is then the staging collection,
	// except for CommandMove, where it is the user's.
	Command mongo.Command
	UUID    bson.Binary // the collection concerned (a rename's source), if known
	// Replaced is the collection that a rename drops, if a change stream says it.
	Replaced bson.Binary
	Shard    string   // that reports it, in a sharded cluster
	Options  bson.Raw // those of create and view in the form of listCollections, or a collMod's fields
	Indexes  []Index  // createIndexes: specs; dropIndexes: Name only
	Mark     string   // the resume token at the change, if it differs from that of the batch before
}

// Touches reports that the change concerns the collection of a source namespace, and not only its
// indexes.
func (ch *Change) Touches(ns string) bool {
	switch ch.Kind {
	case ChangeDropDatabase:
		db, _ := mongo.SplitNS(ns)
		return ch.NS == db
	case ChangeRename:
		return ch.NS == ns || ch.To == ns
	case ChangeCreate, ChangeDrop, ChangeCollMod, ChangeIdentity:
		return ch.NS == ns
	}
	return false
}

// Index is an index specification as listIndexes or a change gives it.
type Index struct {
	Name string
	Spec bson.Raw
}

// Ops is a set of operations on documents and collections of a source.
type Ops uint16

// The operations, as operators name them.
const (
	OpInsert  Ops = 1 << iota
	OpUpdate      // of fields
	OpReplace     // of a whole document
	OpDelete
	OpCreate // of a collection or view
	OpDrop   // of a collection or view, also with its database
	OpRename
	OpCreateIndexes
	OpDropIndexes
	OpCollMod // of a collection, view or index
	OpTTL     // deletion of a document that has expired: a part of OpDelete
)

// OpDocuments are the operations on documents.
const OpDocuments = OpInsert | OpUpdate | OpReplace | OpDelete | OpTTL

func opNames() []string {
	return []string{"insert", "update", "replace", "delete", "create", "drop", "rename", "createIndexes", "dropIndexes",
		"collMod", "ttl"}
}

// OpNames lists what ParseOps takes.
func OpNames() []string { return append(opNames(), "dropDatabase") }

// ParseOps parses names separated by commas; "none" is none.
func ParseOps(text string) (o Ops, err error) {
	if strings.TrimSpace(text) == "none" {
		return 0, nil
	}
	databases := false
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		i := slices.IndexFunc(opNames(), func(known string) bool { return strings.EqualFold(known, name) })
		switch {
		case i >= 0:
			o |= 1 << i
		case strings.EqualFold(name, "dropDatabase"):
			databases = true
		default:
			return 0, fmt.Errorf("%q is no operation; there are %s, and none", name, strings.Join(OpNames(), ", "))
		}
	}
	// Servers log the drops of the collections like any other drop (seen on 4.2 to 6.0).
	if databases && !o.Has(OpDrop) {
		return 0, fmt.Errorf("cannot skip dropDatabase alone: a source logs it as drops of its collections, " +
			"which look like any other drop; write drop, which skips both")
	}
	if blind := o & beforeTTL; o.Has(OpTTL) && blind != 0 {
		return 0, fmt.Errorf("cannot skip ttl with %s: expiry depends on the target's documents and indexes, which "+
			"then differ from the source's; write ttl without it, or delete, which skips all deletions", blind)
	}
	return o, nil
}

// beforeTTL are operations that decide what expires on the target.
const beforeTTL = OpInsert | OpUpdate | OpReplace | OpCreateIndexes | OpDropIndexes | OpCollMod

// Has reports whether any of some operations is in the set.
func (o Ops) Has(any Ops) bool { return o&any != 0 }

// String returns the form that ParseOps takes, in a fixed order.
func (o Ops) String() string {
	var out []string
	for i, name := range opNames() {
		if o.Has(1 << i) {
			out = append(out, name)
		}
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, ",")
}

// Op returns what an event does to a document: nothing for a schema change, two operations for a user's
// applyOps command, which does not say whether the document is new.
func (ev *Event) Op() Ops {
	switch ev.Kind {
	case Insert:
		return OpInsert
	case Update:
		return OpUpdate
	case Replace:
		return OpReplace
	case Delete:
		return OpDelete
	case Put:
		if ev.Rekeyed {
			return OpUpdate
		}
		return OpInsert | OpReplace
	case Upsert:
		return OpInsert | OpUpdate
	}
	return 0
}

// Op returns what a change does, 0 if nothing to the target. there reports that the view exists.
func (ch *Change) Op(there bool) Ops {
	switch ch.Kind {
	case ChangeCreate:
		return OpCreate
	case ChangeView:
		if there {
			return OpCollMod
		}
		return OpCreate
	case ChangeDrop, ChangeDropView, ChangeDropAllViews, ChangeDropDatabase:
		return OpDrop
	case ChangeRename:
		switch ch.Command {
		case mongo.CommandCapped:
			return OpCollMod
		case mongo.CommandOut, mongo.CommandReshard: // the collection stays, with other documents, or the same
			return 0
		}
		return OpRename
	case ChangeCreateIndexes:
		return OpCreateIndexes
	case ChangeDropIndexes:
		return OpDropIndexes
	case ChangeCollMod:
		return OpCollMod
	}
	return 0
}
