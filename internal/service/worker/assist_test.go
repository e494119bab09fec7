package worker_test

import (
	"bytes"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/assign"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/worker"
	"github.com/millrace/millrace/test/assigntest"
)

// fillLarge makes a collection that is copied in several slices.
func (b *bed) fillLarge(db string) {
	b.Helper()
	pad := bytes.Repeat([]byte("x"), 20_000)
	for from := range 80 {
		docs := make([]any, 50)
		for i := range docs {
			docs[i] = bson.D{{Key: "_id", Value: from*50 + i}, {Key: "pad", Value: pad}}
		}
		_, err := b.source.Database(db).Collection("c").InsertMany(b.Context(), docs)
		b.ok(err)
	}
}

// copier is what a report says of a worker that copies a part.
func copier(j *service.Job, name string) (s assign.Figures) {
	if j.Report == nil || j.Report.Status == nil {
		return s
	}
	return assigntest.Of(name, j.Report.Status.Copy.Workers)
}

// TestBorrow: workers that fit, and have nothing to copy themselves, copy parts of another
// one's job. They stop when they are drained.
func TestBorrow(t *testing.T) {
	b := newBed(t)
	b.fillLarge("borrow")
	east := map[string]string{"dc": "east"}
	b.worker(b.nats.Address(), worker.Options{Name: "w1", Labels: east})
	// So slow that it is not over before others are there, however busy the machine is.
	_, _, err := b.desk.Create(t.Context(), b.admin, service.Definition{Name: "large", Labels: east,
		Settings: "source: env:SOURCE\ntarget: env:TARGET\ninclude: [borrow.*]\nallow-missing: true\nmax-rate-bytes: 50KB\n"})
	b.ok(err)
	b.until("large", "slices for others", func(j *service.Job) bool {
		return j.Report != nil && j.Report.Status != nil && j.Report.Status.Copy.Lendable > 0
	})
	b.worker(b.nats.Address(), worker.Options{Name: "w2", Labels: east})
	b.worker(b.nats.Address(), worker.Options{Name: "west"})
	// On a machine so busy that the lease is lost, this one may take the job, and copy it alone.
	b.worker(b.nats.Address(), worker.Options{Name: "other", Version: "other", Labels: east})
	b.until("large", "slices that w2 has", func(j *service.Job) bool { return copier(j, "w2").Parts > 0 })
	rate := int64(2 << 20)
	_, err = b.desk.Limit(t.Context(), b.admin, "large", server.Limits{Bytes: &rate})
	b.ok(err)
	b.until("large", "a part by w2", func(j *service.Job) bool { return copier(j, "w2").Docs > 0 })
	b.until("large", "why another version does not copy",
		func(j *service.Job) bool { return strings.Contains(copier(j, "other").Why, "version") })

	_, err = b.desk.Drain(t.Context(), b.admin, "w2", true)
	b.ok(err)
	j := b.until("large", "what w2 had", func(j *service.Job) bool {
		return copier(j, "w2").Why != "" &&
			copier(j, "w2").Parts == 0
	})
	for _, name := range []string{"west", "other"} {
		if copier(j, name).Docs > 0 {
			t.Errorf("%s copies: %+v", name, copier(j, name))
		}
	}
	if !strings.Contains(copier(j, "w2").Why, "drained") {
		t.Errorf("w2 ended because %q", copier(j, "w2").Why)
	}
	_, err = b.desk.Limit(t.Context(), b.admin, "large", server.Limits{Bytes: new(int64)})
	b.ok(err)
	_, err = b.desk.Finalize(t.Context(), b.admin, "large", true)
	b.ok(err)
	b.until("large", "its end", func(j *service.Job) bool { return j.State() == service.Finished })
	b.same("borrow")
}
