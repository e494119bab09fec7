package schema

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
)

const listParallel = 8

// Scope selects namespaces.
type Scope struct {
	// NS selects a namespace.
	NS func(ns string) bool
	// DB selects databases to look into, as the user may not read all; nil selects all.
	DB func(db string) bool
	// Readable is content with the databases that the user may read. Else it is an error if he may
	// not list all.
	Readable bool
	// NamesOnly leaves out indexes and sizes.
	NamesOnly bool
}

// List reads the collections, time-series collections and views in scope from the primary, with
// indexes and the server's estimates of sizes unless the scope wants only names. A view comes after what it
// reads.
//
// It is no snapshot: a concurrent schema change may show in part. See TakeSnapshot.
func List(ctx context.Context, c *mongo.Cluster, scope Scope) ([]Collection, error) {
	if scope.NamesOnly {
		colls, err := listNames(ctx, c, scope)
		if err != nil {
			return nil, err
		}
		return inOrder(colls)
	}
	colls, err := list(ctx, c, scope)
	if err != nil {
		return nil, err
	}
	return colls, estimate(ctx, c, colls)
}

func list(ctx context.Context, c *mongo.Cluster, scope Scope) ([]Collection, error) {
	colls, err := listNames(ctx, c, scope)
	if err != nil {
		return nil, err
	}
	if err := addIndexes(ctx, c, colls); err != nil {
		return nil, err
	}
	return inOrder(colls)
}

func listNames(ctx context.Context, c *mongo.Cluster, scope Scope) ([]Collection, error) {
	dbs, err := Databases(ctx, c, scope.Readable)
	if err != nil {
		return nil, err
	}
	if scope.DB != nil {
		dbs = slices.DeleteFunc(dbs, func(db string) bool { return !scope.DB(db) })
	}
	return gather(ctx, dbs, func(ctx context.Context, db string) ([]Collection, error) {
		return listDB(ctx, c, db, bson.D{}, scope.NS)
	})
}

// AllNames lists all namespaces, except internal ones and those that the user may not list.
func AllNames(ctx context.Context, c *mongo.Cluster) ([]string, error) {
	dbs, err := Databases(ctx, c, true)
	if err != nil {
		return nil, err
	}
	return gather(ctx, dbs, func(ctx context.Context, db string) (names []string, err error) {
		entries, err := listCollections(ctx, c, db, bson.D{})
		for _, e := range entries {
			names = append(names, db+"."+e.Name)
		}
		if mongo.IsCode(err, mongo.CodeUnauthorized) {
			return nil, nil
		}
		return names, err
	})
}

// UUIDs lists the UUIDs of the collections of databases, in no order.
func UUIDs(ctx context.Context, c *mongo.Cluster, dbs []string) ([]bson.Binary, error) {
	return gather(ctx, dbs, func(ctx context.Context, db string) (uuids []bson.Binary, err error) {
		entries, err := listCollections(ctx, c, db, bson.D{{Key: "type", Value: "collection"}})
		for _, e := range entries {
			uuids = append(uuids, e.Info.UUID)
		}
		return uuids, err
	})
}

// gather calls f for each of all, some at once, and joins the results in their order.
func gather[T, R any](ctx context.Context, all []T, f func(context.Context, T) ([]R, error)) ([]R, error) {
	found := make([][]R, len(all))
	err := sideBySide(ctx, listParallel, slices.All(all), func(ctx context.Context, i int, one T) (err error) {
		found[i], err = f(ctx, one)
		return err
	})
	return slices.Concat(found...), err
}

func sideBySide[K, V any](ctx context.Context, most int, all iter.Seq2[K, V],
	f func(context.Context, K, V) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(most)
	for k, v := range all {
		group.Go(func() error { return f(ctx, k, v) })
	}
	return group.Wait()
}

