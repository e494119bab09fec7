package job_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// conflicted is a job that follows a database in which documents collide.
type conflicted struct {
	t        *testing.T
	s        servers
	db       string
	spec     job.Spec
	src, dst *driver.Collection

	j      *job.Job
	cancel context.CancelFunc
	ended  chan error
}

func newConflicted(t *testing.T, s servers, db string, policy job.OnConflict) *conflicted {
	t.Helper()
	db += "_" + string(policy)
	c := &conflicted{t: t, s: s, db: db, spec: s.spec(db), src: s.srcDB.Database(db).Collection("c"),
		dst: s.targetC.Database(db).Collection("c")}
	c.spec.Until, c.spec.OnConflict, c.spec.Job = "never", policy, db
	return c
}

func uniqueOn(fields ...string) driver.IndexModel {
	keys := bson.D{}
	for _, f := range fields {
		keys = append(keys, bson.E{Key: f, Value: 1})
	}
	return driver.IndexModel{Keys: keys, Options: options.Index().SetUnique(true)}
}

func (c *conflicted) must(_ any, err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *conflicted) insert(coll *driver.Collection, docs ...any) {
	c.t.Helper()
	c.must(coll.InsertMany(c.t.Context(), docs))
}

func (c *conflicted) set(coll *driver.Collection, id, fields any) {
	c.t.Helper()
	c.must(coll.UpdateOne(c.t.Context(), bson.D{{Key: "_id", Value: id}}, bson.D{{Key: "$set", Value: fields}}))
}

func (c *conflicted) remove(coll *driver.Collection, id any) {
	c.t.Helper()
	c.must(coll.DeleteOne(c.t.Context(), bson.D{{Key: "_id", Value: id}}))
}

// run starts the job.
func (c *conflicted) run() {
	c.t.Helper()
	ctx, cancel := context.WithCancel(c.t.Context())
	j, err := job.Open(ctx, c.spec)
	if err != nil {
		cancel()
		c.t.Fatal(err)
	}
	c.j, c.cancel, c.ended = j, cancel, make(chan error, 1)
	ended := c.ended
	go func() {
		err := j.Run(ctx)
		j.Close()
		ended <- err
	}()
	c.t.Cleanup(cancel)
}

// end stops the job.
func (c *conflicted) end() {
	c.t.Helper()
	c.cancel()
	<-c.ended
}

// fails waits for the job's end and returns its error.
func (c *conflicted) fails() error {
	c.t.Helper()
	select {
	case err := <-c.ended:
		if err == nil {
			c.t.Fatal("the job did not fail")
		}
		return err
	case <-time.After(4 * time.Minute):
		c.t.Fatalf("the job does not end: %+v", c.j.Status())
		return nil
	}
}

// caughtUp waits until the job follows and has applied all that the source has.
func (c *conflicted) caughtUp() {
	c.t.Helper()
	at := lastOp(c.t, c.s.srcDB)
	c.await("caught up", func() bool { return !job.Applied(c.j).Before(at) })
}

func (c *conflicted) await(what string, ok func() bool) {
	c.t.Helper()
	for deadline := time.Now().Add(4 * time.Minute); !ok(); {
		select {
		case err := <-c.ended:
			c.t.Fatalf("%s: the job ended: %v", what, err)
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%s: not reached: %+v", what, c.j.Status())
		}
	}
}

// on returns a document of a side, nil when it is not there.
func (c *conflicted) on(coll *driver.Collection, id any) bson.Raw {
	c.t.Helper()
	raw, err := coll.FindOne(c.t.Context(), bson.D{{Key: "_id", Value: id}}).Raw()
	if err == driver.ErrNoDocuments { //nolint:errorlint // returned as it is
		return nil
	}
	c.must(nil, err)
	return raw
}

// same wants a document to be on the target as it is on the source.
func (c *conflicted) same(ids ...any) {
	c.t.Helper()
	for _, id := range ids {
		if want, got := c.on(c.src, id), c.on(c.dst, id); want == nil || !bytes.Equal(want, got) {
			c.t.Errorf("%s: source has %s, target %s", c.db, want, got)
		}
	}
}

type letter struct {
	ID         string        `bson:"_id"`
	State      string        `bson:"state"`
	Cause      string        `bson:"cause"`
	NS         string        `bson:"ns"`
	DocumentID bson.RawValue `bson:"documentId"`
	Document   bson.Raw      `bson:"document"`
	Parts      int           `bson:"parts"`
	PartsOf    string        `bson:"partsOf"`
	Index      string        `bson:"index"`
	Reason     string        `bson:"reason"`
	OtherID    bson.RawValue `bson:"otherId"`
	Time       time.Time     `bson:"time"`
}

