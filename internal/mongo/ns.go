// Package mongo connects to a deployment and knows what every other package needs to know of
// it: its identity, version and replication positions. It also classifies errors for a job
// (retry, conflict, window, fatal).
package mongo

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/wire"
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

// OfServer reports the name of a collection that servers maintain themselves.
func OfServer(coll string) bool {
	return strings.HasPrefix(coll, "system.") && coll != "system.js" && !strings.HasPrefix(coll, BucketsPrefix)
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

// Version is a server version, comparable by its parts.
type Version struct{ Major, Minor, Patch int }

// ParseVersion reads "6.0.5" or "6.0".
func ParseVersion(s string) (Version, error) {
	var v Version
	parts := strings.SplitN(strings.SplitN(s, "-", 2)[0], ".", 3)
	dst := []*int{&v.Major, &v.Minor, &v.Patch}
	for i, p := range parts {
		n, err := strconv.Atoi(p)
		if err != nil {
			return v, fmt.Errorf("version %q: %w", s, err)
		}
		*dst[i] = n
	}
	return v, nil
}

// AtLeast reports v >= major.minor.
func (v Version) AtLeast(major, minor int) bool {
	return v.Major > major || v.Major == major && v.Minor >= minor
}

func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch) }

func (v Version) Series() Version { return Version{Major: v.Major, Minor: v.Minor} }

// OlderThan reports a series before that of w.
func (v Version) OlderThan(w Version) bool { return !v.AtLeast(w.Major, w.Minor) }

// PreviousSeries returns the series whose files and feature compatibility a server accepts besides its own; zero
// if unknown.
func (v Version) PreviousSeries() Version {
	switch {
	case v.Major >= 6:
		return Version{Major: v.Major - 1}
	case v.Series() == Version{Major: 5}:
		return Version{Major: 4, Minor: 4}
	case v.Series() == Version{Major: 4, Minor: 4}:
		return Version{Major: 4, Minor: 2}
	}
	return Version{}
}

// Tested returns the oldest and newest series that millrace is tested with. An older server is refused.
func Tested() (oldest, newest Version) {
	series := testedSeries(KindReplicaSet)
	return series[0], series[len(series)-1]
}

func testedSeries(k Kind) []Version {
	sharded := []Version{{Major: 4, Minor: 4}, {Major: 5}, {Major: 6}}
	if k == KindSharded {
		return sharded
	}
	return slices.Concat([]Version{{Major: 4, Minor: 2}}, sharded, []Version{{Major: 7}})
}

// Evidence is what millrace's knowledge of a series of servers rests on.
type Evidence string

const (
	// EvidenceTests: the tests of this repository ran on servers of the series.
	EvidenceTests Evidence = "tested"
	// EvidenceDocs: manuals and trackers were read, no test ran (docs/reference/versions.md).
	EvidenceDocs Evidence = "known from documentation only"
	// EvidenceNone: the series is newer than what was read.
	EvidenceNone Evidence = "unknown"
)

// NewestRead returns the newest series whose documentation was read.
func NewestRead() Version { return Version{Major: 9} }

// Evidence returns what is known of a deployment's series.
func (i Info) Evidence() Evidence {
	switch series := i.Version.Series(); {
	case slices.Contains(testedSeries(i.Kind), series):
		return EvidenceTests
	case NewestRead().OlderThan(series):
		return EvidenceNone
	}
	return EvidenceDocs
}

// ReadAll reads all documents of a command's cursor. The returned function takes the command's results, and wraps
// an error as Wrap does: ReadAll[bson.Raw](ctx, "list jobs")(coll.Find(ctx, filter)).
func ReadAll[T any](ctx context.Context, format string, args ...any) func(*driver.Cursor, error) ([]T, error) {
	return func(cur *driver.Cursor, err error) (all []T, _ error) {
		if err == nil {
			err = cur.All(ctx, &all)
		}
		if err != nil {
			return nil, Wrap(err, format, args...)
		}
		return all, nil
	}
}

// OfJob selects the documents of a job, whose _ids begin with its name and a slash. A server with notablescan
// answers no query without an index.
func OfJob(job string) bson.E {
	// The character 0 follows the slash.
	return bson.E{Key: "_id", Value: bson.D{{Key: "$gte", Value: job + "/"}, {Key: "$lt", Value: job + "0"}}}
}

// OfJobDocuments is OfJob where the _ids are documents with the job's name in their first field, job.
func OfJobDocuments(job string) bson.E {
	first := bson.E{Key: "job", Value: job}
	return bson.E{Key: "_id", Value: bson.D{{Key: "$gte", Value: bson.D{first}},
		{Key: "$lt", Value: bson.D{first, {Key: "", Value: bson.MaxKey{}}}}}}
}

// UpdateState runs update statements on a collection of StateDB in order, with write concern w. It returns the
// election term of the last reply, -1 for none.
func (c *Cluster) UpdateState(ctx context.Context, coll string, w any, statements ...bson.D) (term int64, err error) {
	return c.writeState(ctx, bson.D{{Key: "update", Value: coll}}, "updates", w, statements)
}

// DeleteState deletes all documents that match one of the filters. See UpdateState.
func (c *Cluster) DeleteState(ctx context.Context, coll string, w any, filters ...bson.D) (term int64, err error) {
	statements := make([]bson.D, len(filters))
	for i, f := range filters {
		statements[i] = bson.D{{Key: "q", Value: f}, {Key: "limit", Value: 0}}
	}
	return c.writeState(ctx, bson.D{{Key: "delete", Value: coll}}, "deletes", w, statements)
}

func (c *Cluster) writeState(ctx context.Context, command bson.D, field string, w any,
	statements []bson.D) (term int64, err error) {
	const most = 500 // statements of one command
	term = -1
	for part := range slices.Chunk(statements, most) {
		raw, err := c.Write(ctx, StateDB, append(slices.Clone(command), bson.E{Key: field, Value: part},
			bson.E{Key: "ordered", Value: true},
			bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: w}}}))
		if err != nil {
			return term, err
		}
		term = wire.ParseWriteResult([]byte(raw)).Term
	}
	return term, nil
}
