package schema

import (
	"errors"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// ParseChange reads a command entry of an oplog: ns is its "db.$cmd", ui the
// collection's UUID if it tells one, o the command. It returns false for
// entries without effect on the catalog, such as the start of an index build,
// and for those of internal databases. A command it does not know is an error
// that names it. applyOps, commitTransaction and abortTransaction are none of
// its business: they hold operations, and their reader takes them apart.
func ParseChange(ns string, ui *bson.Binary, o bson.Raw) (stream.Change, bool, error) {
	db, _ := mongo.SplitNS(ns)
	if mongo.IsInternal(db) {
		return stream.Change{}, false, nil
	}
	if !bsonraw.Valid(o, bsonraw.MaxDepth) {
		return stream.Change{}, false, fmt.Errorf("oplog command on %s: malformed document", ns)
	}
	els, err := elements(o)
	if err != nil || len(els) == 0 {
		return stream.Change{}, false, fmt.Errorf("oplog command on %s: %w", ns, errors.Join(err, errors.New("no command")))
	}
	cmd := els[0].Key()
	ch, effect, err := parseCommand(db, cmd, els[0].Value(), o)
	if err != nil {
		return stream.Change{}, false, fmt.Errorf("oplog command %s on database %s: %w", cmd, db, err)
	}
	if effect && ui != nil {
		ch.UUID = *ui
	}
	return ch, effect, nil
}

func parseCommand(db, cmd string, arg bson.RawValue, o bson.Raw) (stream.Change, bool, error) {
	switch cmd {
	case "startIndexBuild", "abortIndexBuild", "dbCheck":
		return stream.Change{}, false, nil
	case "dropDatabase":
		return stream.Change{Kind: stream.ChangeDropDatabase, NS: db}, true, nil
	case "renameCollection":
		return parseRename(arg, o)
	}
	coll, ok := arg.StringValueOK()
	if !ok || coll == "" {
		return stream.Change{}, false, unknownCommand()
	}
	ch := stream.Change{NS: db + "." + coll}
	if series, ok := strings.CutPrefix(coll, mongo.BucketsPrefix); ok {
		ch.NS, ch.Buckets = db+"."+series, true
	}
	var err error
	effect := true
	switch cmd {
	case "create":
		effect = !ignoredSystem(coll)
		ch.Kind = stream.ChangeCreate
		ch.Options, err = createdOptions(o, ch.Buckets)
	case "drop":
		ch.Kind = stream.ChangeDrop
		if coll == "system.views" {
			return stream.Change{Kind: stream.ChangeDropAllViews, NS: db}, true, nil
		}
		effect = !ignoredSystem(coll)
	case "createIndexes":
		ch.Kind = stream.ChangeCreateIndexes
		var spec bson.Raw
		if spec, err = without(o, "createIndexes"); err == nil {
			ch.Indexes = []stream.Index{{Name: str(spec, "name"), Spec: spec}}
		}
	case "commitIndexBuild":
		ch.Kind = stream.ChangeCreateIndexes
		ch.Indexes, err = specArray(o, "indexes")
	case "dropIndexes", "deleteIndexes", "dropIndex", "deleteIndex":
		ch.Kind = stream.ChangeDropIndexes
		ch.Indexes, err = droppedNames(o)
	case "collMod":
		ch.Kind = stream.ChangeCollMod
		ch.Options, err = without(o, "collMod")
	default:
		return stream.Change{}, false, unknownCommand()
	}
	return ch, effect, err
}

func unknownCommand() error {
	return mongo.WithHint(errors.New("not known, so its effect cannot be replicated"),
		"if it concerns a collection that the job does not keep, exclude nothing and report it; else start the job again with --restart, which copies the present state")
}

// ignoredSystem reports collections that the server itself keeps.
func ignoredSystem(coll string) bool {
	return strings.HasPrefix(coll, "system.") && coll != "system.js" && !strings.HasPrefix(coll, mongo.BucketsPrefix)
}

// createdOptions are the options as listCollections would give them.
func createdOptions(o bson.Raw, buckets bool) (bson.Raw, error) {
	if !buckets {
		return without(o, "create", "idIndex")
	}
	if !has(o, "timeseries") {
		return nil, errors.New("a system.buckets collection without time-series options")
	}
	// The server adds these to buckets by itself.
	return without(o, "create", "idIndex", "validator", "clusteredIndex")
}

func parseRename(arg bson.RawValue, o bson.Raw) (stream.Change, bool, error) {
	from, ok := arg.StringValueOK()
	to := str(o, "to")
	if !ok || to == "" {
		return stream.Change{}, false, errors.New("malformed rename")
	}
	for _, ns := range []string{from, to} {
		if _, coll := mongo.SplitNS(ns); ignoredSystem(coll) || strings.HasPrefix(coll, mongo.BucketsPrefix) {
			return stream.Change{}, false, fmt.Errorf("rename of %s to %s touches a collection of the server", from, to)
		}
	}
	ch := stream.Change{Kind: stream.ChangeRename, NS: from, To: to}
	// dropTarget is the UUID of what gets dropped, or a boolean in old entries.
	ch.DropTarget = has(o, "dropTarget") && truthy(o.Lookup("dropTarget"))
	return ch, true, nil
}

func specArray(o bson.Raw, key string) ([]stream.Index, error) {
	arr, ok := o.Lookup(key).ArrayOK()
	if !ok {
		return nil, fmt.Errorf("no %s", key)
	}
	values, err := arr.Values()
	if err != nil {
		return nil, err
	}
	var out []stream.Index
	for _, v := range values {
		spec, ok := v.DocumentOK()
		if !ok {
			return nil, fmt.Errorf("malformed %s", key)
		}
		out = append(out, stream.Index{Name: str(spec, "name"), Spec: spec})
	}
	return out, nil
}

func droppedNames(o bson.Raw) ([]stream.Index, error) {
	if name := str(o, "index"); name != "" {
		return []stream.Index{{Name: name}}, nil
	}
	arr, ok := o.Lookup("index").ArrayOK()
	if !ok {
		return nil, errors.New("no index name")
	}
	values, err := arr.Values()
	if err != nil {
		return nil, err
	}
	var out []stream.Index
	for _, v := range values {
		name, ok := v.StringValueOK()
		if !ok {
			return nil, errors.New("no index name")
		}
		out = append(out, stream.Index{Name: name})
	}
	return out, nil
}

// ParseViewWrite reads an insert ('i'), update ('u') or delete ('d') on
// db.system.views, where views are kept. It returns false for the entries of
// time-series collections, for which those of their buckets stand; a delete
// does not tell which it is, so ChangeDropView must leave other things alone.
func ParseViewWrite(op byte, db string, o, o2 bson.Raw) (stream.Change, bool, error) {
	if mongo.IsInternal(db) {
		return stream.Change{}, false, nil
	}
	for _, doc := range []bson.Raw{o, o2} {
		if len(doc) > 0 && !bsonraw.Valid(doc, bsonraw.MaxDepth) {
			return stream.Change{}, false, fmt.Errorf("write to %s.system.views: malformed document", db)
		}
	}
	ns := str(o, "_id")
	if ns == "" {
		ns = str(o2, "_id")
	}
	_, coll := mongo.SplitNS(ns)
	if coll == "" {
		return stream.Change{}, false, fmt.Errorf("write to %s.system.views without the name of a view", db)
	}
	if op == 'd' {
		return stream.Change{Kind: stream.ChangeDropView, NS: ns}, true, nil
	}
	viewOn := str(o, "viewOn")
	if viewOn == "" {
		return stream.Change{}, false, mongo.WithHint(fmt.Errorf("view %s was changed by a direct write to system.views", ns),
			"define the view with collMod or create on the source, then start the job again with --restart")
	}
	if viewOn == mongo.BucketsPrefix+coll {
		return stream.Change{}, false, nil
	}
	options, err := without(o, "_id")
	return stream.Change{Kind: stream.ChangeView, NS: ns, Options: options}, err == nil, err
}
