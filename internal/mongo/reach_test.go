package mongo_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/workshop/lab"
)

// TestHintsByCause: what keeps a user out is told, with what can be done about it.
func TestHintsByCause(t *testing.T) {
	lab.NeedServers(t)
	plain := lab.ForTest(t, lab.Options{})
	locked := lab.ForTest(t, lab.Options{Auth: true, TLS: true})
	other := lab.ForTest(t, lab.Options{TLS: true})
	address := func(uri string) string {
		_, rest, _ := strings.Cut(uri, "://")
		_, rest, ok := strings.Cut(rest, "@")
		if !ok {
			_, rest, _ = strings.Cut(uri, "://")
		}
		host, _, _ := strings.Cut(rest, "/")
		return host
	}
	ca := func(uri string) string {
		_, rest, _ := strings.Cut(uri, "tlsCAFile=")
		file, _, _ := strings.Cut(rest, "&")
		return file
	}
	in, out := address(locked.URI()), address(plain.URI())
	for name, c := range map[string]struct{ uri, says, hint string }{
		"wrong password": {"mongodb://root:wrong@" + in + "/?tls=true&tlsCAFile=" + ca(locked.URI()),
			"AuthenticationFailed", "password"},
		"no TLS given":      {"mongodb://" + in + "/", "closes the connection", "add tls=true"},
		"no authority":      {"mongodb://" + in + "/?tls=true", "unknown authority", "tlsCAFile"},
		"another authority": {"mongodb://" + in + "/?tls=true&tlsCAFile=" + ca(other.URI()), "", "tlsCAFile"},
		"TLS for none":      {"mongodb://" + out + "/?tls=true", "", "speak no TLS"},
		"another set":       {"mongodb://" + out + "/?replicaSet=another", `the replica set "another"`, "replicaSet="},
		"nobody":            {"mongodb://127.0.0.1:1/", "connection refused", "nothing listens"},
		"no such name": {"mongodb://nowhere.invalid/", "nowhere.invalid",
			"name in the connection string has to resolve"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := mongo.Connect(t.Context(), c.uri, mongo.Options{AppName: "test", ServerSelectionTimeout: 3 * time.Second})
			if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(mongo.HintOf(err), c.hint) {
				t.Errorf("%v\nhint: %s", err, mongo.HintOf(err))
			}
			if err != nil && (strings.Contains(err.Error(), "current topology") || strings.Contains(err.Error(), "wrong@")) {
				t.Errorf("as the driver writes it: %v", err)
			}
		})
	}
}

// TestHintOfAdvertisedName: a set may name its members as this machine does not know them.
func TestHintOfAdvertisedName(t *testing.T) {
	err := fmt.Errorf("reach: %w", &net.DNSError{Err: "no such host", Name: "db1.internal", IsNotFound: true})
	opts := options.Client().ApplyURI("mongodb://10.0.0.1:27017")
	if got := mongo.ExplainReach(err, opts); !strings.Contains(mongo.HintOf(got), "rs.conf()") || !errors.Is(got, err) {
		t.Errorf("%v, hint: %s", got, mongo.HintOf(got))
	}
	if mongo.HintOf(mongo.ExplainReach(context.Canceled, opts)) != "" {
		t.Error("a hint for what was canceled")
	}
}

// TestBrief: amid a job, too, the driver's description of the deployment is not shown.
func TestBrief(t *testing.T) {
	client, err := driver.Connect(options.Client().ApplyURI(
		"mongodb://127.0.0.1:1,127.0.0.1:2/?replicaSet=x").SetServerSelectionTimeout(200 * time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Disconnect(context.Background())
	err = fmt.Errorf("save checkpoint: %w", client.Ping(t.Context(), nil))
	if !strings.Contains(err.Error(), "current topology") {
		t.Fatalf("the driver says it in another way: %v", err)
	}
	got := mongo.Brief(err)
	if strings.Contains(got, "topology") || !strings.HasPrefix(got, "save checkpoint: ") ||
		!strings.Contains(got, "127.0.0.1:2: dial tcp 127.0.0.1:2: connect: connection refused") {
		t.Error(got)
	}
}

func TestConcise(t *testing.T) {
	for text, want := range map[string]string{
		`not authorized on admin to execute command { replSetGetConfig: 1, lsid: { id: UUID("a}b") }, $clusterTime: { clusterTime: Timestamp(1, 2), signature: { keyId: 0 } }, $db: "admin" }`: `not authorized on admin to execute command { replSetGetConfig: 1, … }`,
		`(Unauthorized) no { find: "x", lsid: { id: 1 } } and { find: "y", lsid: { id: 2 } }; code 13`:                                                                                         `(Unauthorized) no { find: "x", … } and { find: "y", … }; code 13`,
		`E11000 duplicate key error dup key: { a: "}" }`:  `E11000 duplicate key error dup key: { a: "}" }`,
		`no { find: "oplog.rs", limit: 1, $db: "local" }`: `no { find: "oplog.rs", … }`,
		`an open { brace, lsid: `:                         `an open { brace, lsid: `,
		`plain`:                                           `plain`,
	} {
		if got := mongo.Concise(text); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}

// TestClearedPoolPasses: who waits for a connection when another one breaks has met
// nothing that lasts.
func TestClearedPoolPasses(t *testing.T) {
	lab.NeedServers(t)
	server := lab.ForTest(t, lab.Options{SetParameters: map[string]string{"enableTestCommands": "1"}})
	client, err := driver.Connect(options.Client().ApplyURI(server.URI()).SetAppName("one").SetMaxPoolSize(1))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Disconnect(context.WithoutCancel(t.Context())) }()
	admin := client.Database("admin")
	if err := admin.RunCommand(t.Context(), bson.D{{Key: "configureFailPoint", Value: "failCommand"},
		{Key: "mode", Value: bson.D{{Key: "times", Value: 1}}},
		{Key: "data", Value: bson.D{{Key: "failCommands", Value: bson.A{"buildInfo"}}, {Key: "appName", Value: "one"},
			{Key: "closeConnection", Value: true},
			{Key: "blockConnection", Value: true}, {Key: "blockTimeMS", Value: 500}}}}).Err(); err != nil {
		t.Fatal(err)
	}
	const waiting = 8
	errs := make(chan error, waiting)
	for range waiting {
		go func() { errs <- admin.RunCommand(t.Context(), bson.D{{Key: "buildInfo", Value: 1}}).Err() }()
	}
	cleared := false
	for range waiting {
		err := <-errs
		if err == nil {
			continue
		}
		cleared = cleared || strings.Contains(err.Error(), "was cleared")
		if got := mongo.Classify(err); got != mongo.ClassRetry {
			t.Errorf("%s: %v", got, err)
		}
	}
	if !cleared {
		t.Error("nobody waited for the pool")
	}
}