// Databases lists all databases, or those that the user may read, sorted, without internal ones.
func Databases(ctx context.Context, c *mongo.Cluster, readable bool) ([]string, error) {
	cmd := bson.D{{Key: "listDatabases", Value: 1}, {Key: "nameOnly", Value: true}}
	if !readable { // the server would leave out the others
		cmd = append(cmd, bson.E{Key: "authorizedDatabases", Value: false})
	}
	raw, err := c.Command(ctx, "admin", cmd)
	if mongo.IsCode(err, mongo.CodeUnauthorized) && !mongo.RefusedDirectly(err) {
		err = fmt.Errorf("the user lacks listDatabases on the cluster: %w", err)
	}
	if err != nil {
		return nil, mongo.NeedsRole(fmt.Errorf("list databases of %s: %w", c.Address(), err),
			"the user needs the listDatabases privilege (role readAnyDatabase has it)")
	}
	var reply struct {
		Databases []struct {
			Name string `bson:"name"`
		} `bson:"databases"`
	}
	if err := bson.Unmarshal(raw, &reply); err != nil {
		return nil, fmt.Errorf("list databases of %s: %w", c.Address(), err)
	}
	var names []string
	for _, d := range reply.Databases {
		if !mongo.IsInternal(d.Name) {
			names = append(names, d.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

type listing struct {
	Name    string   `bson:"name"`
	Type    string   `bson:"type"`
	Options bson.Raw `bson:"options"`
	Info    struct {
		UUID bson.Binary `bson:"uuid"`
	} `bson:"info"`
	IDIndex bson.Raw `bson:"idIndex"`
}

func listDB(ctx context.Context, c *mongo.Cluster, db string, filter bson.D,
	keep func(ns string) bool) ([]Collection, error) {
	entries, err := listCollections(ctx, c, db, filter)
	if err != nil {
		return nil, err
	}
	buckets := map[string]listing{}
	for _, e := range entries {
		if name, ok := strings.CutPrefix(e.Name, mongo.BucketsPrefix); ok {
			buckets[name] = e
		}
	}
	var out []Collection
	for _, e := range entries {
		ns := db + "." + e.Name
		if strings.HasPrefix(e.Name, "system.") && e.Name != "system.js" || !keep(ns) {
			continue
		}
		coll := Collection{NS: ns, Type: Type(e.Type), UUID: e.Info.UUID, Options: e.Options, IDIndex: len(e.IDIndex) > 0}
		switch coll.Type {
		case TypeTimeSeries:
			coll.UUID = buckets[e.Name].Info.UUID
			coll.MixedSchema = MakesMixedSchema(c.Info.Version) || mixedSchema(buckets[e.Name].Options)
		case TypeView, TypeCollection:
		default:
			return nil, mongo.WithHint(fmt.Errorf("%s is a %q, which is not supported", ns, e.Type), "exclude it")
		}
		if len(coll.Options) == 0 {
			coll.Options = emptyDoc()
		}
		out = append(out, coll)
	}
	return out, nil
}

// MakesMixedSchema reports servers whose new time series have MixedSchema.
func MakesMixedSchema(v mongo.Version) bool { return !v.AtLeast(5, 2) }

// mixedSchema reads a flag that late 6.0 and newer servers keep in the storage engine's options.
func mixedSchema(options bson.Raw) bool {
	return strings.Contains(str(options, "storageEngine", "wiredTiger", "configString"), mixedSchemaFlag+"=true")
}

const mixedSchemaFlag = "timeseriesBucketsMayHaveMixedSchemaData"

func listCollections(ctx context.Context, c *mongo.Cluster, db string, filter bson.D) ([]listing, error) {
	cur, err := primaryDB(c, db).ListCollections(ctx, filter)
	var out []listing
	if err == nil {
		err = cur.All(ctx, &out)
	}
	if mongo.IsCode(err, mongo.CodeInvalidView) {
		return nil, mongo.WithHint(fmt.Errorf("list collections of database %s of %s: unreadable view %s: %w", db,
			c.Address(), unreadableViews(ctx, c, db), err),
			"the server lists nothing of the database until the view is deleted from its system.views; or exclude the database")
	}
	if err != nil {
		return nil, mongo.NeedsRole(fmt.Errorf("list collections of database %s of %s: %w", db, c.Address(), err),
			"the user needs the listCollections privilege on every database (role readAnyDatabase has it)")
	}
	return out, nil
}

// unreadableViews names the views of a database that servers cannot read, as far as the user may.
func unreadableViews(ctx context.Context, c *mongo.Cluster, db string) string {
	const most = 5
	readable := bson.D{{Key: "pipeline", Value: bson.D{{Key: "$type", Value: "array"}}},
		{Key: "viewOn", Value: bson.D{{Key: "$type", Value: "string"}}}}
	views, err := mongo.ReadAll[bson.Raw](ctx, "views")(primaryDB(c, db).Collection("system.views").
		Find(ctx, bson.D{{Key: "$nor", Value: bson.A{readable}}}, options.Find().SetLimit(most)))
	if err != nil || len(views) == 0 {
		return "(look in system.views)"
	}
	var names []string
	for _, v := range views {
		names = append(names, str(v, "_id"))
	}
	return strings.Join(names, ", ")
}

func primaryDB(c *mongo.Cluster, db string) *driver.Database {
	return c.Client.Database(db, options.Database().SetReadPreference(readpref.Primary()))
}

func addIndexes(ctx context.Context, c *mongo.Cluster, colls []Collection) error {
	return ofData(ctx, colls, func(ctx context.Context, coll *Collection) (err error) {
		coll.Indexes, coll.Building, err = indexes(ctx, c, coll.DataNS())
		return err
	})
}

func estimate(ctx context.Context, c *mongo.Cluster, colls []Collection) error {
	return ofData(ctx, colls, func(ctx context.Context, coll *Collection) (err error) {
		coll.Count, coll.Bytes, err = size(ctx, c, coll.DataNS())
		return err
	})
}

func ofData(ctx context.Context, colls []Collection, f func(context.Context, *Collection) error) error {
	return sideBySide(ctx, listParallel, slices.All(colls), func(ctx context.Context, i int, c Collection) error {
		if c.Type == TypeView {
			return nil
		}
		return f(ctx, &colls[i])
	})
}

// size returns documents and bytes of a collection, zero if it is gone. Shards count orphans, too.
func size(ctx context.Context, c *mongo.Cluster, ns string) (count, bytes int64, err error) {
	if c.Info.Kind != mongo.KindSharded {
		// It needs find, which a user that copies only the structure lacks.
		if count, bytes, err = c.DataSize(ctx, ns); !mongo.IsCode(err, mongo.CodeUnauthorized) {
			return count, bytes, err
		}
	}
	count, bytes, _, err = sizes(ctx, c, ns)
	return count, bytes, err
}

// sizes is size, and reports a capped collection.
func sizes(ctx context.Context, c *mongo.Cluster, ns string) (count, bytes int64, capped bool, err error) {
	stats, err := collStats(ctx, c, ns, bson.D{{Key: "storageStats", Value: bson.D{}}, {Key: "count", Value: bson.D{}}},
		bson.D{{Key: "count", Value: 1}, {Key: "size", Value: "$storageStats.size"},
			{Key: "capped", Value: "$storageStats.capped"}})
	for _, shard := range stats {
		n, _ := shard.Lookup("count").AsInt64OK()
		size, _ := shard.Lookup("size").AsInt64OK()
		limited, _ := shard.Lookup("capped").BooleanOK()
		count, bytes, capped = count+n, bytes+size, capped || limited
	}
	return count, bytes, capped, err
}

func collStats(ctx context.Context, c *mongo.Cluster, ns string, what, project bson.D) ([]bson.Raw, error) {
	db, coll := mongo.SplitNS(ns)
	pipeline := bson.A{bson.D{{Key: "$collStats", Value: what}}, bson.D{{Key: "$project", Value: project}}}
	return unlessGone(mongo.ReadAll[bson.Raw](ctx, "statistics of %s of %s", ns, c.Address())(
		primaryDB(c, db).RunCommandCursor(ctx, bson.D{{Key: "aggregate", Value: coll},
			{Key: "cursor", Value: bson.D{}}, {Key: "pipeline", Value: pipeline}})))
}

func unlessGone(answer []bson.Raw, err error) ([]bson.Raw, error) {
	if err != nil && mongo.Classify(err) == mongo.ClassGone {
		return nil, nil
	}
	return answer, err
}

// ListOne finds a collection of a database by the UUID of its documents, with its present name,
// options and indexes; false if it is gone. The result is majority-committed.
func ListOne(ctx context.Context, c *mongo.Cluster, db string,
	uuid bson.Binary) (coll Collection, found bool, err error) {
	err = c.Seen(ctx, func() error {
		one := make([]Collection, 1)
		var err error
		if one[0], found, err = findUUID(ctx, c, db, uuid); err == nil && found {
			err = errors.Join(addIndexes(ctx, c, one), estimate(ctx, c, one))
		}
		coll = one[0]
		return err
	})
	return coll, found && err == nil, err
}

func findUUID(ctx context.Context, c *mongo.Cluster, db string, uuid bson.Binary) (Collection, bool, error) {
	found, err := listCollections(ctx, c, db, bson.D{{Key: "info.uuid", Value: uuid}})
	if err != nil || len(found) == 0 {
		return Collection{}, false, err
	}
	names := []string{found[0].Name}
	if series, ok := strings.CutPrefix(found[0].Name, mongo.BucketsPrefix); ok {
		names = append(names, series)
	}
	coll, ok, err := findNamed(ctx, c, db, names...)
	return coll, ok && coll.UUID.Equal(uuid), err
}

func findNamed(ctx context.Context, c *mongo.Cluster, db string, names ...string) (Collection, bool, error) {
	filter := bson.D{{Key: "name", Value: bson.D{{Key: "$in", Value: names}}}}
	colls, err := listDB(ctx, c, db, filter, func(string) bool { return true })
	if err != nil || len(colls) == 0 {
		return Collection{}, false, err
	}
	return colls[0], true, nil
}
