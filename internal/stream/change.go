package stream

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
)

// ChangeKind names a schema change.
type ChangeKind string

// The schema changes of an oplog, after its command entries and its writes to
// system.views are translated.
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
	// ChangeIdentity says that the collection, with all it holds, has another UUID: a
	// sharded cluster has moved it from one shard to another.
	ChangeIdentity ChangeKind = "identity"
)

// Change is one schema change in source terms.
type Change struct {
	Kind ChangeKind
	// NS is "db.coll"; for DropDatabase and DropAllViews "db". A time-series
	// collection has its own name here, though its entries name its buckets.
	NS string
	// Buckets says that the entry named a system.buckets collection: index
	// specifications are those of the buckets.
	Buckets bool
	// To and DropTarget belong to a rename. The drop of what a server has filled for
	// CommandMove has the names of the user's rename in From and To.
	From, To   string
	DropTarget bool
	// Command is what the user commanded, where a rename is how a server ends it. NS is
	// then what the server has filled for it, but of CommandMove what the user named.
	Command mongo.Command
	UUID    bson.Binary // the collection concerned (a rename's source), if known
	Shard   string      // that reports it, in a sharded cluster
	// Options of create and view (as listCollections would give them), or the
	// collMod command's fields.
	Options bson.Raw
	Indexes []Index // createIndexes: specs; dropIndexes: Name only
	// Mark is that of a position at the change, where it is another than that of the
	// batch before.
	Mark string
}

// Touches reports that the change makes, replaces, renames, drops or alters what
// a source namespace names; one that concerns indexes alone does not.
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
