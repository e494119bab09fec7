package copy

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/test/dial"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// held is a source of three members whose secondaries can be kept from
// replicating, so that what the primary takes rolls back when it is killed.
type held struct {
	lab     *lab.Cluster
	c       *mongo.Cluster
	primary int
}

// w1 is the write concern of what may roll back.
var w1 = bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: 1}}}

func newHeld(t *testing.T, version string) *held {
	t.Helper()
	l := lab.ForTest(t, lab.Options{Version: version, Topology: "rs:3",
		SetParameters: map[string]string{"enableTestCommands": "1"}})
	c := dial.Cluster(t, l.URI(), mongo.Options{})
	primary, err := l.Primary(t.Context())
	h := &held{lab: l, c: c, primary: primary}
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// replicate lets the secondaries replicate, or holds them.
func (h *held) replicate(t *testing.T, on bool) {
	t.Helper()
	mode := map[bool]string{true: "off", false: "alwaysOn"}[on]
	for i := range h.lab.Members() {
		if i == h.primary {
			continue
		}
		cl, err := driver.Connect(options.Client().ApplyURI(h.lab.DirectURI(i)))
		if err != nil {
			t.Fatal(err)
		}
		err = cl.Database("admin").RunCommand(t.Context(), bson.D{{Key: "configureFailPoint", Value: "stopReplProducer"},
			{Key: "mode", Value: mode}}).Err()
		_ = cl.Disconnect(context.WithoutCancel(t.Context()))
		if err != nil {
			t.Fatal(err)
		}
	}
}

// hold holds replication; the producers stop after what they are fetching.
func (h *held) hold(t *testing.T) {
	t.Helper()
	h.replicate(t, false)
	kit.Until(t, "replication to stand still", func() bool {
		must(t, h.c, "admin", bson.D{{Key: "appendOplogNote", Value: 1},
			{Key: "data", Value: bson.D{{Key: "held", Value: 1}}}, w1})
		p, err := h.c.Positions(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(300 * time.Millisecond)
		q, err := h.c.Positions(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return q.Majority == p.Majority && q.Majority.Before(q.Last)
	})
}

// failover kills the primary, with what nobody else has, and lets the others
// elect another.
func (h *held) failover(t *testing.T) {
	t.Helper()
	if err := h.lab.Members()[h.primary].Kill(); err != nil {
		t.Fatal(err)
	}
	h.replicate(t, true)
	if _, err := h.lab.Primary(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestDropRolledBack: the copy meets a drop that no other member has, and the
// primary is lost.
func TestDropRolledBack(t *testing.T) {
	lab.Nightly(t)
	dst := server(t, "6.0")
	for _, version := range []string{"6.0", "4.2"} {
		t.Run(version, func(t *testing.T) {
			src := newHeld(t, version)
			insert(t, src.c, "rolled", "c", mixedDocs(3000))
			task := taskOf(source(t, src.c, "rolled", "c"), "rolled"+version[:1]+"_t.c")
			want := dump(t, src.c, "rolled", "c")
			if _, err := src.c.Committed(t.Context()); err != nil {
				t.Fatal(err)
			}
			o := small(t, src.c)
			store := newStore()
			o.Limit = pace.New(pace.Rates{Docs: 500})
			e := New(src.c, dst, store, o)
			done := make(chan error, 1)
			go func() { done <- e.Run(t.Context(), []Task{task}) }()
			kit.Until(t, "first documents", func() bool { return e.Stats().Docs > 0 })
			src.hold(t)
			must(t, src.c, "rolled", bson.D{{Key: "drop", Value: "c"}, w1})
			o.Limit.Set(pace.Rates{})
			select {
			case err := <-done:
				t.Errorf("the copy ended with %v before the drop was majority-committed: %+v", err, e.Stats())
				done <- err
			case <-time.After(2 * time.Second):
			}
			src.failover(t)
			err := <-done
			for ; mongoRetry(err); err = New(src.c, dst, store, small(t, src.c)).Run(t.Context(), []Task{task}) {
				t.Log("again after:", err)
				time.Sleep(100 * time.Millisecond)
			}
			if err != nil {
				t.Fatal(err)
			}
			same(t, want, dump(t, dst, "rolled"+version[:1]+"_t", "c"))
		})
	}
}

func mongoRetry(err error) bool { return err != nil && mongo.Classify(err) == mongo.ClassRetry }