func (c *conflicted) letters() []letter {
	c.t.Helper()
	cur, err := c.s.targetC.Database("millrace").Collection("deadletters").Find(c.t.Context(),
		bson.D{{Key: "job", Value: c.db}},
		options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
	c.must(nil, err)
	var out []letter
	c.must(nil, cur.All(c.t.Context(), &out))
	return out
}

// oneLetter wants exactly one letter, in the given state and about the given
// document.
func (c *conflicted) oneLetter(state, cause string, doc bson.Raw) letter {
	c.t.Helper()
	all := c.letters()
	if len(all) != 1 {
		c.t.Fatalf("%s: %d letters: %+v", c.db, len(all), all)
	}
	l := all[0]
	if l.State != state || l.Cause != cause || l.Reason == "" || l.NS != c.db+".c" || l.Time.IsZero() {
		c.t.Errorf("%s: letter %+v, want %s, %s", c.db, l, state, cause)
	}
	if doc != nil && !bytes.Equal(l.Document, doc) {
		c.t.Errorf("%s: letter holds %s, want %s", c.db, l.Document, doc)
	}
	return l
}

func TestConflicts(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, policy := range []job.OnConflict{job.ConflictStop, job.ConflictSkip, job.ConflictOverwrite} {
		t.Run(string(policy), func(t *testing.T) {
			if policy == job.ConflictSkip {
				lab.Nightly(t)
			}
			t.Parallel()
			for name, test := range map[string]func(*testing.T, servers, job.OnConflict){
				"key taken":    testKeyTaken,
				"id taken":     testIDTaken,
				"lost":         testLost,
				"refused":      testRefused,
				"several":      testSeveralTaken,
				"mended":       testMended,
				"copy":         testCopyConflict,
				"copy refused": testCopyRefused,
				"unique":       testHeldUnique,
				"large":        testLargeLetter,
				"renamed":      testLetterRenamed,
				"traded":       testTradedInCopy,
				"new index":    testNewUnique,
				"collation":    testCollatedKey,
				"two holders":  testTwoHolders,
				"capped":       testCappedConflict,
				"serial":       testSerialConflict,
			} {
				t.Run(name, func(t *testing.T) { t.Parallel(); test(t, s, policy) })
			}
		})
	}
}

// follow runs the job over documents 1 to 3, with unique keys k of their own.
func follow(t *testing.T, s servers, db string, policy job.OnConflict) *conflicted {
	t.Helper()
	c := newConflicted(t, s, db, policy)
	c.must(c.src.Indexes().CreateOne(t.Context(), uniqueOn("k")))
	c.insert(c.src, bson.D{{Key: "_id", Value: 1}, {Key: "k", Value: 1}}, bson.D{{Key: "_id", Value: 2},
		{Key: "k", Value: 2}}, bson.D{{Key: "_id", Value: 3}, {Key: "k", Value: 3}})
	c.run()
	c.caughtUp()
	return c
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("%q does not name %s", err, p)
		}
	}
	if mongo.HintOf(err) == "" {
		t.Errorf("%q has no hint", err)
	}
}

func testKeyTaken(t *testing.T, s servers, policy job.OnConflict) {
	c := follow(t, s, "keytaken", policy)
	foreign := bson.D{{Key: "_id", Value: "f"}, {Key: "k", Value: 10}, {Key: "theirs", Value: true}}
	c.insert(c.dst, foreign)
	there := c.on(c.dst, "f")
	c.insert(c.src, bson.D{{Key: "_id", Value: 9}, {Key: "k", Value: 9}}, bson.D{{Key: "_id", Value: 10},
		{Key: "k", Value: 10}, {Key: "x.y", Value: 1}}, bson.D{{Key: "_id", Value: 11}, {Key: "k", Value: 11}})
	if policy == job.ConflictStop {
		wantError(t, c.fails(), c.db+".c", `{"$numberInt":"10"}`, "k_1", `"f"`)
		return
	}
	c.caughtUp()
	c.same(9, 11)
	if policy == job.ConflictOverwrite {
		c.same(10)
		l := c.oneLetter("removed", "in the way", there)
		if c.on(c.dst, "f") != nil || l.OtherID.String() != `{"$numberInt":"10"}` {
			t.Errorf("the other document is still there, or not named: %+v", l)
		}
		c.end()
		return
	}
	l := c.oneLetter("open", "key", c.on(c.src, 10))
	if c.on(c.dst, 10) != nil || !bytes.Equal(c.on(c.dst, "f"), there) || l.OtherID.StringValue() != "f" ||
		l.Index != "k_1" {
		t.Errorf("target: %s and %s, letter %+v", c.on(c.dst, 10), c.on(c.dst, "f"), l)
	}
	if st := c.j.Status().Conflicts; st.Open != 1 || st.Where == "" {
		t.Errorf("status: %+v", st)
	}
	// Later changes go into the letter.
	c.set(c.src, 10, bson.D{{Key: "more", Value: bson.A{1, 2}}})
	c.caughtUp()
	c.oneLetter("open", "key", c.on(c.src, 10))
	// Over a restart too.
	c.end()
	c.set(c.src, 10, bson.D{{Key: "more.0", Value: "x"}})
	c.run()
	c.caughtUp()
	c.oneLetter("open", "key", c.on(c.src, 10))
	// Once it fits it comes whole.
	c.set(c.src, 10, bson.D{{Key: "k", Value: 1000}})
	c.caughtUp()
	c.same(10)
	c.oneLetter("settled", "key", nil)
	// And is like any other from then on.
	c.set(c.src, 10, bson.D{{Key: "last", Value: 1}})
	c.caughtUp()
	c.same(10)
	c.end()
}

