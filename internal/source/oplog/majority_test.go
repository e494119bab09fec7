package oplog

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// failPoint sets a fail point on one member.
func failPoint(t *testing.T, uri string, fp ...bson.E) {
	t.Helper()
	cl, err := driver.Connect(options.Client().ApplyURI(uri))
	ok(t, err)
	defer func() { _ = cl.Disconnect(context.WithoutCancel(t.Context())) }()
	ok(t, cl.Database("admin").RunCommand(t.Context(),
		append(bson.D{{Key: "configureFailPoint", Value: "stopReplProducer"}}, fp...)).Err())
}

// stopReplication stops replication on both secondaries of a set of three, until the
// function that it returns is called. It inserts documents meanwhile.
func stopReplication(t *testing.T, srv *lab.Cluster, c *mongo.Cluster, coll *driver.Collection) (release func()) {
	t.Helper()
	primary, err := srv.Primary(t.Context())
	ok(t, err)
	replicate := func(on bool) {
		for i := range 3 {
			if i != primary {
				failPoint(t, srv.DirectURI(i), bson.E{Key: "mode", Value: map[bool]string{true: "off", false: "alwaysOn"}[on]})
			}
		}
	}
	replicate(false)
	// The producers stop after what they are just fetching.
	for i := 2; ; i++ {
		_, err = coll.InsertOne(t.Context(), doc(i))
		ok(t, err)
		p, err := c.Positions(t.Context())
		ok(t, err)
		time.Sleep(300 * time.Millisecond)
		q, err := c.Positions(t.Context())
		ok(t, err)
		if q.Majority == p.Majority && q.Majority.Before(q.Last) {
			return func() { replicate(true) }
		}
	}
}

// TestLookWaits: what lies up to a position is told whole, though the primary may not
// know yet that it is committed.
func TestLookWaits(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	for _, version := range lab.Versions("4.2", "4.4", "5.0") {
		t.Run(version, func(t *testing.T) {
			o := testServer(version)
			o.Topology = "rs:3"
			srv := lab.ForTest(t, o)
			c := connect(t, srv.URI())
			coll := c.Client.Database("look").Collection("c", options.Collection().SetWriteConcern(writeconcern.W1()))
			_, err := coll.InsertOne(t.Context(), doc(1))
			ok(t, err)
			release := stopReplication(t, srv, c, coll)
			before, err := c.Positions(t.Context())
			ok(t, err)
			_, err = coll.InsertOne(t.Context(), doc(1000))
			ok(t, err)
			p, err := c.Positions(t.Context())
			ok(t, err)
			var got []string
			done := make(chan error, 1)
			go func() {
				look := Look{Cluster: c, Collections: []string{"look.c"}}
				done <- look.Each(t.Context(), Span{before.Last, p.Last}, func(ev *stream.Event) error {
					got = append(got, format(*ev))
					return nil
				})
			}()
			for waiting := false; !waiting && len(done) == 0; {
				waiting = reads(t, c)
			}
			release()
			ok(t, <-done)
			kit.SameLines(t, got, []string{`insert look.c 1000 {"_id":1000}`})
		})
	}
}

// reads reports that a read of the oplog is under way which waits for a position.
func reads(t *testing.T, c *mongo.Cluster) bool {
	t.Helper()
	var r struct{ Inprog []bson.Raw }
	ok(t, c.Client.Database("admin").RunCommand(t.Context(),
		bson.D{{Key: "currentOp", Value: 1}, {Key: "command.find", Value: oplogColl},
			{Key: "command.readConcern.afterClusterTime", Value: bson.D{{Key: "$exists", Value: true}}}}).Decode(&r))
	return len(r.Inprog) > 0
}

