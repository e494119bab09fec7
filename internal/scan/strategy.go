package scan

import (
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
)

// Strategy is how a collection is cut and walked.
type Strategy string

// The strategies. Resumable reports which can be cut and resumed.
const (
	// ByRecord walks in record order, bounded by record ids (4.4 and newer).
	// Record ids belong to one member: slices are void on another.
	ByRecord Strategy = "record"
	// ByID walks the _id index, or the key of a clustered collection, between
	// raw index bounds, which hold _ids of every type.
	ByID Strategy = "id"
	// ByKey walks a collection clustered by _id with comparisons, where the
	// server takes no index bounds for it. Comparisons find _ids of one type.
	ByKey Strategy = "key"
	// Serial walks in record order without cuts: where order is content
	// (capped), where there is no _id index, where the server takes no cuts.
	Serial Strategy = "serial"
	// Sorted has the server sort a collection without an _id index.
	Sorted Strategy = "sorted"
	// ByRange walks a Range.
	ByRange Strategy = "range"
)

// Resumable reports a strategy that can be cut, and goes on where it was.
func (s Strategy) Resumable() bool { return s != Serial && s != Sorted && s != ByRange }

// ByStorage is the strategy that costs the server least.
func ByStorage(c *schema.Collection, info mongo.Info) Strategy {
	if c.Clustered() || info.Kind == mongo.KindSharded || !info.Version.AtLeast(4, 4) {
		return ByOrder(c, info)
	}
	return ByRecord
}

// ByOrder is the strategy that gives documents in the order of their _ids.
// Servers before 5.3 cluster buckets only: they refuse index bounds on them, and
// the _ids are all ObjectIDs, so that comparisons lose none. From 5.3 on users
// cluster collections, with _ids of any type; 6.0 walks them like an index.
func ByOrder(c *schema.Collection, info mongo.Info) Strategy {
	switch {
	case c.Clustered() && !info.Version.AtLeast(5, 3):
		return ByKey
	case c.Clustered() || c.IDIndex:
		return ByID
	}
	return Sorted
}
