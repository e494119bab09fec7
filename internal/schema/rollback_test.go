package schema

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/test/dial"
	"github.com/millrace/millrace/workshop/lab"
)

// member runs a command on one member.
func member(t *testing.T, l *lab.Cluster, i int, cmd bson.D) {
	t.Helper()
	c, err := driver.Connect(options.Client().ApplyURI(l.DirectURI(i)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Disconnect(context.WithoutCancel(t.Context())) }()
	if err := c.Database("admin").RunCommand(t.Context(), cmd).Err(); err != nil {
		t.Fatal(err)
	}
}

// TestListingRolledBack: a drop and a create that only the primary has are no
// facts. When the primary is lost, neither has been told.
func TestListingRolledBack(t *testing.T) {
	l := lab.ForTest(t, lab.Options{Topology: "rs:3", SetParameters: map[string]string{"enableTestCommands": "1"}})
	c := dial.Cluster(t, l.URI(), mongo.Options{})
	primary, err := l.Primary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	replicate := func(mode string) {
		for i := range 3 {
			if i != primary {
				member(t, l, i, bson.D{{Key: "configureFailPoint", Value: "stopReplProducer"}, {Key: "mode", Value: mode}})
			}
		}
	}
	do(t, c, "d", `{"create":"stays","writeConcern":{"w":3}}`)
	before, err := List(t.Context(), c, scopeOf(nil, "d"))
	if err != nil || len(before) != 1 {
		t.Fatal(before, err)
	}
	uuid := before[0].UUID
	replicate("alwaysOn")
	for { // the producers stop after what they are just fetching
		do(t, c, "d", `admin {"appendOplogNote":1,"data":{"x":1},"writeConcern":{"w":1}}`)
		p, err := c.Positions(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(300 * time.Millisecond)
		if q, err := c.Positions(t.Context()); err == nil && q.Majority == p.Majority && q.Majority.Before(q.Last) {
			break
		}
	}
	do(t, c, "d", `{"drop":"stays","writeConcern":{"w":1}}`)
	do(t, c, "d", `{"create":"never","writeConcern":{"w":1}}`)

	reported := make(chan string, 3)
	go func() {
		_, found, err := ListOne(t.Context(), c, "d", uuid)
		if err == nil && !found {
			reported <- "ListOne: it is gone"
		} else if err != nil && mongo.Classify(err) != mongo.ClassRetry {
			reported <- "ListOne: " + err.Error()
		} else {
			reported <- ""
		}
	}()
	go func() {
		gone, err := c.Vanished(t.Context(), "d", uuid)
		if gone || err != nil && mongo.Classify(err) != mongo.ClassRetry {
			reported <- "it has vanished"
		} else {
			reported <- ""
		}
	}()
	go func() {
		snap, err := TakeSnapshot(t.Context(), c, scopeOf(nil, "d"), oplog.Changes(c))
		for err != nil && mongo.Classify(err) == mongo.ClassRetry {
			time.Sleep(100 * time.Millisecond)
			snap, err = TakeSnapshot(t.Context(), c, scopeOf(nil, "d"), oplog.Changes(c))
		}
		switch {
		case err != nil:
			reported <- "Pin: " + err.Error()
		case len(snap.Collections) != 1 || snap.Collections[0].NS != "d.stays":
			reported <- "Pin: the catalog is another"
		default:
			reported <- ""
		}
	}()
	select {
	case s := <-reported:
		t.Errorf("reported before it was majority-committed: %s", s)
		reported <- s
	case <-time.After(time.Second):
	}
	if err := l.Members()[primary].Kill(); err != nil {
		t.Fatal(err)
	}
	replicate("off")
	if _, err := l.Primary(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if s := <-reported; s != "" {
			t.Error(s)
		}
	}
	if _, found, err := ListOne(t.Context(), c, "d", uuid); !found || err != nil {
		t.Errorf("after the election: found %v, %v", found, err)
	}
}

// TestTimeWithoutEntry: a write that fails takes a time that no entry ever has.
// It is not waited for.
func TestTimeWithoutEntry(t *testing.T) {
	t.Parallel()
	db := newDB()
	do(t, src, db, `{"insert":"c","documents":[{"_id":1}]}`)
	// The server's next entry comes after 10 to 20 s. A busy machine may delay one.
	took := time.Hour
	for range 4 {
		if _, err := src.Command(t.Context(), db,
			js(t, `{"insert":"c","documents":[{"_id":1}]}`)); !driver.IsDuplicateKeyError(err) {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := TakeSnapshot(t.Context(), src, scopeOf(nil, db), oplog.Changes(src)); err != nil {
			t.Fatal(err)
		}
		if took = min(took, time.Since(began)); took < 8*time.Second {
			return
		}
	}
	t.Errorf("it took %s", took)
}
