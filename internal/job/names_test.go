package job_test

import (
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/copy"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/transform"
)

func TestNames(t *testing.T) {
	t.Parallel()
	s := start(t)
	for name, test := range map[string]func(*testing.T, servers){
		"two databases into one":          testTwoIntoOne,
		"two databases into one, filled":  testTwoIntoOneFilled,
		"one name twice":                  testOneNameTwice,
		"exists after a restart":          testExistsAfterRestart,
		"renamed in onto another":         testRenamedInOnto,
		"recreate":                        testRecreate,
		"created by the way":              testCreatedByTheWay,
		"renamed in and dropped":          testRenamedInAndDropped,
		"renamed in, again, and dropped":  testRenamedInTwice,
		"renamed in, dropped, made again": testRenamedInMadeAgain,
		"renamed out, a document missing": testRenamedOutMissing,
		"read by UUID":                    testReadByUUID,
		"read of what is gone":            testReadOfGone,
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); test(t, s) })
	}
}

// following is a job over some databases, with what a test does on both sides.
type following struct {
	*conflicted
}

func newFollowing(t *testing.T, s servers, name string, rules transform.Config) *following {
	t.Helper()
	spec := s.spec(name)
	spec.Until, spec.Job, spec.Rules = "never", name, rules
	return &following{&conflicted{t: t, s: s, db: name, spec: spec}}
}

func (f *following) do(c *driver.Client, db string, cmd bson.D) {
	f.t.Helper()
	f.must(nil, c.Database(db).RunCommand(f.t.Context(), cmd).Err())
}

func (f *following) put(c *driver.Client, db, coll string, ids ...any) {
	f.t.Helper()
	for _, id := range ids {
		f.must(c.Database(db).Collection(coll).InsertOne(f.t.Context(), bson.D{{Key: "_id", Value: id}}))
	}
}

func (f *following) view(c *driver.Client, db, name, on string) {
	f.t.Helper()
	f.must(nil, c.Database(db).CreateView(f.t.Context(), name, on, bson.A{}))
}

func (f *following) rename(from, to string) {
	f.t.Helper()
	f.do(f.s.srcDB, "admin", bson.D{{Key: "renameCollection", Value: from}, {Key: "to", Value: to}})
}

// has wants a database of the target to have these collections and views.
func (f *following) has(db string, want ...string) {
	f.t.Helper()
	names, err := f.s.targetC.Database(db).ListCollectionNames(f.t.Context(),
		bson.D{{Key: "name", Value: bson.D{{Key: "$not", Value: bson.D{{Key: "$regex", Value: "^system"}}}}}})
	f.must(nil, err)
	slices.Sort(names)
	slices.Sort(want)
	if !slices.Equal(names, want) {
		f.t.Errorf("the target's %s has %v, want %v", db, names, want)
	}
}

// lagging does something on the source of which the job learns all at once,
// later, and without going back to its checkpoint.
func (f *following) lagging(do func()) {
	f.t.Helper()
	f.must(nil, f.j.SetLimits(f.t.Context(), pace.Rates{Bytes: 1}))
	do()
	f.must(nil, f.j.SetLimits(f.t.Context(), pace.Rates{}))
}

func (f *following) dropDB(db string) {
	f.t.Helper()
	f.do(f.s.srcDB, db, bson.D{{Key: "dropDatabase", Value: 1}})
}

// testTwoIntoOne: the drop of a database takes what the job made of it, also
// what it made, renamed or dropped since, and after a restart; nothing else.
func testTwoIntoOne(t *testing.T, s servers) {
	f := newFollowing(t, s, "two", transform.Config{Include: []string{"two_a", "two_b"},
		Rename: []string{"two_a=two_c", "two_b=two_c"}})
	f.put(s.srcDB, "two_a", "x", 1)
	f.view(s.srcDB, "two_a", "v", "x")
	f.put(s.srcDB, "two_b", "y", 1)
	f.view(s.srcDB, "two_b", "w", "y")
	f.run()
	f.caughtUp()
	f.put(s.targetC, "two_c", "theirs", 1)
	f.view(s.targetC, "two_c", "their_view", "theirs")
	f.has("two_c", "x", "v", "y", "w", "theirs", "their_view")
	f.dropDB("two_a")
	f.caughtUp()
	f.has("two_c", "y", "w", "theirs", "their_view")

	f.put(s.srcDB, "two_a", "new", 1)
	f.view(s.srcDB, "two_a", "v2", "new")
	f.rename("two_a.new", "two_a.newer")
	f.rename("two_b.y", "two_a.from_b")
	f.view(s.srcDB, "two_b", "w2", "y")
	f.caughtUp()
	f.end()
	f.run()
	f.caughtUp()
	f.has("two_c", "newer", "v2", "from_b", "w", "w2", "theirs", "their_view")
	f.end()
	f.dropDB("two_a")
	f.run()
	f.caughtUp()
	f.has("two_c", "w", "w2", "theirs", "their_view")
	f.dropDB("two_b")
	f.caughtUp()
	f.has("two_c", "theirs", "their_view")
	f.end()
}

