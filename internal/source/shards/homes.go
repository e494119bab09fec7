package shards

import (
	"cmp"
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

// namesDatabases is where the config servers keep which shard has which database.
const namesDatabases = "config.databases"

// homes knows which shard was the primary one of a database, from what the config
// servers' oplog tells of config.databases. It is safe for concurrent use.
type homes struct {
	now func(ctx context.Context, db string) (string, error) // as a majority has it

	mu    sync.Mutex
	tail  tail
	floor bson.Timestamp       // from when on it knows; zero: nothing was read yet
	held  map[string][]holding // by database, the oldest first; the shard "" is none
}

// past opens the homes of a cluster when they are asked for. It is safe for concurrent use.
type past struct {
	mu     sync.Mutex
	homes  *homes
	config *mongo.Cluster // where the cluster has not opened them
}

// open gives the homes, which the cluster's config servers tell of.
func (p *past) open(ctx context.Context, c *Cluster) (*homes, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.homes != nil {
		return p.homes, nil
	}
	config := c.config
	if config == nil {
		var err error
		if config, err = c.connectConfig(ctx); err != nil {
			return nil, mongo.WithHint(err, cmp.Or(mongo.HintOf(err), "what moved minutes ago the config servers' oplog alone tells: they have to be reachable from here, with the user of the router or by --source-shard config=…"))
		}
		p.config = config
	}
	h := &homes{now: func(ctx context.Context, db string) (string, error) {
		return c.primary(ctx, db, bson.D{{Key: "level", Value: "majority"}})
	}}
	h.tail = c.tail(config, h.take, namesDatabases)
	p.homes = h
	return h, nil
}

func (p *past) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.config != nil {
		p.config.Close()
		p.config, p.homes = nil, nil
	}
}

// at is the shard of a database at a time, "" for none; where it is not known, the one of
// now, and false.
func (h *homes) at(ctx context.Context, db string, at bson.Timestamp) (shard string, sure bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.floor.IsZero() || at.Before(h.floor) {
		if err := h.tail.begin(ctx, at); err != nil {
			return "", false, err
		}
		h.floor, h.held = at, map[string][]holding{}
	}
	if err := h.tail.reach(ctx, at); err != nil {
		return "", false, err
	}
	if len(h.held[db]) == 0 {
		now, err := h.now(ctx, db)
		if err == nil {
			err = h.tail.catchUp(ctx)
		}
		if err != nil {
			return "", false, fmt.Errorf("find which shard has database %s: %w", db, err)
		}
		if len(h.held[db]) == 0 { // nothing is told of it: it has always been as it is
			return now, true, nil
		}
	}
	held := h.held[db]
	for i := len(held) - 1; i >= 0; i-- {
		if !at.Before(held[i].since) {
			return held[i].shard, true, nil
		}
	}
	before, err := h.before(ctx, db)
	if err == nil && before == "" {
		shard, err = h.now(ctx, db)
		return shard, false, err
	}
	if err != nil {
		return "", false, err
	}
	h.held[db] = slices.Insert(held, 0, holding{shard: before})
	return before, true, nil
}

// before is the shard of a database at the floor, as the last entry until then tells; ""
// where the oplog does not reach back to that.
func (h *homes) before(ctx context.Context, db string) (string, error) {
	raw, err := h.tail.config.Client.Database("local").Collection("oplog.rs").FindOne(ctx, bson.D{
		{Key: "ts", Value: bson.D{{Key: "$lte", Value: h.floor}}}, {Key: "ns", Value: namesDatabases}, {Key: "$or", Value: bson.A{
			bson.D{{Key: "op", Value: "i"}, {Key: "o._id", Value: db}},
			bson.D{{Key: "op", Value: "u"}, {Key: "o2._id", Value: db}, {Key: "$or", Value: bson.A{
				bson.D{{Key: "o.primary", Value: bson.D{{Key: "$exists", Value: true}}}},
				bson.D{{Key: "o.$set.primary", Value: bson.D{{Key: "$exists", Value: true}}}},
				bson.D{{Key: "o.diff.u.primary", Value: bson.D{{Key: "$exists", Value: true}}}},
			}}},
		}},
	}, options.FindOne().SetSort(bson.D{{Key: "$natural", Value: -1}})).Raw()
	if errors.Is(err, driver.ErrNoDocuments) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("find which shard had database %s: %w", db, err)
	}
	o, _ := raw.Lookup("o").DocumentOK()
	shard, _ := primaryIn(o)
	return shard, nil
}

// primaryIn is the shard that a write to config.databases names: a document, or an update
// of either form.
func primaryIn(o bson.Raw) (shard string, told bool) {
	for _, path := range [][]string{{"primary"}, {"$set", "primary"}, {"diff", "u", "primary"}} {
		if shard, told = o.Lookup(path...).StringValueOK(); told {
			break
		}
	}
	return shard, told
}

// take takes a write.
func (h *homes) take(_ context.Context, w *configWrite) error {
	db := w.id()
	shard, told := primaryIn(w.o)
	switch held := h.held[db]; {
	case w.ns != namesDatabases:
	case w.op == "i" && len(held) == 0:
		h.held[db] = []holding{{}, {w.at, shard}}
	case w.op == "d":
		h.held[db] = append(held, holding{since: w.at})
	case told:
		h.held[db] = append(held, holding{w.at, shard})
	}
	return nil
}
