package resolve

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/expiry"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
	"github.com/millrace/millrace/internal/sink/mongo/write"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/dial"
	"github.com/millrace/millrace/workshop/lab"
)

// bed is a resolver over a collection of its own, with a unique index on k.
type bed struct {
	*testing.T
	c       *mongo.Cluster
	o       Options
	r       *Resolver
	to      *fold.Target
	source  map[string]bson.Raw // what the source has, by _id
	later   uint32              // by how much it is ahead when it is asked
	letters *deadletter.Store
}

// TestServer runs what needs a server, on one.
func TestServer(t *testing.T) {
	t.Parallel()
	c := connect(t)
	for name, test := range map[string]func(*bed){
		"trades": testTrades, "carries": testCarries, "stops": testStops, "skips": testSkips, "overwrites": testOverwrites,
		"missing": testMissing, "spared": testSpared, "untangles": testUntangles, "not whole": testNotWhole,
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, c, name)
			b.policy("", false)
			test(b)
		})
	}
}

func connect(t *testing.T) *mongo.Cluster {
	return dial.Cluster(t, lab.ForTest(t, lab.Options{}).URI(), mongo.Options{})
}

// newBed is a collection of its own and the letters of a job of its own.
func newBed(t *testing.T, c *mongo.Cluster, name string) *bed {
	b := &bed{T: t, c: c, to: fold.NewTarget("resolve." + name), source: map[string]bson.Raw{},
		letters: deadletter.New(c, name, nil)}
	if err := b.letters.Load(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	b.run(bson.D{{Key: "createIndexes", Value: name}, {Key: "indexes", Value: bson.A{
		bson.D{{Key: "key", Value: bson.D{{Key: "k", Value: 1}}}, {Key: "name", Value: "k"}, {Key: "unique", Value: true},
			{Key: "sparse", Value: true}}}}})
	return b
}

// policy makes a resolver; without a policy there are no letters.
func (b *bed) policy(p deadletter.Policy, overwrite bool) {
	b.o = Options{Writers: write.NewWriters(write.Options{Target: b.c}), Cluster: b.c, Log: slog.New(slog.DiscardHandler),
		Policy: Policy{Overwrite: overwrite, OnConflict: p},
		Target: func(context.Context, string) (*fold.Target, error) { return b.to, nil },
		Source: Source{
			Reread: func(_ context.Context, _ stream.Origin, id bsoncore.Value, at mongo.OpTime) (Reread, error) {
				until := at
				until.TS.T += b.later
				return Reread{Doc: b.source[id.String()], From: at, Until: until}, nil
			},
			Has: func(_ context.Context, _ stream.Origin, ids []bson.RawValue, _ mongo.OpTime) (has []bool, err error) {
				for _, id := range ids {
					has = append(has, b.source[bsoncore.Value{Type: bsoncore.Type(id.Type), Data: id.Value}.String()] != nil)
				}
				return has, nil
			},
		}}
	if p != "" {
		b.o.Policy.Letters = b.letters
	}
	b.r = New(b.o)
}

// testSpared: what is parked deletes no document that had expired by then.
func testSpared(b *bed) {
	b.to.Expiry = expiry.Settings{{Field: "at"}}
	date := func(id, k int, when bson.DateTime) bson.Raw {
		return docOf(b, id, bson.E{Key: "k", Value: k}, bson.E{Key: "at", Value: when})
	}
	put := func(id, k int, when bson.DateTime) fold.Op {
		d := date(id, k, when)
		return fold.Op{Kind: stream.Put, ID: bsonraw.IDOf(d), Doc: d, At: at(60)}
	}
	unless := func(id int) fold.Op {
		return fold.Op{Kind: stream.Delete, ID: bsonraw.IDOf(date(id, 0, 0)), Wall: 10_000, At: at(61)}
	}
	b.insert(date(1, 1, 5_000), date(2, 2, 50_000), date(3, 3, 5_000))
	b.resolve(outside, b.parked(put(1, 10, 50_000), unless(1), put(2, 20, 5_000), unless(2), unless(3), unless(4)))
	b.want(date(2, 20, 5_000), date(3, 3, 5_000))
}

func (b *bed) run(cmd bson.D) {
	b.Helper()
	if err := b.c.Client.Database(b.to.DB).RunCommand(b.Context(), cmd).Err(); err != nil {
		b.Fatal(err)
	}
}

func (b *bed) insert(docs ...bson.Raw) {
	b.Helper()
	for _, d := range docs {
		b.run(bson.D{{Key: "insert", Value: b.to.Coll}, {Key: "documents", Value: bson.A{d}}})
	}
}

func (b *bed) parked(ops ...fold.Op) (docs []*Document) {
	b.Helper()
	s := b.r.NewParked()
	for _, o := range ops {
		if s.Waits(b.to, o.ID) {
			s.Behind(b.to, o)
		} else {
			s.park(b.to, &o, nil)
		}
	}
	return s.Take()
}

var outside = Barrier{Fed: at(100), Applied: at(100), Overlap: at(50)}

func (b *bed) resolve(barrier Barrier, docs []*Document) []*Document {
	b.Helper()
	carry, err := b.r.Resolve(b.Context(), barrier, docs)
	if err != nil {
		b.Fatal(err)
	}
	return carry
}

// want compares the whole collection.
func (b *bed) want(docs ...bson.Raw) {
	b.Helper()
	cur, err := b.c.Client.Database(b.to.DB).Collection(b.to.Coll).Find(b.Context(), bson.D{})
	if err != nil {
		b.Fatal(err)
	}
	var got []bson.Raw
	if err := cur.All(b.Context(), &got); err != nil {
		b.Fatal(err)
	}
	for _, want := range docs {
		found := false
		for _, g := range got {
			found = found || bytes.Equal(g, want)
		}
		if !found {
			b.Errorf("%s is not there", want)
		}
	}
	if len(got) != len(docs) {
		b.Errorf("%d documents, want %d: %v", len(got), len(docs), got)
	}
}

// testTrades: documents that hand keys on, or trade them in a circle, are no
// conflict.
func testTrades(b *bed) {
	b.insert(docOf(b, 1, field("k", 1)), docOf(b, 2, field("k", 2)), docOf(b, 3, field("k", 3)),
		docOf(b, 4, field("k", 4)))
	carry := b.resolve(outside, b.parked(
		opOf(b, stream.Put, 1, 60, field("k", 2)), // 1, 2 and 3 trade in a circle
		opOf(b, stream.Update, 2, 61, field("k", 3)),
		opOf(b, stream.Put, 3, 62, field("k", 9)), opOf(b, stream.Update, 3, 63, field("k", 1)),
		opOf(b, stream.Put, 5, 64, field("k", 4)), // after 4 is gone
		opOf(b, stream.Delete, 4, 65),
		opOf(b, stream.Put, 6, 66, field("k", 7), field("$x", 1)),
	))
	if len(carry) > 0 {
		b.Errorf("%d are carried", len(carry))
	}
	b.want(docOf(b, 1, field("k", 2)), docOf(b, 2, field("k", 3), field("last", 61)),
		docOf(b, 3, field("k", 1), field("last", 63)), docOf(b, 5, field("k", 4)), docOf(b, 6, field("k", 7), field("$x", 1)))
	if b.r.Resolved() != 6 {
		b.Errorf("%d were resolved", b.r.Resolved())
	}
}

// testCarries: in the overlap a document whose key another one holds stays parked,
// and comes through later; at a barrier that must decide it does not.
func testCarries(b *bed) {
	b.insert(docOf(b, 1, field("k", 1)))
	o := opOf(b, stream.Put, 2, 40, field("k", 1))
	o.Overlap = true
	inside := Barrier{Fed: at(45), Applied: at(40), Overlap: at(50)}
	carry := b.resolve(inside, b.parked(o))
	if len(carry) != 1 {
		b.Fatalf("%d are carried", len(carry))
	}
	inside.Must = true
	var conflict *ConflictError
	if _, err := b.r.Resolve(b.Context(), inside, carry); !errors.As(err, &conflict) || conflict.Index != "k" ||
		conflict.Other == "" {
		b.Errorf("%v", err)
	}
	b.run(bson.D{{Key: "delete", Value: b.to.Coll},
		{Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "limit", Value: 0}}}}})
	if carry = b.resolve(outside, carry); len(carry) != 0 {
		b.Errorf("%d are carried again", len(carry))
	}
	b.want(docOf(b, 2, field("k", 1)))
}

