package scan

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
)

// Routers make Readers read through the routers of a cluster. Routers return the documents of several
// shards in _id order only on request, and several may have one _id. They know collections by their
// names alone: collections with a UUID are followed by it. It is safe for concurrent use.
type Routers struct {
	cluster *mongo.Cluster

	mu    sync.Mutex
	moved map[string]identity // by UUID, of those that are not what they were described as
}

// NewRouters follows collections of the cluster behind c.
func NewRouters(c *mongo.Cluster) *Routers { return &Routers{cluster: c, moved: map[string]identity{}} }

type identity struct {
	name string
	uuid bson.Binary
}

// errRenamed reports a cursor that may be of another collection than its name meant before.
var errRenamed = errors.New("the collection was renamed while a cursor was opened")

// known returns what the collection was found to be last.
func (r *Routers) known(c *schema.Collection) identity {
	r.mu.Lock()
	defer r.mu.Unlock()
	if is, ok := r.moved[string(c.UUID.Data)]; ok {
		return is
	}
	_, name := mongo.SplitNS(c.DataNS())
	return identity{name, c.UUID}
}

// name finds the present name of a collection. An error of mongo.CodeNamespaceNotFound says that there
// is none. Where the name is that of another collection, and the UUID of none, movePrimary may have
// changed the UUID. Or the collection was dropped and made again, which the changes tell: to have read
// the new one does no harm.
func (r *Routers) name(ctx context.Context, c *schema.Collection) (string, error) {
	was := r.known(c)
	if len(c.UUID.Data) == 0 {
		return was.name, nil
	}
	db, _ := mongo.SplitNS(c.DataNS())
	is, _, err := r.list(ctx, db, bson.E{Key: "name", Value: was.name}) // servers need not look at the others
	if err != nil || is.uuid.Equal(was.uuid) {
		return was.name, err
	}
	renamed, _, err := r.list(ctx, db, bson.E{Key: "info.uuid", Value: was.uuid})
	switch {
	case err != nil:
		return "", err
	case renamed.name != "":
		is = renamed
	case is.name == "":
		return "", driver.CommandError{Code: mongo.CodeNamespaceNotFound, Name: "NamespaceNotFound",
			Message: fmt.Sprintf("no collection of database %s has the UUID %x", db, was.uuid.Data)}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.moved[string(c.UUID.Data)] = is
	return is.name, nil
}

func (r *Routers) list(ctx context.Context, db string, filter bson.E) (is identity, at bson.Timestamp, err error) {
	raw, err := r.cluster.Command(ctx, db, bson.D{{Key: "listCollections", Value: 1},
		{Key: "filter", Value: bson.D{filter}}})
	if err != nil {
		return is, at, mongo.Wrap(err, "find a collection of database %s by its %s", db, filter.Key)
	}
	at.T, at.I, _ = raw.Lookup("operationTime").TimestampOK()
	one, _ := raw.Lookup("cursor", "firstBatch", "0").DocumentOK()
	if kind, _ := one.Lookup("type").StringValueOK(); kind == string(schema.TypeCollection) {
		is.name, _ = one.Lookup("name").StringValueOK()
		is.uuid.Subtype, is.uuid.Data, _ = one.Lookup("info", "uuid").BinaryOK()
	}
	return is, at, nil
}

// Gone reports whether a collection is gone for good. It waits until the drop can no longer be rolled
// back.
func (r *Routers) Gone(ctx context.Context, c *schema.Collection) (bool, error) {
	gone := func() (bool, error) {
		_, err := r.name(ctx, c)
		if mongo.IsCode(err, mongo.CodeNamespaceNotFound) {
			return true, nil
		}
		return false, err
	}
	if seen, err := gone(); !seen || err != nil {
		return false, err
	}
	db, name := mongo.SplitNS(c.DataNS())
	_, at, err := r.list(ctx, db, bson.E{Key: "name", Value: name})
	if err == nil {
		_, err = r.cluster.Command(ctx, db, bson.D{{Key: "find", Value: name}, {Key: "limit", Value: 1},
			{Key: "singleBatch", Value: true}, {Key: "readConcern", Value: Majority(at)}})
	}
	if err != nil {
		return false, mongo.Wrap(err, "wait until the drop of %s is committed", c.NS)
	}
	return gone()
}

// named returns the present name of a collection that is read through routers, else "".
func (r *Reader) named(ctx context.Context, c *schema.Collection) (string, error) {
	if r.Routers == nil {
		return "", nil
	}
	return r.Routers.name(ctx, c)
}

// stillNamed fails if a collection has another name than before a command.
func (r *Reader) stillNamed(ctx context.Context, c *schema.Collection, before string) error {
	now, err := r.named(ctx, c)
	if err == nil && now != before {
		err = errRenamed
	}
	return err
}