// testTwoIntoOneFilled: the same on a target that was filled by other means.
func testTwoIntoOneFilled(t *testing.T, s servers) {
	f := newFollowing(t, s, "fill", transform.Config{Include: []string{"fill_a", "fill_b"},
		Rename: []string{"fill_a=fill_c", "fill_b=fill_c"}})
	for db, names := range map[string][2]string{"fill_a": {"x", "v"}, "fill_b": {"y", "w"}} {
		for c, db := range map[*driver.Client]string{s.srcDB: db, s.targetC: "fill_c"} {
			f.put(c, db, names[0], 1)
			f.view(c, db, names[1], names[0])
		}
	}
	f.put(s.targetC, "fill_c", "theirs", 1)
	f.spec.Mode, f.spec.StartAt = job.ModeIncremental, lastOp(t, s.srcDB).String()
	f.run()
	f.caughtUp()
	f.has("fill_c", "x", "v", "y", "w", "theirs")
	f.dropDB("fill_a")
	f.caughtUp()
	f.has("fill_c", "y", "w", "theirs")
	f.end()
}

// testOneNameTwice: two collections of the source that have one name on the
// target are an error, whatever the policy for existing ones.
func testOneNameTwice(t *testing.T, s servers) {
	f := newFollowing(t, s, "twice", transform.Config{Include: []string{"twice_a", "twice_b"},
		Rename: []string{"twice_a=twice_c", "twice_b=twice_c"}})
	f.spec.OnExisting = job.ExistingMerge
	f.put(s.srcDB, "twice_a", "x", 1)
	f.run()
	f.caughtUp()
	f.put(s.srcDB, "twice_b", "x", 2)
	wantError(t, f.fails(), "twice_a.x", "twice_b.x", "twice_c.x")
	f.run()
	wantError(t, f.fails(), "twice_a.x", "twice_b.x", "twice_c.x")
	f.do(s.srcDB, "twice_b", bson.D{{Key: "drop", Value: "x"}})
}

// testExistsAfterRestart: a collection that only the target has stays an error
// when the job is started again.
func testExistsAfterRestart(t *testing.T, s servers) {
	f := newFollowing(t, s, "again", transform.Config{Include: []string{"again", "again2"},
		Rename: []string{"again.out=again2.out"}})
	f.put(s.srcDB, "again", "c", 1)
	f.run()
	f.caughtUp()
	f.put(s.targetC, "again", "z", "theirs")
	f.put(s.srcDB, "again", "z", 1)
	for range 2 {
		wantError(t, f.fails(), "again.z")
		f.run()
	}
	wantError(t, f.fails(), "again.z")
	f.do(s.targetC, "again", bson.D{{Key: "drop", Value: "z"}})
	f.run()
	f.caughtUp()
	f.view(s.targetC, "again", "v", "theirs")
	f.view(s.srcDB, "again", "v", "c")
	for range 2 {
		wantError(t, f.fails(), "again.v")
		f.run()
	}
	wantError(t, f.fails(), "again.v")
	f.do(s.targetC, "again", bson.D{{Key: "drop", Value: "v"}})
	f.run()
	f.caughtUp()
	f.do(s.srcDB, "again", bson.D{{Key: "collMod", Value: "v"}, {Key: "viewOn", Value: "z"},
		{Key: "pipeline", Value: bson.A{}}})
	f.caughtUp()
	// To another database of the target the server copies, and may leave both.
	f.put(s.targetC, "again2", "out", "theirs")
	f.rename("again.c", "again.out")
	for range 2 {
		wantError(t, f.fails(), "again2.out")
		f.run()
	}
	wantError(t, f.fails(), "again2.out")
	if n, err := s.targetC.Database("again2").Collection("out").CountDocuments(t.Context(),
		bson.D{{Key: "_id", Value: "theirs"}}); err != nil || n != 1 {
		t.Errorf("what only the target has: %d documents, %v", n, err)
	}
	f.do(s.targetC, "again2", bson.D{{Key: "drop", Value: "out"}})
	f.run()
	f.caughtUp()
	f.has("again2", "out")
	f.end()
}

