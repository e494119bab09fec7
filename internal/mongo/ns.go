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

// IsBuckets reports that a namespace is that of the buckets of a time series.
func IsBuckets(ns string) bool {
	_, coll := SplitNS(ns)
	return strings.HasPrefix(coll, BucketsPrefix)
}

// ReshardingPrefix starts the name of the collection that shards fill while one is
// sharded by another key (reshardCollection).
const ReshardingPrefix = "system.resharding."

// Command is a user command that a server carries out by filling another collection,
// which then takes the place of the one that the command is about.
type Command uint8

// The commands, by the name of the collection that is filled (seen on 4.2 to 6.0).
const (
	CommandOut     Command = iota + 1 // $out and mapReduce: tmp.agg_out.<uuid>, tmp.agg_out.<n>, tmp.mr.<collection>_<n>
	CommandCapped                     // convertToCapped: tmp<5 characters>.convertToCapped.<collection>
	CommandMove                       // renameCollection between databases: tmp<5 characters>.renameCollection
	CommandReshard                    // reshardCollection: system.resharding.<uuid>
)

// Staged distinguishes the collection that a server fills for a command from those of users: 0.
// of is the namespace that the command is about, if the name says it.
func Staged(ns string) (c Command, of string) {
	db, coll := SplitNS(ns)
	if strings.HasPrefix(coll, ReshardingPrefix) {
		return CommandReshard, ""
	}
	rest, ok := strings.CutPrefix(coll, "tmp")
	if !ok {
		return 0, ""
	}
	if strings.HasPrefix(rest, ".agg_out.") || strings.HasPrefix(rest, ".mr.") {
		return CommandOut, ""
	}
	const random = 5 // characters
	if len(rest) <= random {
		return 0, ""
	}
	if rest = rest[random:]; rest == ".renameCollection" {
		return CommandMove, ""
	}
	if name, ok := strings.CutPrefix(rest, ".convertToCapped."); ok {
		return CommandCapped, db + "." + name
	}
	return 0, ""
}

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

// IsStateCollection reports the collections of StateDB that are millrace's own.
func IsStateCollection(coll string) bool {
	switch coll {
	case "jobs", "collections", "slices", "skipped", "waysback", "held", "placed", "deadletters", "deadletters.parts":
		return true
	}
	return false
}
