package oplog

import (
	"errors"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/ddl"
	"github.com/millrace/millrace/internal/stream"
)

// parseChange parses a command on a user's database. It returns nil for commands that do not change the
// schema, and an error for unknown ones.
func parseChange(db string, ui []byte, o bson.Raw) (*stream.Change, error) {
	if !bsonraw.Valid(o, bsonraw.MaxDepth) {
		return nil, fmt.Errorf("command on database %s: malformed document", db)
	}
	rest, _ := bsonraw.Body(o)
	if len(rest) == 0 {
		return nil, fmt.Errorf("command on database %s: no command", db)
	}
	cmd, _, _ := bsonraw.Next(rest)
	ch, err := readChange(db, cmd, o)
	parsed := ch
	if n, ok := errors.AsType[*ddl.NotFollowed](err); ok {
		parsed = &n.Change
	}
	if parsed != nil && ui != nil {
		parsed.UUID = bson.Binary{Subtype: bson.TypeBinaryUUID, Data: ui}
	}
	if err != nil {
		return nil, fmt.Errorf("command %s on database %s: %w", cmd.Name, db, err)
	}
	return ch, nil
}

func readChange(db string, cmd bsonraw.Element, o bson.Raw) (*stream.Change, error) {
	switch string(cmd.Name) {
	case "startIndexBuild", "abortIndexBuild", "dbCheck", "commitTransaction", "abortTransaction":
		return nil, nil
	case "setMultikeyMetadata", "dropIdent": // of the source's own tables, from 9.0 on (decision 42)
		return nil, nil
	case "dropDatabase":
		return &stream.Change{Kind: stream.ChangeDropDatabase, NS: db}, nil
	case "renameCollection":
		return readRename(cmd, o)
	}
	coll := str(cmd)
	if coll == "" {
		return nil, unknown("command")
	}
	ch := &stream.Change{NS: db + "." + coll}
	if series, ok := strings.CutPrefix(coll, mongo.BucketsPrefix); ok {
		ch.NS, ch.Buckets = db+"."+series, true
	}
	var err error
	switch string(cmd.Name) {
	case "create":
		ch.Kind = stream.ChangeCreate
		ch.Options, err = ddl.Options(o, ch.Buckets)
	case "drop":
		ch.Kind = stream.ChangeDrop
		if coll == "system.views" {
			return &stream.Change{Kind: stream.ChangeDropAllViews, NS: db}, nil
		}
	case "createIndexes":
		spec := bsonraw.Without(o, "createIndexes")
		ch.Kind, ch.Indexes = stream.ChangeCreateIndexes, []stream.Index{{Name: str(field(spec, "name")), Spec: spec}}
	case "commitIndexBuild":
		ch.Kind = stream.ChangeCreateIndexes
		ch.Indexes, err = ddl.Indexes(field(o, "indexes"))
	case "dropIndexes", "deleteIndexes", "dropIndex", "deleteIndex":
		ch.Kind = stream.ChangeDropIndexes
		ch.Indexes, err = droppedIndexes(field(o, "index"))
	case "collMod":
		ch.Kind, ch.Options = stream.ChangeCollMod, bsonraw.Without(o, "collMod")
	case viewlessSeries:
		ch.Kind = stream.ChangeCollMod
		return nil, withoutBuckets(ch, "setFeatureCompatibilityVersion converts it to the form without system.buckets, or "+
			"back (upgradeDowngradeViewlessTimeseries)")
	default:
		return nil, unknown("command")
	}
	if ch.Kind == stream.ChangeCreate && !ch.Buckets && field(ch.Options, "timeseries").Type != 0 {
		ch.Options = nil
		return nil, withoutBuckets(ch, "it has no system.buckets collection, as from MongoDB 8.3 on")
	}
	if (ch.Kind == stream.ChangeCreate || ch.Kind == stream.ChangeDrop) && mongo.OfServer(coll) {
		return nil, err
	}
	return ch, err
}

