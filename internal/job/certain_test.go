package job_test

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// heldBack is a source of three members whose secondaries take nothing.
type heldBack struct {
	*following
	primary int
	uuid    bson.Binary
}

func holdBack(t *testing.T) *heldBack {
	t.Helper()
	o := lab.Options{Topology: "rs:3", SetParameters: map[string]string{"enableTestCommands": "1"}}
	s := servers{src: lab.ForTest(t, o), dst: lab.ForTest(t, lab.Options{})}
	s.srcDB, s.targetC = kit.Client(t, s.src.URI()), kit.Client(t, s.dst.URI())
	spec := s.spec("certain")
	h := &heldBack{following: &following{&conflicted{t: t, s: s, db: "certain", spec: spec}}}
	h.put(s.srcDB, "certain", "c", 1)
	specs, err := s.srcDB.Database("certain").ListCollectionSpecifications(t.Context(), bson.D{})
	h.must(nil, err)
	h.uuid = *specs[0].UUID
	h.primary, err = s.src.Primary(t.Context())
	h.must(nil, err)
	h.j = open(t, spec)
	h.replicate(false)
	for i := 0; ; i++ { // they stop after what they are just fetching
		h.write("other", i)
		p, err := job.Source(h.j).Committed(t.Context(), mongo.OpTime{})
		h.must(nil, err)
		time.Sleep(300 * time.Millisecond)
		q, err := job.Source(h.j).Committed(t.Context(), mongo.OpTime{})
		h.must(nil, err)
		if q.Majority == p.Majority && q.Majority.Before(q.Last) {
			return h
		}
	}
}

func (h *heldBack) write(coll string, id any) {
	h.do(h.s.srcDB, "certain", bson.D{{Key: "insert", Value: coll}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id",
		Value: id}}}}, {Key: "writeConcern", Value: bson.D{{Key: "w", Value: 1}}}})
}

func (h *heldBack) replicate(on bool) {
	h.t.Helper()
	for i := range 3 {
		if i == h.primary {
			continue
		}
		c := kit.Client(h.t, h.s.src.DirectURI(i))
		h.do(c, "admin", bson.D{{Key: "configureFailPoint", Value: "stopReplProducer"},
			{Key: "mode", Value: map[bool]string{true: "off", false: "alwaysOn"}[on]}})
	}
}

// asked runs a question to the source, and waits until it waits for a majority.
func (h *heldBack) asked(question func(context.Context) (bool, error)) <-chan bool {
	h.t.Helper()
	out := make(chan bool, 1)
	go func() {
		for {
			there, err := question(h.t.Context())
			if err != nil && mongo.Classify(err) == mongo.ClassRetry {
				continue
			}
			if err != nil {
				h.t.Error(err)
			}
			out <- there
			return
		}
	}()
	kit.Until(h.t, "the job waits for the source", func() bool { return h.j.Status().Waiting != "" || len(out) > 0 })
	if len(out) > 0 {
		h.t.Fatalf("an answer that may roll back: %v", <-out)
	}
	return out
}

func (h *heldBack) reread(ctx context.Context) (bool, error) {
	r, err := job.Source(h.j).Reread(ctx, stream.Origin{NS: "certain.c", Source: "certain.c", UUID: h.uuid},
		bsoncore.Value{Type: bsoncore.TypeInt32, Data: []byte{1, 0, 0, 0}}, mongo.OpTime{})
	return !r.Gone, err
}

// TestGoneIsCertain: a collection that the source's primary no longer has is
// gone only when its drop can no longer roll back.
func TestGoneIsCertain(t *testing.T) {
	t.Parallel()
	h := holdBack(t)
	drop := bson.D{{Key: "drop", Value: "c"}, {Key: "writeConcern", Value: bson.D{{Key: "w", Value: 1}}}}
	h.do(h.s.srcDB, "certain", drop)
	answer := h.asked(h.reread)
	h.must(nil, h.s.src.Members()[h.primary].Kill())
	h.replicate(true)
	if there := <-answer; !there {
		t.Error("a drop that was rolled back was believed")
	}
	h.do(h.s.srcDB, "certain", bson.D{{Key: "drop", Value: "c"}})
	if there, err := h.reread(t.Context()); there || err != nil {
		t.Errorf("dropped: %v, %v", there, err)
	}
}

// TestRenameIsWaitedFor: what a rename brings inside the filter is looked for
// on a primary that has committed the rename.
func TestRenameIsWaitedFor(t *testing.T) {
	t.Parallel()
	h := holdBack(t)
	h.write("other", "late")
	at := lastOp(t, kit.Client(t, h.s.src.DirectURI(h.primary)))
	ch := &stream.Change{Kind: stream.ChangeRename, NS: "certain.out", To: "certain.c", UUID: h.uuid}
	answer := h.asked(func(ctx context.Context) (bool, error) {
		_, found, err := job.Source(h.j).FindRenamed(ctx, ch, at)
		return found, err
	})
	h.replicate(true)
	if !<-answer {
		t.Error("not found")
	}
	if pos, err := job.Source(h.j).Committed(t.Context(), at); err != nil || pos.Majority.Before(at) {
		t.Errorf("copied from %v, %v, before the rename at %v", pos.Majority, err, at)
	}
}
