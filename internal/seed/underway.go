package seed

import (
	"context"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/mongo"
)

// endUnderWay ends what was under way on the source when its files were copied. The new set would end it in its own
// way. A primary drops temporary collections when it is elected. The members finish index builds together, or wait
// for each other. The job that follows applies what the source did.
func endUnderWay(ctx context.Context, c *driver.Client) error {
	dbs, err := c.ListDatabaseNames(ctx, bson.D{})
	if err != nil {
		return fmt.Errorf("cannot list the databases: %w", err)
	}
	for _, db := range dbs {
		if mongo.IsInternal(db) {
			continue
		}
		if err := endIn(ctx, c.Database(db)); err != nil {
			return fmt.Errorf("cannot end what the source had under way in %s: %w", db, err)
		}
	}
	return emptyBuilds(ctx, c)
}

func endIn(ctx context.Context, db *driver.Database) error {
	colls, err := mongo.ReadAll[expiringCollection](ctx, "list the collections")(db.ListCollections(ctx, bson.D{}))
	if err != nil {
		return err
	}
	for _, c := range colls {
		if c.Type == "view" || c.Type == "timeseries" {
			continue
		}
		if err := dropBuilds(ctx, db, c.Name); err != nil {
			return err
		}
		if err := makePermanent(ctx, db, c); err != nil {
			return err
		}
	}
	return nil
}

// aside ends the name of a temporary collection between two renames.
const aside = ".millrace-temporary"

// makePermanent makes a temporary collection, as $out fills one, an ordinary one. Only a rename does that. It keeps the
// UUID.
func makePermanent(ctx context.Context, db *driver.Database, c expiringCollection) error {
	name, renamed := strings.CutSuffix(c.Name, aside) // by an interrupted attempt
	if !renamed && !c.is("temp") {
		return nil
	}
	rename := func(from, to string) error {
		err := db.Client().Database("admin").RunCommand(ctx, bson.D{{Key: "renameCollection",
			Value: db.Name() + "." + from}, {Key: "to", Value: db.Name() + "." + to}}).Err()
		return mongo.Wrap(err, "rename %s to %s", from, to)
	}
	if !renamed {
		if err := rename(name, name+aside); err != nil {
			return err
		}
	}
	return rename(name+aside, name)
}

// dropBuilds drops indexes that are not built yet.
func dropBuilds(ctx context.Context, db *driver.Database, coll string) error {
	specs, err := mongo.ReadAll[bson.Raw](ctx, "list the indexes of %s", coll)(db.RunCommandCursor(ctx, bson.D{
		{Key: "listIndexes", Value: coll}, {Key: "cursor", Value: bson.D{}}, {Key: "includeBuildUUIDs", Value: true}}))
	for _, spec := range specs {
		if _, ready := spec.LookupErr("buildUUID"); ready != nil {
			continue
		}
		name, _ := spec.Lookup("spec", "name").StringValueOK()
		err := db.RunCommand(ctx, bson.D{{Key: "dropIndexes", Value: coll}, {Key: "index", Value: name}}).Err()
		if err != nil {
			return fmt.Errorf("drop the index %s of %s, which is not built yet: %w", name, coll, err)
		}
	}
	return err
}

// emptyBuilds removes what the source's members have noted about their index builds.
func emptyBuilds(ctx context.Context, c *driver.Client) error {
	_, err := c.Database("config").Collection("system.indexBuilds").DeleteMany(ctx, bson.D{})
	return mongo.Wrap(err, "cannot empty config.system.indexBuilds")
}
