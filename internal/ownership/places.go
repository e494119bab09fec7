package ownership

import (
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/mongo"
)

// Places says which collections are sharded, and on which shards the others are.
type Places struct {
	primary map[string]string // by database
	sharded map[[16]byte]bool
}

// ReadPlaces reads the present places of a sharded cluster's collections.
func ReadPlaces(ctx context.Context, router *mongo.Cluster) (*Places, error) {
	p := &Places{primary: map[string]string{}, sharded: map[[16]byte]bool{}}
	type database struct {
		Name    string `bson:"_id"`
		Primary string `bson:"primary"`
	}
	dbs, err := mongo.ReadAll[database](ctx, "read on which shards the databases of %s are", router.Address())(
		router.Config("databases").Find(ctx, bson.D{}))
	if err != nil {
		return nil, err
	}
	for _, db := range dbs {
		p.primary[db.Name] = db.Primary
	}
	type collection struct {
		UUID    bson.Binary `bson:"uuid"`
		Dropped bool        `bson:"dropped"`
	}
	colls, err := mongo.ReadAll[collection](ctx, "read which collections of %s are sharded", router.Address())(
		router.Config("collections").Find(ctx, bson.D{}))
	for _, one := range colls {
		if id, ok := ParseUUID(one.UUID); ok && !one.Dropped {
			p.sharded[id] = true
		}
	}
	return p, err
}

// ParseUUID returns the bytes of a UUID; ok is false where u has another length.
func ParseUUID(u bson.Binary) (id [16]byte, ok bool) {
	if len(u.Data) != len(id) {
		return id, false
	}
	return [16]byte(u.Data), true
}

func (p *Places) Sharded(uuid bson.Binary) bool {
	id, ok := ParseUUID(uuid)
	return ok && p.sharded[id]
}

// Primary returns the shard of a database's unsharded collections.
func (p *Places) Primary(db string) (shard string, ok bool) {
	shard, ok = p.primary[db]
	return shard, ok
}

// Has reports that a collection is on a shard where it belongs. A sharded one, or one of a database without a known
// primary shard, belongs on any. there has the UUIDs of each shard.
func (p *Places) Has(db string, uuid bson.Binary, there map[string]map[[16]byte]bool) bool {
	id, _ := ParseUUID(uuid)
	if primary, ok := p.Primary(db); ok && !p.Sharded(uuid) {
		return there[primary][id]
	}
	for _, all := range there {
		if all[id] {
			return true
		}
	}
	return false
}

// Primary returns the primary shard of a database as a router reads it, "" for none.
func Primary(ctx context.Context, router *mongo.Cluster, db string, concern bson.D) (string, error) {
	raw, err := router.Command(ctx, "config", bson.D{{Key: "find", Value: "databases"},
		{Key: "filter", Value: bson.D{{Key: "_id", Value: db}}}, {Key: "readConcern", Value: concern}})
	shard, _ := raw.Lookup("cursor", "firstBatch", "0", "primary").StringValueOK()
	return shard, err
}

// Majority is the read concern majority.
func Majority() bson.D { return bson.D{{Key: "level", Value: "majority"}} }

// entry reads the config servers' entry of a sharded collection.
func entry(ctx context.Context, router *mongo.Cluster, uuid bson.Binary, into any) (found bool, err error) {
	err = router.Config("collections").FindOne(ctx,
		bson.D{{Key: "uuid", Value: uuid}, {Key: "dropped", Value: bson.D{{Key: "$ne", Value: true}}}}).Decode(into)
	if errors.Is(err, driver.ErrNoDocuments) {
		return false, nil
	}
	return err == nil, err
}

// Name returns the name of the sharded collection with a UUID, "" for none.
func Name(ctx context.Context, router *mongo.Cluster, uuid bson.Binary) (string, error) {
	var t Table
	_, err := entry(ctx, router, uuid, &t)
	return t.NS, mongo.Wrap(err, "find the collection %x", uuid.Data)
}
