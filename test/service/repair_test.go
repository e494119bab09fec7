package service

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/operate"
	"github.com/millrace/millrace/workshop/lab"
)

// TestRepairWorkerDies: the worker of the job is killed amid a repair, while the source
// goes on with the same documents. The next one sees it through.
func TestRepairWorkerDies(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	b := newBed(t, nil)
	source, target := b.sc.Database("svc").Collection("c"), b.dc.Database("svc").Collection("c")
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	docs := make([]any, 300)
	for i := range docs {
		docs[i] = bson.D{{Key: "_id", Value: i}, {Key: "n", Value: 0}}
	}
	must(source.InsertMany(t.Context(), docs))
	b.startWorker("w1")
	b.startWorker("w2")
	must(nil, func() error {
		_, _, err := b.desk.Create(t.Context(), &b.admin,
			service.Definition{Name: "churn",
				Settings: "source: env:SRC\ntarget: env:DST\ninclude: ['svc.*']\non-conflict: skip\n"})
		return err
	}())
	owner := b.phase(false, job.PhaseFollowing)
	for i := range 6 {
		must(target.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: i}},
			bson.D{{Key: "$set", Value: bson.D{{Key: "planted", Value: true}}}}))
		must(target.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: 10 + i}}))
		must(target.InsertOne(t.Context(), bson.D{{Key: "_id", Value: fmt.Sprint("extra", i)}}))
	}
	_, _, err := b.desk.Verify(t.Context(), &b.admin, "churn", "found", service.VerifyOptions{})
	must(nil, err)
	ended := func(id string) func() bool {
		return func() bool { v := b.desk.View.Verification("churn", id); return v != nil && v.State().Final() }
	}
	b.until("what differs", ended("found"))

	writing, stop := context.WithCancel(context.Background())
	var writers sync.WaitGroup
	writers.Go(func() {
		for i := 0; writing.Err() == nil; i++ {
			if _, err := source.UpdateOne(context.WithoutCancel(writing), bson.D{{Key: "_id", Value: i % 20}},
				bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}); err != nil {
				t.Error(err)
				return
			}
			select {
			case <-writing.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	defer writers.Wait()
	defer stop()
	limit := func(docs int64) {
		t.Helper()
		_, err := b.desk.Limit(t.Context(), &b.admin, "churn", server.Limits{Docs: &docs})
		must(nil, err)
	}
	limit(5) // so that what was read waits for the stream
	_, _, err = b.desk.Repair(t.Context(), &b.admin, "churn", "repair", operate.RepairWhat{Of: "found", All: true})
	must(nil, err)
	b.until("documents that are held", func() bool {
		n, err := b.dc.Database("millrace").Collection("deadletters").
			CountDocuments(t.Context(), bson.D{{Key: "state", Value: "held"}})
		must(nil, err)
		return n > 0
	})
	b.workers[owner].Kill()
	limit(0)
	if next := b.phase(true, job.PhaseFollowing); next == owner {
		t.Errorf("worker %s has the job, which was killed", owner)
	}
	b.until("the repair", ended("repair"))
	stop()
	writers.Wait()
	v, found, err := b.desk.Verification(t.Context(), &b.admin, "churn", "repair")
	if err != nil || v.State() != service.VerifySame || v.Report.Attempt < 2 || v.Report.Repair == nil ||
		v.Report.Repair.Refused != 0 || len(found.Repaired) != 18 {
		t.Errorf("%+v %+v %+v, %v", v.Request, v.Report, found, err)
	}
	b.finish()
	for _, coll := range []string{"deadletters", "deadletters.parts"} {
		n, err := b.dc.Database("millrace").Collection(coll).
			CountDocuments(t.Context(), bson.D{{Key: "state", Value: bson.D{{Key: "$ne", Value: "settled"}}}})
		if must(nil, err); n != 0 {
			t.Errorf("%d documents are left in %s", n, coll)
		}
	}
}
