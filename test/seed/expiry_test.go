package seed

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// TestRefreshedDocumentsAreFollowed is the runbook of a migration by files for an
// application that refreshes its documents before they expire: in the clone their time
// is over before the refresh is applied. The clone loses none of them, and after the
// cut-over it expires documents as the old set did.
func TestRefreshedDocumentsAreFollowed(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	bin := test.BuildMillrace(t)
	// it is refreshed in time
	src := lab.ForTest(t, lab.Options{SetParameters: map[string]string{"ttlMonitorEnabled": "false"}})
	sc := kit.Client(t, src.URI())
	coll := sc.Database("clone").Collection("sessions")
	_, err := coll.Indexes().CreateOne(t.Context(),
		driver.IndexModel{Keys: bson.D{{Key: "at", Value: 1}}, Options: options.Index().SetExpireAfterSeconds(1)})
	must(t, err)
	var docs []any
	for i := range 200 {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "at", Value: time.Now().Add(-time.Minute)}})
	}
	_, err = coll.InsertMany(t.Context(), docs)
	must(t, err)
	dir, host := filepath.Join(t.TempDir(), "clone"), "127.0.0.1:"+freePort(t)
	r := seed(t, bin,
		append([]string{"--from-uri", src.DirectURI(0), "--from-dbpath", src.Members()[0].DBPath, "--to-dbpath", dir,
			"--allow-primary", "--yes-block-all-writes", "--as-new-set", "clone", "--new-set-host", host, "--start", "--",
			mongod(t, "6.0")},
			append(memberFlags("clone", dir, host[strings.Index(host, ":")+1:]), "--setParameter",
				"ttlMonitorSleepSecs=1")...)...)
	dst := "mongodb://" + host + "/?replicaSet=clone"
	dc := kit.Client(t, dst)
	clone := dc.Database("clone").Collection("sessions")
	_, err = coll.UpdateMany(t.Context(), bson.D{},
		bson.D{{Key: "$set", Value: bson.D{{Key: "at", Value: time.Now().Add(time.Hour)}}}})
	must(t, err)
	time.Sleep(3 * time.Second) // in which a monitor would have passed; there is no other sign of one that is off
	args := []string{"sync", "--source", src.URI(), "--target", dst, "--include", "clone.*", "--mode", "incremental",
		"--start-at", r.Result.Position, "--until", "caught-up"}
	if r.Result.Job != "" {
		args = append(args, "--job", r.Result.Job)
	}
	out, err := exec.CommandContext(t.Context(), bin, args...).CombinedOutput()
	if err != nil {
		t.Errorf("sync: %v\n%s", err, out)
	}
	diffs, err := test.Compare(t.Context(), sc, dc, test.CompareOptions{})
	must(t, err)
	for i, d := range diffs {
		if i < 5 {
			t.Error(d)
		}
	}
	if len(diffs) > 0 {
		t.Errorf("%d differences", len(diffs))
	}
	must(t, dc.Database("admin").RunCommand(t.Context(),
		bson.D{{Key: "setParameter", Value: 1}, {Key: "ttlMonitorEnabled", Value: true}}).Err())
	_, err = clone.InsertOne(t.Context(),
		bson.D{{Key: "_id", Value: "old"}, {Key: "at", Value: time.Now().Add(-time.Hour)}})
	must(t, err)
	kit.Until(t, "the old one alone expires", func() bool {
		n, err := clone.CountDocuments(t.Context(), bson.D{})
		must(t, err)
		return n == 200
	})
}
