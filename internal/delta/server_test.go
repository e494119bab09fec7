package delta

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
)

// server is a real mongod that says what is right.
type server struct {
	t      *testing.T
	client *mongo.Client
	db     *mongo.Database
}

// TestServer holds everything that asks a real server, on one of them.
func TestServer(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a mongod")
	}
	s := startServer(t, "")
	for _, c := range []struct {
		name string
		run  func(*testing.T, *server)
	}{
		{"applyOps", testApplyOps},
		{"skipped", testSkippedOps},
		{"refused", testRefusedOps},
		{"duplicates", testDuplicates},
		{"statements", testStatements},
		{"folds", testFolds},
		{"order of new fields", testFieldOrder},
		{"histories", testHistories},
		{"replay", testReplayOnServer},
		{"timestamps", testTimestamps},
		{"keys", testKeysOnServer},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, &server{t, s.client, s.db}) })
	}
}

func startServer(t *testing.T, version string) *server {
	c := lab.ForTest(t, lab.Options{CacheGB: 0.25, Version: version})
	client, err := mongo.Connect(options.Client().ApplyURI(c.URI()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Disconnect(context.Background()) })
	return &server{t: t, client: client, db: client.Database("t")}
}

func (s *server) ctx() context.Context { return s.t.Context() }

// fresh drops and creates a collection with the given documents.
func (s *server) fresh(name string, docs ...bson.Raw) *mongo.Collection {
	s.t.Helper()
	coll := s.db.Collection(name)
	if err := coll.Drop(s.ctx()); err != nil {
		s.t.Fatal(err)
	}
	if err := s.db.CreateCollection(s.ctx(), name); err != nil {
		s.t.Fatal(err)
	}
	if len(docs) > 0 {
		if _, err := coll.InsertMany(s.ctx(), docs); err != nil {
			s.t.Fatal(err)
		}
	}
	return coll
}

// all reads a collection of documents whose _id is an int32.
func (s *server) all(coll *mongo.Collection) map[int32]bson.Raw {
	s.t.Helper()
	cur, err := coll.Find(s.ctx(), bson.D{})
	if err != nil {
		s.t.Fatal(err)
	}
	var docs []bson.Raw
	if err := cur.All(s.ctx(), &docs); err != nil {
		s.t.Fatal(err)
	}
	out := map[int32]bson.Raw{}
	for _, doc := range docs {
		out[docID(doc)] = doc
	}
	return out
}

// The documents of these tests start with an int32 _id, its value at byte 9.
func docID(doc bson.Raw) int32 { return int32(binary.LittleEndian.Uint32(doc[9:])) }

func withID(doc bson.Raw, id int) bson.Raw {
	doc = bytes.Clone(doc)
	putInt32(doc[9:], id)
	return doc
}

// batch is how many operations go into one command.
const batch = 400

// applyOps feeds each document, under the number of its place, an oplog update.
func (s *server) applyOps(coll *mongo.Collection, updates []bson.Raw) {
	s.t.Helper()
	for lo := 0; lo < len(updates); lo += batch {
		ops := bson.A{}
		for i := lo; i < min(lo+batch, len(updates)); i++ {
			ops = append(ops, d("op", "u", "ns", "t."+coll.Name(), "o2", d("_id", int32(i)), "o", updates[i]))
		}
		if err := s.client.Database("admin").RunCommand(s.ctx(), d("applyOps", ops)).Err(); err != nil {
			s.t.Fatal(err)
		}
	}
}

// update runs update statements; errors of single statements are returned by index.
func (s *server) update(coll *mongo.Collection, stmts bson.A) map[int]string {
	s.t.Helper()
	failed := map[int]string{}
	for lo := 0; lo < len(stmts); lo += batch {
		part := stmts[lo:min(lo+batch, len(stmts))]
		err := s.db.RunCommand(s.ctx(), d("update", coll.Name(), "updates", part, "ordered", false)).Err()
		var we mongo.WriteException
		var ce mongo.CommandError
		switch {
		case err == nil:
		case errors.As(err, &we):
			for _, e := range we.WriteErrors {
				failed[lo+e.Index] = e.Message
			}
		case errors.As(err, &ce):
			s.t.Fatal(err)
		default:
			s.t.Fatalf("%T %v", err, err)
		}
	}
	return failed
}

