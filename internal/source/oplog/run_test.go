package oplog

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// An idle source yields empty batches, and their end moves with no-ops.
func TestIdle(t *testing.T) {
	c := connect(t, sharedURI)
	start := position(t, c)
	o := New(c, Options{Await: 5 * time.Millisecond, Keep: only("idle")})
	beats := 0
	err := o.Run(t.Context(), from(start), func(ctx context.Context, b *stream.Batch) error {
		if len(b.Events) > 0 {
			return fmt.Errorf("events: %q", events([]*stream.Batch{b}))
		}
		if beats++; beats == 5 {
			return c.Client.Database("admin").RunCommand(ctx, bson.D{{Key: "appendOplogNote", Value: 1},
				{Key: "data", Value: bson.D{{Key: "n", Value: 1}}}}).Err()
		}
		if beats > 5 && start.Before(b.End) {
			return errReached
		}
		return nil
	})
	if !errors.Is(err, errReached) {
		t.Fatal(err)
	}
	if s := o.Stats(); s.Entries == 0 || s.Newest.IsZero() || s.Events != 0 {
		t.Errorf("stats %+v", s)
	}
}

// Run ends with its context, and nothing of it is left.
func TestCancel(t *testing.T) {
	c := connect(t, sharedURI)
	ctx, cancel := context.WithCancel(t.Context())
	err := New(c, Options{Await: time.Minute}).Run(ctx, from(position(t, c)), func(context.Context, *stream.Batch) error {
		cancel()
		return nil
	})
	if !errors.Is(err, context.Canceled) || mongo.Classify(err) != mongo.ClassCanceled {
		t.Fatal(err)
	}
}

// A killed cursor, a closed connection and an election end a run with an error
// that passes by itself, after everything read was emitted.
func TestFailures(t *testing.T) {
	c := connect(t, sharedURI)
	for _, tc := range []struct {
		name string
		fail bson.E
	}{
		{"connection closed", bson.E{Key: "closeConnection", Value: true}},
		{"cursor killed", bson.E{Key: "errorCode", Value: 43}},
		{"not primary", bson.E{Key: "errorCode", Value: 10107}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			start := position(t, c)
			admin := c.Client.Database("admin")
			beats := 0
			err := New(c, Options{Await: 10 * time.Millisecond}).Run(t.Context(), from(start),
				func(ctx context.Context, _ *stream.Batch) error {
					if beats++; beats != 3 {
						return nil
					}
					return admin.RunCommand(ctx, bson.D{
						{Key: "configureFailPoint", Value: "failCommand"},
						{Key: "mode", Value: bson.D{{Key: "times", Value: 1}}},
						{Key: "data", Value: bson.D{{Key: "failCommands", Value: bson.A{"getMore"}}, tc.fail,
							{Key: "appName", Value: "TestFailures"}}},
					}).Err()
				})
			if mongo.Classify(err) != mongo.ClassRetry {
				t.Fatalf("got %v, class %s", err, mongo.Classify(err))
			}
		})
	}
}

// A consumer that takes long loses its cursor on purpose and nothing else.
func TestParkedReader(t *testing.T) {
	c := connect(t, sharedURI)
	const db = "parked"
	coll := c.Client.Database(db).Collection("c")
	ok(t, c.Client.Database(db).CreateCollection(t.Context(), "c"))
	start := position(t, c)
	write := func(base int) {
		t.Helper()
		for i := range 20 {
			_, err := coll.InsertOne(t.Context(), doc(base+i, "x", strings.Repeat("x", 1000)))
			ok(t, err)
		}
	}
	write(0)
	end := position(t, c)
	o := New(c, Options{Keep: only(db), ReadAheadBytes: 1, BatchBytes: 1})
	o.park = time.Millisecond
	var bs []*stream.Batch
	wrote := false
	err := o.Run(t.Context(), from(start), func(_ context.Context, b *stream.Batch) error {
		bs = append(bs, b)
		if b.End == end && !wrote {
			wrote = true
			write(100)
			end = position(t, c)
		}
		time.Sleep(2 * time.Millisecond) // so long that each reply parks the reader
		if b.End.Before(end) {
			return nil
		}
		return errReached
	})
	if !errors.Is(err, errReached) {
		t.Fatal(err)
	}
	checkBatches(t, bs, from(start))
	var ids []int
	for i := range 20 {
		ids = append(ids, i)
	}
	for i := range 20 {
		ids = append(ids, 100+i)
	}
	kit.SameLines(t, heads(events(bs)), inserted(db, ids...))
}

