package test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	millmongo "github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/workshop/lab"
)

// clusters are the source and the target that all tests of the package share.
// Expiry of documents is switched off on both; the tests of it switch it on.
type clusters struct {
	source, target       *lab.Cluster
	sourceDB, targetDB   *mongo.Client
	sourceVer, targetVer millmongo.Version
}

var shared clusters

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		fmt.Println("skipped: the scenarios need servers")
		return
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	err := shared.start(ctx)
	defer shared.stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// version is a server's version, chosen by the environment so that the same
// suite runs between any two.
func version(name string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return "6.0"
}

func (c *clusters) start(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	start := func(name, version string, cluster **lab.Cluster, client **mongo.Client, ver *millmongo.Version) {
		g.Go(func() (err error) {
			*cluster, err = lab.Start(gctx, lab.Options{Name: name, Version: version, CacheGB: 1, LeanJournal: true,
				SetParameters: map[string]string{
					"enableTestCommands": "1", "ttlMonitorEnabled": "false", "ttlMonitorSleepSecs": "1",
					"transactionLifetimeLimitSeconds": "600", // a lock of a test holds on a busy machine too
				}})
			if err != nil {
				return err
			}
			*client, err = mongo.Connect(options.Client().ApplyURI((*cluster).URI()).SetMaxPoolSize(64))
			if err != nil {
				return err
			}
			*ver, err = prepareServer(gctx, *client)
			return err
		})
	}
	start("src", version("MILLRACE_TEST_SOURCE"), &c.source, &c.sourceDB, &c.sourceVer)
	start("dst", version("MILLRACE_TEST_TARGET"), &c.target, &c.targetDB, &c.targetVer)
	return g.Wait()
}

// prepareServer makes writes of the tests quick and reports the version.
func prepareServer(ctx context.Context, client *mongo.Client) (v millmongo.Version, err error) {
	var info struct {
		Version string `bson:"version"`
	}
	admin := client.Database("admin")
	if err := admin.RunCommand(ctx, bson.D{{Key: "buildInfo", Value: 1}}).Decode(&info); err != nil {
		return v, err
	}
	if v, err = millmongo.ParseVersion(info.Version); err != nil || !v.AtLeast(4, 4) {
		return v, err
	}
	concern := bson.D{{Key: "setDefaultRWConcern", Value: 1},
		{Key: "defaultWriteConcern", Value: bson.D{{Key: "w", Value: 1}}}}
	if !v.AtLeast(5, 0) {
		return v, admin.RunCommand(ctx, concern).Err()
	}
	// What a filter asks for as of a position is forgotten about every other time.
	forget := bson.D{{Key: "setParameter", Value: 1}, {Key: "minSnapshotHistoryWindowInSeconds", Value: 0}}
	if err := admin.RunCommand(ctx, forget).Err(); err != nil {
		return v, err
	}
	return v, admin.RunCommand(ctx, concern).Err()
}

func (c *clusters) stop() {
	var errs []error
	for _, client := range []*mongo.Client{c.sourceDB, c.targetDB} {
		if client != nil {
			errs = append(errs, client.Disconnect(context.Background()))
		}
	}
	for _, cluster := range []*lab.Cluster{c.source, c.target} {
		if cluster != nil {
			errs = append(errs, cluster.Stop())
		}
	}
	if err := errors.Join(errs...); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}