// testApplyOps lets the server apply the updates of the table tests.
func testApplyOps(t *testing.T, s *server) {
	var docs, updates []bson.Raw
	var cases []applyCase
	for _, c := range append(diffCases[:len(diffCases):len(diffCases)], modCases...) {
		docs = append(docs, withID(kit.Raw(c.doc), len(docs)))
		updates = append(updates, kit.Raw(c.o))
		cases = append(cases, c)
	}
	coll := s.fresh("tables", docs...)
	s.applyOps(coll, updates)
	got := s.all(coll)
	for i, c := range cases {
		if want := withID(kit.Raw(c.want), i); !bytes.Equal(got[int32(i)], want) {
			t.Errorf("%s: the server says %s, the table %s", c.name, show(got[int32(i)]), show(want))
		}
	}
}

// testSkippedOps shows the one known difference: where a sub diff does not
// fit, a 6.0.5 server writes null, in arrays filling up to the place.
func testSkippedOps(t *testing.T, s *server) {
	want := []bson.D{
		d("_id", 0, "a", nil, "b", 7, "c", 3),
		d("_id", 1, "a", 1, "b", 7, "c", 3),
		d("_id", 2, "r", nil, "z", 1),
		d("_id", 3, "r", nil),
		d("_id", 4, "r", arr{7, nil, nil, nil, nil}),
		d("_id", 5, "r", arr{nil, 3}),
	}
	var docs, updates []bson.Raw
	for i, c := range skipCases {
		docs, updates = append(docs, withID(kit.Raw(c.doc), i)), append(updates, kit.Raw(c.o))
	}
	coll := s.fresh("skipped", docs...)
	s.applyOps(coll, updates)
	for i, doc := range s.all(coll) {
		if !bytes.Equal(doc, kit.Raw(want[i])) {
			t.Errorf("%s: the server says %s, expected %s", skipCases[i].name, show(doc), show(kit.Raw(want[i])))
		}
	}
}

// testRefusedOps: what Parse refuses, the server refuses. Those that end a
// server or use up its memory are not tried.
func testRefusedOps(t *testing.T, s *server) {
	for i, c := range malformedCases {
		if c.deadly || c.stricter {
			continue
		}
		coll := s.fresh("refused", kit.Raw(d("_id", int32(i), "a", 1, "r", arr{1, 2})))
		op := d("op", "u", "ns", "t."+coll.Name(), "o2", d("_id", int32(i)), "o", kit.Raw(c.o))
		if err := s.client.Database("admin").RunCommand(s.ctx(), d("applyOps", arr{op})).Err(); err == nil {
			t.Errorf("%s: the server takes %s", c.name, show(kit.Raw(c.o)))
		}
	}
}

// testDuplicates: with a field name twice, Apply does what the primary did.
// (Never try a pipeline here: it ends a 6.0.5 server.)
func testDuplicates(t *testing.T, s *server) {
	doc := d("_id", int32(1), "a", 1, "o", d("x", 1, "x", 2), "a", 3, "o", d("x", 5))
	for _, u := range []bson.D{
		d("$set", d("a", 9)), d("$unset", d("a", 1)), d("$set", d("o.x", 9)),
		d("$unset", d("o.x", 1)), d("$set", d("z", 9, "o", 1)),
	} {
		coll := s.fresh("duplicates", kit.Raw(doc))
		s.update(coll, arr{d("q", d("_id", int32(1)), "u", u)})
		after := s.all(coll)[1]
		o := s.oplog("t.duplicates")
		out, skipped, err := Apply(nil, kit.Raw(doc), mustParse(t, o[len(o)-1].o))
		if err != nil || skipped != 0 || !bytes.Equal(out, after) {
			t.Errorf("%v: server %s, Apply %s (%d, %v)", u, show(after), show(out), skipped, err)
		}
	}
	unset := d("q", d("_id", int32(1)), "u", d("$unset", d("a", 1, "o.x", 1)))
	coll := s.fresh("duplicates", kit.Raw(doc))
	s.update(coll, arr{unset, unset})
	after, o := s.all(coll)[1], s.oplog("t.duplicates")
	if _, c, ok := Compose(nil, mustParse(t, o[len(o)-2].o), mustParse(t, o[len(o)-1].o)); ok {
		if out, _, err := Apply(nil, kit.Raw(doc), c); err != nil || !bytes.Equal(out, after) {
			t.Errorf("unset twice: server %s, folded %s: %s, %v", show(after), show(c.Raw()), show(out), err)
		}
	}
}