// testStops: without letters, and with the policy to stop, a conflict is the end,
// and names what an operator has to know.
func testStops(b *bed) {
	mine := docOf(b, 1, field("k", 1))
	b.insert(mine)
	for _, p := range []deadletter.Policy{"", deadletter.Stop} {
		b.policy(p, false)
		var conflict *ConflictError
		_, err := b.r.Resolve(b.Context(), outside, b.parked(opOf(b, stream.Put, 2, 60, field("k", 1))))
		if !errors.As(err, &conflict) || conflict.At != at(60) || conflict.Index != "k" || conflict.Since.TS.T != 0 ||
			mongo.HintOf(err) == "" {
			b.Errorf("policy %q: %v", p, err)
		}
	}
	b.want(mine)
	if st := b.letters.Stats(); st.Open+st.Undecided > 0 {
		b.Errorf("%+v", st)
	}
}

// testSkips: what the target refuses is kept as a letter, later events go there,
// and when the way is free the document is written.
func testSkips(b *bed) {
	b.policy(deadletter.Skip, false)
	b.insert(docOf(b, 1, field("k", 1)))
	b.resolve(outside, b.parked(opOf(b, stream.Put, 2, 60, field("k", 1), field("a", 1)),
		opOf(b, stream.Put, 3, 61, field("k", 3))))
	if st := b.letters.Stats(); st.Open != 1 || !b.letters.Disputed(b.to.NS, idValue(b, 2)) {
		b.Fatalf("%+v", st)
	}
	b.resolve(outside, b.parked(opOf(b, stream.Update, 2, 70, field("a", 2))))
	l, ok, err := b.letters.Read(b.Context(), b.to.NS, idValue(b, 2))
	if err != nil || !ok || l.At != at(70) || !bytes.Equal(l.Doc,
		docOf(b, 2, field("k", 1), field("a", 2), field("last", 70))) {
		b.Errorf("%+v, %v", l, err)
	}
	b.want(docOf(b, 1, field("k", 1)), docOf(b, 3, field("k", 3)))
	b.run(bson.D{{Key: "delete", Value: b.to.Coll},
		{Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "limit", Value: 1}}}}})
	b.letters.RetryAll()
	if !b.r.Due(at(100)) {
		b.Error("nothing is due")
	}
	if err := b.r.ResolveDue(b.Context(), outside); err != nil {
		b.Fatal(err)
	}
	b.want(docOf(b, 2, field("k", 1), field("a", 2), field("last", 70)), docOf(b, 3, field("k", 3)))
	if st := b.letters.Stats(); st.Open != 0 || st.Settled != 1 {
		b.Errorf("%+v", st)
	}
}

