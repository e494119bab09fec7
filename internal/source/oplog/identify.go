package oplog

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// identities maps UUIDs to collection names for users' applyOps commands. Servers apply an operation by
// its ui, whatever its ns says (tried on 4.2 to 6.0). It is not safe for concurrent use.
type identities struct {
	cluster *mongo.Cluster
	known   map[[16]byte]string // until the next change of names
}

const maxIdentities = 1 << 16

// forget drops the names when a change may rename collections.
func (n *identities) forget(ch *stream.Change) {
	switch ch.Kind {
	case stream.ChangeCreate, stream.ChangeDrop, stream.ChangeDropDatabase, stream.ChangeRename:
		clear(n.known)
	}
}

// identify gives an operation of a user's applyOps the collection name that the server applied it to.
func (in *interpreter) identify(ctx context.Context, e *entry, at mongo.OpTime) error {
	if e.ui == nil {
		return nil
	}
	if string(e.op) != "c" {
		name, err := in.names.at(ctx, [16]byte(e.ui), string(e.ns), at)
		if err == nil && name != string(e.ns) {
			e.ns = []byte(name)
		}
		return err
	}
	first, err := e.o.IndexErr(0)
	if err != nil {
		return fmt.Errorf("%w: no command", errMalformed)
	}
	coll, ok := first.Value().StringValueOK()
	cmd := first.Key()
	if !ok || cmd == "create" || cmd == "dropDatabase" {
		return nil
	}
	db, _ := mongo.SplitNS(string(e.ns))
	was := db + "." + coll
	if cmd == "renameCollection" {
		was = coll
	}
	name, err := in.names.at(ctx, [16]byte(e.ui), was, at)
	if err != nil || name == was {
		return err
	}
	if db, coll = mongo.SplitNS(name); cmd == "renameCollection" {
		coll = name
	}
	doc := bsoncore.NewDocumentBuilder().AppendString(cmd, coll).Build()
	rest := bsonraw.Without(e.o, cmd)
	e.ns, e.o = []byte(db+".$cmd"), bson.Raw(append(doc[:len(doc)-1:len(doc)-1], rest[4:]...))
	bsoncore.UpdateLength(e.o, 0, int32(len(e.o)))
	return nil
}

// at returns a collection's name at a position.
func (n *identities) at(ctx context.Context, uuid [16]byte, ns string, at mongo.OpTime) (string, error) {
	if name, ok := n.known[uuid]; ok {
		return name, nil
	}
	name, err := n.find(ctx, bson.Binary{Subtype: bson.TypeBinaryUUID, Data: uuid[:]}, ns, at)
	if err != nil {
		return "",
			mongo.WithHint(fmt.Errorf("cannot determine which collection an applyOps command means by %s with UUID %x: %w",
				ns, uuid, err),
				"start the job again with --restart, which copies the present state")
	}
	if n.known == nil || len(n.known) >= maxIdentities {
		n.known = map[[16]byte]string{}
	}
	n.known[uuid] = name
	return name, nil
}

// find looks up the current name, and corrects it by the entries since the position.
func (n *identities) find(ctx context.Context, uuid bson.Binary, ns string, at mongo.OpTime) (name string, err error) {
	now, err := n.named(ctx, uuid, ns)
	if err != nil {
		return "", err
	}
	p, err := n.cluster.Positions(ctx)
	if err != nil {
		return "", err
	}
	window, err := ReadWindow(ctx, n.cluster)
	if err != nil {
		return "", err
	}
	if at.Before(window.Oldest) {
		return "", fmt.Errorf("the oplog begins at %s, and does not have the names of collections at %s", window.Oldest, at)
	}
	filter := Span{at, p.Last}.filter(bson.D{{Key: "op", Value: "c"}, {Key: "ui", Value: uuid}},
		bson.D{{Key: "op", Value: "c"}, {Key: "o.dropTarget", Value: uuid}})
	err = n.cluster.EachEntry(ctx, filter, p.Last.TS, func(doc bson.Raw) error {
		e, err := parseEntry(doc)
		if err != nil || name != "" {
			return err
		}
		first, err := e.o.IndexErr(0)
		if err != nil {
			return err
		}
		switch coll, _ := first.Value().StringValueOK(); first.Key() {
		case "drop":
			db, _ := mongo.SplitNS(string(e.ns))
			name = db + "." + coll
		case "renameCollection":
			if name = coll; !bytes.Equal(e.ui, uuid.Data) { // it is the one that the rename drops
				name = str(field(e.o, "to"))
			}
		}
		return nil
	})
	switch {
	case err != nil:
		return "", err
	case name == "" && now == "":
		return "", fmt.Errorf("there is no such collection, and the oplog has none after %s", at)
	case name == "":
		name = now
	}
	return name, nil
}

// named returns the current name, "" for none. It asks the operation's database first.
func (n *identities) named(ctx context.Context, uuid bson.Binary, ns string) (string, error) {
	db, _ := mongo.SplitNS(ns)
	if name, err := n.namedIn(ctx, uuid, db); name != "" || err != nil {
		return name, err
	}
	dbs, err := n.cluster.Client.ListDatabaseNames(ctx, bson.D{})
	if err != nil {
		return "", err
	}
	for _, other := range slices.DeleteFunc(dbs, func(name string) bool { return name == db }) {
		if name, err := n.namedIn(ctx, uuid, other); name != "" || err != nil {
			return name, err
		}
	}
	return "", nil
}

func (n *identities) namedIn(ctx context.Context, uuid bson.Binary, db string) (string, error) {
	found, err := n.cluster.Client.Database(db).ListCollectionSpecifications(ctx, bson.D{{Key: "info.uuid", Value: uuid}})
	if err != nil || len(found) == 0 {
		return "", err
	}
	return db + "." + found[0].Name, nil
}