// logged is one update in the oplog.
type logged struct {
	ts bson.Timestamp
	id int32
	o  bson.Raw
}

// oplog returns all updates of a namespace.
func (s *server) oplog(ns string) []logged {
	return s.oplogAfter(ns, bson.Timestamp{})
}

func (s *server) oplogAfter(ns string, after bson.Timestamp) []logged {
	s.t.Helper()
	cur, err := s.client.Database("local").Collection("oplog.rs").Find(s.ctx(),
		d("ts", d("$gt", after), "ns", ns, "op", "u"), options.Find().SetSort(d("$natural", 1)))
	if err != nil {
		s.t.Fatal(err)
	}
	var entries []struct {
		TS bson.Timestamp `bson:"ts"`
		O  bson.Raw       `bson:"o"`
		O2 bson.Raw       `bson:"o2"`
	}
	if err := cur.All(s.ctx(), &entries); err != nil {
		s.t.Fatal(err)
	}
	var out []logged
	for _, e := range entries {
		out = append(out, logged{e.TS, docID(e.O2), e.O})
	}
	return out
}

// step is one update that a server made: the document before and after it.
type step struct {
	before, after bson.Raw
	o             bson.Raw
}

// histories makes docs documents and updates each of them up to rounds times.
func (s *server) histories(g *gen, docs, rounds int) [][]step {
	s.t.Helper()
	var first []bson.Raw
	for i := range docs {
		first = append(first, kit.Raw(g.Document(int32(i))))
	}
	coll := s.fresh("histories", first...)
	out := make([][]step, docs)
	state := s.all(coll)
	var last bson.Timestamp
	for _, l := range s.oplog("t.histories") { // of an earlier call
		last = l.ts
	}
	for range rounds {
		s.update(coll, g.updates(state))
		now := s.all(coll)
		for _, l := range s.oplogAfter("t.histories", last) {
			out[l.id] = append(out[l.id], step{state[l.id], now[l.id], l.o})
			last = l.ts
		}
		state = now
	}
	return out
}

// updates draws one update for each document.
func (g *gen) updates(state map[int32]bson.Raw) bson.A {
	stmts := bson.A{}
	for id := range int32(len(state)) {
		var doc bson.D
		if err := bson.Unmarshal(state[id], &doc); err != nil {
			panic(err)
		}
		u, filters := g.Update(doc)
		stmt := d("q", d("_id", id), "u", u)
		if filters != nil {
			stmt = append(stmt, bson.E{Key: "arrayFilters", Value: filters})
		}
		stmts = append(stmts, stmt)
	}
	return stmts
}

// testHistories: random documents and updates of the server's own making. One
// by one, folded, folded on the server, and as statements they give the same
// bytes.
func testHistories(t *testing.T, s *server) {
	testseed.Each(t, func(t *testing.T, seed uint64) { (&server{t, s.client, s.db}).oneHistory(seed) })
}

func (s *server) oneHistory(seed uint64) {
	t, g := s.t, newGen(seed)
	hist := s.histories(g, 160, 12)
	checkSteps(t, hist)
	checkWindows(t, g, hist)
	folds := fold(t, g, hist)
	checkFoldsOnServer(t, s, folds)
	checkStatements(t, s, append(single(hist), folds...))
}