// testRenamedInOnto: a rename into the filter onto what only the target has.
func testRenamedInOnto(t *testing.T, s servers) {
	f := newFollowing(t, s, "onto", transform.Config{Include: []string{"onto.in", "onto.c"}})
	f.put(s.srcDB, "onto", "out", 1)
	f.put(s.srcDB, "onto", "c", 1)
	f.run()
	f.caughtUp()
	f.put(s.targetC, "onto", "in", "theirs")
	f.rename("onto.out", "onto.in")
	for range 2 {
		wantError(t, f.fails(), "onto.in")
		f.run()
	}
	wantError(t, f.fails(), "onto.in")
	if n, err := s.targetC.Database("onto").Collection("in").CountDocuments(t.Context(),
		bson.D{{Key: "_id", Value: "theirs"}}); err != nil || n != 1 {
		t.Errorf("what only the target has: %d documents, %v", n, err)
	}
	f.do(s.targetC, "onto", bson.D{{Key: "drop", Value: "in"}})
	f.run()
	f.caughtUp()
	if n, err := s.targetC.Database("onto").Collection("in").CountDocuments(t.Context(),
		bson.D{{Key: "_id", Value: 1}}); err != nil || n != 1 {
		t.Errorf("renamed in: %d documents, %v", n, err)
	}
	f.end()
}

// testRecreate: a copy that begins anew empties its own target, not the one
// that the collection's name stands for by now.
func testRecreate(t *testing.T, s servers) {
	f := newFollowing(t, s, "recreate", transform.Config{Include: []string{"recreate"},
		Rename: []string{"recreate=recreated"}})
	f.put(s.targetC, "recreated", "in", 1)
	f.put(s.targetC, "recreated", "other", 1)
	j := open(t, f.spec)
	task := copy.Task{Source: schema.Collection{NS: "recreate.other", Type: schema.TypeCollection,
		Options: bson.Raw{5, 0, 0, 0, 0}},
		Route: transform.Unruled("recreate.other", "recreated.in")}
	f.must(nil, job.Recreate(j, t.Context(), task))
	for coll, want := range map[string]int64{"in": 0, "other": 1} {
		if n, err := s.targetC.Database("recreated").Collection(coll).CountDocuments(t.Context(), bson.D{}); err != nil ||
			n != want {
			t.Errorf("%s: %d documents, %v, want %d", coll, n, err, want)
		}
	}
}

// testCreatedByTheWay: creating begins again after a crash or an election, and
// finds a collection that a late write made without options.
func testCreatedByTheWay(t *testing.T, s servers) {
	f := newFollowing(t, s, "late", transform.Config{Include: []string{"late"}})
	f.do(s.srcDB, "late", bson.D{{Key: "create", Value: "c"}, {Key: "capped", Value: true}, {Key: "size", Value: 4096}})
	f.put(s.srcDB, "late", "c", 1, 2)
	f.run()
	f.caughtUp()
	again := func() {
		f.end()
		state := s.targetC.Database("millrace")
		f.must(state.Collection("slices").DeleteMany(t.Context(), bson.D{{Key: "job", Value: "late"}}))
		f.must(state.Collection("jobs").UpdateByID(t.Context(), "late", bson.D{{Key: "$set", Value: bson.D{{Key: "phase",
			Value: "creating"}}}}))
		f.do(s.targetC, "late", bson.D{{Key: "drop", Value: "c"}})
	}
	again()
	f.do(s.targetC, "late", bson.D{{Key: "create", Value: "c"}})
	f.run()
	f.caughtUp()
	f.src, f.dst = s.srcDB.Database("late").Collection("c"), s.targetC.Database("late").Collection("c")
	f.same(1, 2)
	specs, err := f.dst.Database().ListCollectionSpecifications(t.Context(), bson.D{{Key: "name", Value: "c"}})
	f.must(nil, err)
	if capped, _ := specs[0].Options.Lookup("capped").BooleanOK(); !capped {
		t.Errorf("the target's collection has options %s", specs[0].Options)
	}
	again()
	f.put(s.targetC, "late", "c", 1)
	f.run()
	wantError(t, f.fails(), "late.c", "capped", "documents")
}

