package worker_test

import (
	"context"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/operate"
	"github.com/millrace/millrace/internal/service/worker"
	"github.com/millrace/millrace/workshop/lab"
)

// rename renames a collection of the source.
func (b *bed) rename(from, to string) {
	b.Helper()
	b.ok(b.source.Database("admin").RunCommand(b.Context(),
		bson.D{{Key: "renameCollection", Value: from}, {Key: "to", Value: to}}).Err())
}

// value waits until a document has a field with a value.
func (b *bed) value(c *driver.Collection, id any, field string, want any) {
	b.Helper()
	b.until("job", field+" of "+c.Name(), func(*service.Job) bool {
		n, err := c.CountDocuments(b.Context(), bson.D{{Key: "_id", Value: id}, {Key: field, Value: want}})
		b.ok(err)
		return n == 1
	})
}

// TestRepairOfAnotherCollection: a name that means another collection than when the
// documents were found is rejected, and nothing is written under it. A new verification
// finds them under the name that they have.
func TestRepairOfAnotherCollection(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	b := newBed(t)
	b.insert("names", 0, 100)
	other := b.source.Database("names").Collection("other")
	for i := range 100 {
		_, err := other.InsertOne(t.Context(), bson.D{{Key: "_id", Value: i}, {Key: "of", Value: "other"}})
		b.ok(err)
	}
	b.create("job", "names", "")
	b.worker(b.nats.Address(), worker.Options{Name: "w1"})
	b.until("job", "following", following)
	c := b.onTarget("names")
	_, err := c.UpdateMany(t.Context(), bson.D{{Key: "_id", Value: bson.D{{Key: "$lt", Value: 9}}}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "text", Value: "changed"}}}})
	b.ok(err)
	b.ask("job", "found", service.VerifyOptions{})
	if _, f := b.result("job", "found", service.VerifyDifferent); len(f.Differences) != 9 {
		t.Fatalf("%+v", f.Differences)
	}

	b.rename("names.c", "names.moved")
	b.rename("names.other", "names.c")
	moved := c.Database().Collection("moved")
	b.value(moved, 8, "text", "changed")
	b.value(c, 8, "of", "other")
	repair := func(id, of string, what operate.RepairWhat, want service.VerifyState) *service.Verification {
		t.Helper()
		_, _, err := b.desk.Repair(t.Context(), b.admin, "job", id, what.In(of))
		b.ok(err)
		v, _ := b.result("job", id, want)
		return v
	}
	another := func(v *service.Verification) {
		t.Helper()
		if r := v.Report; !strings.Contains(r.Error, "names.c") || !strings.Contains(r.Error, "another collection") ||
			!strings.Contains(r.Hint, "verify") {
			t.Errorf("%q, %q", r.Error, r.Hint)
		}
	}
	another(repair("another", "found", operate.RepairWhat{All: true}, service.VerifyFailed))
	b.value(moved, 8, "text", "changed")
	b.value(c, 8, "of", "other")

	// A name that means nothing on the source any more.
	b.rename("names.c", "names.third")
	b.value(c.Database().Collection("third"), 8, "of", "other")
	v := repair("none", "found", operate.RepairWhat{All: true}, service.VerifyFailed)
	if !strings.Contains(v.Report.Error, "no collection") || !strings.Contains(v.Report.Hint, "verify") {
		t.Errorf("%q, %q", v.Report.Error, v.Report.Hint)
	}

	b.ask("job", "again", service.VerifyOptions{})
	if _, f := b.result("job", "again", service.VerifyDifferent); len(f.Differences) != 9 ||
		f.Differences[0].NS != "names.moved" {
		t.Fatalf("%+v", f.Differences)
	}
	if v := repair("right", "again", operate.RepairWhat{All: true}, service.VerifySame); v.Report.Repair.Written != 9 {
		t.Errorf("%+v", v.Report.Repair)
	}
}

// TestRepairOfFailedJob: a job fails amid a repair. The repair fails as well, with the
// job's reason, and another verification can be asked for.
func TestRepairOfFailedJob(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	b := newBed(t)
	b.insert("fails", 0, 100)
	b.create("job", "fails", "")
	b.worker(b.nats.Address(), worker.Options{Name: "w1"})
	b.until("job", "following", following)
	c := b.onTarget("fails")
	_, err := c.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: 1}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "text", Value: "changed"}}}})
	b.ok(err)
	b.ask("job", "found", service.VerifyOptions{})
	b.result("job", "found", service.VerifyDifferent)
	_, err = c.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 500}, {Key: "of", Value: "somebody else"}})
	b.ok(err)
	slow, fast := int64(5), int64(0)
	_, err = b.desk.Limit(t.Context(), b.admin, "job", server.Limits{Docs: &slow})
	b.ok(err)
	b.insert("fails", 100, 300) // the repair waits behind them
	_, _, err = b.desk.Repair(t.Context(), b.admin, "job", "repair", operate.RepairWhat{Of: "found", All: true})
	b.ok(err)
	b.verification("job", "repair", "its beginning",
		func(v *service.Verification) bool { return v.State() == service.VerifyRunning })
	_, err = b.source.Database("fails").Collection("c").
		InsertOne(context.WithoutCancel(t.Context()), bson.D{{Key: "_id", Value: 500}})
	b.ok(err)
	_, err = b.desk.Limit(t.Context(), b.admin, "job", server.Limits{Docs: &fast})
	b.ok(err)
	b.until("job", "its failure", func(j *service.Job) bool { return j.State() == service.Failed })
	v, _ := b.result("job", "repair", service.VerifyFailed)
	if !strings.Contains(v.Report.Error, "the job has failed") || !strings.Contains(v.Report.Error, "500") ||
		v.Report.Hint == "" {
		t.Errorf("%q, %q", v.Report.Error, v.Report.Hint)
	}
}
