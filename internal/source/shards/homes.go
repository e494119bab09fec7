package shards

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"

	"github.com/millrace/millrace/internal/mongo"
)

// namesDatabases is where the config servers keep which shard has which database.
const namesDatabases = "config.databases"

// homes knows which shard was the primary one of a database, from what the config
// servers' oplog tells of config.databases: before 5.0 servers give no reads as of a
// time. It is safe for concurrent use.
type homes struct {
	config *mongo.Cluster
	pass   func(context.Context, mongo.OpTime) error // has the config servers pass a time

	mu    sync.Mutex
	floor bson.Timestamp       // from when on it knows; zero: nothing was read yet
	known bson.Timestamp       // up to when
	held  map[string][]holding // by database, the oldest first; the shard "" is none
}

// at is the shard of a database at a time, "" for none; false where it is not known.
func (h *homes) at(ctx context.Context, db string, at bson.Timestamp) (shard string, sure bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.floor.IsZero() || at.Before(h.floor) {
		h.floor, h.known, h.held = at, at, map[string][]holding{}
	}
	now, err := h.now(ctx, db)
	if err != nil {
		return "", false, fmt.Errorf("read which shard has database %s: %w", db, err)
	}
	last, err := h.config.Positions(ctx) // includes what was read
	if err != nil {
		return "", false, fmt.Errorf("time of the config servers: %w", err)
	}
	until := last.Majority.TS
	if until.Before(at) {
		until = at
		err = h.pass(ctx, mongo.OpTime{TS: at, Term: -1})
	}
	if err == nil {
		err = h.reach(ctx, until)
	}
	if err != nil {
		return "", false, fmt.Errorf("read the config servers' oplog up to %d.%d: %w", until.T, until.I, err)
	}
	held := h.held[db]
	if len(held) == 0 { // what nothing is told of has been as it is
		return now, true, nil
	}
	for i := len(held) - 1; i >= 0; i-- {
		if !at.Before(held[i].since) {
			return held[i].shard, true, nil
		}
	}
	before, err := h.before(ctx, db)
	if err != nil || before == "" {
		return now, false, err
	}
	h.held[db] = slices.Insert(held, 0, holding{shard: before})
	return before, true, nil
}

// before is the shard of a database at the floor, as the last entry until then tells; ""
// where the oplog does not reach back to that.
func (h *homes) before(ctx context.Context, db string) (string, error) {
	raw, err := h.config.Client.Database("local").Collection("oplog.rs").FindOne(ctx, bson.D{
		{Key: "ts", Value: bson.D{{Key: "$lte", Value: h.floor}}}, {Key: "ns", Value: namesDatabases}, {Key: "$or", Value: bson.A{
			bson.D{{Key: "op", Value: "i"}, {Key: "o._id", Value: db}},
			bson.D{{Key: "op", Value: "u"}, {Key: "o2._id", Value: db}, {Key: "$or", Value: bson.A{
				bson.D{{Key: "o.primary", Value: bson.D{{Key: "$exists", Value: true}}}},
				bson.D{{Key: "o.$set.primary", Value: bson.D{{Key: "$exists", Value: true}}}},
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

// primaryIn is the shard that a write to config.databases names.
func primaryIn(o bson.Raw) (shard string, told bool) {
	if shard, told = o.Lookup("primary").StringValueOK(); !told {
		shard, told = o.Lookup("$set", "primary").StringValueOK()
	}
	return shard, told
}

// now is the shard of a database as a majority of the config servers has it.
func (h *homes) now(ctx context.Context, db string) (string, error) {
	var found struct {
		Primary string `bson:"primary"`
	}
	data := h.config.Client.Database("config", options.Database().SetReadConcern(readconcern.Majority()))
	err := data.Collection("databases").FindOne(ctx, bson.D{{Key: "_id", Value: db}}).Decode(&found)
	if errors.Is(err, driver.ErrNoDocuments) {
		err = nil
	}
	return found.Primary, err
}

// reach reads what was written to config.databases up to a time that has passed.
func (h *homes) reach(ctx context.Context, at bson.Timestamp) error {
	if !h.known.Before(at) {
		return nil
	}
	in := bson.E{Key: "$in", Value: bson.A{namesDatabases}}
	last := at
	err := entries(ctx, h.config, bson.D{
		{Key: "ts", Value: bson.D{{Key: "$gt", Value: h.known}}},
		{Key: "$or", Value: bson.A{bson.D{{Key: "ns", Value: bson.D{in}}}, bson.D{{Key: "o.applyOps.ns", Value: bson.D{in}}}}},
	}, at, func(entry bson.Raw) error {
		t, i, _ := entry.Lookup("ts").TimestampOK()
		last = bson.Timestamp{T: t, I: i}
		all, err := operations(entry)
		for _, one := range all {
			h.take(one, last)
		}
		return err
	})
	if err != nil {
		return err
	}
	if h.known = at; at.Before(last) {
		h.known = last
	}
	return nil
}

// take takes a write.
func (h *homes) take(e bson.Raw, ts bson.Timestamp) {
	if ns, _ := e.Lookup("ns").StringValueOK(); ns != namesDatabases {
		return
	}
	op, _ := e.Lookup("op").StringValueOK()
	o, _ := e.Lookup("o").DocumentOK()
	id := o.Lookup("_id")
	if op == "u" {
		id = e.Lookup("o2", "_id")
	}
	db, _ := id.StringValueOK()
	shard, told := primaryIn(o)
	switch held := h.held[db]; {
	case op == "i" && len(held) == 0:
		h.held[db] = []holding{{}, {ts, shard}}
	case op == "d":
		h.held[db] = append(held, holding{since: ts})
	case told:
		h.held[db] = append(held, holding{ts, shard})
	}
}
