package job_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/verify"
	"github.com/millrace/millrace/test/kit"
)

// rings is a job over the capped collections of one database, with what a crash
// leaves: the target as it was, the checkpoint from before.
type rings struct {
	*conflicted
}

func newRings(t *testing.T, s servers, db string) *rings {
	t.Helper()
	r := &rings{newConflicted(t, s, db, job.ConflictStop)}
	r.spec.AllowOverlap = true // one job after the other is given up
	return r
}

func (r *rings) create(name string, most int64, more ...*options.CreateCollectionOptionsBuilder) {
	r.t.Helper()
	o := append([]options.Lister[options.CreateCollectionOptions]{
		options.CreateCollection().SetCapped(true).SetSizeInBytes(4096).SetMaxDocuments(most)}, listers(more)...)
	r.must(nil, r.s.srcDB.Database(r.db).CreateCollection(r.t.Context(), name, o...))
}

func listers(in []*options.CreateCollectionOptionsBuilder) (out []options.Lister[options.CreateCollectionOptions]) {
	for _, o := range in {
		out = append(out, o)
	}
	return out
}

func (r *rings) on(c *driver.Client, name string) *driver.Collection {
	return c.Database(r.db).Collection(name)
}

// put inserts documents on the source, one command each.
func (r *rings) put(name string, ids ...any) {
	r.t.Helper()
	for _, id := range ids {
		r.must(r.on(r.s.srcDB, name).InsertOne(r.t.Context(), bson.D{{Key: "_id", Value: id}, {Key: "n", Value: 0}}))
	}
}

func (r *rings) drop(name string, id any) {
	r.t.Helper()
	r.must(r.on(r.s.srcDB, name).DeleteOne(r.t.Context(), bson.D{{Key: "_id", Value: id}}))
}

func (r *rings) rename(from, to string, over bool) {
	r.t.Helper()
	r.must(nil, r.s.srcDB.Database("admin").RunCommand(r.t.Context(), bson.D{{Key: "renameCollection", Value: r.db + "." +
		from},
		{Key: "to", Value: r.db + "." + to}, {Key: "dropTarget", Value: over}}).Err())
}

// natural reads a collection in its order.
func natural(ctx context.Context, c *driver.Collection) (out []bson.Raw, err error) {
	cur, err := c.Find(ctx, bson.D{}, options.Find().SetSort(bson.D{{Key: "$natural", Value: 1}}))
	if err != nil {
		return nil, err
	}
	for cur.Next(ctx) {
		out = append(out, bytes.Clone(cur.Current))
	}
	return out, cur.Err()
}

// equal compares all collections in their order.
func (r *rings) equal(when string) bool {
	r.t.Helper()
	ctx := r.t.Context()
	names := map[string]bool{}
	for _, c := range []*driver.Client{r.s.srcDB, r.s.targetC} {
		list, err := c.Database(r.db).ListCollectionNames(ctx, bson.D{})
		r.must(nil, err)
		for _, n := range list {
			names[n] = true
		}
	}
	good := true
	for n := range names {
		want, err := natural(ctx, r.on(r.s.srcDB, n))
		r.must(nil, err)
		got, err := natural(ctx, r.on(r.s.targetC, n))
		r.must(nil, err)
		if w, g := fmt.Sprint(want), fmt.Sprint(got); w != g {
			const some = 1000
			r.t.Errorf("%s: %s: %d documents, target %d:\nsource %.*s\ntarget %.*s", when, n, len(want), len(got), some, w, some,
				g)
			good = false
		}
	}
	return good
}

// settled starts the job, waits until it has all, and stops it.
func (r *rings) settled(when string) bool {
	r.t.Helper()
	r.run()
	r.caughtUp()
	r.end()
	return r.equal(when)
}

// settled1 is settled, comparing one collection.
func (r *rings) settled1(when, name string) {
	r.t.Helper()
	r.run()
	r.caughtUp()
	r.end()
	want, err := natural(r.t.Context(), r.on(r.s.srcDB, name))
	r.must(nil, err)
	got, err := natural(r.t.Context(), r.on(r.s.targetC, name))
	r.must(nil, err)
	if w, g := fmt.Sprint(want), fmt.Sprint(got); w != g {
		r.t.Errorf("%s: source %s, target %s", when, w, g)
	}
}

