// Package ddl has what the captures of a MongoDB deployment share about schema changes: the form of a rename, of
// options and of indexes, and changes that cannot be followed. It does not know where they were read.
package ddl

import (
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// NotFollowed is the error of a change that cannot be followed. It fails only jobs that replicate one of its names.
type NotFollowed struct {
	Err    error
	Change stream.Change // what is known of it: kind and names at least
}

func (n *NotFollowed) Error() string { return n.Err.Error() }

func (n *NotFollowed) Unwrap() error { return n.Err }

// Unfollowed drops the change of a NotFollowed, unless keep takes one of its names. With names it returns the change
// in place of the error. Other errors it returns as they are.
func Unfollowed(err error, names bool, keep func(ns string) bool) (*stream.Change, error) {
	n, ok := errors.AsType[*NotFollowed](err)
	switch {
	case !ok:
		return nil, err
	case names:
		return &n.Change, nil
	case keep(n.Change.NS), n.Change.To != "" && keep(n.Change.To):
		return nil, err
	}
	return nil, nil
}

// Rename returns the change of a rename, a NotFollowed if it touches a collection that servers maintain.
func Rename(from, to string, drop bool) (*stream.Change, error) {
	ch := stream.Change{Kind: stream.ChangeRename, NS: from, To: to, DropTarget: drop}
	ch.Command, _ = mongo.Staged(from)
	if mongo.IsBuckets(from) && mongo.IsBuckets(to) { // $out into a time-series collection does it
		ch.NS, ch.To, ch.Buckets = mongo.SeriesNS(from), mongo.SeriesNS(to), true
		return &ch, nil
	}
	for _, ns := range []string{from, to} {
		if ns == from && ch.Command == mongo.CommandReshard {
			continue
		}
		if _, coll := mongo.SplitNS(ns); mongo.OfServer(coll) || mongo.IsBuckets(ns) {
			ch.NS, ch.To = mongo.SeriesNS(from), mongo.SeriesNS(to)
			return nil, &NotFollowed{fmt.Errorf("rename of %s to %s touches a collection of the server", from, to), ch}
		}
	}
	return &ch, nil
}

// Options returns the options of a creation in the form of listCollections. doc must be valid.
func Options(doc bson.Raw, buckets bool) (bson.Raw, error) {
	if !buckets {
		return bsonraw.Without(doc, "create", "idIndex"), nil
	}
	if _, ok := bsonraw.Field(doc, "timeseries"); !ok {
		return nil, errors.New("a system.buckets collection without time-series options")
	}
	return bsonraw.Without(doc, "create", "idIndex", "validator", "clusteredIndex"), nil
}

// Indexes returns the indexes of an array of specifications. list must be valid.
func Indexes(list bsonraw.Element) (out []stream.Index, err error) {
	if !list.IsArray() {
		return nil, errors.New("no indexes")
	}
	for f := range bsonraw.Fields(list.Value) {
		spec, ok := f.Document()
		if !ok {
			return nil, errors.New("malformed indexes")
		}
		name, _ := bsonraw.Field(spec, "name")
		text, _ := name.Str()
		out = append(out, stream.Index{Name: string(text), Spec: spec})
	}
	return out, nil
}
