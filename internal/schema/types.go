// Package schema lists and compares the collections, views, indexes and options of a deployment. It
// makes them on a target (Target), applies schema changes there, and keeps the names that a job has
// there (Names). It knows neither documents nor which of them a job keeps.
package schema

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// Type is the type of a namespace.
type Type string

// The types of listCollections.
const (
	TypeCollection Type = "collection"
	TypeView       Type = "view"
	TypeTimeSeries Type = "timeseries"
)

// Collection describes one collection, view or time-series collection.
type Collection struct {
	NS   string // "db.name"; of a time series not that of the buckets
	Type Type
	// UUID identifies the collection of the documents, for a time series its buckets. Empty for a
	// view.
	UUID bson.Binary
	// Options as in listCollections (capped, validator, collation, …), never nil.
	Options bson.Raw
	// MixedSchema: buckets may hold measurements of several types in one field, as before 5.2.
	MixedSchema bool
	// Indexes as in listIndexes, without the _id index; unfinished builds are in Building.
	Indexes, Building []stream.Index
	// IDIndex: there is an _id index (false if clustered or with the old autoIndexId:false).
	IDIndex      bool
	Count, Bytes int64 // estimates of the server
}

// DataNS is the namespace of the documents: the buckets of a time series, else NS.
func (c Collection) DataNS() string {
	if c.Type != TypeTimeSeries {
		return c.NS
	}
	db, coll := mongo.SplitNS(c.NS)
	return db + "." + mongo.BucketsPrefix + coll
}

// Capped reports a capped collection.
func (c Collection) Capped() bool {
	v, _ := c.Options.Lookup("capped").BooleanOK()
	return v
}

// Clustered reports a collection clustered by _id.
func (c Collection) Clustered() bool {
	return has(c.Options, "clusteredIndex") || c.Type == TypeTimeSeries
}

// Collated reports a default collation, under which _ids that differ in bytes can be equal.
func (c Collection) Collated() bool {
	return has(c.Options, "collation", "locale") && str(c.Options, "collation", "locale") != "simple"
}

// Snapshot is the catalog at one oplog position.
type Snapshot struct {
	At          mongo.OpTime
	Collections []Collection
	// Others is what further servers have, without indexes and sizes.
	Others [][]Collection
}