// back sets the checkpoint back, as if the process had been killed before it
// saved what it had applied since.
func (r *rings) back(to mongo.OpTime, more ...bson.E) {
	r.t.Helper()
	set := append(bson.D{{Key: "applied", Value: to}, {Key: "mark", Value: oplog.Position(to, to).Mark},
		{Key: "reach", Value: lastOp(r.t, r.s.srcDB)}}, more...)
	res, err := r.jobs().UpdateOne(r.t.Context(), bson.D{{Key: "_id", Value: r.spec.Job}},
		bson.D{{Key: "$set", Value: set}})
	r.must(nil, err)
	if res.MatchedCount != 1 {
		r.t.Fatal("no such job")
	}
}

func (r *rings) jobs() *driver.Collection { return r.s.targetC.Database("millrace").Collection("jobs") }

// pinned begins a new job, and stops it when it has pinned its start and is about
// to copy: what changes then is copied and replayed.
func (r *rings) pinned(name string) {
	r.t.Helper()
	r.must(nil, r.s.targetC.Database(r.db).Drop(r.t.Context()))
	r.spec.Job, r.spec.Limits = name, pace.Rates{Bytes: 1}
	r.run()
	r.await("the copy begins", func() bool { return r.j.Status().Phase == job.PhaseCopying })
	r.end()
	r.spec.Limits = pace.Rates{}
}

func TestCappedRings(t *testing.T) {
	t.Parallel()
	s := start(t)
	for name, f := range map[string]func(*testing.T, servers){
		"copied with changes": testCappedCopied, "turned while stopped": testCappedTurned,
		"rotated while stopped":   testCappedRotated,
		"rotated again and again": testCappedChain, "unique": testCappedUnique, "killed": testCappedKilled,
		"rename repeated": testCappedRenameRepeated,
		"renamed in":      testCappedRenamedIn, "incremental": testCappedIncremental, "zero timestamps": testCappedTimestamps,
		"disputed": testCappedDisputed, "rolled off": testCappedRolledOff, "limits": testCappedLimits,
		"earlier build": testCappedEarlierBuild, "finalize fails": testCappedFinalizeFails,
		"written meanwhile": testCappedWritten,
	} {
		t.Run(name, func(t *testing.T) { f(t, s) })
	}
}

// testCappedCopied: a document deleted and inserted again between the start
// position and the copy.
func testCappedCopied(t *testing.T, s servers) {
	r := newRings(t, s, "ringcopy")
	r.create("c", 5)
	r.put("c", 1, 2, 3, 4, 5)
	r.settled("first")
	r.pinned("ringcopy again")
	r.drop("c", 3)
	r.put("c", 3, 6)
	r.settled("copied")
}

// testCappedTurned: the newest document's _id comes again.
func testCappedTurned(t *testing.T, s servers) {
	r := newRings(t, s, "ringturn")
	r.create("c", 3)
	r.put("c", 1, 2, 3)
	r.settled("first")
	r.put("c", 4, 5, 6, 3)
	r.settled("turned")
}

// testCappedRotated: the new log begins with the document that is the newest of
// the old one.
func testCappedRotated(t *testing.T, s servers) {
	r := newRings(t, s, "ringrotate")
	r.create("log", 10)
	r.put("log", 1)
	r.settled("first")
	r.put("log", 2, 3, 4)
	r.rename("log", "log_old", true)
	r.create("log", 10)
	r.put("log", 1)
	r.settled("rotated")
}

// testCappedChain: rotated several times, each log begins alike.
func testCappedChain(t *testing.T, s servers) {
	r := newRings(t, s, "ringchain")
	r.create("log", 3)
	r.put("log", 1, 2)
	r.settled("first")
	rotate := func() {
		for range 3 {
			r.put("log", 3, 4, 1)
			r.rename("log", "old", false)
			r.create("log", 3)
			r.put("log", 1, 2)
			r.rename("old", "older", true)
		}
	}
	rotate()
	r.settled("rotated")
	r.pinned("ringchain again")
	rotate()
	r.settled("copied")
}

// testCappedUnique: what is gone is not inserted again beside the document that
// has its key now.
func testCappedUnique(t *testing.T, s servers) {
	r := newRings(t, s, "ringunique")
	r.create("c", 3)
	r.must(r.src.Indexes().CreateOne(t.Context(), uniqueOn("k")))
	for id, k := range []int{1, 2, 9} {
		r.insert(r.src, bson.D{{Key: "_id", Value: id}, {Key: "k", Value: k}})
	}
	r.settled("first")
	from := lastOp(t, s.srcDB)
	r.insert(r.src, bson.D{{Key: "_id", Value: 3}, {Key: "k", Value: 5}})
	r.drop("c", 3)
	r.set(r.src, 2, bson.D{{Key: "k", Value: 5}})
	r.settled("applied")
	for n := range 3 {
		r.back(from)
		r.settled(fmt.Sprint("start ", n))
	}
}