func testIDTaken(t *testing.T, s servers, policy job.OnConflict) {
	c := follow(t, s, "idtaken", policy)
	c.insert(c.dst, bson.D{{Key: "_id", Value: 10}, {Key: "k", Value: 77}, {Key: "theirs", Value: true}})
	there := c.on(c.dst, 10)
	c.insert(c.src, bson.D{{Key: "_id", Value: 10}, {Key: "k", Value: 10}}, bson.D{{Key: "_id", Value: 11},
		{Key: "k", Value: 11}})
	if policy == job.ConflictStop {
		wantError(t, c.fails(), c.db+".c", `{"$numberInt":"10"}`, "_id")
		return
	}
	c.caughtUp()
	c.same(11)
	if policy == job.ConflictOverwrite {
		c.same(10)
		c.oneLetter("removed", "in the way", there)
		c.end()
		return
	}
	c.oneLetter("open", "id", c.on(c.src, 10))
	c.set(c.src, 10, bson.D{{Key: "x", Value: 1}})
	c.caughtUp()
	c.oneLetter("open", "id", c.on(c.src, 10))
	if !bytes.Equal(c.on(c.dst, 10), there) {
		t.Errorf("the target's document became %s", c.on(c.dst, 10))
	}
	c.remove(c.src, 10)
	c.caughtUp()
	c.oneLetter("settled", "id", nil)
	if !bytes.Equal(c.on(c.dst, 10), there) {
		t.Errorf("the target's document became %s", c.on(c.dst, 10))
	}
	c.end()
}

// testSeveralTaken: a job that stops over a document has judged all that it sent, and knows
// how far that was: no other document of somebody else passes for its own when it goes on.
func testSeveralTaken(t *testing.T, s servers, policy job.OnConflict) {
	if policy != job.ConflictStop {
		t.Skip("others do not stop")
	}
	c := follow(t, s, "several", policy)
	taken := []int{10, 11, 12, 13, 14, 30, 31}
	there := map[int]bson.Raw{}
	for _, id := range taken {
		c.insert(c.dst, bson.D{{Key: "_id", Value: id}, {Key: "k", Value: 100 + id}, {Key: "theirs", Value: true}})
		there[id] = c.on(c.dst, id)
	}
	var docs []any
	for id := 10; id < 20; id++ {
		docs = append(docs, bson.D{{Key: "_id", Value: id}, {Key: "k", Value: id}})
	}
	c.insert(c.src, docs...)
	wantError(t, c.fails(), c.db+".c", `{"$numberInt":"10"}`, "; also insert", "; and 1 more")
	for _, id := range taken[5:] { // before the clock has passed what the job was allowed to send
		c.insert(c.src, bson.D{{Key: "_id", Value: id}, {Key: "k", Value: id}})
	}
	c.spec.OnConflict = job.ConflictSkip
	c.run()
	c.caughtUp()
	c.same(15, 16, 17, 18, 19)
	for _, id := range taken {
		if got := c.on(c.dst, id); !bytes.Equal(got, there[id]) {
			t.Errorf("the target's document became %s", got)
		}
	}
	if all := c.letters(); len(all) != len(taken) {
		t.Errorf("%d letters: %+v", len(all), all)
	}
	c.end()
}

// testMended: somebody removes what was in the way, and the job that goes on is ended again
// as soon as it has written its document. That is not taken for somebody else's then.
func testMended(t *testing.T, s servers, policy job.OnConflict) {
	if policy != job.ConflictStop {
		t.Skip("others do not stop")
	}
	c := follow(t, s, "mended", policy)
	c.insert(c.dst, bson.D{{Key: "_id", Value: 10}, {Key: "k", Value: 77}, {Key: "theirs", Value: true}})
	c.insert(c.src, bson.D{{Key: "_id", Value: 10}, {Key: "k", Value: 10}})
	wantError(t, c.fails(), `{"$numberInt":"10"}`)
	c.remove(c.dst, 10)
	c.run()
	c.await("the document is there", func() bool { return c.on(c.dst, 10) != nil })
	c.end()
	c.run()
	c.caughtUp()
	c.same(10)
	c.end()
}

