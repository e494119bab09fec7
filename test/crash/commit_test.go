package crash

import (
	"os"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// TestKillBeforeCommit kills millrace between updates in a transaction and
// their commit. The target would keep their documents locked for an hour: the
// next process has to end that, and to apply them.
func TestKillBeforeCommit(t *testing.T) {
	t.Parallel()
	src := lab.ForTest(t, lab.Options{Version: os.Getenv("MILLRACE_TEST_SOURCE")})
	dst := lab.ForTest(t, lab.Options{Version: os.Getenv("MILLRACE_TEST_TARGET"),
		SetParameters: map[string]string{"enableTestCommands": "1", "transactionLifetimeLimitSeconds": "3600"}})
	bin := test.BuildMillrace(t, raceFlag()...)
	sc, dc := kit.Client(t, src.URI()), kit.Client(t, dst.URI())

	const docs = 20_000
	coll := sc.Database("commit").Collection("c")
	all := make([]any, docs)
	for i := range all {
		all[i] = bson.D{{Key: "_id", Value: i}, {Key: "n", Value: 0}, {Key: "pad", Value: strings.Repeat("x", 100)}}
	}
	if _, err := coll.InsertMany(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	args := []string{"sync", "--source", src.URI(), "--target", dst.URI(), "--include", "commit.*", "--job", "commit",
		"--until"}
	p := test.Start(t, bin, append(args, "never")...)
	p.AwaitPhase(dc, "commit", "following")

	held := holdCommit(t, dc)
	if _, err := coll.UpdateMany(t.Context(), bson.D{},
		bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}); err != nil {
		t.Fatal(err)
	}
	held()
	p.Kill()

	p = test.Start(t, bin, append(args, "caught-up")...)
	if err := p.Wait(6 * time.Minute); err != nil {
		t.Fatalf("the next run: %v\n%s", err, p.Output())
	}
	diffs, err := test.Compare(t.Context(), sc, dc, test.CompareOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range diffs {
		t.Error(d)
	}
}

// holdCommit keeps the next commit on a server from being run; held waits until
// it is kept so. Those after it pass.
func holdCommit(t *testing.T, c *mongo.Client) (held func()) {
	t.Helper()
	admin := func(cmd bson.D) bson.Raw {
		t.Helper()
		raw, err := c.Database("admin").RunCommand(t.Context(), cmd).Raw()
		if err != nil {
			t.Fatalf("%s: %v", cmd[0].Key, err)
		}
		return raw
	}
	raw := admin(bson.D{{Key: "configureFailPoint", Value: "failCommand"},
		{Key: "mode", Value: bson.D{{Key: "times", Value: 1}}},
		{Key: "data", Value: bson.D{{Key: "failCommands", Value: bson.A{"commitTransaction"}},
			{Key: "blockConnection", Value: true}, {Key: "blockTimeMS", Value: 3_600_000}}}})
	before, _ := raw.Lookup("count").AsInt64OK()
	return func() {
		t.Helper()
		admin(bson.D{{Key: "waitForFailPoint", Value: "failCommand"}, {Key: "timesEntered", Value: before + 1},
			{Key: "maxTimeMS", Value: 60_000}})
	}
}