// testCappedKilled sets the checkpoint back to each event and wants the target
// as it is.
func testCappedKilled(t *testing.T, s servers) {
	r := newRings(t, s, "ringkill")
	r.create("c", 3)
	r.put("c", 1, 2, 3)
	r.settled("first")
	var at []mongo.OpTime
	for _, id := range []int{4, 5, 4, 1, 2} {
		at = append(at, lastOp(t, s.srcDB))
		if id == 4 && len(at) > 1 {
			r.drop("c", 4)
		}
		r.put("c", id)
	}
	r.settled("applied")
	for i, to := range at {
		r.back(to)
		r.settled(fmt.Sprint("back before event ", i))
	}
}

// testCappedRenameRepeated: killed after a rename and what came after it, the
// job makes the rename again and nothing else.
func testCappedRenameRepeated(t *testing.T, s servers) {
	r := newRings(t, s, "ringrename")
	r.create("a", 3)
	r.put("a", 1, 2, 3)
	r.settled("first")
	before := lastOp(t, s.srcDB)
	r.rename("a", "b", false)
	renamed := lastOp(t, s.srcDB)
	r.put("b", 4, 1, 2)
	r.settled("applied")
	r.back(before, bson.E{Key: "intent", Value: renamed})
	r.settled("renamed again")
}

// testCappedRenamedIn: a ring that comes into the filter is copied as it is by
// then, and again after a kill.
func testCappedRenamedIn(t *testing.T, s servers) {
	r := newRings(t, s, "ringin")
	r.spec.Rules.Exclude = []string{r.db + ".out*"}
	r.create("out", 3)
	r.put("out", 1, 2, 3)
	r.create("c", 3)
	r.put("c", 1)
	r.settled1("first", "c")
	before := lastOp(t, s.srcDB)
	r.rename("out", "c", true)
	renamed := lastOp(t, s.srcDB)
	r.put("c", 4, 1, 2)
	r.drop("c", 1)
	r.put("c", 1)
	r.settled("renamed in")
	saved := lastOp(t, s.srcDB)
	r.put("c", 3, 4, 2)
	r.settled("went on")
	r.back(saved)
	r.settled("went on again")
	r.back(before, bson.E{Key: "intent", Value: renamed})
	r.settled("renamed in again")
}

// testCappedIncremental: the target was filled by other means, and is ahead of the
// start.
func testCappedIncremental(t *testing.T, s servers) {
	r := newRings(t, s, "ringinc")
	r.create("c", 3)
	r.put("c", 1, 2, 3)
	from := lastOp(t, s.srcDB)
	r.put("c", 4, 1, 5)
	r.settled("filled")
	r.put("c", 2, 4, 1, 5)
	r.spec.Job, r.spec.Mode, r.spec.StartAt = "ringinc later", job.ModeIncremental, from.String()
	r.settled("incremental")
}

// testCappedWritten copies and follows rings that are written all the time.
func testCappedWritten(t *testing.T, s servers) {
	r := newRings(t, s, "ringlive")
	r.create("c", 5)
	big := options.CreateCollection().SetCapped(true).SetSizeInBytes(8 << 20)
	r.must(nil, s.srcDB.Database(r.db).CreateCollection(t.Context(), "big", big))
	padding := strings.Repeat("p", 1000)
	var docs []any
	for i := range 10000 {
		docs = append(docs, bson.D{{Key: "_id", Value: -i}, {Key: "p", Value: padding}})
	}
	r.insert(r.on(s.srcDB, "big"), docs...)
	var ended atomic.Bool // a write that is broken off may come all the same, while the lists are compared
	written := make(chan error, 2)
	write := func(coll *driver.Collection, id, doc func(i int) any) {
		var err error
		for i := 0; err == nil && !ended.Load(); i++ {
			if _, err = coll.InsertOne(t.Context(), doc(i)); err == nil && i%11 == 0 {
				_, err = coll.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: id(i)}})
			}
		}
		written <- err
	}
	seventh := func(i int) any { return i % 7 } // of which five fit
	go write(r.src, seventh, func(i int) any { return bson.D{{Key: "_id", Value: seventh(i)}, {Key: "i", Value: i}} })
	same := func(i int) any { return i }
	go write(r.on(s.srcDB, "big"), same, func(i int) any {
		return bson.D{{Key: "_id", Value: i},
			{Key: "p", Value: padding}}
	})
	for n := range 2 {
		r.spec.Job = fmt.Sprint("ringlive", n)
		r.must(nil, s.targetC.Database(r.db).Drop(t.Context()))
		r.run()
		r.await("follows", func() bool { return r.j.Status().Phase == job.PhaseFollowing })
		if n < 1 {
			r.end()
		}
	}
	ended.Store(true)
	for range 2 {
		r.must(nil, <-written)
	}
	r.caughtUp()
	r.end()
	if !r.equal("written meanwhile") {
		return
	}
	r.settled("started again")
}