// testNotWhole: while the stream has told less than all nothing is a conflict, whatever
// the policy.
func testNotWhole(b *bed) {
	b.insert(docOf(b, 1, field("k", 1)))
	joined := errors.New("a shard has joined")
	for _, p := range []deadletter.Policy{deadletter.Stop, deadletter.Skip, deadletter.Overwrite} {
		b.policy(p, false)
		b.o.Source.Whole = func(context.Context) error { return joined }
		b.r = New(b.o)
		_, err := b.r.Resolve(b.Context(), outside, b.parked(opOf(b, stream.Put, 2, 60, field("k", 1))))
		if !errors.Is(err, joined) {
			b.Errorf("%s: %v", p, err)
		}
		if err := b.r.Untangle(b.Context(), outside, Clash{NS: b.to.NS}); !errors.Is(err, joined) {
			b.Errorf("%s: an index: %v", p, err)
		}
	}
	if st := b.letters.Stats(); st.Open != 0 {
		b.Errorf("%+v", st)
	}
	b.want(docOf(b, 1, field("k", 1)))
}

// testOverwrites: what stands in the way is taken off the target and kept; what the
// source has too comes back when it can.
func testOverwrites(b *bed) {
	b.policy(deadletter.Overwrite, false)
	b.insert(docOf(b, "theirs", field("k", 1)), docOf(b, 3, field("k", 2)))
	b.source[idValue(b, 3).String()] = docOf(b, 3, field("k", 30))
	b.resolve(outside, b.parked(opOf(b, stream.Put, 1, 60, field("k", 1)), opOf(b, stream.Put, 2, 61, field("k", 2))))
	b.want(docOf(b, 1, field("k", 1)), docOf(b, 2, field("k", 2)))
	if st := b.letters.Stats(); st.Removed != 2 || st.Undecided != 1 {
		b.Errorf("%+v", st)
	}
	if err := b.r.ResolveDue(b.Context(), outside); err != nil {
		b.Fatal(err)
	}
	b.want(docOf(b, 1, field("k", 1)), docOf(b, 2, field("k", 2)), docOf(b, 3, field("k", 30)))
}

