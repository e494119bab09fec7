package router_test

import (
	"log/slog"
	"os"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab/router"
)

// clusterOf starts a cluster of three shards with a router, and connects to the router.
func start(t *testing.T, configURI string) (*router.Router, *mongo.Client) {
	t.Helper()
	o := router.Options{ConfigURI: configURI}
	if os.Getenv("MILLRACE_TEST_LOG") != "" {
		o.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	r, err := router.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r, kit.Client(t, r.URI())
}

// command runs a command that must succeed.
func command(t *testing.T, db *mongo.Database, cmd bson.D) bson.Raw {
	t.Helper()
	raw, err := db.RunCommand(t.Context(), cmd).Raw()
	if err != nil {
		t.Fatalf("%s: %v", cmd[0].Key, err)
	}
	return raw
}