func testLost(t *testing.T, s servers, policy job.OnConflict) {
	c := follow(t, s, "lost", policy)
	c.set(c.src, 1, bson.D{{Key: "a", Value: bson.A{1, 2, 3}}, {Key: "long", Value: strings.Repeat("x", 300)}})
	c.caughtUp()
	c.remove(c.dst, 1)
	c.set(c.src, 1, bson.D{{Key: "a.1", Value: 9}})
	c.set(c.src, 2, bson.D{{Key: "x", Value: 1}})
	if policy == job.ConflictStop {
		wantError(t, c.fails(), c.db+".c", `{"$numberInt":"1"}`, "not on the target")
		return
	}
	c.caughtUp()
	c.same(2)
	if policy == job.ConflictSkip {
		c.oneLetter("open", "missing", c.on(c.src, 1))
		if c.on(c.dst, 1) != nil {
			t.Errorf("the target has %s", c.on(c.dst, 1))
		}
	} else {
		c.await("written back", func() bool { return c.on(c.dst, 1) != nil })
		c.same(1)
		c.await("settled", func() bool { return c.letters()[0].State == "settled" })
		c.oneLetter("settled", "missing", nil)
	}
	// The next change brings the whole document back in both cases.
	c.set(c.src, 1, bson.D{{Key: "y", Value: 1}})
	c.caughtUp()
	c.same(1)
	c.oneLetter("settled", "missing", nil)
	c.end()
}

// testRefused: several errors of one unordered batch, each for another reason.
func testRefused(t *testing.T, s servers, policy job.OnConflict) {
	c := follow(t, s, "refused", policy)
	c.must(c.dst.Indexes().CreateOne(t.Context(), driver.IndexModel{Keys: bson.D{{Key: "p", Value: 1},
		{Key: "q", Value: 1}}}))
	c.insert(c.dst, bson.D{{Key: "_id", Value: "f"}, {Key: "k", Value: 10}})
	docs := []any{
		bson.D{{Key: "_id", Value: 10}, {Key: "k", Value: 10}},
		bson.D{{Key: "_id", Value: 11}, {Key: "k", Value: 11}, {Key: "p", Value: bson.A{1, 2}},
			{Key: "q", Value: bson.A{1, 2}}},
		bson.D{{Key: "_id", Value: 12}, {Key: "k", Value: 12}},
	}
	c.insert(c.src, docs...)
	if policy == job.ConflictStop {
		wantError(t, c.fails(), c.db+".c", "parallel arrays")
		return
	}
	c.caughtUp()
	c.same(12)
	states := map[string]string{}
	for _, l := range c.letters() {
		states[l.DocumentID.String()] = l.State + " " + l.Cause
		if l.DocumentID.String() == `{"$numberInt":"11"}` && !bytes.Equal(l.Document, c.on(c.src, 11)) {
			t.Errorf("letter holds %s", l.Document)
		}
	}
	want := map[string]string{`{"$numberInt":"11"}`: "open refused", `{"$numberInt":"10"}`: "open key"}
	if policy == job.ConflictOverwrite {
		want = map[string]string{`{"$numberInt":"11"}`: "open refused", `"f"`: "removed in the way"}
		c.same(10)
	}
	if len(states) != len(want) || states[`{"$numberInt":"11"}`] != want[`{"$numberInt":"11"}`] {
		t.Errorf("letters: %v, want %v", states, want)
	}
	// An update that is refused leaves the document as it was until it fits.
	before := c.on(c.dst, 2)
	c.set(c.src, 2, bson.D{{Key: "p", Value: bson.A{1}}, {Key: "q", Value: bson.A{1}}})
	c.caughtUp()
	if !bytes.Equal(c.on(c.dst, 2), before) {
		t.Errorf("the target has %s", c.on(c.dst, 2))
	}
	c.set(c.src, 2, bson.D{{Key: "p", Value: 5}})
	c.set(c.src, 11, bson.D{{Key: "q", Value: 5}})
	c.caughtUp()
	c.same(2, 11)
	c.end()
}

func testCopyConflict(t *testing.T, s servers, policy job.OnConflict) {
	c := newConflicted(t, s, "copying", policy)
	c.spec.OnExisting = job.ExistingMerge
	c.insert(c.src, bson.D{{Key: "_id", Value: 1}, {Key: "k", Value: 1}, {Key: "x", Value: "ours"}},
		bson.D{{Key: "_id", Value: 2}, {Key: "k", Value: 2}})
	c.insert(c.dst, bson.D{{Key: "_id", Value: "f"}, {Key: "k", Value: 1}, {Key: "theirs", Value: true}})
	there := c.on(c.dst, "f")
	for _, coll := range []*driver.Collection{c.src, c.dst} {
		c.must(coll.Indexes().CreateOne(t.Context(), uniqueOn("k")))
	}
	c.run()
	if policy == job.ConflictStop {
		wantError(t, c.fails(), c.db+".c", `{"$numberInt":"1"}`, "k_1", `"f"`)
		// What stood in the way is removed by hand: the job goes on.
		c.remove(c.dst, "f")
		c.run()
		c.caughtUp()
		c.same(1, 2)
		if l := c.letters(); len(l) != 0 {
			t.Errorf("letters: %+v", l)
		}
		c.end()
		return
	}
	c.caughtUp()
	c.same(2)
	if policy == job.ConflictOverwrite {
		c.same(1)
		found := false
		for _, l := range c.letters() {
			found = found || l.State == "removed" && bytes.Equal(l.Document, there)
		}
		if !found || c.on(c.dst, "f") != nil {
			t.Errorf("letters: %+v", c.letters())
		}
		c.end()
		return
	}
	c.oneLetter("open", "key", c.on(c.src, 1))
	c.set(c.src, 1, bson.D{{Key: "y", Value: 1}})
	c.caughtUp()
	c.oneLetter("open", "key", c.on(c.src, 1))
	c.end()
	// Started again under another policy, the open case is decided by it.
	c.spec.OnConflict = job.ConflictOverwrite
	c.run()
	c.await("decided", func() bool { return c.on(c.dst, 1) != nil })
	c.caughtUp()
	c.same(1)
	c.end()
}