func checkSteps(t *testing.T, hist [][]step) {
	kinds := map[Kind]int{}
	for _, steps := range hist {
		for _, st := range steps {
			k := KindOf(st.o)
			kinds[k]++
			got := []byte(st.o)
			if k != Replacement {
				var skipped int
				var err error
				got, skipped, err = Apply(nil, st.before, mustParse(t, st.o))
				if err != nil || skipped != 0 {
					t.Errorf("%s on %s: skipped %d, %v", show(st.o), show(st.before), skipped, err)
				}
			}
			if !bytes.Equal(got, st.after) {
				t.Errorf("%s\non  %s\ngot  %s\nwant %s", show(st.o), show(st.before), show(got), show(st.after))
			}
		}
	}
	t.Logf("updates: %v", kinds)
}

// checkWindows replays a history from an early update on, on a later document:
// in the end it is the last one, byte for byte, one by one and folded.
func checkWindows(t *testing.T, g *gen, hist [][]step) {
	skips := 0
	for _, steps := range hist {
		for range 4 {
			if len(steps) < 2 {
				break
			}
			late := g.IntN(len(steps))
			early := g.IntN(late + 1)
			for _, folding := range []bool{false, true} {
				got, skipped, err := replay(steps[late].before, steps[early:], folding)
				skips += skipped
				if want := steps[len(steps)-1].after; err != nil || !bytes.Equal(got, want) {
					t.Errorf("replay from %d on the document of %d, folding %v: %v\ngot  %s\nwant %s", early, late, folding,
						err, show(got), show(want))
				}
			}
		}
	}
	t.Logf("windows: %d paths skipped", skips)
}

// replay applies updates one after the other, or composed as far as possible.
func replay(doc bson.Raw, steps []step, folding bool) (bson.Raw, int, error) {
	skips := 0
	var pending Delta
	flush := func() error {
		if pending.Kind() == Invalid {
			return nil
		}
		out, skipped, err := Apply(nil, doc, pending)
		doc, pending = out, Delta{}
		skips += skipped
		return err
	}
	for _, st := range steps {
		if KindOf(st.o) == Replacement {
			doc, pending = st.o, Delta{}
			continue
		}
		dl, err := parse(st.o)
		if err != nil {
			return nil, skips, err
		}
		if _, c, ok := Compose(nil, pending, dl); ok && folding {
			pending = c
			continue
		}
		if err := flush(); err != nil {
			return nil, skips, err
		}
		pending = dl
	}
	err := flush()
	return doc, skips, err
}

// folded is an update with the documents before and after it.
type folded struct {
	before, after bson.Raw
	d             Delta
	n             int // of how many updates it is made
}

func single(hist [][]step) []folded {
	var out []folded
	for _, steps := range hist {
		for _, st := range steps {
			if dl, err := parse(st.o); err == nil {
				out = append(out, folded{st.before, st.after, dl, 1})
			}
		}
	}
	return out
}

// fold composes each run of deltas as far as it goes, and checks it.
func fold(t *testing.T, g *gen, hist [][]step) []folded {
	var out []folded
	pairs, refused := 0, 0
	for _, steps := range hist {
		var f folded
		for i, st := range steps {
			dl, err := parse(st.o)
			if err != nil {
				f = folded{} // a replacement
				continue
			}
			if f.n == 0 {
				f = folded{st.before, st.after, dl, 1}
				continue
			}
			_, c, ok := Compose([]byte("x"), f.d, dl)
			pairs++
			if !ok {
				refused++
				f = folded{st.before, st.after, dl, 1}
				continue
			}
			f = folded{f.before, st.after, c, f.n + 1}
			checkFold(t, f, steps[i-f.n+1:i+1])
			if g.One(3) { // a fold of several lengths
				out = append(out, f)
				f = folded{}
			}
		}
	}
	t.Logf("folds: %d pairs, %d refused, %d runs", pairs, refused, len(out))
	if refused*4 > pairs && pairs > 0 && KindOf(out[0].d.Raw()) == Diff {
		t.Errorf("%d of %d pairs refused", refused, pairs)
	}
	return out
}

