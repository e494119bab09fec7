package service

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/operate"
	"github.com/millrace/millrace/workshop/lab"
)

// TestNoTableScan: a job copies, follows, keeps dead letters, is verified, repaired and
// finalized by the service, is compared and dropped by commands, and begins anew, between
// servers that refuse queries without an index (notablescan).
func TestNoTableScan(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	b := newBed(t, nil)
	scans := func(allowed bool) {
		t.Helper()
		for _, c := range []*mongo.Client{b.sc, b.dc} {
			if err := c.Database("admin").RunCommand(t.Context(),
				bson.D{{Key: "setParameter", Value: 1}, {Key: "notablescan", Value: !allowed}}).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	scans(false)
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	src, dst := b.sc.Database("svc"), b.dc.Database("svc")
	fillKinds(t, src)
	b.startWorker("w1")
	_, made, err := b.desk.Create(t.Context(), &b.admin,
		service.Definition{Name: "churn",
			Settings: "source: env:SRC\ntarget: env:DST\ninclude: ['svc.*']\non-conflict: skip\n" +
				"filter: ['svc.filtered={\"keep\":true}']\nsoft-delete: ['svc.soft=gone']\n"})
	b.made(made, err)
	b.until("the changes", func() bool {
		j := b.job()
		if j != nil && j.State() == service.Failed {
			t.Fatal(j.Report.Error)
		}
		return j != nil && j.Report != nil && j.Report.Status != nil && j.Report.Status.Phase == job.PhaseFollowing
	})
	for i := range 50 {
		must(src.Collection("c").UpdateOne(t.Context(), bson.D{{Key: "_id", Value: i}},
			bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: 1}}}}))
		for _, coll := range []string{"soft", "filtered"} {
			must(src.Collection(coll).UpdateOne(t.Context(), bson.D{{Key: "_id", Value: i}},
				bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: 2}, {Key: "keep", Value: i%3 == 0}}}}))
			if i%7 == 0 {
				must(src.Collection(coll).DeleteOne(t.Context(), bson.D{{Key: "_id", Value: i}}))
			}
		}
		must(src.Collection("capped").InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1000 + i}}))
	}
	must(nil, b.sc.Database("admin").RunCommand(t.Context(),
		bson.D{{Key: "renameCollection", Value: "svc.ttl"}, {Key: "to", Value: "svc.renamed"}}).Err())
	must(nil, src.RunCommand(t.Context(), bson.D{{Key: "collMod", Value: "renamed"},
		{Key: "index", Value: bson.D{{Key: "name", Value: "at_1"}, {Key: "expireAfterSeconds", Value: 5e6}}}}).Err())
	must(src.Collection("c").Indexes().CreateOne(t.Context(), mongo.IndexModel{Keys: bson.D{{Key: "late", Value: 1}}}))
	// A document of the target's own has the key of one that is inserted.
	must(dst.Collection("c").InsertOne(t.Context(), bson.D{{Key: "_id", Value: "own"}, {Key: "u", Value: 5000}}))
	must(src.Collection("c").InsertOne(t.Context(), bson.D{{Key: "_id", Value: 5000}, {Key: "u", Value: 5000}}))
	b.until("a dead letter", func() bool {
		j := b.job()
		return j.Report.Status != nil &&
			j.Report.Status.Conflicts.Open > 0
	})
	must(dst.Collection("c").DeleteOne(t.Context(), bson.D{{Key: "_id", Value: "own"}}))
	must(src.Collection("c").UpdateOne(t.Context(), bson.D{{Key: "_id", Value: 5000}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: 7}}}}))

	must(dst.Collection("c").DeleteOne(t.Context(), bson.D{{Key: "_id", Value: 60}}))
	must(dst.Collection("c").UpdateOne(t.Context(), bson.D{{Key: "_id", Value: 61}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "planted", Value: true}}}}))
	ended := func(id string) func() bool {
		return func() bool { v := b.desk.View.Verification("churn", id); return v != nil && v.State().Final() }
	}
	_, _, err = b.desk.Verify(t.Context(), &b.admin, "churn", "found", service.VerifyOptions{})
	must(nil, err)
	b.until("what differs", ended("found"))
	if v := b.desk.View.Verification("churn", "found"); v.State() != service.VerifyDifferent {
		t.Errorf("the verification ended as %s: %+v", v.State(), v.Report)
	}
	_, _, err = b.desk.Repair(t.Context(), &b.admin, "churn", "repair", operate.RepairWhat{Of: "found", All: true})
	must(nil, err)
	b.until("the repair", ended("repair"))
	if v := b.desk.View.Verification("churn", "repair"); v.State() != service.VerifySame {
		t.Errorf("the repair ended as %s: %+v", v.State(), v.Report)
	}
	b.finalize()
	b.endAll()
	b.commands()
	scans(true)
}

