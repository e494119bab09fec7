package mongo

import (
	"slices"
	"strings"
)

// SplitNS cuts "db.coll.with.dots" into database and collection.
func SplitNS(ns string) (db, coll string) {
	db, coll, _ = strings.Cut(ns, ".")
	return db, coll
}

// BucketsPrefix starts the name of the collection behind a time series.
const BucketsPrefix = "system.buckets."

// SeriesNS returns the time series of a namespace of buckets, and any other namespace as it is.
func SeriesNS(ns string) string {
	db, coll := SplitNS(ns)
	return db + "." + strings.TrimPrefix(coll, BucketsPrefix)
}

// IsBuckets reports the namespace of a time series' buckets.
func IsBuckets(ns string) bool {
	_, coll := SplitNS(ns)
	return strings.HasPrefix(coll, BucketsPrefix)
}

// ReshardingPrefix starts the name of the collection that reshardCollection fills.
const ReshardingPrefix = "system.resharding."

// Command is a user command that a server carries out by filling another collection and then renaming it.
type Command uint8

// The commands, by the name of the filled collection (seen on 4.2 to 6.0).
const (
	CommandOut     Command = iota + 1 // $out and mapReduce: tmp.agg_out.<uuid>, tmp.agg_out.<n>, tmp.mr.<collection>_<n>
	CommandCapped                     // convertToCapped: tmp<5 characters>.convertToCapped.<collection>
	CommandMove                       // renameCollection between databases: tmp<5 characters>.renameCollection
	CommandReshard                    // reshardCollection: system.resharding.<uuid>
)

// Staged returns the command that a server fills a collection for, 0 for a collection of users. of is the namespace
// that the command is about, if the name says it.
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

// IsInternal reports databases of servers and of millrace itself, which are neither copied nor compared.
func IsInternal(db string) bool {
	return slices.Contains([]string{"admin", "local", "config", StateDB}, db)
}

// StateDB is the database on the target in which millrace keeps its jobs.
const StateDB = "millrace"

// IsStateCollection reports the collections of StateDB that are millrace's own.
func IsStateCollection(coll string) bool {
	return slices.Contains([]string{"jobs", "collections", "slices", "skipped", "waysback", "held", "placed",
		"deadletters", "deadletters.parts"}, coll)
}