// TestMemory reads a transaction of 64 MB with small buffers.
func TestMemory(t *testing.T) {
	c := connect(t, sharedURI)
	const db = "memory"
	ok(t, c.Client.Database(db).CreateCollection(t.Context(), "c"))
	start := position(t, c)
	x := begin(t, c)
	big := strings.Repeat("x", 1<<20)
	for i := range 64 {
		x.insert(db, "c", doc(i, "x", big))
	}
	x.commit()
	end := position(t, c)
	const buffer = 4 << 20
	o := New(c, Options{Keep: only(db), ReadAheadBytes: 16 << 20, TxnBufferBytes: buffer, BatchBytes: 2 << 20})
	live := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before, most, n := live(), int64(0), 0
	err := o.Run(t.Context(), from(start), func(_ context.Context, b *stream.Batch) error {
		n += len(b.Events)
		if s := o.Stats(); s.BufferedBytes > buffer {
			t.Errorf("%d bytes of transactions in memory", s.BufferedBytes)
		}
		if len(b.Events) > 3 {
			t.Errorf("a batch of %d MB", len(b.Events))
		}
		if n%8 == 0 {
			most = max(most, live()-before)
		}
		if b.End.Before(end) {
			return nil
		}
		return errReached
	})
	if !errors.Is(err, errReached) || n != 64 {
		t.Fatal(n, err)
	}
	// One reply read ahead, one taken apart, one entry read again, and the buffer.
	if limit := int64(3*16<<20 + buffer); most > limit {
		t.Errorf("%d MB live, want at most %d", most>>20, limit>>20)
	}
	t.Logf("%d MB live at most", most>>20)
}

// The old versions' entries: other fields, other updates, other orders.
func TestVersions(t *testing.T) {
	t.Parallel()
	for _, v := range []string{"4.2", "4.4", "5.0"} {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			c := connect(t, lab.ForTest(t, testServer(v)).URI())
			start := position(t, c)
			want := writeAllKinds(t, c, "kinds")
			x := begin(t, c)
			ok(t, c.Client.Database("kinds").CreateCollection(t.Context(), "c"))
			x.insert("kinds", "c", doc(1), doc(2))
			prepared := x.prepare()
			middle := position(t, c)
			y := begin(t, c)
			for i := range 3 {
				y.insert("kinds", "c", doc(10+i, "x", filler(6)))
			}
			y.commit()
			prepared()
			end := position(t, c)
			want = append(want, "schema create kinds.c")
			last := inserted("kinds", 10, 11, 12, 1, 2)
			got := heads(schemaOf("kinds", events(read(t, c, Options{Keep: only("kinds")}, from(start), end))))
			kit.SameLines(t, got, append(heads(want), last...))
			got = heads(schemaOf("kinds", events(read(t, c, Options{Keep: only("kinds"), TxnBufferBytes: 1}, from(middle),
				end))))
			kit.SameLines(t, got, last)
		})
	}
}

// TTL deletes come as deletes.
func TestTTL(t *testing.T) {
	t.Parallel()
	c := connect(t, sharedURI)
	const db = "ttl"
	d := c.Client.Database(db)
	start := position(t, c)
	_, err := d.Collection("c").InsertOne(t.Context(), doc(1, "at", time.Now().Add(-time.Hour)))
	ok(t, err)
	ok(t, d.RunCommand(t.Context(), bson.D{{Key: "createIndexes", Value: "c"}, {Key: "indexes", Value: bson.A{bson.D{
		{Key: "key", Value: bson.D{{Key: "at", Value: 1}}}, {Key: "name", Value: "at"}, {Key: "expireAfterSeconds", Value: 1},
	}}}}).Err())
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	err = New(c, Options{Keep: only(db)}).Run(ctx, from(start), func(_ context.Context, b *stream.Batch) error {
		for _, ev := range b.Events {
			if ev.Kind == stream.Delete && ev.NS == "ttl.c" && ev.Key.ID.String() == `{"$numberInt":"1"}` {
				return errReached
			}
		}
		return nil
	})
	if !errors.Is(err, errReached) {
		t.Fatal(err)
	}
}
