package changestream

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/dial"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// TestFailures: a killed cursor, a closed connection and an election end a run with an error that passes by itself.
func TestFailures(t *testing.T) {
	w := start(t, "6.0")
	for name, fail := range map[string]bson.E{
		"connection closed": {Key: "closeConnection", Value: true},
		"cursor killed":     {Key: "errorCode", Value: 43},
		"not primary":       {Key: "errorCode", Value: 10107},
	} {
		t.Run(name, func(t *testing.T) {
			err := w.failing(fail)
			if mongo.Classify(err) != mongo.ClassRetry || Lost(err) {
				t.Fatalf("got %v, class %s", err, mongo.Classify(err))
			}
		})
	}
	t.Run("cancel", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		err := New(w.c, w.options("x")).Run(ctx, from(w.position()), func(context.Context, *stream.Batch) error {
			cancel()
			return nil
		})
		if !errors.Is(err, context.Canceled) || mongo.Classify(err) != mongo.ClassCanceled {
			t.Fatal(err)
		}
	})
}

// failing runs a source until a getMore fails.
func (w world) failing(fail bson.E) error {
	beats := 0
	return New(w.c, w.options("x")).Run(w.Context(), from(w.position()), func(context.Context, *stream.Batch) error {
		if beats++; beats == 3 {
			w.run("admin", d("configureFailPoint", "failCommand", "mode", d("times", 1),
				"data", append(d("failCommands", bson.A{"getMore"}, "appName", w.Name()), fail)))
		}
		return nil
	})
}

// TestLost: a history that is gone, and one of another cluster, end a job for good, with a remedy.
func TestLost(t *testing.T) {
	w := start(t, "6.0")
	w.run("lost", d("insert", "c", "documents", bson.A{d("_id", 0)}))
	now := w.position()
	ended := func(t *testing.T, err error) {
		t.Helper()
		if !Lost(err) || mongo.Classify(err) != mongo.ClassFatal || !strings.Contains(mongo.HintOf(err), "--restart") {
			t.Errorf("lost %v, class %s: %v (hint: %s)", Lost(err), mongo.Classify(err), err, mongo.HintOf(err))
		}
	}
	for _, code := range []int32{286, 280, 40576, 136} {
		ended(t, w.failing(bson.E{Key: "errorCode", Value: code}))
	}
	later := now
	later.TS.T += 3600
	until := later
	until.TS.I++
	s := New(w.c, w.options("lost"))
	s.ahead = 0
	_, err := w.readOr(s, from(later), until)
	ended(t, err)
	_, err = w.readOr(New(w.c, w.options("lost")), stream.Position{At: now, Mark: "1:2/3"}, now)
	if err == nil || !strings.Contains(mongo.HintOf(err), "--restart") {
		t.Errorf("a position of an oplog: %v", err)
	}
}

// TestForeignToken: the token of an event that the source does not have is a lost history.
func TestForeignToken(t *testing.T) {
	for _, version := range lab.Versions("4.4", "5.0") {
		t.Run(version, func(t *testing.T) {
			w := start(t, version)
			before := w.position()
			w.run("foreign", d("insert", "c", "documents", bson.A{d("_id", 0)}))
			w.run("foreign", d("insert", "c", "documents", bson.A{d("_id", 1)}))
			o := w.options("foreign")
			o.BatchBytes = 1
			end := w.position()
			bs := w.read(New(w.c, o), from(before), end)
			pos := bs[len(bs)-1].Resume()
			w.run("foreign", d("insert", "c", "documents", bson.A{d("_id", 2)}))
			end = w.position()
			w.read(New(w.c, o), pos, end)
			// The key ends with the _id and a terminator.
			pos.Mark = strings.Replace(pos.Mark, "2B0200", "2B0600", 1)
			_, err := w.readOr(New(w.c, o), pos, end)
			if !Lost(err) || mongo.Classify(err) != mongo.ClassFatal {
				t.Errorf("%s: %v", pos.Mark, err)
			}
		})
	}
}

// TestOverwritten: an oplog that has overwritten a position says so, to its token and to its time.
func TestOverwritten(t *testing.T) {
	lab.Nightly(t)
	l := lab.ForTest(t, lab.Options{OplogMB: 8, Args: []string{"--syncdelay", "1"}})
	w := world{TB: t, c: dial.Cluster(t, l.URI(), mongo.Options{})}
	var err error
	w.s, err = Probe(t.Context(), w.c)
	w.ok(err)
	w.run("old", d("insert", "c", "documents", bson.A{d("_id", "first")}))
	first := w.position()
	w.run("old", d("insert", "c", "documents", bson.A{d("_id", "next")}))
	bs := w.read(New(w.c, w.options("old")), from(first.Previous()), w.position())
	pos := bs[len(bs)-1].Resume()
	overwritten := func() bool {
		w.run("old", d("insert", "c", "documents", bson.A{d("pad", strings.Repeat("x", 1<<20))}))
		oldest, _, err := w.c.OldestEntry(t.Context())
		w.ok(err)
		return pos.At.Before(oldest)
	}
	kit.Until(t, "the oplog is overwritten", overwritten)
	for _, pos := range []stream.Position{pos, from(pos.At), from(first)} {
		_, err := w.readOr(New(w.c, w.options("old")), pos, w.position())
		if !Lost(err) || mongo.Classify(err) != mongo.ClassFatal || !strings.Contains(mongo.HintOf(err), "oplog") {
			t.Errorf("%+v: %v (hint: %s)", pos, err, mongo.HintOf(err))
		}
	}
}