// testMissing: what updates found missing is forgotten when it is explained, else
// read again up to a position and a conflict after it.
func testMissing(b *bed) {
	for _, c := range []struct {
		policy deadletter.Policy
		until  int  // Barrier.RereadUntil
		moves  bool // between shards
		fails  bool
		open   int64
	}{{deadletter.Stop, 50, false, false, 0}, {deadletter.Stop, 0, true, false, 0}, {deadletter.Stop, 0, false, true, 0},
		{deadletter.Skip, 0, false, false, 1}} {
		b.policy(c.policy, false)
		b.to.Key = docwrite.Key{}
		if c.moves {
			b.to.Key = docwrite.KeyOf(docOf(b, 1, field("n", 1)), false)
		}
		outside := outside
		outside.RereadUntil = at(c.until)
		b.run(bson.D{{Key: "delete", Value: b.to.Coll},
			{Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "limit", Value: 0}}}}})
		b.insert(docOf(b, 1))
		have := docOf(b, 3, field("n", 1))
		b.source = map[string]bson.Raw{idValue(b, 3).String(): have}
		for id := 1; id <= 3; id++ { // there again, deleted on the source too, lost
			o := opOf(b, stream.Update, id, 40)
			b.r.skip(b.to, &o)
		}
		inside := Barrier{Fed: at(45), Applied: at(45), Overlap: at(50), RereadUntil: at(c.until)}
		if err := b.r.ResolveSkipped(b.Context(), inside); err != nil {
			b.Fatal(err)
		}
		if list, _ := b.r.Skipped(); len(list) != 3 {
			b.Fatalf("%d are left before the overlap is over", len(list))
		}
		if err := b.r.MakeRoom(b.Context(), outside); err != nil {
			b.Fatal(err)
		}
		if list, _ := b.r.Skipped(); len(list) != 1 || list[0].ID.AsInt64() != 3 {
			b.Fatalf("%v are not explained", list)
		}
		err := b.r.ResolveSkipped(b.Context(), outside)
		var conflict *ConflictError
		if c.fails != errors.As(err, &conflict) || !c.fails && err != nil {
			b.Errorf("%+v: %v", c, err)
		}
		if c.fails {
			continue
		}
		if err := b.r.ResolveDue(b.Context(), outside); err != nil {
			b.Fatal(err)
		}
		if st := b.letters.Stats(); st.Open != c.open {
			b.Errorf("%+v: %+v", c, st)
		}
		if c.open > 0 { // the policy leaves it where it is: in its letter
			b.want(docOf(b, 1))
		} else {
			b.want(docOf(b, 1), have)
		}
	}
}

// testUntangles: of documents that a unique index does not take together, the one
// that the source has stays, by policy, or nobody can tell.
func testUntangles(b *bed) {
	one, two, three := docOf(b, 1, field("u", 1)), docOf(b, 2, field("u", 1)), docOf(b, 3, field("u", 1))
	later := docOf(b, 1, field("u", 1), field("n", 1))
	all := []bson.Raw{one, two, three}
	clash := Clash{NS: b.to.NS, Index: "u", Docs: all, Reason: "E11000"}
	for _, c := range []struct {
		name      string
		policy    deadletter.Policy
		source    []bson.Raw
		partial   bool
		later     bool // the source is read further on than the target is
		undecided bool
		sourced   bool
		fails     bool
		left      []bson.Raw
	}{
		{name: "stop", policy: deadletter.Stop, source: all[1:2], fails: true, left: all},
		{name: "overwrite", policy: deadletter.Overwrite, source: all[1:2], left: all[1:2]},
		{name: "skip", policy: deadletter.Skip, source: all[1:2], left: []bson.Raw{one, three}},
		{name: "none is ours", policy: deadletter.Overwrite},
		{name: "none is ours to skip", policy: deadletter.Skip, undecided: true, fails: true, left: all},
		{name: "two are ours", policy: deadletter.Overwrite, source: all[:2], undecided: true, fails: true, left: all},
		{name: "the index may be partial", policy: deadletter.Overwrite, source: all[1:2], partial: true, left: all[1:2]},
		{name: "one went since", policy: deadletter.Stop, source: all[:1], partial: true, later: true, undecided: true,
			fails: true, left: all},
		{name: "it is", policy: deadletter.Stop, source: all[:2], partial: true, sourced: true, fails: true, left: all},
		{name: "it is, and one was changed since", policy: deadletter.Overwrite, source: []bson.Raw{later, two},
			partial: true, sourced: true, fails: true, left: all},
	} {
		b.run(bson.D{{Key: "delete", Value: b.to.Coll},
			{Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "limit", Value: 0}}}}})
		if err := b.letters.Reset(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.letters = deadletter.New(b.c, "untangles_"+c.name, nil)
		b.policy(c.policy, false)
		b.insert(one, two, three)
		b.source, b.later = map[string]bson.Raw{}, 0
		if c.later {
			b.later = 10
		}
		for _, d := range c.source {
			v := d.Lookup("_id")
			b.source[bsoncore.Value{Type: bsoncore.Type(v.Type), Data: v.Value}.String()] = d
		}
		clash.Partial = c.partial
		err := b.r.Untangle(b.Context(), outside, clash)
		var conflict *ConflictError
		if (err != nil) != c.fails || errors.As(err, &conflict) != c.fails || c.fails &&
			(conflict.Undecided != c.undecided || conflict.Sourced != c.sourced) {
			b.Errorf("%s: %v", c.name, err)
		}
		b.want(c.left...)
	}
}