// TestMajority stops replication on both secondaries: what the primary takes
// meanwhile with w:1 may roll back and must not be emitted.
func TestMajority(t *testing.T) {
	t.Parallel()
	o := testServer("")
	o.Topology = "rs:3"
	srv := lab.ForTest(t, o)
	c := connect(t, srv.URI())
	coll := c.Client.Database("maj").Collection("c", options.Collection().SetWriteConcern(writeconcern.W1()))
	_, err := coll.InsertOne(t.Context(), doc(1))
	ok(t, err)
	start := position(t, c)
	release := stopReplication(t, srv, c, coll)
	_, err = coll.InsertOne(t.Context(), doc("late"))
	ok(t, err)
	held, err := c.Positions(t.Context())
	ok(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	beats := 0
	var released time.Time
	err = New(c, Options{Keep: only("maj"), Await: 100 * time.Millisecond}).Run(ctx, from(start),
		func(_ context.Context, b *stream.Batch) error {
			if released.IsZero() && held.Majority.Before(b.End) {
				p, err := c.Positions(ctx)
				if err != nil {
					return err
				}
				if p.Majority.Before(b.End) {
					t.Errorf("end %s beyond the majority's %s", b.End, p.Majority)
				}
			}
			for _, ev := range b.Events {
				if released.IsZero() && ev.Key.ID.String() == `"late"` {
					t.Error("a write was emitted that may roll back")
				}
				if ev.Key.ID.String() == `"late"` {
					t.Log("emitted", time.Since(released), "after replication was let go")
					return errReached
				}
			}
			if beats++; beats == 10 {
				released = time.Now()
				release()
			}
			return nil
		})
	if !errors.Is(err, errReached) {
		t.Fatal(err)
	}
	if !t.Failed() { // else replication still stands still
		testElection(t, srv, c)
	}
}

// TestFilterMajority: while no majority is available, the position does not move over writes that the server leaves
// out, for they may be rolled back.
func TestFilterMajority(t *testing.T) {
	t.Parallel()
	o := testServer("")
	o.Topology = "rs:3"
	srv := lab.ForTest(t, o)
	c := connect(t, srv.URI())
	coll := c.Client.Database("out").Collection("c", options.Collection().SetWriteConcern(writeconcern.W1()))
	start := position(t, c)
	_, err := coll.InsertOne(t.Context(), doc(1))
	ok(t, err)
	release := stopReplication(t, srv, c, coll)
	_, err = coll.InsertOne(t.Context(), doc("late"))
	ok(t, err)
	held, err := c.Positions(t.Context())
	ok(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	filtered := New(c, Options{Keep: only("maj"), Prefixes: []string{"maj."}, Await: 10 * time.Millisecond})
	filtered.sample = 1
	beats := 0
	err = filtered.Run(ctx, from(start), func(_ context.Context, b *stream.Batch) error {
		switch {
		case !b.End.Before(held.Last):
			return errReached
		case held.Majority.Before(b.End) && beats < 20:
			t.Errorf("end %s beyond the majority's %s", b.End, held.Majority)
		case b.End == held.Majority:
			if beats++; beats == 20 {
				release()
			}
		}
		return nil
	})
	if !errors.Is(err, errReached) || beats < 20 {
		t.Fatal(beats, err)
	}
}

// testElection goes on over a change of primary from the last batch's position,
// as a job does.
func testElection(t *testing.T, srv *lab.Cluster, c *mongo.Cluster) {
	coll := c.Client.Database("maj").Collection("c")
	pos := from(position(t, c))
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	var got []*stream.Batch
	const last = 20
	done := make(chan error, 1)
	go func() {
		for i := range last + 1 {
			if i == last/2 {
				if err := srv.StepDown(ctx); err != nil {
					done <- err
					return
				}
			}
			if _, err := coll.InsertOne(ctx, doc(1000+i)); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for {
		err := New(c, Options{Keep: only("maj")}).Run(ctx, pos, func(_ context.Context, b *stream.Batch) error {
			got = append(got, b)
			pos = b.Resume()
			if n := len(b.Events); n > 0 && b.Events[n-1].Key.ID.String() == `{"$numberInt":"1020"}` {
				return errReached
			}
			return nil
		})
		if errors.Is(err, errReached) {
			break
		}
		t.Log("run ended:", err)
		if mongo.Classify(err) != mongo.ClassRetry {
			t.Fatal(err)
		}
	}
	ok(t, <-done)
	var ids []int
	for i := range last + 1 {
		ids = append(ids, 1000+i)
	}
	kit.SameLines(t, heads(events(got)), inserted("maj", ids...))
}