// commands runs commands on the job of a bed whose service has ended.
func (b *bed) commands() {
	b.Helper()
	source, target := strings.TrimPrefix(b.env[0], "MILLRACE_SECRET_SRC="),
		strings.TrimPrefix(b.env[1], "MILLRACE_SECRET_DST=")
	both := []string{"--source", source, "--target", target, "--include", "svc.*", "--filter",
		`svc.filtered={"keep":true}`, "--soft-delete", "svc.soft=gone"}
	for _, args := range [][]string{
		{"deadletters", "list", "--target", target, "--job", "churn"},
		{"deadletters", "list", "--target", target, "--state", "settled", "--ns", "svc"},
		{"deadletters", "export", "--target", target, "--state", "all"}, {"jobs", "list", "--target", target},
		{"jobs", "show", "--target", target, "--job", "churn"},
		append([]string{"verify"}, both...),
		{"jobs", "drop", "--target", target, "--job", "churn", "--yes"},
		append([]string{"sync", "--job", "again", "--mode", "full", "--on-existing", "drop"}, both...),
		append([]string{"sync", "--job", "again", "--mode", "full", "--on-existing", "drop", "--restart"}, both...),
	} {
		cmd := exec.CommandContext(b.Context(), b.bin, args...)
		cmd.Env = append(cmd.Environ(), "XDG_STATE_HOME="+b.TempDir())
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Errorf("%s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// fillKinds makes collections of all kinds.
func fillKinds(t *testing.T, db *mongo.Database) {
	t.Helper()
	lab.NeedServers(t)
	create := func(name string, o *options.CreateCollectionOptionsBuilder) {
		t.Helper()
		if err := db.CreateCollection(t.Context(), name, o); err != nil {
			t.Fatal(err)
		}
	}
	index := func(coll, field string, o *options.IndexOptionsBuilder) {
		t.Helper()
		if _, err := db.Collection(coll).Indexes().
			CreateOne(t.Context(), mongo.IndexModel{Keys: bson.D{{Key: field, Value: 1}}, Options: o}); err != nil {
			t.Fatal(err)
		}
	}
	create("capped", options.CreateCollection().SetCapped(true).SetSizeInBytes(1<<20))
	create("series", options.CreateCollection().
		SetTimeSeriesOptions(options.TimeSeries().SetTimeField("at").SetMetaField("m")))
	create("collated", options.CreateCollection().SetCollation(&options.Collation{Locale: "de", Strength: 1}))
	if err := db.CreateView(t.Context(), "view", "c",
		bson.A{bson.D{{Key: "$match", Value: bson.D{{Key: "n", Value: 1}}}}}); err != nil {
		t.Fatal(err)
	}
	index("c", "u", options.Index().SetUnique(true).SetSparse(true))
	index("ttl", "at", options.Index().SetExpireAfterSeconds(6e6))
	for _, coll := range []string{"c", "ttl", "capped", "series", "collated", "filtered", "soft"} {
		var docs []any
		for i := range 500 {
			d := bson.D{{Key: "n", Value: 0}, {Key: "keep", Value: i%2 == 0}, {Key: "at", Value: time.Now()},
				{Key: "m", Value: i % 7}}
			if coll != "series" {
				d = append(bson.D{{Key: "_id", Value: i}}, d...)
			}
			if coll == "c" && i > 100 {
				d = append(d, bson.E{Key: "u", Value: i})
			}
			docs = append(docs, d)
		}
		docs = append(docs, bson.D{{Key: "_id", Value: fmt.Sprint("text of ", coll)}, {Key: "at", Value: time.Now()}})
		if _, err := db.Collection(coll).InsertMany(t.Context(), docs); err != nil {
			t.Fatal(err)
		}
	}
}