// testCappedTimestamps: an insert puts the present time into a zero timestamp,
// which is undone, also after a kill in between.
func testCappedTimestamps(t *testing.T, s servers) {
	r := newRings(t, s, "ringzero")
	r.create("c", 3)
	r.must(nil, s.srcDB.Database(r.db).CreateCollection(t.Context(),
		"collated", options.CreateCollection().SetCollation(&options.Collation{Locale: "en"})))
	r.put("c", 1)
	r.settled("first")
	from := lastOp(t, s.srcDB)
	for id := 10; id < 13; id++ {
		for _, name := range []string{"c", "collated"} { // a pipeline stores it as it is
			r.must(r.on(s.srcDB, name).UpdateOne(t.Context(), bson.D{{Key: "_id", Value: id}},
				bson.A{bson.D{{Key: "$replaceWith", Value: bson.D{
					{Key: "$literal", Value: bson.D{{Key: "_id", Value: id}, {Key: "t", Value: bson.Timestamp{}}}}}}}},
				options.UpdateOne().SetUpsert(true)))
		}
	}
	r.settled("zero")
	r.set(r.dst, 12, bson.D{{Key: "t", Value: bson.Timestamp{T: 1, I: 1}}})
	r.back(from)
	r.settled("killed before it was undone")
	r.must(r.dst.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: 12}}))
	r.set(r.dst, 11, bson.D{{Key: "t", Value: bson.Timestamp{T: 1, I: 1}}})
	r.back(from)
	r.settled("killed in between")
}

// testCappedDisputed: what concerns a document in dispute reaches its letter,
// though the target has later events.
func testCappedDisputed(t *testing.T, s servers) {
	r := &rings{newConflicted(t, s, "ringletter", job.ConflictSkip)}
	r.create("c", 3)
	r.must(r.src.Indexes().CreateOne(t.Context(), uniqueOn("k")))
	r.insert(r.src, bson.D{{Key: "_id", Value: 1}, {Key: "k", Value: 1}})
	r.run()
	r.caughtUp()
	r.insert(r.dst, bson.D{{Key: "_id", Value: "f"}, {Key: "k", Value: 2}})
	r.insert(r.src, bson.D{{Key: "_id", Value: 2}, {Key: "k", Value: 2}, {Key: "x", Value: 0}})
	r.caughtUp()
	r.oneLetter("open", "key", r.conflicted.on(r.src, 2))
	r.end()
	r.set(r.src, 2, bson.D{{Key: "x", Value: 1}})
	third := bson.D{{Key: "_id", Value: 3}, {Key: "k", Value: 3}}
	r.insert(r.src, third)
	r.insert(r.dst, third) // the update waits for a barrier, the insert does not
	r.run()
	r.caughtUp()
	r.same(1, 3)
	r.oneLetter("open", "key", r.conflicted.on(r.src, 2))
	r.end()
}

