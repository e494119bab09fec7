// Package schema knows the collections, views, indexes and options of a deployment. It lists
// and compares them, makes them on a target (Target), applies schema changes there, and keeps
// the names that a job has there (Names).
//
// Neither documents nor the choice of documents that a job keeps belong here: see Rules.
package schema

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// Type is what a namespace is.
type Type string

// The types of listCollections.
const (
	TypeCollection Type = "collection"
	TypeView       Type = "view"
	TypeTimeSeries Type = "timeseries"
)

// Collection describes one collection, view or time-series collection.
type Collection struct {
	NS   string // "db.name"; of a time-series collection its own name, not that of the buckets
	Type Type
	// UUID identifies the collection that holds the documents: of a
	// time-series collection its system.buckets collection. Empty for a view.
	UUID bson.Binary
	// Options as listCollections gives them (capped, validator, collation,
	// clusteredIndex, timeseries, viewOn, pipeline …), never nil.
	Options bson.Raw
	// MixedSchema says that the buckets of a time-series collection may hold
	// measurements of several types in one field, as servers before 5.2 made them.
	MixedSchema bool
	// Indexes in listIndexes' order without the _id index and without builds
	// still under way, which are in Building.
	Indexes, Building []stream.Index
	// IDIndex says whether an _id index exists (false for clustered ones and
	// old autoIndexId:false ones).
	IDIndex      bool
	Count, Bytes int64 // estimates of the server
}

// DataNS is the namespace that holds the documents: the system.buckets
// collection of a time-series collection, else NS.
func (c Collection) DataNS() string {
	if c.Type != TypeTimeSeries {
		return c.NS
	}
	db, coll := mongo.SplitNS(c.NS)
	return db + "." + mongo.BucketsPrefix + coll
}

// Capped reports a capped collection, whose document order matters.
func (c Collection) Capped() bool {
	v, _ := c.Options.Lookup("capped").BooleanOK()
	return v
}

// Clustered reports a collection clustered by _id: its record id is the key.
func (c Collection) Clustered() bool {
	_, err := c.Options.LookupErr("clusteredIndex")
	return err == nil || c.Type == TypeTimeSeries
}

// Collated reports a default collation other than the simple one, under which
// _ids that differ in bytes can be equal.
func (c Collection) Collated() bool {
	v, err := c.Options.LookupErr("collation", "locale")
	if err != nil {
		return false
	}
	s, _ := v.StringValueOK()
	return s != "simple"
}

// Snapshot is the catalog exactly as it stood at one oplog position.
type Snapshot struct {
	At          mongo.OpTime
	Collections []Collection
	// Others is what further servers held, without indexes and sizes.
	Others [][]Collection
}
