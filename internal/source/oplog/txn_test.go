package oplog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/spool"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
)

// filler makes documents so big that few fit an oplog entry.
func filler(mb int) string { return strings.Repeat("x", mb<<20) }

func inserted(db string, ids ...int) (out []string) {
	for _, id := range ids {
		out = append(out, fmt.Sprintf("insert %s.c %d", db, id))
	}
	return out
}

// heads cuts the documents off, which filler makes long.
func heads(lines []string) []string {
	for i, s := range lines {
		if f := strings.Fields(s); len(f) > 3 {
			lines[i] = strings.Join(f[:3], " ")
		}
	}
	return lines
}

func TestTransactions(t *testing.T) {
	c := connect(t, sharedURI)
	create := func(db string) {
		t.Helper()
		ok(t, c.Client.Database(db).CreateCollection(t.Context(), "c"))
	}
	plain := func(db string, id int) {
		t.Helper()
		_, err := c.Client.Database(db).Collection("c").InsertOne(t.Context(), doc(id))
		ok(t, err)
	}
	for _, tc := range []struct {
		name string
		do   func(t *testing.T, db string)
		want []int
	}{
		{"single", func(t *testing.T, db string) {
			begin(t, c).insert(db, "c", doc(1)).insert(db, "c", doc(2)).commit()
		}, []int{1, 2}},
		{"aborted", func(t *testing.T, db string) {
			begin(t, c).insert(db, "c", doc(1)).abort()
			plain(db, 2)
		}, []int{2}},
		{"several", func(t *testing.T, db string) {
			x := begin(t, c)
			for i := range 3 {
				x.insert(db, "c", doc(i, "x", filler(6)))
			}
			plain(db, 9)
			x.commit()
		}, []int{9, 0, 1, 2}},
		{"interleaved", func(t *testing.T, db string) {
			x, y := begin(t, c), begin(t, c)
			x.insert(db, "c", doc(1))
			y.insert(db, "c", doc(2))
			cx, cy := x.prepare(), y.prepare()
			plain(db, 3)
			cy()
			plain(db, 4)
			cx()
		}, []int{3, 2, 4, 1}},
		{"preparedAborted", func(t *testing.T, db string) {
			x, y := begin(t, c), begin(t, c)
			x.insert(db, "c", doc(1))
			y.insert(db, "c", doc(2))
			x.prepare()
			y.prepare()()
			x.abort()
		}, []int{2}},
		{"preparedBig", func(t *testing.T, db string) {
			x := begin(t, c)
			for i := range 3 {
				x.insert(db, "c", doc(i, "x", filler(6)))
			}
			commit := x.prepare()
			plain(db, 9)
			commit()
		}, []int{9, 0, 1, 2}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			db := "txn_" + tc.name
			create(db)
			start := position(t, c)
			tc.do(t, db)
			end := position(t, c)
			for _, buffer := range []int64{0, 1} { // in memory, and from the oplog again
				bs := read(t, c, Options{Keep: only(db), TxnBufferBytes: buffer}, from(start), end)
				kit.SameLines(t, heads(events(bs)), inserted(db, tc.want...))
				if last := bs[len(bs)-1]; openAt(t, last) != last.End {
					t.Errorf("open transaction at the end: %s", last.Mark)
				}
			}
		})
	}
}

// A transaction's collections and indexes come in its order.
func TestCreateInTransaction(t *testing.T) {
	c := connect(t, sharedURI)
	const db = "txn_create"
	start := position(t, c)
	x := begin(t, c)
	ok(t, c.Client.Database(db).CreateCollection(x.ctx, "c"))
	_, err := c.Client.Database(db).Collection("c").Indexes().CreateOne(x.ctx,
		driver.IndexModel{Keys: bson.D{{Key: "q", Value: 1}}})
	ok(t, err)
	x.insert(db, "c", doc(1)).insert(db, "d", doc(2)).commit()
	bs := read(t, c, Options{Keep: only(db)}, from(start), position(t, c))
	if got := strings.Join(heads(schemaOf(db, events(bs))), "\n"); !strings.Contains(got, "schema create txn_create.c") ||
		!strings.HasSuffix(got, "insert txn_create.d 2") || strings.Count(got, "schema create ") != 2 {
		t.Fatalf("got\n%s", got)
	}
}

