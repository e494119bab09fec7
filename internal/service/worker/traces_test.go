package worker_test

import (
	"bytes"
	"log/slog"
	"maps"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/spans"
	"github.com/millrace/millrace/internal/service/worker"
	"github.com/millrace/millrace/test/spanstest"
	"github.com/millrace/millrace/workshop/lab"
)

// TestTraces: what a worker does with a job is spans that nest as it was done, without
// secrets and without values of documents.
func TestTraces(t *testing.T) {
	lab.Nightly(t)
	b := newBed(t)
	c := spanstest.New(t)
	made, err := spans.Open(t.Context(), spans.Options{Endpoint: c.URL,
		LookupEnv: func(string) (string, bool) { return "", false }, Instance: "w1", Log: slog.New(slog.DiscardHandler)})
	b.ok(err)
	t.Cleanup(made.Close)
	ctx, db := t.Context(), b.source.Database("shop")
	_, err = db.Collection("orders").InsertOne(ctx, bson.D{{Key: "_id", Value: "wertvoll"}})
	b.ok(err)
	_, err = db.Collection("kept").InsertOne(ctx, bson.D{{Key: "_id", Value: 1}}) // for the verification
	b.ok(err)
	_, stop := b.worker(b.nats.Address(), worker.Options{Name: "w1", Spans: made})
	b.create("shop", "shop", "")
	b.until("shop", "following", following)
	b.ok(db.Collection("orders").Drop(ctx))
	b.until("shop", "the drop", func(j *service.Job) bool {
		return following(j) &&
			j.Report.Status.Follow.SchemaChanges > 0
	})
	_, _, err = b.desk.Verify(ctx, b.admin, "shop", "v1", service.VerifyOptions{})
	b.ok(err)
	c.Until(t, "the span of the verification", func(s *spanstest.Span) bool {
		return s.Name == "verify job" && s.Attributes["millrace.verification"] == "v1" &&
			s.Attributes["millrace.differences"] == "0" && !s.Failed
	})
	_, err = b.desk.Finalize(ctx, b.admin, "shop", true)
	b.ok(err)
	b.until("shop", "the end", func(j *service.Job) bool { return j.State() == service.Finished })
	_, made2, err := b.desk.Create(ctx, b.admin,
		service.Definition{Name: "broken", Settings: "source: env:BROKEN\ntarget: env:TARGET\n"})
	b.ok(err)
	if !made2 {
		t.Fatal("not made")
	}
	b.until("broken", "its failure", func(j *service.Job) bool { return j.State() == service.Failed })
	stop()
	made.Close()
	all, raw := c.Spans()
	one := func(name, under string) spanstest.Span {
		t.Helper()
		for _, s := range all {
			if s.Name == name && (under == "" || s.Parent == under) {
				return s
			}
		}
		t.Fatalf("no %s under %q in %+v", name, under, all)
		return spanstest.Span{}
	}
	var take spanstest.Span // the job may have been taken more than once
	for _, s := range all {
		if s.Name == "take job" && s.ID == one("schema change drop", "").Parent {
			take = s
		}
	}
	if take.Attributes["millrace.job"] != "shop" || take.Attributes["millrace.worker"] != "w1" || take.Failed {
		t.Errorf("%+v", take)
	}
	one("phase copying", take.ID)
	creating := one("phase creating", take.ID) // reading begins with it
	copied := map[string]string{}
	for _, s := range all {
		if s.Name == "copy collection" && s.Parent == creating.ID && !s.Begin.Before(creating.Begin) {
			copied[s.Attributes["db.namespace"]] = s.Attributes["millrace.documents"]
		}
	}
	if want := map[string]string{"shop.orders": "1", "shop.kept": "1"}; !maps.Equal(copied, want) {
		t.Errorf("copied %v, want %v", copied, want)
	}
	one("schema change drop", take.ID)
	one("finalize end the job", one("phase finalizing", take.ID).ID)
	failed := 0
	for _, s := range all {
		if s.Attributes["millrace.job"] == "broken" && s.Failed {
			failed++
		}
	}
	if failed == 0 {
		t.Errorf("the take that failed is none that failed: %+v", all)
	}
	for _, secret := range []string{"wertvoll", "geheimnis", strings.TrimPrefix(b.src.URI(), "mongodb://"), "sesame"} {
		if bytes.Contains(raw, []byte(secret)) {
			t.Errorf("%s is reported", secret)
		}
	}
}

// TestFinalizeToldOnce: a request to finalize that waits is in the job's log once, whichever
// workers take the job meanwhile.
func TestFinalizeToldOnce(t *testing.T) {
	b := newBed(t)
	ctx := t.Context()
	docs := make([]any, 2000)
	for i := range docs {
		docs[i] = bson.D{{Key: "_id", Value: i}}
	}
	_, err := b.source.Database("shop").Collection("orders").InsertMany(ctx, docs)
	b.ok(err)
	b.create("shop", "shop", "max-rate-docs: 1\n")
	_, stop := b.worker(b.nats.Address(), worker.Options{Name: "w1"})
	_, err = b.desk.Finalize(ctx, b.admin, "shop", true)
	b.ok(err)
	wanted := func(worker string) func(*service.Job) bool {
		return func(j *service.Job) bool {
			return j.Report != nil && j.Report.Worker == worker && j.Report.Status != nil && j.Report.Status.FinalizeWanted
		}
	}
	b.until("shop", "the request, first", wanted("w1"))
	stop()
	_, stop = b.worker(b.nats.Address(), worker.Options{Name: "w2"})
	b.until("shop", "the request, again", wanted("w2"))
	stop() // what it logs is stored then
	list, err := b.desk.Log(ctx, b.admin, "shop", service.KindLog, service.Page{Before: 0, Limit: 1000})
	b.ok(err)
	reported := 0
	for _, e := range list {
		if strings.HasPrefix(e.Text, "finalize requested") {
			reported++
		}
	}
	if reported != 1 {
		t.Errorf("reported %d times: %+v", reported, list)
	}
}