// testTradedInCopy: the copy meets two documents with one key, which they had
// one after the other. That is no conflict under any policy.
func testTradedInCopy(t *testing.T, s servers, policy job.OnConflict) {
	c := newConflicted(t, s, "traded", policy)
	c.spec.OnExisting = job.ExistingMerge
	c.spec.Limits = pace.Rates{Docs: 200}
	pad := strings.Repeat("x", 20_000)
	var docs []any
	for i := range 600 {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}, {Key: "pad", Value: pad}})
	}
	c.insert(c.src, docs...)
	for _, coll := range []*driver.Collection{c.src, c.dst} {
		c.must(coll.Indexes().CreateOne(t.Context(), uniqueOn("k")))
	}
	c.run()
	c.await("first copied", func() bool { return c.on(c.dst, 0) != nil })
	c.set(c.src, 0, bson.D{{Key: "k", Value: "other"}})
	c.set(c.src, 599, bson.D{{Key: "k", Value: 0}})
	met := false
	c.await("copied", func() bool {
		st := c.j.Status()
		met = met || st.Conflicts.Undecided > 0
		return st.Phase == job.PhaseFollowing
	})
	if !met {
		t.Log("the copy met no duplicate key: nothing is shown this time")
	}
	c.caughtUp()
	c.same(0, 1, 599)
	if l := c.letters(); len(l) != 0 {
		t.Errorf("letters: %+v", l)
	}
	c.end()
}

// testHeldUnique: a foreign document comes before the unique index is built.
func testHeldUnique(t *testing.T, s servers, policy job.OnConflict) {
	c := newConflicted(t, s, "held", policy)
	c.spec.OnExisting = job.ExistingMerge
	c.insert(c.src, bson.D{{Key: "_id", Value: 1}, {Key: "k", Value: 1}}, bson.D{{Key: "_id", Value: 2},
		{Key: "k", Value: 2}})
	c.must(c.src.Indexes().CreateOne(t.Context(), uniqueOn("k")))
	c.insert(c.dst, bson.D{{Key: "_id", Value: "f"}, {Key: "k", Value: 1}})
	there := c.on(c.dst, "f")
	c.run()
	if policy == job.ConflictStop {
		wantError(t, c.fails(), c.db+".c", "k_1", `"f"`, `{"$numberInt":"1"}`)
		return
	}
	c.caughtUp()
	c.same(2)
	c.afterUnique(policy, there)
}

// afterUnique: document 1 had a key that "f" has too.
func (c *conflicted) afterUnique(policy job.OnConflict, there bson.Raw) {
	c.t.Helper()
	if n := len(c.indexes()); n != 2 {
		c.t.Errorf("%d indexes on the target", n)
	}
	if policy == job.ConflictOverwrite {
		c.same(1)
		c.oneLetter("removed", "in the way", there)
		c.end()
		return
	}
	c.oneLetter("open", "key", c.on(c.src, 1))
	if c.on(c.dst, 1) != nil || !bytes.Equal(c.on(c.dst, "f"), there) {
		c.t.Errorf("target: %s and %s", c.on(c.dst, 1), c.on(c.dst, "f"))
	}
	// What stood in the way goes: the next start writes the document.
	c.end()
	c.remove(c.dst, "f")
	c.run()
	c.await("written", func() bool { return c.on(c.dst, 1) != nil })
	c.same(1)
	c.end()
}

func (c *conflicted) indexes() []driver.IndexSpecification {
	c.t.Helper()
	specs, err := c.dst.Indexes().ListSpecifications(c.t.Context())
	c.must(nil, err)
	return specs
}

