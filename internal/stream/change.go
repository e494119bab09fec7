package stream

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
)

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
	// Command is the user's command, if servers end it with a rename. NS is then the staging collection,
	// except for CommandMove, where it is the user's.
	Command mongo.Command
	UUID    bson.Binary // the collection concerned (a rename's source), if known
	Shard   string      // that reports it, in a sharded cluster
	Options bson.Raw    // those of create and view in the form of listCollections, or a collMod's fields
	Indexes []Index     // createIndexes: specs; dropIndexes: Name only
	Mark    string      // the resume token at the change, if it differs from that of the batch before
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
