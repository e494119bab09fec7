package ownership

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/mongo"
)

const databasesNS = "config.databases"

// Primaries knows the primary shard of a database at a time, from the oplog of config.databases. It is safe for
// concurrent use.
type Primaries struct {
	router *mongo.Cluster

	mu     sync.Mutex
	oplog  configOplog
	floor  bson.Timestamp          // from when on it knows; zero: nothing was read yet
	owners map[string][]ownerSince // by database, the oldest first; the shard "" is none
}

// NewPrimaries reads nothing yet.
func NewPrimaries(config Config, router *mongo.Cluster) *Primaries {
	p := &Primaries{router: router}
	p.oplog = configOplog{Config: config, apply: p.apply, namespaces: bson.A{databasesNS}}
	return p
}

// At returns the primary shard of a database at a time, "" for none. If that is unknown, it is the present one, and
// sure is false.
func (p *Primaries) At(ctx context.Context, db string, at bson.Timestamp) (shard string, sure bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.floor.IsZero() || at.Before(p.floor) {
		if err := p.oplog.startAt(ctx, at); err != nil {
			return "", false, err
		}
		p.floor, p.owners = at, map[string][]ownerSince{}
	}
	if err := p.oplog.readUntil(ctx, at); err != nil {
		return "", false, err
	}
	if len(p.owners[db]) == 0 {
		now, err := Primary(ctx, p.router, db, Majority())
		if err == nil {
			err = p.oplog.catchUp(ctx)
		}
		if err != nil {
			return "", false, fmt.Errorf("find which shard has database %s: %w", db, err)
		}
		if len(p.owners[db]) == 0 { // no entry on it: it has always been as it is
			return now, true, nil
		}
	}
	if shard, found := ownerAt(p.owners[db], at); found {
		return shard, true, nil
	}
	before, err := p.beforeFloor(ctx, db)
	if err == nil && before == "" {
		shard, err = Primary(ctx, p.router, db, Majority())
		return shard, false, err
	}
	if err != nil {
		return "", false, err
	}
	p.owners[db] = slices.Insert(p.owners[db], 0, ownerSince{shard: before})
	return before, true, nil
}

// beforeFloor returns the primary shard at the floor, "" where the oplog does not reach back to its last entry.
func (p *Primaries) beforeFloor(ctx context.Context, db string) (string, error) {
	exists := bson.D{{Key: "$exists", Value: true}}
	raw, err := p.oplog.Oplog().FindOne(ctx, bson.D{
		{Key: "ts", Value: bson.D{{Key: "$lte", Value: p.floor}}}, {Key: "ns", Value: databasesNS},
		{Key: "$or", Value: bson.A{
			bson.D{{Key: "op", Value: "i"}, {Key: "o._id", Value: db}},
			bson.D{{Key: "op", Value: "u"}, {Key: "o2._id", Value: db}, {Key: "$or", Value: bson.A{
				bson.D{{Key: "o.primary", Value: exists}},
				bson.D{{Key: "o.$set.primary", Value: exists}},
				bson.D{{Key: "o.diff.u.primary", Value: exists}},
			}}},
		}},
	}, options.FindOne().SetSort(bson.D{{Key: "$natural", Value: -1}})).Raw()
	if errors.Is(err, driver.ErrNoDocuments) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("find which shard had database %s: %w", db, err)
	}
	shard, _ := primaryNamed(ParseEntry(raw).O)
	return shard, nil
}

// primaryNamed returns the shard that a write to config.databases names, in a document or an update of either form.
func primaryNamed(o bson.Raw) (shard string, found bool) {
	for _, path := range [][]string{{"primary"}, {"$set", "primary"}, {"diff", "u", "primary"}} {
		if shard, found = o.Lookup(path...).StringValueOK(); found {
			break
		}
	}
	return shard, found
}

func (p *Primaries) apply(_ context.Context, e *Entry) error {
	db := e.id()
	shard, named := primaryNamed(e.O)
	switch owners := p.owners[db]; {
	case e.NS != databasesNS:
	case e.Op == "i" && len(owners) == 0:
		p.owners[db] = []ownerSince{{}, {e.At, shard}}
	case e.Op == "d":
		p.owners[db] = append(owners, ownerSince{since: e.At})
	case named:
		p.owners[db] = append(owners, ownerSince{e.At, shard})
	}
	return nil
}