func (f *following) update(db, coll string, id any) {
	f.t.Helper()
	f.must(f.s.srcDB.Database(db).Collection(coll).UpdateByID(f.t.Context(), id,
		bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}))
}

func (f *following) drop(db, coll string) {
	f.t.Helper()
	f.do(f.s.srcDB, db, bson.D{{Key: "drop", Value: coll}})
}

func newRenamedIn(t *testing.T, s servers, name string) *following {
	t.Helper()
	f := newFollowing(t, s, name, transform.Config{Include: []string{name + ".in*", name + ".c"}})
	f.put(s.srcDB, name, "out", 1, 2, 3)
	f.put(s.srcDB, name, "c", 1)
	f.run()
	f.caughtUp()
	return f
}

// testRenamedInAndDropped: what comes into the filter by a rename is gone
// before the job learns of it.
func testRenamedInAndDropped(t *testing.T, s servers) {
	f := newRenamedIn(t, s, "rin")
	f.lagging(func() {
		f.rename("rin.out", "rin.in")
		f.update("rin", "in", 1)
		f.put(s.srcDB, "rin", "in", 4)
		f.must(s.srcDB.Database("rin").Collection("in").Indexes().CreateOne(t.Context(), uniqueOn("_id", "n")))
		f.update("rin", "in", 2)
		f.do(s.srcDB, "rin", bson.D{{Key: "collMod", Value: "in"}, {Key: "validationLevel", Value: "off"}})
		f.drop("rin", "in")
		f.update("rin", "c", 1)
	})
	f.caughtUp()
	f.has("rin", "c")
	f.end()
}

func testRenamedInTwice(t *testing.T, s servers) {
	f := newRenamedIn(t, s, "rin2")
	f.put(s.srcDB, "rin2", "in2", "old")
	f.caughtUp()
	f.lagging(func() {
		f.rename("rin2.out", "rin2.in")
		f.update("rin2", "in", 1)
		f.do(s.srcDB, "admin", bson.D{{Key: "renameCollection", Value: "rin2.in"}, {Key: "to", Value: "rin2.in2"},
			{Key: "dropTarget", Value: true}})
		f.update("rin2", "in2", 2)
		f.put(s.srcDB, "rin2", "in", 9)
	})
	// It is there still, under its second name, and copied under its first.
	f.caughtUp()
	f.has("rin2", "c", "in", "in2")
	f.rename("rin2.in2", "rin2.out")
	f.caughtUp()
	f.lagging(func() {
		f.rename("rin2.out", "rin2.in3")
		f.update("rin2", "in3", 1)
		f.rename("rin2.in3", "rin2.in4")
		f.update("rin2", "in4", 1)
		f.rename("rin2.in4", "rin2.out2")
		f.rename("rin2.out2", "rin2.in5")
		f.update("rin2", "in5", 1)
		f.drop("rin2", "in5")
		f.update("rin2", "c", 1)
	})
	f.caughtUp()
	f.has("rin2", "c", "in")
	f.end()
}

// testRenamedInMadeAgain: the name is taken by another collection at once; and
// the job is started again between the rename and the drop.
func testRenamedInMadeAgain(t *testing.T, s servers) {
	f := newRenamedIn(t, s, "rin3")
	f.lagging(func() {
		f.rename("rin3.out", "rin3.in")
		f.update("rin3", "in", 1)
		// The target refuses this, and the job ends after the rename.
		f.put(s.targetC, "rin3", "inother", "theirs")
		f.put(s.srcDB, "rin3", "inother", 1)
		f.update("rin3", "in", 2)
		f.drop("rin3", "in")
		f.put(s.srcDB, "rin3", "in", "new")
		f.update("rin3", "in", "new")
	})
	wantError(t, f.fails(), "rin3.inother")
	f.do(s.targetC, "rin3", bson.D{{Key: "drop", Value: "inother"}})
	f.run()
	f.caughtUp()
	f.has("rin3", "c", "in", "inother")
	f.src, f.dst = s.srcDB.Database("rin3").Collection("in"), s.targetC.Database("rin3").Collection("in")
	f.same("new")
	f.end()
}