// early has the source, whose ring is full, insert two documents and delete another so
// that the second insertion has its place in the oplog before the deletion, and finds
// when it is carried out that nothing has to go. All of it waits for the first insertion.
func (r *rings) early(name string, first, second, remove any) {
	r.t.Helper()
	ctx, src, admin := r.t.Context(), r.on(r.s.srcDB, name), r.s.srcDB.Database("admin")
	before, err := natural(ctx, src)
	r.must(nil, err)
	hang := bson.D{{Key: "configureFailPoint", Value: "hangAfterCollectionInserts"}}
	raw, err := admin.RunCommand(ctx, append(hang, bson.E{Key: "mode", Value: "alwaysOn"},
		bson.E{Key: "data", Value: bson.D{{Key: "collectionNS", Value: r.db + "." + name}}})).Raw()
	r.must(nil, err)
	hit := raw.Lookup("count").AsInt64() + 1
	done := make(chan error, 3)
	insert := func(id any) {
		_, err := src.InsertOne(ctx, bson.D{{Key: "_id", Value: id}, {Key: "n", Value: 0}})
		done <- err
	}
	waits := func(n int) {
		kit.Until(r.t, "the source's operations wait for the first", func() bool {
			raw, err := admin.RunCommand(ctx, bson.D{{Key: "currentOp", Value: true}, {Key: "ns", Value: r.db + "." + name},
				{Key: "waitingForLock", Value: true}}).Raw()
			r.must(nil, err)
			ops, err := raw.Lookup("inprog").Array().Values()
			r.must(nil, err)
			return len(ops) == n
		})
	}
	go insert(first)
	r.must(nil, admin.RunCommand(ctx, bson.D{{Key: "waitForFailPoint", Value: hang[0].Value},
		{Key: "timesEntered", Value: hit}, {Key: "maxTimeMS", Value: 120_000}}).Err())
	go func() {
		_, err := src.DeleteOne(ctx, bson.D{{Key: "_id", Value: remove}})
		done <- err
	}()
	waits(1)
	go insert(second)
	waits(2)
	r.must(nil, admin.RunCommand(ctx, append(hang, bson.E{Key: "mode", Value: "off"})).Err())
	for range 3 {
		r.must(nil, <-done)
	}
	after, err := natural(ctx, src)
	r.must(nil, err)
	if len(after) != len(before) {
		r.t.Fatalf("not as wanted: %s became %s", before, after)
	}
}

// testCappedRolledOff: what the source does not let go stays, in the change phase,
// while stopped, and where the copy begins with it.
func testCappedRolledOff(t *testing.T, s servers) {
	r := newRings(t, s, "ringroll")
	r.create("c", 3)
	r.put("c", 1, 2, 3)
	r.run()
	r.caughtUp()
	r.early("c", 4, 5, 3) // 2, 4, 5
	r.caughtUp()
	if !r.equal("followed") {
		return
	}
	r.end()
	from := lastOp(t, s.srcDB)
	r.early("c", 6, 7, 5) // 4, 6, 7
	r.settled("while stopped")
	r.back(from)
	r.settled("killed")
	r.put("c", 1, 2)
	r.settled("went on") // 7, 1, 2
	r.pinned("ringroll again")
	r.early("c", 3, 4, 2) // 1, 3, 4
	r.settled("copied")
	r.finalized("finalized", 3)
	r.put("c", 9)
	r.must(r.dst.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 9}, {Key: "n", Value: 0}}))
	r.equal("cut over: both let as many go")
}

// finalized finalizes the job, and wants the target to have the limits of the source.
func (r *rings) finalized(when string, most int64) {
	r.t.Helper()
	r.run()
	r.caughtUp()
	r.must(nil, r.j.Finalize(r.t.Context(), false))
	if st := r.j.Status(); len(st.Differences) > 0 {
		r.t.Errorf("%s: differences: %v", when, st.Differences)
	}
	if got := r.most(); got != most {
		r.t.Errorf("%s: at most %d documents, want %d", when, got, most)
	}
	r.equal(when)
}

// most is of how many documents there is room in c of the target, 0 for any number.
func (r *rings) most() int64 {
	r.t.Helper()
	specs, err := r.s.targetC.Database(r.db).ListCollectionSpecifications(r.t.Context(), bson.D{{Key: "name", Value: "c"}})
	r.must(nil, err)
	if len(specs) != 1 {
		r.t.Fatalf("%d collections", len(specs))
	}
	n, _ := specs[0].Options.Lookup("max").AsInt64OK()
	if n == math.MaxInt32 { // as servers store none
		n = 0
	}
	return n
}

// verified wants verify to find no difference but these, which are deferred.
func (r *rings) verified(when string, deferred ...string) {
	r.t.Helper()
	report, err := verify.Clusters(r.t.Context(), verify.Spec{Source: r.spec.Source, Target: r.spec.Target,
		Rules: r.spec.Rules})
	r.must(nil, err)
	var got []string
	for _, d := range report.Expected {
		if d.Deferred {
			got = append(got, d.What)
		}
	}
	if !report.Same || !slices.Equal(got, deferred) {
		r.t.Errorf("%s: same %v, deferred %v, want %v; %v", when, report.Same, got, deferred, report.Schema)
	}
}