func checkFold(t *testing.T, f folded, steps []step) {
	t.Helper()
	if _, err := parse(f.d.Raw()); err != nil {
		t.Fatalf("composed to %s: %v", show(f.d.Raw()), err)
	}
	got, skipped, err := Apply(nil, f.before, f.d)
	if err == nil && skipped == 0 && bytes.Equal(got, f.after) {
		return
	}
	for _, st := range steps {
		t.Logf("update %s", show(st.o))
	}
	t.Errorf("folded %s\non   %s\ngot  %s\nwant %s\nskipped %d, %v", show(f.d.Raw()), show(f.before), show(got),
		show(f.after), skipped, err)
}

// foldCases are updates of one document that have something about them when they are
// folded, if they are.
var foldCases = []struct {
	name string
	doc  bson.D
	list []bson.D
}{
	{"cut of what was appended", d("_id", 1, "r", arr{1, 2, 3, 4, 5}),
		[]bson.D{v2("sr", elems("u7", 9)), v2("sr", fill(7))}},
	{"cut of what was appended, to the length before", d("_id", 1, "r", arr{1, 2, 3, 4, 5}),
		[]bson.D{v2("sr", elems("u7", 9)), v2("sr", fill(5))}},
	{"cut twice of what was appended", d("_id", 1, "r", arr{}),
		[]bson.D{v2("sr", elems("u1", 8, "u4", 9)), v2("sr", fill(3)), v2("sr", fill(1))}},
	{"cut below", d("_id", 1, "o", d("r", arr{arr{1}})),
		[]bson.D{v2("so", d("sr", elems("s0", elems("u2", 9)))), v2("so", d("sr", elems("s0", fill(2))))}},
	{"unset twice", d("_id", 1, "a", 1, "a", 2), []bson.D{v2("d", d("a", false)), v2("d", d("a", false))}},
	{"unset twice below", d("_id", 1, "o", d("a", 1, "a", 2)),
		[]bson.D{v2("so", d("d", d("a", false))), v2("so", d("d", d("a", false)))}},
	{"unset twice by modifiers", d("_id", 1, "a", 1, "a", 2),
		[]bson.D{v1("$unset", d("a", true)), v1("$unset", d("a", true))}},
}

// testFolds: folded as far as it goes, each of them is what it is one by one, and so
// are the statements.
func testFolds(t *testing.T, s *server) {
	var list []folded
	for _, c := range foldCases {
		doc, steps := kit.Raw(c.doc), []step{}
		for _, o := range c.list {
			after, skipped, err := Apply(nil, doc, mustParse(t, kit.Raw(o)))
			if err != nil || skipped > 0 {
				t.Fatalf("%s: %d, %v", c.name, skipped, err)
			}
			steps = append(steps, step{doc, after, kit.Raw(o)})
			doc = after
		}
		f := folded{steps[0].before, steps[0].after, mustParse(t, steps[0].o), 1}
		for i, st := range steps[1:] {
			dl := mustParse(t, st.o)
			if _, c, ok := Compose(nil, f.d, dl); ok {
				f = folded{f.before, st.after, c, f.n + 1}
				checkFold(t, f, steps[i+2-f.n:i+2])
				continue
			}
			list = append(list, f)
			f = folded{st.before, st.after, dl, 1}
		}
		list = append(list, f)
	}
	checkStatements(t, s, list)
}

// checkFoldsOnServer: the server does the same with a composed update.
func checkFoldsOnServer(t *testing.T, s *server, folds []folded) {
	var docs, updates []bson.Raw
	for i, f := range folds {
		docs = append(docs, withID(f.before, i))
		updates = append(updates, f.d.Raw())
	}
	coll := s.fresh("folds", docs...)
	s.applyOps(coll, updates)
	got := s.all(coll)
	for i, f := range folds {
		if want := withID(f.after, i); !bytes.Equal(got[int32(i)], want) {
			t.Errorf("server, folded %s\non   %s\ngot  %s\nwant %s", show(f.d.Raw()), show(f.before), show(got[int32(i)]),
				show(want))
		}
	}
}