// testReadByUUID: a document that has to be read again is one of the collection
// that the event was about, whatever has its name now.
func testReadByUUID(t *testing.T, s servers) {
	for _, policy := range []job.OnConflict{job.ConflictSkip, job.ConflictOverwrite} {
		db := "byuuid_" + string(policy)
		f := newFollowing(t, s, db, transform.Config{Include: []string{db}})
		f.spec.OnConflict = policy
		f.put(s.srcDB, db, "a", 1, 2, 3)
		f.run()
		f.caughtUp()
		f.must(s.targetC.Database(db).Collection("a").DeleteMany(t.Context(), bson.D{{Key: "_id", Value: bson.D{{Key: "$in",
			Value: bson.A{1, 2}}}}}))
		f.lagging(func() {
			f.update(db, "a", 1)
			f.update(db, "a", 2)
			f.update(db, "a", 3)
			f.rename(db+".a", db+".b")
			f.must(s.srcDB.Database(db).Collection("a").InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1},
				{Key: "another", Value: true}}))
		})
		f.caughtUp()
		f.src, f.dst = s.srcDB.Database(db).Collection("a"), s.targetC.Database(db).Collection("a")
		f.same(1)
		f.src, f.dst = s.srcDB.Database(db).Collection("b"), s.targetC.Database(db).Collection("b")
		f.same(3)
		if policy == job.ConflictOverwrite {
			f.await("written", func() bool { return f.on(f.dst, 1) != nil && f.on(f.dst, 2) != nil })
			f.same(1, 2)
			f.end()
			continue
		}
		letters := f.letters()
		if len(letters) != 2 {
			t.Errorf("%d letters: %+v", len(letters), letters)
		}
		for _, l := range letters {
			// The rename has it tried once more.
			want := f.on(f.src, l.DocumentID)
			if l.NS != db+".b" || string(l.Document) != string(want) || l.State != "open" && l.State != "settled" {
				t.Errorf("letter %+v, want %s", l, want)
			}
			if l.State == "settled" {
				f.same(l.DocumentID)
			}
		}
		f.end()
	}
}

// testReadOfGone: what cannot be read any more because its collection is gone
// is said, until the drop comes.
func testReadOfGone(t *testing.T, s servers) {
	f := newFollowing(t, s, "gone", transform.Config{Include: []string{"gone"}})
	f.spec.OnConflict = job.ConflictSkip
	f.put(s.srcDB, "gone", "a", 1, 2)
	f.run()
	f.caughtUp()
	f.must(s.targetC.Database("gone").Collection("a").DeleteOne(t.Context(), bson.D{{Key: "_id", Value: 1}}))
	f.lagging(func() {
		f.update("gone", "a", 1)
		f.rename("gone.a", "gone.b")
		f.update("gone", "b", 1)
		f.drop("gone", "b")
		f.put(s.srcDB, "gone", "a", 1)
	})
	f.caughtUp()
	f.has("gone", "a")
	// The rename has the first one tried once more, and the next update may need another.
	letters := f.letters()
	if len(letters) == 0 {
		t.Error("no letter")
	}
	for _, l := range letters {
		if l.State != "settled" || l.Cause != "missing" || !strings.Contains(l.Reason, "dropped the collection") {
			t.Errorf("letter: %+v", l)
		}
	}
	f.src, f.dst = s.srcDB.Database("gone").Collection("a"), s.targetC.Database("gone").Collection("a")
	f.same(1)
	f.end()
}

// testRenamedOutMissing: an update finds its document missing, and its collection is renamed
// to a name that is not the job's before anybody has asked why.
func testRenamedOutMissing(t *testing.T, s servers) {
	const db = "renamed_out_missing"
	f := newFollowing(t, s, db, transform.Config{Include: []string{db + ".c"}})
	f.put(s.srcDB, db, "c", 1, 2)
	f.put(s.targetC, db, "c", 2)
	f.spec.Mode, f.spec.StartAt = job.ModeIncremental, lastOp(t, s.srcDB).String()
	f.set(s.srcDB.Database(db).Collection("c"), 1, bson.D{{Key: "n", Value: 1}})
	f.rename(db+".c", db+".out")
	f.run()
	f.caughtUp()
	f.put(s.srcDB, db, "c", 3)
	f.caughtUp()
	f.has(db, "c")
	f.end()
}