// testCappedLimits: limits that the target's collections have already are
// deferred, and so are those that the source changes.
func testCappedLimits(t *testing.T, s servers) {
	r := newRings(t, s, "ringlimits")
	r.spec.OnExisting = job.ExistingMerge
	r.create("c", 4)
	o := options.CreateCollection().SetCapped(true).SetSizeInBytes(4096).SetMaxDocuments(4)
	r.must(nil, s.targetC.Database(r.db).CreateCollection(t.Context(), "c", o))
	r.put("c", 1, 2, 3, 4)
	r.settled("merged")
	if got := r.most(); got != 0 {
		t.Errorf("following: at most %d documents", got)
	}
	r.verified("following", "option max", "option size")
	r.must(nil, s.srcDB.Database(r.db).RunCommand(t.Context(), bson.D{{Key: "collMod", Value: "c"},
		{Key: "cappedMax", Value: 2}}).Err())
	r.put("c", 5)
	r.settled("shrunk")
	// Finalized, but for the note of it.
	r.finalized("finalized", 2)
	r.verified("finalized")
	r.must(r.jobs().UpdateByID(t.Context(), r.spec.Job, bson.D{{Key: "$set", Value: bson.D{{Key: "phase",
		Value: "finalizing"}}}}))
	r.early("c", 6, 7, 5)
	r.run()
	r.must(nil, <-r.ended)
	r.equal("finalized again")
	if got := r.most(); got != 2 {
		t.Errorf("finalized again: at most %d documents", got)
	}
}

// testCappedEarlierBuild: a job that an earlier build began goes on with the limits
// that it gave the target.
func testCappedEarlierBuild(t *testing.T, s servers) {
	r := newRings(t, s, "ringearlier")
	r.create("c", 3)
	r.put("c", 1, 2, 3)
	r.settled("first")
	r.must(r.jobs().UpdateByID(t.Context(), r.spec.Job, bson.D{{Key: "$unset", Value: bson.D{{Key: "roomy", Value: ""}}}}))
	r.must(s.targetC.Database("millrace").Collection("held").DeleteMany(t.Context(),
		bson.D{{Key: "_id.job", Value: r.spec.Job}}))
	r.must(nil, s.targetC.Database(r.db).RunCommand(t.Context(), bson.D{{Key: "collMod", Value: "c"},
		{Key: "cappedSize", Value: 4096}, {Key: "cappedMax", Value: 3}}).Err())
	from := lastOp(t, s.srcDB)
	r.put("c", 4, 5, 1)
	r.settled("went on")
	r.back(from)
	r.settled("killed")
	r.must(nil, s.srcDB.Database(r.db).RunCommand(t.Context(), bson.D{{Key: "collMod", Value: "c"},
		{Key: "cappedMax", Value: 2}}).Err())
	r.put("c", 6)
	r.settled("shrunk")
	if got := r.most(); got != 2 {
		t.Errorf("shrunk: at most %d documents", got)
	}
	r.finalized("finalized", 2)
}

// testCappedFinalizeFails: an attempt that fails when one of two rings has its limits
// again leaves them to an attempt that may have more to apply: it makes room first.
func testCappedFinalizeFails(t *testing.T, s servers) {
	r := newRings(t, s, "ringfinal")
	r.create("c", 3)
	r.create("d", 3)
	r.put("c", 1)
	r.run()
	r.caughtUp()
	fail := bson.D{{Key: "configureFailPoint", Value: "failCommand"}}
	admin := s.targetC.Database("admin")
	r.must(nil, admin.RunCommand(t.Context(), append(fail, bson.E{Key: "mode", Value: bson.D{{Key: "skip", Value: 1}}},
		bson.E{Key: "data", Value: bson.D{{Key: "failCommands", Value: bson.A{"collMod"}},
			{Key: "closeConnection", Value: true}}})).Err())
	done := make(chan error, 1)
	go func() { done <- r.j.Finalize(t.Context(), false) }()
	r.await("finalizing fails", func() bool { return r.j.Status().Errors["retry"] > 0 })
	r.must(nil, admin.RunCommand(t.Context(), append(fail, bson.E{Key: "mode", Value: "off"})).Err())
	r.must(nil, <-done)
	if st := r.j.Status(); len(st.Differences) > 0 || r.most() != 3 {
		t.Errorf("finalized: at most %d documents; differences: %v", r.most(), st.Differences)
	}
	n, err := s.targetC.Database("local").Collection("oplog.rs").CountDocuments(t.Context(),
		bson.D{{Key: "ns", Value: r.db + ".$cmd"}, {Key: "o.cappedSize", Value: int64(1) << 48}})
	r.must(nil, err)
	if n == 0 {
		t.Error("the second attempt made no room")
	}
}