// checkStatements: a statement on the document before the update gives the
// document after it; a guarded one may match nothing instead.
func checkStatements(t *testing.T, s *server, list []folded) {
	var docs []bson.Raw
	stmts := bson.A{}
	var sent []folded
	forms := map[Form]int{}
	for _, f := range list {
		u, form := AppendStatement(nil, f.d)
		forms[form]++
		if form == None {
			continue
		}
		id := len(sent)
		q := d("_id", int32(id))
		if form == Guarded {
			q = append(q, guard(f.d)...)
		}
		docs, sent = append(docs, withID(f.before, id)), append(sent, f)
		stmts = append(stmts, d("q", q, "u", bson.Raw(u)))
	}
	coll := s.fresh("statements", docs...)
	failed := s.update(coll, stmts)
	got := s.all(coll)
	held := 0
	for i, f := range sent {
		u, form := AppendStatement(nil, f.d)
		if msg := failed[i]; msg != "" {
			t.Errorf("%s refused: %s", show(u), msg)
		}
		if form == Guarded && bytes.Equal(got[int32(i)], docs[i]) {
			held++
			continue
		}
		if want := withID(f.after, i); !bytes.Equal(got[int32(i)], want) {
			t.Errorf("%s: %s\nof   %s\non   %s\ngot  %s\nwant %s", form, show(u), show(f.d.Raw()), show(f.before),
				show(got[int32(i)]), show(want))
		}
	}
	t.Logf("statements: %v, %d held back by their guard", forms, held)
}

// guard decodes what AppendGuard writes.
func guard(dl Delta) bson.D {
	dst, at := bsonraw.OpenDocument(nil)
	var out bson.D
	if err := bson.Unmarshal(bsonraw.CloseDocument(AppendGuard(dst, dl), at), &out); err != nil {
		panic(err)
	}
	return out
}

// testReplayOnServer replays histories on later documents as a job does:
// statements first; what they refuse or their guard holds back is read, applied
// and written. In the end the documents are the last ones.
func testReplayOnServer(t *testing.T, s *server) {
	g := newGen(testseed.Of(t))
	hist := s.histories(g, 80, 8)
	var docs []bson.Raw
	var todo [][]step
	for id, steps := range hist {
		late := g.IntN(len(steps))
		docs = append(docs, withID(steps[late].before, id))
		todo = append(todo, steps[g.IntN(late+1):])
	}
	coll := s.fresh("replay", docs...)
	rewritten := 0
	for len(slices.Concat(todo...)) > 0 {
		stmts, ids := bson.A{}, []int{}
		var rewrite []int
		for id, steps := range todo {
			if len(steps) == 0 {
				continue
			}
			if stmt := statementOf(id, steps[0].o); stmt != nil {
				stmts, ids = append(stmts, stmt), append(ids, id)
			} else {
				rewrite = append(rewrite, id)
			}
		}
		for i := range s.update(coll, stmts) {
			rewrite = append(rewrite, ids[i])
		}
		rewritten += len(rewrite)
		s.rewrite(coll, rewrite, todo)
		for id := range todo {
			todo[id] = todo[id][min(1, len(todo[id])):]
		}
	}
	t.Logf("%d rewritten", rewritten)
	got := s.all(coll)
	for id, steps := range hist {
		if want := steps[len(steps)-1].after; !bytes.Equal(got[int32(id)], want) {
			t.Errorf("document %d:\ngot  %s\nwant %s", id, show(got[int32(id)]), show(want))
		}
	}
}

// statementOf returns an update statement, nil if there is none that needs no
// answer: a guarded one may match nothing, which a batch does not say.
func statementOf(id int, o bson.Raw) bson.D {
	dl, err := parse(o)
	if err != nil {
		return nil
	}
	u, form := AppendStatement(nil, dl)
	if form != Classic {
		return nil
	}
	return d("q", d("_id", int32(id)), "u", bson.Raw(u))
}