// testNewUnique: a unique index made while the job follows.
func testNewUnique(t *testing.T, s servers, policy job.OnConflict) {
	c := newConflicted(t, s, "newindex", policy)
	c.insert(c.src, bson.D{{Key: "_id", Value: 1}, {Key: "k", Value: 1}}, bson.D{{Key: "_id", Value: 2},
		{Key: "k", Value: 2}})
	c.run()
	c.caughtUp()
	c.insert(c.dst, bson.D{{Key: "_id", Value: "f"}, {Key: "k", Value: 1}})
	there := c.on(c.dst, "f")
	c.must(c.src.Indexes().CreateOne(t.Context(), uniqueOn("k")))
	if policy == job.ConflictStop {
		wantError(t, c.fails(), c.db+".c", "k_1", `"f"`, `{"$numberInt":"1"}`)
		return
	}
	c.caughtUp()
	c.same(2)
	c.afterUnique(policy, there)
}

// testCollatedKey: under a collation the server does not say the key.
func testCollatedKey(t *testing.T, s servers, policy job.OnConflict) {
	c := newConflicted(t, s, "collated", policy)
	index := driver.IndexModel{Keys: bson.D{{Key: "k", Value: 1}, {Key: "o.p", Value: 1}},
		Options: options.Index().SetUnique(true).SetName("ci").SetCollation(&options.Collation{Locale: "en", Strength: 2}).
			SetPartialFilterExpression(bson.D{{Key: "on", Value: true}})}
	c.must(c.src.Indexes().CreateOne(t.Context(), index))
	doc := func(id any, k string) bson.D {
		return bson.D{{Key: "_id", Value: id}, {Key: "k", Value: k}, {Key: "o", Value: bson.D{{Key: "p", Value: 1}}},
			{Key: "on", Value: true}}
	}
	c.insert(c.src, doc(1, "one"))
	c.run()
	c.caughtUp()
	c.insert(c.dst, doc("f", "TWO"), append(doc("not in the index", "TWO")[:3:3], bson.E{Key: "on", Value: false}))
	there := c.on(c.dst, "f")
	c.insert(c.src, doc(2, "Two"), doc(3, "three"))
	if policy == job.ConflictStop {
		wantError(t, c.fails(), c.db+".c", "ci", `"f"`)
		return
	}
	c.caughtUp()
	c.same(3)
	if policy == job.ConflictOverwrite {
		c.same(2)
		c.oneLetter("removed", "in the way", there)
	} else {
		c.oneLetter("open", "key", c.on(c.src, 2))
	}
	if c.on(c.dst, "not in the index") == nil {
		t.Error("a document that was not in the way is gone")
	}
	c.end()
}

// testTwoHolders: one document meets others in two indexes, one of them is a
// document of the source that somebody changed on the target.
func testTwoHolders(t *testing.T, s servers, policy job.OnConflict) {
	c := follow(t, s, "two", policy)
	c.remove(c.src, 3)
	c.remove(c.src, 2) // a missing m.n is a key too
	c.must(c.src.Indexes().CreateOne(t.Context(), uniqueOn("m.n")))
	c.caughtUp()
	c.insert(c.dst, bson.D{{Key: "_id", Value: "f"}, {Key: "k", Value: 70}, {Key: "m", Value: bson.A{bson.D{{Key: "n",
		Value: 7}}, bson.D{{Key: "n", Value: 8}}}}})
	c.set(c.dst, 1, bson.D{{Key: "k", Value: 50}})
	changed := c.on(c.dst, 1)
	c.insert(c.src, bson.D{{Key: "_id", Value: 5}, {Key: "k", Value: 50}, {Key: "m", Value: bson.D{{Key: "n", Value: 8}}}})
	if policy == job.ConflictStop {
		wantError(t, c.fails(), c.db+".c", `{"$numberInt":"5"}`)
		return
	}
	c.caughtUp()
	if policy == job.ConflictSkip {
		c.oneLetter("open", "key", c.on(c.src, 5))
		c.end()
		return
	}
	c.same(5)
	c.await("the source's document is back", func() bool { return bytes.Equal(c.on(c.dst, 1), c.on(c.src, 1)) })
	removed := 0
	for _, l := range c.letters() {
		if l.State == "removed" {
			removed++
			if l.DocumentID.String() != `"f"` && !bytes.Equal(l.Document, changed) {
				t.Errorf("letter holds %s, want %s", l.Document, changed)
			}
		}
	}
	if removed != 2 || c.on(c.dst, "f") != nil {
		t.Errorf("letters: %+v", c.letters())
	}
	c.end()
}