// TestTooLarge: an event that the server cannot send is an error that names its collection.
func TestTooLarge(t *testing.T) {
	w := start(t, "6.0")
	before := w.position()
	_, err := w.c.Client.Database("large").Collection("c").InsertOne(t.Context(), d("_id", strings.Repeat("i", 3<<20),
		"pad", strings.Repeat("x", 9<<20)))
	w.ok(err)
	_, err = w.readOr(New(w.c, w.options("large")), from(before), w.position())
	if !errors.Is(err, ErrTooLarge) || mongo.Classify(err) != mongo.ClassFatal ||
		!strings.Contains(err.Error(), "large.c") || len(err.Error()) > 1000 || mongo.HintOf(err) == "" {
		t.Errorf("%.2000s (hint: %s)", err, mongo.HintOf(err))
	}
}

// TestSlow: a wait is named while the server looks for a change, and does not end.
func TestSlow(t *testing.T) {
	w := start(t, "6.0")
	const point = "waitAfterPinningCursorBeforeGetMoreBatch"
	w.run("admin", d("configureFailPoint", point, "mode", "alwaysOn"))
	var waits []string
	o := w.options("slow")
	o.Waiting = func(what string) {
		if waits = append(waits, what); len(waits) == 2*checkAfter+1 {
			w.run("admin", d("configureFailPoint", point, "mode", "off"))
		}
	}
	s := New(w.c, o)
	s.slow = 100 * time.Millisecond
	before := w.position()
	w.run("slow", d("insert", "c", "documents", bson.A{d("_id", 0)}))
	if got := of(w.read(s, from(before), w.position()), "slow"); len(got) != 2 {
		t.Errorf("%d events", len(got))
	}
	// It was asked twice whether it works.
	if len(waits) < 2*checkAfter || !strings.Contains(waits[0], "search its oplog from "+before.String()) ||
		waits[len(waits)-1] != "" {
		t.Errorf("waits %q", waits)
	}
}

// TestCut: a reply that the server does not work at ends the run, to be tried again.
func TestCut(t *testing.T) {
	w := start(t, "6.0")
	r := &reader{s: New(w.c, w.options("cut")), from: from(w.position()), name: "nothing of that name"}
	r.s.slow = time.Millisecond
	var err error
	r.conn, err = w.c.Checkout(t.Context(), w.c.Reader())
	w.ok(err)
	defer r.conn.Release()
	err = r.patiently(t.Context(), func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, errCut) || mongo.Classify(err) != mongo.ClassRetry {
		t.Errorf("%v, class %s", err, mongo.Classify(err))
	}
}

// TestPark: a consumer that stands still does not keep a cursor open, and loses nothing.
func TestPark(t *testing.T) {
	w := start(t, "6.0")
	before := w.position()
	docs := bson.A{}
	for i := range 3000 {
		docs = append(docs, d("_id", i, "pad", strings.Repeat("x", 1000)))
	}
	w.run("park", d("insert", "c", "documents", docs))
	end := w.position()
	o := w.options("park")
	o.ReadAheadBytes, o.BatchBytes = 300_000, 1
	s := New(w.c, o)
	s.park = time.Millisecond
	others := w.streams(-1)
	events, parked := 0, 0
	err := s.Run(t.Context(), from(before), func(_ context.Context, b *stream.Batch) error {
		if events += len(b.Events); events%500 < len(b.Events) && events < 2500 {
			parked++
			w.streams(others)
		}
		if !b.End.Before(end) {
			return errReached
		}
		return nil
	})
	if !errors.Is(err, errReached) || events != 3001 || parked < 4 {
		t.Errorf("%d events, %d pauses: %v", events, parked, err)
	}
}

// streams waits until a server has so many change streams, and returns how many; -1 waits for nothing.
func (w world) streams(want int) int {
	w.Helper()
	var found []bson.Raw
	kit.Until(w, "the change stream is closed", func() bool {
		cur, err := w.c.Client.Database("admin").Aggregate(w.Context(), bson.A{
			d("$currentOp", d("idleCursors", true, "allUsers", true)),
			d("$match", d("cursor.originatingCommand.pipeline.0.$changeStream", d("$exists", true)))})
		w.ok(err)
		w.ok(cur.All(w.Context(), &found))
		return want < 0 || len(found) <= want
	})
	return len(found)
}
