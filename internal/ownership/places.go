package ownership

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
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

// Version makes a shard return only the documents that it owns.
type Version struct {
	Name  string // of the collection
	Shard any    // shardVersion, in the form of the servers' version
}

// Filter makes a shard return only the documents of a collection that it owns when a cursor is opened, without those
// that have moved away or are arriving. It is safe for concurrent use.
type Filter struct {
	load  func(context.Context) (Version, error)
	fixed bool

	mu     sync.Mutex
	now    Version
	loaded bool
}

// NewFilter follows a collection whose chunks move. load reads the present version; an error of
// mongo.CodeNamespaceNotFound says that the collection is gone.
func NewFilter(load func(context.Context) (Version, error)) *Filter { return &Filter{load: load} }

// Filter has the version of the table for a shard. If the shard refuses it, Stale reports that error.
func (t *Table) Filter(shard string) *Filter {
	return &Filter{fixed: true, now: t.Version(shard), loaded: true}
}

// Fixed reports a filter of one table's version.
func (f *Filter) Fixed() bool { return f.fixed }

// Stale reports that a shard has another version than a command, or cannot determine now whether it has.
func Stale(err error) bool {
	const staleShardVersion, cannotRefresh, staleConfig = 63, 343, 13388
	return mongo.IsCode(err, staleConfig) || mongo.IsCode(err, staleShardVersion) || mongo.IsCode(err, cannotRefresh)
}

const versionField = "shardVersion"

// Mark makes Run add the version to a command, whose first element is the collection. f may be nil.
func (f *Filter) Mark(cmd bson.D) bson.D {
	if f != nil {
		cmd = append(cmd, bson.E{Key: versionField})
	}
	return cmd
}

// Run runs a marked command with the present version, and again with a newer one. f may be nil.
func (f *Filter) Run(ctx context.Context, cmd bson.D, run func(bson.D) error) error {
	if f == nil || !slices.ContainsFunc(cmd, func(e bson.E) bool { return e.Key == versionField }) {
		return run(cmd)
	}
	var refused Version
	for began := time.Now(); ; {
		v, err := f.version(ctx, refused)
		if err != nil {
			return err
		}
		err = run(v.in(cmd))
		switch {
		case !Stale(err) || f.fixed:
			return err
		case time.Since(began) > time.Minute: // the first newer version succeeds otherwise
			return mongo.Retry(fmt.Sprintf("%s moves from shard to shard all the time", v.Name), err, "")
		}
		refused = v
		if err := pace.Pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// version is the present one, or a newer one than refused.
func (f *Filter) version(ctx context.Context, refused Version) (Version, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.loaded && (refused.Shard == nil || !f.now.equal(refused)) {
		return f.now, nil
	}
	v, err := f.load(ctx)
	if err == nil {
		f.now, f.loaded = v, true
	}
	return v, err
}

func (v Version) equal(w Version) bool {
	one, err1 := bson.Marshal(bson.D{{Key: "v", Value: v.Shard}})
	other, err2 := bson.Marshal(bson.D{{Key: "v", Value: w.Shard}})
	return v.Name == w.Name && err1 == nil && err2 == nil && bytes.Equal(one, other)
}

func (v Version) in(cmd bson.D) bson.D {
	cmd = slices.Clone(cmd)
	cmd[0].Value = v.Name
	for i := range cmd {
		if cmd[i].Key == versionField {
			cmd[i].Value = v.Shard
		}
	}
	return cmd
}

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