// testLargeLetter: a document that fills what a server takes, and one with
// names that not every server takes.
func testLargeLetter(t *testing.T, s servers, policy job.OnConflict) {
	c := follow(t, s, "large", policy)
	large := bson.D{{Key: "_id", Value: "f"}, {Key: "k", Value: 10}, {Key: "pad", Value: strings.Repeat("z", 16<<20-100)}}
	c.insert(c.dst, large)
	there := c.on(c.dst, "f")
	large[0].Value, large[2].Value = 10, strings.Repeat("y", 16<<20-100)
	c.insert(c.src, large)
	if policy == job.ConflictStop {
		wantError(t, c.fails(), c.db+".c", `"f"`)
		return
	}
	c.caughtUp()
	want, state := there, "removed"
	if policy == job.ConflictSkip {
		want, state = c.on(c.src, 10), "open"
	}
	all := c.letters()
	if len(all) != 1 || all[0].State != state || all[0].Parts < 2 || all[0].Document != nil {
		t.Fatalf("letters: %d, %s", len(all), all[0].State)
	}
	if got := c.parts(all[0]); !bytes.Equal(got, want) {
		t.Errorf("the parts are not the document: %d bytes", len(got))
	}
	if policy == job.ConflictSkip {
		c.set(c.src, 10, bson.D{{Key: "pad", Value: "short"}})
		_, err := c.src.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: 10}},
			bson.D{{Key: "$set", Value: bson.D{{Key: "sub", Value: bson.D{{Key: "x", Value: bson.D{{Key: "$in", Value: 1}}}}}}}})
		c.caughtUp()
		if all = c.letters(); err == nil && !bytes.Equal(c.parts(all[0]), c.on(c.src, 10)) {
			t.Errorf("letter: %+v", all)
		}
		c.set(c.src, 10, bson.D{{Key: "k", Value: 11}})
		c.caughtUp()
	}
	c.same(10)
	c.end()
}