// viewlessSeries is logged by servers of 8.3 and newer for each time series that a change of the feature
// compatibility version converts.
const viewlessSeries = "upgradeDowngradeViewlessTimeseries"

// withoutBuckets is the error of a time series whose buckets are not in a collection of their own.
func withoutBuckets(ch *stream.Change, why string) error {
	return &ddl.NotFollowed{Err: mongo.WithHint(fmt.Errorf("cannot follow the time series %s: %s", ch.NS, why),
		"start the job again with --restart and --exclude "+ch.NS+", and copy that time series by other means"), Change: *ch}
}

// unknownEntry is the error of an entry that may have any effect.
type unknownEntry struct{ error }

func (u *unknownEntry) Unwrap() error { return u.error }

func unknown(what string) error {
	return &unknownEntry{mongo.WithHint(fmt.Errorf("unknown %s, so its effect cannot be replicated", what),
		"start the job again with --restart, which copies the present state, and report the entry to the authors of "+
			"millrace")}
}

func isUnknown(err error) bool {
	_, is := errors.AsType[*unknownEntry](err)
	return is
}

func readRename(cmd bsonraw.Element, o bson.Raw) (*stream.Change, error) {
	from, to := str(cmd), str(field(o, "to"))
	if cmd.Type != bson.TypeString || to == "" {
		return nil, errors.New("malformed rename")
	}
	// dropTarget is the UUID of the dropped collection, or a boolean in old entries.
	drop := field(o, "dropTarget")
	return ddl.Rename(from, to, drop.Type == bson.TypeBinary || truth(drop))
}

func droppedIndexes(list bsonraw.Element) (out []stream.Index, err error) {
	if name := str(list); name != "" {
		return []stream.Index{{Name: name}}, nil
	}
	if list.Type != bson.TypeArray {
		return nil, errors.New("no index name")
	}
	for f := range bsonraw.Fields(list.Value) {
		if f.Type != bson.TypeString {
			return nil, errors.New("no index name")
		}
		out = append(out, stream.Index{Name: str(f)})
	}
	return out, nil
}

// parseViewWrite parses a write to db.system.views. It returns nil for time-series views, as the changes
// of their buckets replace them. A delete does not say what it deletes, so ChangeDropView must drop
// views only.
func parseViewWrite(op, db string, o, o2 bson.Raw) (*stream.Change, error) {
	if len(op) != 1 || !strings.Contains("iud", op) {
		return nil, fmt.Errorf("%w: unknown kind of operation", errMalformed)
	}
	for _, doc := range []bson.Raw{o, o2} {
		if len(doc) > 0 && !bsonraw.Valid(doc, bsonraw.MaxDepth) {
			return nil, fmt.Errorf("write to %s.system.views: malformed document", db)
		}
	}
	ns := str(field(o, "_id"))
	if ns == "" {
		ns = str(field(o2, "_id"))
	}
	_, coll := mongo.SplitNS(ns)
	if coll == "" {
		return nil, fmt.Errorf("write to %s.system.views without the name of a view", db)
	}
	if op == "d" {
		return &stream.Change{Kind: stream.ChangeDropView, NS: ns}, nil
	}
	viewOn := str(field(o, "viewOn"))
	if viewOn == "" {
		err := mongo.WithHint(fmt.Errorf("view %s was changed by a direct write to system.views", ns),
			"define the view with collMod or create on the source, then start the job again with --restart")
		return nil, &ddl.NotFollowed{Err: err, Change: stream.Change{Kind: stream.ChangeView, NS: ns}}
	}
	if viewOn == mongo.BucketsPrefix+coll {
		return nil, nil
	}
	return &stream.Change{Kind: stream.ChangeView, NS: ns, Options: bsonraw.Without(o, "_id")}, nil
}

// The functions below expect valid documents.

func field(doc bson.Raw, name string) bsonraw.Element {
	f, _ := bsonraw.Field(doc, name)
	return f
}

func str(f bsonraw.Element) string {
	s, _ := f.Str()
	return string(s)
}
