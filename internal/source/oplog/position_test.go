package oplog

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

func TestStartPositions(t *testing.T) {
	c := connect(t, sharedURI)
	const db = "start"
	insert := func(id int) mongo.OpTime {
		t.Helper()
		_, err := c.Client.Database(db).Collection("c").InsertOne(t.Context(), doc(id))
		ok(t, err)
		return position(t, c)
	}
	before := insert(1)
	middle := insert(2)
	for time.Now().Unix() <= int64(middle.TS.T) { // then the seconds' entries leave a gap
		time.Sleep(10 * time.Millisecond)
	}
	end := insert(3)
	window, err := ReadWindow(t.Context(), c)
	ok(t, err)
	oldest := window.Oldest
	shift := func(p mongo.OpTime, sec, inc int, term int64) mongo.OpTime {
		p.TS.T, p.TS.I, p.Term = uint32(int(p.TS.T)+sec), uint32(int(p.TS.I)+inc), term
		return p
	}
	gap := gapIn(t, c)
	atSecond := func(sec int) mongo.OpTime {
		return mongo.OpTime{TS: bson.Timestamp{T: uint32(int(oldest.TS.T) + sec)}, Term: -1}
	}
	for _, tc := range []struct {
		name string
		pos  stream.Position
		want error
	}{
		{"exact", from(before), nil},
		{"term unknown", from(shift(before, 0, 0, -1)), nil},
		{"other term", from(shift(before, 0, 0, before.Term+1)), ErrRolledBack},
		{"no such entry", from(gap), ErrRolledBack},
		{"applied missing", Position(gap, oldest), ErrRolledBack},
		{"applied of another term", Position(shift(middle, 0, 0, 99), before), ErrRolledBack},
		{"before the oplog", from(shift(oldest, -100, 0, 1)), ErrTooOld},
		{"oldest entry", from(oldest), nil},
		{"time before the set existed", from(atSecond(-100)), nil},
		{"time at its beginning", from(atSecond(0)), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			until := end
			if tc.want != nil {
				until = mongo.OpTime{}
			}
			bs, err := readOr(t, New(c, Options{Keep: only(db)}), tc.pos, until)
			if !errors.Is(err, tc.want) || (err != nil) != (tc.want != nil) {
				t.Fatalf("got error %v, want %v", err, tc.want)
			}
			if err != nil {
				if mongo.HintOf(err) == "" || mongo.Classify(err) != mongo.ClassFatal {
					t.Errorf("class %s, hint %q", mongo.Classify(err), mongo.HintOf(err))
				}
				return
			}
			lines := events(bs)
			if want := "insert start.c 3 {\"_id\":3}"; len(lines) == 0 || lines[len(lines)-1] != want {
				t.Errorf("events end with %q", lines)
			}
		})
	}
}

// gapIn finds a position between two entries.
func gapIn(t *testing.T, c *mongo.Cluster) mongo.OpTime {
	t.Helper()
	cur, err := c.Client.Database("local").Collection("oplog.rs").Find(t.Context(), bson.D{})
	ok(t, err)
	var entries []mongo.OpTime
	ok(t, cur.All(t.Context(), &entries))
	for i, e := range entries[1 : len(entries)-1] {
		e.TS.I++
		if e.TS != entries[i+2].TS {
			return e
		}
	}
	t.Fatal("the oplog has no gap")
	return mongo.OpTime{}
}

func TestNoPosition(t *testing.T) {
	c := connect(t, sharedURI)
	if _, err := readOr(t, New(c, Options{}), stream.Position{}, mongo.OpTime{}); err == nil {
		t.Fatal("want an error")
	}
}

// A position after the newest entry is waited for.
func TestStartInTheFuture(t *testing.T) {
	t.Parallel()
	c := connect(t, sharedURI)
	future := mongo.OpTime{TS: bson.Timestamp{T: uint32(time.Now().Unix()) + 2}, Term: -1}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	empty := 0
	err := New(c, Options{Await: 10 * time.Millisecond, Keep: only("future")}).Run(ctx, from(future),
		func(ctx context.Context, b *stream.Batch) error {
			if len(b.Events) > 0 && b.Events[0].Kind == stream.Insert {
				return errReached
			}
			empty++
			_, err := c.Client.Database("future").Collection("c").InsertOne(ctx, bson.D{})
			return err
		})
	if !errors.Is(err, errReached) || empty < 3 {
		t.Fatalf("%v after %d batches", err, empty)
	}
}

// TestOplogRollsOver writes more than a small oplog holds: a new run from
// before is told so, and so is one whose consumer was too slow.
func TestOplogRollsOver(t *testing.T) {
	t.Parallel()
	o := testServer("")
	o.OplogMB = 4
	o.Args = []string{"--syncdelay", "1"} // entries after the last checkpoint are never cut off
	srv := lab.ForTest(t, o)
	c := connect(t, srv.URI())
	coll := c.Client.Database("roll").Collection("c")
	_, err := coll.InsertOne(t.Context(), doc("first"))
	ok(t, err)
	start := position(t, c)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	rolled := false
	src := New(c, Options{ReadAheadBytes: 1 << 20})
	err = src.Run(ctx, from(start), func(ctx context.Context, b *stream.Batch) error {
		if rolled || src.Stats().Newest.IsZero() { // nothing was read before the first beat
			return nil
		}
		// The reader holds one reply at most while this consumer sleeps.
		rolled = true
		for {
			for range 8 {
				if _, err := coll.InsertOne(ctx, bson.D{{Key: "x", Value: strings.Repeat("x", 1<<20)}}); err != nil {
					return err
				}
			}
			window, err := ReadWindow(ctx, c)
			if err != nil {
				return err
			}
			if src.Stats().Newest.Before(window.Oldest) {
				return nil
			}
		}
	})
	if !errors.Is(err, ErrTooOld) || mongo.Classify(err) != mongo.ClassFatal {
		t.Fatalf("overtaken: got %v (%s)", err, mongo.Classify(err))
	}
	t.Log(err)
	_, err = readOr(t, New(c, Options{}), from(start), mongo.OpTime{})
	if !errors.Is(err, ErrTooOld) || !strings.Contains(err.Error(), start.String()) {
		t.Fatalf("restart: got %v", err)
	}
	t.Log(err)
}

// TestCompleteOplog: a time is no entry. Where the oplog begins with the first
// entry that the time's second can have, nothing is missing; where it begins
// later, only the entry that begins a set's history reports that.
func TestCompleteOplog(t *testing.T) {
	set := bson.D{{Key: "msg", Value: "initiating set"}}
	for _, tc := range []struct {
		name   string
		since  uint32
		oldest bson.Timestamp
		o      bson.D
		want   bool
	}{
		{"before the second", 1000, bson.Timestamp{T: 999, I: 7}, doc(1), true},
		{"its first entry", 1000, bson.Timestamp{T: 1000, I: 1}, doc(1), true},
		{"its second entry", 1000, bson.Timestamp{T: 1000, I: 2}, doc(1), false},
		{"a later second", 1000, bson.Timestamp{T: 1001, I: 1}, doc(1), false},
		{"the set begins later in the second", 1000, bson.Timestamp{T: 1000, I: 2}, set, true},
		{"the set is younger", 1000, bson.Timestamp{T: 2000, I: 1}, set, true},
	} {
		e, err := parseEntry(kit.Raw(bson.D{{Key: "op", Value: "n"}, {Key: "o", Value: tc.o}, {Key: "ts", Value: tc.oldest}}))
		ok(t, err)
		if got := complete(mongo.OpTime{TS: bson.Timestamp{T: tc.since}, Term: -1}, e); got != tc.want {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
}