func (c *conflicted) parts(l letter) (doc []byte) {
	c.t.Helper()
	cur, err := c.s.targetC.Database("millrace").Collection("deadletters.parts").Find(c.t.Context(),
		bson.D{{Key: "letter", Value: l.ID}},
		options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
	c.must(nil, err)
	for cur.Next(c.t.Context()) {
		_, b := cur.Current.Lookup("data").Binary()
		doc = append(doc, b...)
	}
	c.must(nil, cur.Err())
	return doc
}

// testLetterRenamed: dead letters follow their collection.
func testLetterRenamed(t *testing.T, s servers, policy job.OnConflict) {
	if policy != job.ConflictSkip {
		t.Skip("no letters in dispute")
	}
	c := follow(t, s, "renamed", policy)
	c.insert(c.dst, bson.D{{Key: "_id", Value: "f"}, {Key: "k", Value: 10}})
	c.insert(c.src, bson.D{{Key: "_id", Value: 10}, {Key: "k", Value: 10}})
	c.caughtUp()
	c.oneLetter("open", "key", c.on(c.src, 10))
	db := c.db
	c.must(nil, c.s.srcDB.Database("admin").RunCommand(t.Context(), bson.D{{Key: "renameCollection", Value: db + ".c"},
		{Key: "to", Value: db + ".d"}}).Err())
	c.src, c.dst = s.srcDB.Database(db).Collection("d"), s.targetC.Database(db).Collection("d")
	c.set(c.src, 10, bson.D{{Key: "x", Value: 1}})
	c.caughtUp()
	if l := c.letters(); len(l) != 1 || l[0].NS != db+".d" || !bytes.Equal(l[0].Document, c.on(c.src, 10)) {
		t.Errorf("letters: %+v", l)
	}
	c.must(nil, c.src.Drop(t.Context()))
	c.caughtUp()
	if l := c.letters(); len(l) != 1 || l[0].State != "settled" {
		t.Errorf("letters: %+v", l)
	}
	c.end()
}

// testCappedConflict: order is content, so nothing is inserted later, and
// nothing can be removed.
func testCappedConflict(t *testing.T, s servers, policy job.OnConflict) {
	c := newConflicted(t, s, "cappedc", policy)
	c.must(nil, s.srcDB.Database(c.db).CreateCollection(t.Context(),
		"c", options.CreateCollection().SetCapped(true).SetSizeInBytes(1<<20)))
	c.must(c.src.Indexes().CreateOne(t.Context(), uniqueOn("k")))
	c.insert(c.src, bson.D{{Key: "_id", Value: 1}, {Key: "k", Value: 1}, {Key: "x", Value: 0}})
	c.run()
	c.caughtUp()
	c.insert(c.dst, bson.D{{Key: "_id", Value: "f"}, {Key: "k", Value: 2}})
	c.insert(c.src, bson.D{{Key: "_id", Value: 2}, {Key: "k", Value: 2}, {Key: "x", Value: 0}},
		bson.D{{Key: "_id", Value: 3}, {Key: "k", Value: 3}})
	if policy != job.ConflictSkip {
		wantError(t, c.fails(), c.db+".c", `{"$numberInt":"2"}`, "k_1", `"f"`)
		return
	}
	c.caughtUp()
	c.same(1, 3)
	c.oneLetter("open", "key", c.on(c.src, 2))
	c.set(c.src, 2, bson.D{{Key: "x", Value: 1}})
	c.caughtUp()
	c.oneLetter("open", "key", c.on(c.src, 2))
	c.end()
	c.run()
	c.caughtUp()
	c.insert(c.src, bson.D{{Key: "_id", Value: 4}, {Key: "k", Value: 4}})
	c.caughtUp()
	c.same(4)
	c.oneLetter("open", "key", c.on(c.src, 2))
	c.end()
}

// testSerialConflict: a collection with a collation, applied in order.
func testSerialConflict(t *testing.T, s servers, policy job.OnConflict) {
	c := newConflicted(t, s, "serial", policy)
	c.must(nil, s.srcDB.Database(c.db).CreateCollection(t.Context(),
		"c", options.CreateCollection().SetCollation(&options.Collation{Locale: "en", Strength: 2})))
	c.must(c.src.Indexes().CreateOne(t.Context(), uniqueOn("k")))
	c.insert(c.src, bson.D{{Key: "_id", Value: 1}, {Key: "k", Value: 1}})
	c.run()
	c.caughtUp()
	c.insert(c.dst, bson.D{{Key: "_id", Value: "ABC"}, {Key: "k", Value: 20}},
		bson.D{{Key: "_id", Value: "f"}, {Key: "k", Value: "Key"}})
	c.insert(c.src, bson.D{{Key: "_id", Value: "x"}, {Key: "k", Value: 8}}, bson.D{{Key: "_id", Value: "abc"},
		{Key: "k", Value: 2}},
		bson.D{{Key: "_id", Value: 3}, {Key: "k", Value: "kEY"}}, bson.D{{Key: "_id", Value: 4}, {Key: "k", Value: 4}})
	if policy == job.ConflictStop {
		wantError(t, c.fails(), c.db+".c", `"abc"`)
		return
	}
	c.caughtUp()
	c.same("x", 4)
	want := "open"
	if policy == job.ConflictOverwrite {
		want = "removed"
		c.same("abc", 3)
	}
	all := c.letters()
	if len(all) != 2 || all[0].State != want || all[1].State != want {
		t.Errorf("letters: %+v", all)
	}
	c.set(c.src, "abc", bson.D{{Key: "k", Value: 5}})
	c.set(c.src, 3, bson.D{{Key: "k", Value: 6}})
	c.caughtUp()
	c.same(3)
	c.end()
}

// testCopyRefused: a document that the target's own index does not take.
func testCopyRefused(t *testing.T, s servers, policy job.OnConflict) {
	c := newConflicted(t, s, "copyrefused", policy)
	c.spec.OnExisting = job.ExistingMerge
	c.must(c.dst.Indexes().CreateOne(t.Context(), driver.IndexModel{Keys: bson.D{{Key: "p", Value: 1},
		{Key: "q", Value: 1}}}))
	c.insert(c.src, bson.D{{Key: "_id", Value: 1}, {Key: "p", Value: bson.A{1, 2}}, {Key: "q", Value: bson.A{1, 2}}},
		bson.D{{Key: "_id", Value: 2}})
	c.run()
	if policy == job.ConflictStop {
		wantError(t, c.fails(), c.db+".c", `{"$numberInt":"1"}`, "parallel arrays")
		return
	}
	c.caughtUp()
	c.same(2)
	c.oneLetter("open", "refused", c.on(c.src, 1))
	c.set(c.src, 1, bson.D{{Key: "p", Value: 1}})
	c.caughtUp()
	c.same(1)
	c.oneLetter("settled", "refused", nil)
	c.end()
}

// TestConflictsFromStandalone: no changes follow that could settle what the
// copy met.
func TestConflictsFromStandalone(t *testing.T) {
	t.Parallel()
	s := servers{src: lab.ForTest(t, lab.Options{Topology: "standalone"}), dst: lab.ForTest(t, lab.Options{})}
	s.srcDB, s.targetC = kit.Client(t, s.src.URI()), kit.Client(t, s.dst.URI())
	for _, policy := range []job.OnConflict{job.ConflictStop, job.ConflictSkip, job.ConflictOverwrite} {
		c := newConflicted(t, s, "alone", policy)
		c.spec.OnExisting, c.spec.Mode, c.spec.Until = job.ExistingMerge, job.ModeFull, ""
		c.insert(c.src, bson.D{{Key: "_id", Value: 1}, {Key: "k", Value: 1}}, bson.D{{Key: "_id", Value: 2},
			{Key: "k", Value: 2}})
		c.insert(c.dst, bson.D{{Key: "_id", Value: "f"}, {Key: "k", Value: 1}})
		there := c.on(c.dst, "f")
		for _, coll := range []*driver.Collection{c.src, c.dst} {
			c.must(coll.Indexes().CreateOne(t.Context(), uniqueOn("k")))
		}
		c.run()
		if policy == job.ConflictStop {
			wantError(t, c.fails(), c.db+".c", `{"$numberInt":"1"}`, "k_1", `"f"`)
			continue
		}
		if err := <-c.ended; err != nil {
			t.Fatal(err)
		}
		c.same(2)
		if policy == job.ConflictSkip {
			c.oneLetter("open", "key", c.on(c.src, 1))
			continue
		}
		c.same(1)
		found := false
		for _, l := range c.letters() {
			found = found || l.State == "removed" && bytes.Equal(l.Document, there)
		}
		if !found {
			t.Errorf("letters: %+v", c.letters())
		}
	}
}