// rewrite reads, applies and writes the next step of some documents.
func (s *server) rewrite(coll *mongo.Collection, ids []int, todo [][]step) {
	s.t.Helper()
	state, ops := s.all(coll), bson.A{}
	for _, id := range ids {
		doc, o := state[int32(id)], todo[id][0].o
		if KindOf(o) == Replacement {
			doc = o
		} else if out, _, err := Apply(nil, doc, mustParse(s.t, o)); err != nil {
			s.t.Fatal(err)
		} else {
			doc = out
		}
		ops = append(ops, d("op", "u", "ns", "t."+coll.Name(), "o2", d("_id", int32(id)), "o", doc))
	}
	if len(ops) == 0 {
		return
	}
	if err := s.client.Database("admin").RunCommand(s.ctx(), d("applyOps", ops)).Err(); err != nil {
		s.t.Fatal(err)
	}
}

// testTimestamps: a server fills in empty timestamps on insert and
// replacement; the repair, as a statement and as a diff, puts them back.
func testTimestamps(t *testing.T, s *server) {
	empty := bson.Timestamp{}
	doc := kit.Raw(d("_id", int32(0), "a", empty, "b", 1, "c", empty, "o", d("t", empty)))
	_, dl, ok := AppendTimestampRepair([]byte("x"), doc)
	if !ok {
		t.Fatal("no repair")
	}
	coll := s.fresh("timestamps", doc, withID(doc, 1))
	if got := s.all(coll)[0]; bytes.Equal(got, doc) {
		t.Error("the insert kept the empty timestamps")
	}
	u, form := AppendStatement(nil, dl)
	if failed := s.update(coll, arr{d("q", d("_id", int32(0)), "u", bson.Raw(u))}); len(failed) > 0 || form != Classic {
		t.Fatal(form, failed)
	}
	op := d("op", "u", "ns", "t.timestamps", "o2", d("_id", int32(1)), "o", dl.Raw())
	if err := s.client.Database("admin").RunCommand(s.ctx(), d("applyOps", arr{op})).Err(); err != nil {
		t.Fatal(err)
	}
	for id, got := range s.all(coll) {
		if want := withID(doc, int(id)); !bytes.Equal(got, want) {
			t.Errorf("got %s, want %s", show(got), show(want))
		}
	}
}

// testFieldOrder: in which order $set creates fields, by the rule of before.
func testFieldOrder(t *testing.T, s *server) {
	g := newGen(testseed.Of(t))
	names := []string{"a", "b", "B", "z", "é", " 5", "+5", "-1", "5", "9", "10", "99", "100", "2147483648",
		"99999999999999999999", "0", "_", "é1"}
	for range 40 {
		g.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		set := bson.D{}
		for _, n := range names[:6] {
			set = append(set, bson.E{Key: n, Value: 1})
		}
		coll := s.fresh("order", kit.Raw(d("_id", int32(0))))
		if failed := s.update(coll, arr{d("q", d("_id", int32(0)), "u", d("$set", set))}); len(failed) > 0 {
			t.Fatal(failed)
		}
		o := s.oplog("t.order")
		var entry struct {
			Diff struct{ I bson.D }
		}
		if err := bson.Unmarshal(o[len(o)-1].o, &entry); err != nil {
			t.Fatal(err)
		}
		got := entry.Diff.I
		for i := range got {
			for j := range got[:i] {
				if before([]byte(got[i].Key), []byte(got[j].Key)) {
					t.Errorf("%q before %q is expected, the server made %v", got[i].Key, got[j].Key, got)
				}
			}
		}
	}
}

// TestServer44: the $v:1 updates of a 4.4 server, one by one, folded, and as
// statements on a 6.0 server too. It runs with MILLRACE_TEST_MATRIX.
func TestServer44(t *testing.T) {
	lab.NeedServers(t)
	for _, version := range lab.Versions("4.2", "4.4") {
		if version == "6.0" {
			continue
		}
		t.Run(version, func(t *testing.T) {
			old := startServer(t, version)
			g := newGen(testseed.Of(t))
			g.Odd = false
			hist := old.histories(g, 250, 16)
			checkSteps(t, hist)
			checkWindows(t, g, hist)
			folds := fold(t, g, hist)
			checkStatements(t, old, append(single(hist), folds...))
			checkStatements(t, startServer(t, ""), append(single(hist), folds...))
		})
	}
}
