package changestream

import (
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// notFollowed is an unsupported change. It fails only jobs that replicate one of its names.
type notFollowed struct {
	error
	change stream.Change // what is known of it: kind and names at least
}

func (n *notFollowed) Unwrap() error { return n.error }

// schema makes the change of an event of a collection or database, nil for none.
func (a *assembler) schema(c *change, ns *namespace) (*stream.Change, error) {
	if ns.internal {
		return nil, nil
	}
	ch, err := c.schema(ns)
	var n *notFollowed
	switch {
	case !errors.As(err, &n):
	case a.s.opt.names:
		ch, err = &n.change, nil
	case !a.s.opt.Keep(n.change.NS) && (n.change.To == "" || !a.s.opt.Keep(n.change.To)):
		return nil, nil
	}
	if ch != nil && ch.UUID.Data == nil {
		if id := c.identity(); id != nil {
			ch.UUID = bson.Binary{Subtype: bson.TypeBinaryUUID, Data: id[:]}
		}
	}
	return ch, err
}

func (c *change) schema(ns *namespace) (*stream.Change, error) {
	for _, doc := range []bson.Raw{c.description} {
		if doc != nil && !bsonraw.Valid(doc, bsonraw.MaxDepth) {
			return nil, fmt.Errorf("%w: no valid BSON", ErrUnknown)
		}
	}
	ch := &stream.Change{NS: ns.name}
	if mongo.IsBuckets(ns.name) {
		ch.NS, ch.Buckets = mongo.SeriesNS(ns.name), true
	}
	var err error
	switch string(c.op) {
	case "dropDatabase":
		return &stream.Change{Kind: stream.ChangeDropDatabase, NS: ns.db}, nil
	case "rename":
		return c.rename(ns)
	case "create":
		return c.create(ch, ns)
	case "drop":
		ch.Kind = stream.ChangeDrop
		if ofServer(ns.coll) {
			return nil, nil
		}
	case "createIndexes":
		ch.Kind = stream.ChangeCreateIndexes
		ch.Indexes, err = c.indexes(true)
	case "dropIndexes":
		ch.Kind = stream.ChangeDropIndexes
		ch.Indexes, err = c.indexes(false)
	case "modify":
		ch.Kind, ch.Options = stream.ChangeCollMod, c.description
	case "shardCollection", "refineCollectionShardKey", "reshardCollection", "startIndexBuild", "abortIndexBuild":
		return nil, nil
	case "invalidate":
		err = mongo.WithHint(errors.New("the source ended the change stream for good"),
			"start the job again with --restart, which copies the present state")
	default:
		err = mongo.WithHint(fmt.Errorf("%w: its effect cannot be replicated", ErrUnknown),
			"start the job again with --restart, which copies the present state, and report the event to the authors of "+
				"millrace")
	}
	if err == nil && ch.Kind == stream.ChangeCollMod && ch.Options == nil {
		err = fmt.Errorf("%w: no operationDescription", ErrUnknown)
	}
	return ch, err
}

func (c *change) create(ch *stream.Change, ns *namespace) (*stream.Change, error) {
	if ofServer(ns.coll) {
		return nil, nil
	}
	if viewOn, ok := bsonraw.Field(c.description, "viewOn"); ok {
		if on, _ := text(viewOn); string(on) == mongo.BucketsPrefix+ns.coll { // the buckets' event has the series
			return nil, nil
		}
		ch.Kind, ch.Options = stream.ChangeView, without(c.description, "idIndex")
		return ch, nil
	}
	ch.Kind, ch.Options = stream.ChangeCreate, without(c.description, "idIndex")
	if ch.Buckets {
		if _, ok := bsonraw.Field(c.description, "timeseries"); !ok {
			return nil, fmt.Errorf("%w: a system.buckets collection without time-series options", ErrUnknown)
		}
		ch.Options = without(c.description, "idIndex", "validator", "clusteredIndex")
	}
	return ch, nil
}

func (c *change) rename(ns *namespace) (*stream.Change, error) {
	from, to := ns.name, namespaceOf(c.to)
	if _, coll := mongo.SplitNS(to); coll == "" {
		return nil, fmt.Errorf("%w: a rename without a name", ErrUnknown)
	}
	ch := &stream.Change{Kind: stream.ChangeRename, NS: from, To: to, DropTarget: true}
	if c.description != nil { // else unknown
		drop, there := bsonraw.Field(c.description, "dropTarget")
		ch.DropTarget = there && (drop.Type != bson.TypeBoolean || drop.Value[0] != 0)
	}
	var of string
	if ch.Command, of = mongo.Staged(from); ch.Command == mongo.CommandCapped || ch.Command == mongo.CommandMove {
		if of == "" {
			of = to
		}
		what := "convertToCapped"
		if ch.Command == mongo.CommandMove {
			what = "a rename between databases"
		}
		err := mongo.WithHint(fmt.Errorf("change streams do not report the documents that %s writes to %s", what, of),
			"start the job again with --restart, which copies the present state; or capture oplogs")
		return nil, &notFollowed{err, stream.Change{Kind: stream.ChangeRename, NS: from, To: to, DropTarget: ch.DropTarget}}
	}
	if mongo.IsBuckets(from) && mongo.IsBuckets(to) {
		ch.NS, ch.To, ch.Buckets = mongo.SeriesNS(from), mongo.SeriesNS(to), true
		return ch, nil
	}
	for i, name := range []string{from, to} {
		_, coll := mongo.SplitNS(name)
		if i == 0 && ch.Command == mongo.CommandReshard {
			continue
		}
		if ofServer(coll) || mongo.IsBuckets(name) {
			return nil, &notFollowed{fmt.Errorf("rename of %s to %s touches a collection of the server", from, to),
				stream.Change{Kind: stream.ChangeRename, NS: mongo.SeriesNS(from), To: mongo.SeriesNS(to)}}
		}
	}
	return ch, nil
}

// indexes returns those of an operationDescription, with or without their specifications.
func (c *change) indexes(specs bool) (out []stream.Index, err error) {
	list, _ := bsonraw.Field(c.description, "indexes")
	if list.Type != bson.TypeArray {
		return nil, fmt.Errorf("%w: no indexes", ErrUnknown)
	}
	for f := range bsonraw.Fields(list.Value) {
		spec, ok := document(f)
		if !ok {
			return nil, fmt.Errorf("%w: an index that is no document", ErrUnknown)
		}
		field, _ := bsonraw.Field(spec, "name")
		name, _ := text(field)
		ix := stream.Index{Name: string(name)}
		if specs {
			ix.Spec = spec
		}
		out = append(out, ix)
	}
	return out, nil
}

// without copies a valid document without the named fields.
func without(doc bson.Raw, names ...string) bson.Raw {
	out, start := bsonraw.OpenDocument(nil)
	for f := range bsonraw.Fields(doc) {
		if !slices.Contains(names, string(f.Name)) {
			out = append(out, f.Raw...)
		}
	}
	return bsonraw.CloseDocument(out, start)
}
