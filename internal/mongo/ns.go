package mongo

import "strings"

// SplitNS cuts "db.coll.with.dots" into database and collection.
func SplitNS(ns string) (db, coll string) {
	db, coll, _ = strings.Cut(ns, ".")
	return db, coll
}

// BucketsPrefix starts the name of the collection behind a time-series
// collection.
const BucketsPrefix = "system.buckets."

// SeriesNS is the name of the time-series collection whose buckets have the name; any
// other name stays.
func SeriesNS(ns string) string {
	db, coll := SplitNS(ns)
	return db + "." + strings.TrimPrefix(coll, BucketsPrefix)
}

// ReshardingPrefix starts the name of the collection that shards fill while one is
// sharded by another key (reshardCollection).
const ReshardingPrefix = "system.resharding."

// IsInternal reports databases that belong to a server itself or to millrace's
// own bookkeeping; they are never copied and never compared.
func IsInternal(db string) bool {
	switch db {
	case "admin", "local", "config", StateDB:
		return true
	}
	return false
}

// StateDB is the database on the target in which millrace keeps its jobs.
const StateDB = "millrace"
