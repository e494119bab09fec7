package changestream

import (
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/ddl"
	"github.com/millrace/millrace/internal/stream"
)

// schema makes the change of an event of a collection or database, nil for none.
func (a *assembler) schema(c *change, ns *namespace) (*stream.Change, error) {
	if ns.internal {
		return nil, nil
	}
	ch, err := c.schema(ns, &a.s.opt)
	if err != nil {
		ch, err = ddl.Unfollowed(err, a.s.opt.names, a.s.opt.Keep)
	}
	if ch == nil || ch.UUID.Data != nil || ch.Kind == stream.ChangeView || ch.Kind == stream.ChangeDropView {
		return ch, err // for a view, the token has the UUID of system.views
	}
	if id := c.identity(); id != nil {
		ch.UUID = bson.Binary{Subtype: bson.TypeBinaryUUID, Data: id[:]}
	}
	return ch, err
}

func (c *change) schema(ns *namespace, o *Options) (*stream.Change, error) {
	if c.description != nil && !bsonraw.Valid(c.description, bsonraw.MaxDepth) {
		return nil, fmt.Errorf("%w: no valid BSON", ErrUnknown)
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
		return c.rename(ns, o)
	case "create":
		return c.create(ch, ns, o)
	case "drop":
		ch.Kind = stream.ChangeDrop
		switch {
		case o.Support.Expanded && c.uuid == nil:
			ch.Kind = stream.ChangeDropView
		case mongo.OfServer(ns.coll):
			return nil, nil
		}
	case "createIndexes":
		ch.Kind = stream.ChangeCreateIndexes
		ch.Indexes, err = c.indexes()
	case "dropIndexes":
		ch.Kind = stream.ChangeDropIndexes
		ch.Indexes, err = c.indexes()
		for i := range ch.Indexes {
			ch.Indexes[i].Spec = nil
		}
	case "modify":
		if _, view := bsonraw.Field(c.description, "viewOn"); view {
			return c.create(ch, ns, o)
		}
		ch.Kind, ch.Options = stream.ChangeCollMod, c.description
	case "reshardCollection":
		return c.reshard(ns), nil
	case "shardCollection", "refineCollectionShardKey":
		return nil, nil
	case "startIndexBuild", "abortIndexBuild", "migrateChunkToNewShard", "migrateLastChunkFromShard", "reshardBegin",
		"reshardBlockingWrites", "reshardDoneCatchUp", "endOfTransaction", "namespacePlacementChanged":
		return nil, nil // what servers report of their own work
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

// create makes the change of a new collection, or of a new or redefined view.
func (c *change) create(ch *stream.Change, ns *namespace, o *Options) (*stream.Change, error) {
	viewOn, view := bsonraw.Field(c.description, "viewOn")
	on, _ := viewOn.Str()
	switch {
	case mongo.OfServer(ns.coll):
		return nil, nil
	case view && string(on) == mongo.BucketsPrefix+ns.coll && o.Support.System: // the buckets' event has the series
		return nil, nil
	case view && string(on) == mongo.BucketsPrefix+ns.coll:
		err := mongo.WithHint(
			fmt.Errorf("the change streams of the source do not report writes to the time series %s", ns.name),
			"exclude it; or capture oplogs")
		return nil, &ddl.NotFollowed{Err: err, Change: stream.Change{Kind: stream.ChangeCreate, NS: ns.name}}
	case view:
		ch.Kind, ch.Options = stream.ChangeView, c.description
		return ch, nil
	}
	ch.Kind = stream.ChangeCreate
	options, err := ddl.Options(c.description, ch.Buckets)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	ch.Options = options
	return ch, nil
}

func (c *change) rename(ns *namespace, o *Options) (*stream.Change, error) {
	from, to := ns.name, namespaceOf(c.to)
	if _, coll := mongo.SplitNS(to); coll == "" {
		return nil, fmt.Errorf("%w: a rename without a name", ErrUnknown)
	}
	dropped, assumed := true, c.description == nil
	var replaced bson.Binary
	if !assumed {
		drop, there := bsonraw.Field(c.description, "dropTarget")
		dropped = there && (drop.Type != bson.TypeBoolean || drop.Value[0] != 0)
		if drop.Type == bson.TypeBinary && len(drop.Value) == 5+uuidSize {
			replaced = bson.Binary{Subtype: bson.TypeBinaryUUID, Data: drop.Value[5:]}
		}
	}
	ch, err := ddl.Rename(from, to, dropped)
	if err != nil {
		return nil, err
	}
	ch.Replaced, ch.DropAssumed = replaced, assumed
	if err := o.unseen(ch); err != nil {
		return nil, &ddl.NotFollowed{Err: err,
			Change: stream.Change{Kind: stream.ChangeRename, NS: from, To: to, DropTarget: dropped}}
	}
	return ch, nil
}

// reshard makes the rename by which oplogs end reshardCollection: the collection has another UUID. Before 6.1 servers
// do not report it.
func (c *change) reshard(ns *namespace) *stream.Change {
	f, _ := bsonraw.Field(c.description, "reshardUUID")
	if f.Type != bson.TypeBinary || len(f.Value) != 5+uuidSize {
		return nil
	}
	uuid := bson.Binary{Subtype: bson.TypeBinaryUUID, Data: f.Value[5:]}
	return &stream.Change{Kind: stream.ChangeRename, Command: mongo.CommandReshard, To: ns.name, DropTarget: true,
		UUID: uuid, NS: fmt.Sprintf("%s.%s%x", ns.db, mongo.ReshardingPrefix, uuid.Data)}
}

// unseen returns why a rename that ends a command cannot be followed.
func (o *Options) unseen(ch *stream.Change) error {
	var err error
	switch copied := "the change streams of the source do not report the documents that %s copies into %s"; {
	case ch.Command == mongo.CommandMove && o.JoinRenames:
		err = fmt.Errorf("change streams report a rename between databases to %s as a copy and a drop, which rules "+
			"would judge", ch.To)
	case o.Support.Copies:
	case ch.Command == mongo.CommandCapped:
		err = fmt.Errorf(copied, "convertToCapped", ch.To)
	case ch.Command == mongo.CommandMove && !o.Support.Expanded:
		err = fmt.Errorf(copied, "a rename between databases", ch.To)
	}
	return mongo.WithHint(err, "start the job again with --restart, which copies the present state; or capture oplogs")
}

// indexes returns those of an operationDescription.
func (c *change) indexes() ([]stream.Index, error) {
	list, _ := bsonraw.Field(c.description, "indexes")
	out, err := ddl.Indexes(list)
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return out, err
}