// The copy's start position may lie inside a transaction: what it did before
// is fetched when it commits.
func TestTransactionBegunBeforeStart(t *testing.T) {
	c := connect(t, sharedURI)
	const db = "txn_before"
	ok(t, c.Client.Database(db).CreateCollection(t.Context(), "c"))
	x, y, z := begin(t, c), begin(t, c), begin(t, c)
	x.insert(db, "c", doc(1), doc(2))
	for i := range 3 {
		y.insert(db, "c", doc(10+i, "x", filler(6)))
	}
	z.insert(db, "c", doc(20))
	cx, cy := x.prepare(), y.prepare()
	z.prepare()
	start := position(t, c)
	_, err := c.Client.Database(db).Collection("c").InsertOne(t.Context(), doc(5))
	ok(t, err)
	cx()
	z.abort()
	cy()
	end := position(t, c)
	bs := read(t, c, Options{Keep: only(db)}, from(start), end)
	kit.SameLines(t, heads(events(bs)), inserted(db, 5, 1, 2, 10, 11, 12))

	// The same from every position between and inside the transactions.
	all := read(t, c, Options{Keep: only(db), BatchBytes: 1}, from(start), end)
	for _, b := range all {
		if b.Partial {
			continue
		}
		got := read(t, c, Options{Keep: only(db)}, from(b.End), end)
		kit.SameLines(t, withAt(got), after(withAt(all), all, b.End))
	}
}

// after keeps the lines of the events after a position.
func after(lines []string, bs []*stream.Batch, p mongo.OpTime) []string {
	n := 0
	for _, b := range bs {
		for _, ev := range b.Events {
			if !p.Before(ev.At) {
				n++
			}
		}
	}
	return lines[n:]
}

// A transaction that exceeds a batch comes in parts, whose ends do not pass it.
func TestPartialBatches(t *testing.T) {
	c := connect(t, sharedURI)
	const db = "txn_parts"
	ok(t, c.Client.Database(db).CreateCollection(t.Context(), "c"))
	start := position(t, c)
	x := begin(t, c)
	for i := range 50 {
		x.insert(db, "c", doc(i, "x", strings.Repeat("x", 1000)))
	}
	x.commit()
	end := position(t, c)
	bs := read(t, c, Options{Keep: only(db), BatchBytes: 10_000}, from(start), end)
	parts := 0
	for _, b := range bs {
		if b.Partial {
			parts++
		}
		if len(b.Events) > 12 {
			t.Errorf("a batch of %d events", len(b.Events))
		}
	}
	if parts < 4 {
		t.Errorf("%d parts", parts)
	}
	if n := len(events(bs)); n != 50 {
		t.Errorf("%d events", n)
	}
}

// TestResumeAnywhere writes a random history and resumes at every position:
// what comes is exactly what the uninterrupted read has after it.
func TestResumeAnywhere(t *testing.T) { testseed.Each(t, resumeAnywhere) }

func resumeAnywhere(t *testing.T, seed uint64) {
	c := connect(t, sharedURI)
	db := fmt.Sprint("resume", seed)
	ok(t, c.Client.Database(db).CreateCollection(t.Context(), "c"))
	start := position(t, c)
	randomHistory(t, c, db, rand.New(rand.NewPCG(seed, 1)), 90)
	end := position(t, c)

	o := Options{Keep: only(db), BatchBytes: 1}
	all := read(t, c, o, from(start), end)
	lines := withAt(all)
	if len(lines) < 60 { // by the seed, about 110
		t.Fatalf("only %d events", len(lines))
	}
	whole := fillSpool(t, c, start, end)
	half := fillSpool(t, c, start, all[len(all)/2].End)
	checkInserts(t, c, db+".c", whole, start, all[len(all)/2].End)
	open := 0
	for i, b := range all {
		if openAt(t, b) != b.End {
			open++
		}
		if i > 0 && all[i-1].End == b.End && !b.Partial {
			continue
		}
		want := after(lines, all, b.End)
		for n, pos := range []stream.Position{b.Resume(), from(b.End), b.Resume(), b.Resume()} {
			got := read(t, c, Options{Keep: only(db), BatchBytes: 1 << (8 + i%8), TxnBufferBytes: int64(1 + i%3*4000),
				Spool: []*Spooler{nil, nil, whole, half}[n]}, pos, end)
			kit.SameLines(t, withAt(got), want)
		}
	}
	if open == 0 {
		t.Error("no position lies inside a transaction")
	}
}

