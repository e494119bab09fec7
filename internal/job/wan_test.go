package job_test

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/wiretap"
	"github.com/millrace/millrace/workshop/lab"
)

// TestFarTarget: a job to a target that is far away takes few round trips that
// wait for one another, and its copy and its changes are exact. -v lists them.
func TestFarTarget(t *testing.T) {
	lab.Nightly(t)
	const rtt = 40 * time.Millisecond
	src, dst := lab.ForTest(t, lab.Options{}), lab.ForTest(t, lab.Options{Proxy: true})
	from, to := kit.Client(t, src.URI()), kit.Client(t, dst.DirectURI(0))
	proxy := dst.Members()[0].Proxy()
	proxy.Latency(rtt, 0)

	insert(t, from, "plain", 1000)
	t.Run("plain", func(t *testing.T) {
		// Of a new job with one collection, from the first greeting to the end; it
		// was 80, and a heartbeat of a slow run or two may come in between.
		const most = 36
		chain := far(t, proxy, job.Spec{Source: src.URI(), Target: dst.URI(), Mode: job.ModeAll, Until: "caught-up",
			OnExisting: job.ExistingFail, Rules: transform.Config{Include: []string{"plain.*"}}}, nil)
		if len(chain) > most {
			t.Errorf("%d round trips one after the other, want at most %d", len(chain), most)
		}
		equal(t, from, to, "plain")
	})
	t.Run("indexes and changes", func(t *testing.T) {
		variety(t, from)
		far(t, proxy, job.Spec{Source: src.URI(), Target: dst.URI(), Mode: job.ModeAll, Until: "never",
			OnExisting: job.ExistingFail, Rules: transform.Config{Include: []string{"rich.*"}}},
			func() { changeVariety(t, from) })
		equal(t, from, to, "rich")
		sameCatalog(t, src.URI(), dst.DirectURI(0), "rich.*")
	})
}

// far runs a job to its end, and returns its exchanges with the target that waited
// for one another. What happens meanwhile comes when it follows.
func far(t *testing.T, proxy *lab.Proxy, spec job.Spec, meanwhile func()) []wiretap.Exchange {
	t.Helper()
	watch := wiretap.New(proxy)
	j, err := job.Open(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- j.Run(t.Context()) }()
	if meanwhile != nil {
		for j.Status().Phase != job.PhaseFollowing && t.Context().Err() == nil {
			time.Sleep(10 * time.Millisecond)
		}
		meanwhile()
		if err := j.Finalize(t.Context(), true); err != nil {
			t.Error(err)
		}
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	j.Close()
	all := watch.Exchanges()
	for _, e := range all {
		t.Log(e)
	}
	return wiretap.InTurn(all)
}

// variety fills a database with collections of several kinds.
func variety(t *testing.T, c *driver.Client) {
	t.Helper()
	db := c.Database("rich")
	for name, o := range map[string]*options.CreateCollectionOptionsBuilder{
		"c": options.CreateCollection(), "capped": options.CreateCollection().SetCapped(true).SetSizeInBytes(1 << 20),
		"valid": options.CreateCollection().SetValidator(bson.D{{Key: "i", Value: bson.D{{Key: "$exists", Value: true}}}}),
	} {
		if err := db.CreateCollection(t.Context(), name, o); err != nil {
			t.Fatal(err)
		}
		for i := range 500 {
			if _, err := db.Collection(name).InsertOne(t.Context(), bson.D{{Key: "_id", Value: i}, {Key: "i", Value: i},
				{Key: "at", Value: time.Now()}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	_, err := db.Collection("c").Indexes().CreateMany(t.Context(), []driver.IndexModel{
		{Keys: bson.D{{Key: "i", Value: 1}}, Options: options.Index().SetUnique(true)},
		{Keys: bson.D{{Key: "at", Value: 1}}, Options: options.Index().SetExpireAfterSeconds(1 << 20)},
		{Keys: bson.D{{Key: "x", Value: -1}}},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// changeVariety changes what variety made, a schema change in between.
func changeVariety(t *testing.T, c *driver.Client) {
	t.Helper()
	db := c.Database("rich")
	for i := range 300 {
		coll := db.Collection("c")
		if _, err := coll.UpdateByID(t.Context(), i, bson.D{{Key: "$set", Value: bson.D{{Key: "x", Value: i}}}}); err != nil {
			t.Fatal(err)
		}
		if _, err := coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1000 + i},
			{Key: "i", Value: 1000 + i}}); err != nil {
			t.Fatal(err)
		}
		if _, err := coll.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: 400 + i/3}}); err != nil {
			t.Fatal(err)
		}
		if i == 150 {
			if err := db.CreateCollection(t.Context(), "later"); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// equal compares the documents of a database byte by byte.
func equal(t *testing.T, from, to *driver.Client, db string) {
	t.Helper()
	names, err := from.Database(db).ListCollectionNames(t.Context(), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		sameCollection(t, from.Database(db).Collection(name), to.Database(db).Collection(name))
	}
}

// sameCatalog compares options and indexes.
func sameCatalog(t *testing.T, from, to, include string) {
	t.Helper()
	rules, err := transform.New(transform.Config{Include: []string{include}})
	if err != nil {
		t.Fatal(err)
	}
	var sides [2]*mongo.Cluster
	for i, uri := range []string{from, to} {
		if sides[i], err = mongo.Connect(t.Context(), uri, mongo.Options{}); err != nil {
			t.Fatal(err)
		}
		defer sides[i].Close()
	}
	diffs, err := schema.Diff(t.Context(), sides[0], sides[1], rules, schema.DiffOptions{})
	if err != nil || len(diffs) > 0 {
		t.Errorf("the catalogs differ: %v, %v", diffs, err)
	}
}