// checkInserts compares the plain inserts that a spool holds with those of the
// oplog.
func checkInserts(t *testing.T, c *mongo.Cluster, ns string, s *Spooler, after, until mongo.OpTime) {
	t.Helper()
	var got []mongo.OpTime
	note := func(ev *stream.Event) error {
		if ev.Kind == stream.Insert && ev.NS == ns {
			got = append(got, ev.At)
		}
		return nil
	}
	in := newInterpreter(c, Options{})
	unread, err := eachSpooled(s.s, Span{after, until}, func(doc []byte) error {
		e, err := parseEntry(doc)
		if err != nil || !after.Before(e.at) || until.Before(e.at) || e.inTransaction() && string(e.op) == "c" {
			return err
		}
		return in.each(t.Context(), &e, note)
	})
	ok(t, errors.Join(unread, err))
	spooled := got
	got = nil
	ok(t, (&Look{Cluster: c, Spool: s, Collections: []string{ns}}).Each(t.Context(), Span{after, until}, note))
	if !slices.Equal(got, spooled) {
		t.Errorf("the spool has inserts at %v, a look finds %v", spooled, got)
	}
	cur, err := c.Client.Database("local").Collection("oplog.rs").Find(t.Context(),
		bson.D{{Key: "op", Value: "i"}, {Key: "ns", Value: ns},
			{Key: "ts", Value: bson.D{{Key: "$gt", Value: after.TS}, {Key: "$lte", Value: until.TS}}}})
	ok(t, err)
	var want []mongo.OpTime
	ok(t, cur.All(t.Context(), &want))
	if !slices.Equal(got, want) || len(want) == 0 {
		t.Errorf("inserts at %v, want %v", got, want)
	}
}

// fillSpool reads the oplog into a spool until a position is in it, in two
// goes.
func fillSpool(t *testing.T, c *mongo.Cluster, from, until mongo.OpTime) *Spooler {
	t.Helper()
	s, err := spool.Open(t.TempDir(), spool.Options{SegmentBytes: 4096})
	ok(t, err)
	p := NewSpooler(c, SpoolOptions{})
	p.s = s
	t.Cleanup(func() { ok(t, p.Close(false)) })
	o := New(c, Options{})
	for !spooled(s, until) {
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- o.fill(ctx, from, s) }()
		for had := s.Bytes(); s.Bytes() == had; {
			select {
			case <-time.After(time.Millisecond):
			case err := <-done:
				t.Fatal(err)
			}
		}
		stop()
		<-done
	}
	return p
}

// randomHistory interleaves plain writes with transactions of every fate. All
// are over at its end.
func randomHistory(t *testing.T, c *mongo.Cluster, db string, r *rand.Rand, steps int) {
	ctx := t.Context()
	coll := c.Client.Database(db).Collection("c")
	next := 0
	id := func() int { next++; return next }
	type prepared struct {
		x      *transaction
		commit func()
	}
	var waiting []prepared
	settle := func(i int) {
		p := waiting[i]
		waiting = slices.Delete(waiting, i, i+1)
		if r.IntN(3) == 0 {
			p.x.abort()
		} else {
			p.commit()
		}
	}
	for range steps {
		switch r.IntN(8) {
		case 0:
			_, err := coll.InsertMany(ctx, []any{doc(id()), doc(id())})
			ok(t, err)
		case 1:
			_, err := coll.InsertOne(ctx, doc(id(), "x", strings.Repeat("x", r.IntN(2000))))
			ok(t, err)
		case 2:
			begin(t, c).insert(db, "c", doc(id()), doc(id()), doc(id())).commit()
		case 3:
			begin(t, c).insert(db, "c", doc(id())).abort()
		case 4:
			begin(t, c).insert(db+"_skipped", "c", doc(id())).insert(db, "c", doc(id())).commit()
		case 5, 6:
			x := begin(t, c)
			x.insert(db, "c", doc(id()), doc(id(), "x", strings.Repeat("x", r.IntN(3000))))
			waiting = append(waiting, prepared{x, x.prepare()})
		case 7:
			if len(waiting) > 0 {
				settle(r.IntN(len(waiting)))
			}
		}
	}
	for len(waiting) > 0 {
		settle(0)
	}
}
