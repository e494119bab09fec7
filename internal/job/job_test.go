package job_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/precheck"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// servers is a source and a target for the tests of this package; each test
// uses databases of its own.
type servers struct {
	src, dst       *lab.Cluster
	srcDB, targetC *driver.Client
}

func start(t *testing.T) servers {
	t.Helper()
	o := lab.Options{SetParameters: map[string]string{"enableTestCommands": "1"}}
	s := servers{src: lab.ForTest(t, o), dst: lab.ForTest(t, o)}
	s.srcDB, s.targetC = kit.Client(t, s.src.URI()), kit.Client(t, s.dst.URI())
	return s
}

func (s servers) spec(db string) job.Spec {
	return job.Spec{Source: s.src.URI(), Target: s.dst.URI(), Mode: job.ModeAll,
		Until: "caught-up", OnExisting: job.ExistingFail, AllowMissing: true, Rules: transform.Config{Include: []string{db +
			".*"}}}
}

func open(t *testing.T, spec job.Spec) *job.Job {
	t.Helper()
	j, err := job.Open(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.Close)
	return j
}

func insert(t *testing.T, c *driver.Client, db string, n int) {
	t.Helper()
	docs := make([]any, n)
	for i := range docs {
		docs[i] = bson.D{{Key: "i", Value: i}}
	}
	if _, err := c.Database(db).Collection("c").InsertMany(t.Context(), docs); err != nil {
		t.Fatal(err)
	}
}

func count(t *testing.T, c *driver.Client, db string) int64 {
	t.Helper()
	n, err := c.Database(db).Collection("c").CountDocuments(t.Context(), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// failing returns the messages of failed checks.
func failing(t *testing.T, j *job.Job) string {
	t.Helper()
	p, err := j.Plan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, c := range p.Checks {
		if c.Level == precheck.Fail {
			if c.Hint == "" {
				t.Errorf("check %q fails without a hint", c.Name)
			}
			out = append(out, c.Name+": "+c.Message)
		}
	}
	return strings.Join(out, "\n")
}

func TestJob(t *testing.T) {
	s := start(t)
	t.Run("precheck", func(t *testing.T) { testPrecheck(t, s) })
	t.Run("existing collections", func(t *testing.T) { testExisting(t, s) })
	t.Run("leftovers", func(t *testing.T) { testLeftovers(t, s) })
	t.Run("another key", func(t *testing.T) { testOtherKey(t, s) })
	t.Run("takeover", func(t *testing.T) { testTakeOver(t, s) })
	t.Run("pause", func(t *testing.T) { testPause(t, s) })
	t.Run("indexes amid reads", func(t *testing.T) { testIndexesAmidReads(t, s) })
	t.Run("finalize", func(t *testing.T) { testFinalize(t, s) })
	t.Run("throttle", func(t *testing.T) { testThrottle(t, s) })
	t.Run("early indexes", func(t *testing.T) { testEarlyIndexes(t, s) })
	t.Run("loads", func(t *testing.T) { testLoads(t, s) })
	t.Run("loads of a copy", func(t *testing.T) { testLoadsOfCopy(t, s) })
	t.Run("incremental", func(t *testing.T) { testIncremental(t, s) })
	t.Run("window lost", func(t *testing.T) { testWindowLost(t, s) })
	t.Run("other formats", func(t *testing.T) { testOtherFormat(t, s) })
	t.Run("full", func(t *testing.T) { testFull(t, s) })
	t.Run("start amid failures", func(t *testing.T) { testStartAmidFailures(t, s) })
}

// lastOp is the position of the newest operation that is no heartbeat.
func lastOp(t *testing.T, c *driver.Client) (at mongo.OpTime) {
	t.Helper()
	err := c.Database("local").Collection("oplog.rs").FindOne(t.Context(), bson.D{{Key: "op", Value: bson.D{{Key: "$ne",
		Value: "n"}}}},
		options.FindOne().SetSort(bson.D{{Key: "$natural", Value: -1}})).Decode(&at)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func testPrecheck(t *testing.T, s servers) {
	insert(t, s.srcDB, "pre", 3)
	same := s.spec("pre")
	same.Target = s.src.URI()
	if got := failing(t, open(t, same)); !strings.Contains(got, "same replica set") {
		t.Errorf("source as target: %q", got)
	}
	err := open(t, same).Run(t.Context())
	var refused *job.PrecheckError
	if !errors.As(err, &refused) {
		t.Errorf("run after a failed precheck: %v", err)
	}
	if n, err := s.srcDB.Database("millrace").Collection("jobs").CountDocuments(t.Context(), bson.D{}); err != nil ||
		n != 0 {
		t.Errorf("a refused job wrote %d checkpoints (%v)", n, err)
	}
	standalone := lab.ForTest(t, lab.Options{Topology: "standalone"})
	alone := s.spec("pre")
	alone.Source = standalone.URI()
	if got := failing(t, open(t, alone)); !strings.Contains(got, "standalone") {
		t.Errorf("standalone source: %q", got)
	}
	alone = s.spec("pre")
	alone.Target = standalone.URI()
	if got := failing(t, open(t, alone)); !strings.Contains(got, "standalone") {
		t.Errorf("standalone target: %q", got)
	}
	clash := s.spec("pre")
	clash.Rules = transform.Config{Include: []string{"pre.*", "pre2.*"}, Rename: []string{"pre2=pre"}}
	insert(t, s.srcDB, "pre2", 1)
	if got := failing(t, open(t, clash)); !strings.Contains(got, "names") {
		t.Errorf("two sources for one target: %q", got)
	}
	mistyped := s.spec("pre")
	mistyped.AllowMissing, mistyped.Rules = false, transform.Config{Include: []string{"pre.c", "pre.xs"}}
	if got := failing(t, open(t, mistyped)); !strings.Contains(got, "--include pre.xs matches nothing") {
		t.Errorf("an include that matches nothing: %q", got)
	}
	inc := s.spec("pre")
	inc.Mode = job.ModeIncremental
	if got := failing(t, open(t, inc)); !strings.Contains(got, "start") {
		t.Errorf("incremental without a start: %q", got)
	}
	inc.StartAt = "1000000000:1"
	if got := failing(t, open(t, inc)); !strings.Contains(got, "oplog") {
		t.Errorf("a start before the oplog: %q", got)
	}
	testFromTheFirstSecond(t, s, inc)
}

// testFromTheFirstSecond starts at the second with whose first entry the oplog
// begins: nothing can be missing.
func testFromTheFirstSecond(t *testing.T, s servers, inc job.Spec) {
	t.Helper()
	var oldest struct {
		TS bson.Timestamp `bson:"ts"`
	}
	if err := s.srcDB.Database("local").Collection("oplog.rs").FindOne(t.Context(), bson.D{}).Decode(&oldest); err != nil {
		t.Fatal(err)
	}
	if oldest.TS.I != 1 {
		t.Fatalf("the oplog begins at %v", oldest.TS)
	}
	inc.Rules = transform.Config{Include: []string{"pre.*"}}
	inc.StartAt = fmt.Sprintf("%d:0", oldest.TS.T)
	if err := open(t, inc).Run(t.Context()); err != nil {
		t.Errorf("from the second in which the oplog begins: %v", err)
	}
	if n := count(t, s.targetC, "pre"); n != 3 {
		t.Errorf("%d documents arrived", n)
	}
}

func testExisting(t *testing.T, s servers) {
	insert(t, s.srcDB, "ex", 10)
	insert(t, s.targetC, "ex", 4)
	if got := failing(t, open(t, s.spec("ex"))); !strings.Contains(got, "exist") {
		t.Errorf("existing collections: %q", got)
	}
	merge := s.spec("ex")
	merge.OnExisting = job.ExistingMerge
	if err := open(t, merge).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := count(t, s.targetC, "ex"); n != 14 {
		t.Errorf("merged: %d documents, want 14", n)
	}
	drop := s.spec("ex")
	drop.OnExisting, drop.Restart = job.ExistingDrop, true
	if err := open(t, drop).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := count(t, s.targetC, "ex"); n != 10 {
		t.Errorf("dropped first: %d documents, want 10", n)
	}
}

// testLeftovers: a job that begins anew and may drop does so with what its earlier
// life has made, though the source has it no more. What that one merged into was
// not its own.
func testLeftovers(t *testing.T, s servers) {
	for _, c := range []struct {
		db    string
		first job.OnExisting
		left  int64
	}{{"left", job.ExistingFail, 0}, {"merged", job.ExistingMerge, 10}} {
		spec := s.spec(c.db)
		spec.OnExisting, spec.AllowMissing = c.first, true
		insert(t, s.srcDB, c.db, 10)
		if err := s.srcDB.Database(c.db).CreateView(t.Context(), "v", "c", bson.A{}); err != nil {
			t.Fatal(err)
		}
		if err := open(t, spec).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.srcDB.Database(c.db).Drop(t.Context()); err != nil {
			t.Fatal(err)
		}
		spec.OnExisting, spec.Restart = job.ExistingDrop, true
		j := open(t, spec)
		plan, err := j.Plan(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if reported := strings.Contains(fmt.Sprint(plan.Checks), "DROPPED: "+c.db+".c"); reported != (c.left == 0) {
			t.Errorf("%s: the precheck tells of the drop: %t", c.db, reported)
		}
		if err := j.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := count(t, s.targetC, c.db); n != c.left {
			t.Errorf("%s: %d documents, want %d", c.db, n, c.left)
		}
		if names, err := s.targetC.Database(c.db).ListCollectionNames(t.Context(),
			bson.D{{Key: "name", Value: bson.D{{Key: "$ne", Value: "system.views"}}}}); err != nil || len(names) > 0 &&
			c.left == 0 {
			t.Errorf("%s: the target has %v, %v", c.db, names, err)
		}
	}
}

// testOtherKey: a job goes on with the key alone that it masks by, and begins anew with
// another one.
func testOtherKey(t *testing.T, s servers) {
	insert(t, s.srcDB, "keyed", 10)
	spec := s.spec("keyed")
	spec.Rules.Fields = []string{`keyed.c={"mask": {"name": {"hmac": "env:KEY"}}}`}
	with := func(key string) job.Spec {
		spec.Rules.Secret = func(string) (string, error) { return key, nil }
		return spec
	}
	const first, second = "a key of sixteen bytes or more", "another key of sixteen bytes or more"
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	initial := with(first)
	initial.Until = "never"
	begun, ended := open(t, initial), make(chan error, 1)
	go func() { ended <- begun.Run(ctx) }()
	kit.Until(t, "the job follows", func() bool { return begun.Status().Phase == job.PhaseFollowing })
	stop()
	<-ended
	if got := failing(t, open(t, with(second))); !strings.Contains(got, "another key") {
		t.Errorf("another key: %q", got)
	}
	if got := failing(t, open(t, with(first))); got != "" {
		t.Errorf("the same key: %q", got)
	}
	doc, err := s.targetC.Database("millrace").Collection("jobs").FindOne(t.Context(),
		bson.D{{Key: "keys", Value: bson.D{{Key: "$gt", Value: ""}}}}).Raw()
	if err != nil || strings.Contains(doc.String(), first) {
		t.Errorf("%s, %v", doc, err)
	}
	spec.Restart, spec.OnExisting = true, job.ExistingDrop
	if err := open(t, with(second)).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	spec.Restart = false
	if got := failing(t, open(t, with(first))); got != "" {
		t.Errorf("a job that is finalized: %q", got)
	}
}

// running starts a job that follows, and returns how it ends.
func running(t *testing.T, spec job.Spec) (*job.Job, <-chan error) {
	t.Helper()
	spec.Until = "never"
	j := open(t, spec)
	end := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		end <- j.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
	kit.Until(t, "the job follows", func() bool { return j.Status().Phase == job.PhaseFollowing })
	return j, end
}

// testTakeOver runs the job twice: the second is refused while the first
// lives, and gets the job when the first has let it go.
func testTakeOver(t *testing.T, s servers) {
	insert(t, s.srcDB, "fence", 5)
	first, _ := running(t, s.spec("fence"))
	var doc state.Job
	jobs := s.targetC.Database("millrace").Collection("jobs")
	if err := jobs.FindOne(t.Context(), bson.D{{Key: "_id", Value: first.ID()}}).Decode(&doc); err != nil {
		t.Fatal(err)
	}
	// As seen from another machine, where nothing is known of the process.
	if _, err := jobs.UpdateByID(t.Context(), doc.ID, bson.D{{Key: "$set", Value: bson.D{{Key: "owner.host",
		Value: "elsewhere"}}}}); err != nil {
		t.Fatal(err)
	}
	if err := open(t, s.spec("fence")).Run(t.Context()); !errors.Is(err, state.ErrRunning) {
		t.Fatalf("second process: %v", err)
	}
	insert(t, s.srcDB, "fence", 5)
	kit.Until(t, "the first goes on", func() bool { return count(t, s.targetC, "fence") == 10 })

	// Another owner in the target: the first process must notice and end.
	if _, err := jobs.UpdateByID(t.Context(), doc.ID, bson.D{{Key: "$inc", Value: bson.D{{Key: "fence",
		Value: 1}}}}); err != nil {
		t.Fatal(err)
	}
	if err := first.Finalize(t.Context(), false); !errors.Is(err, state.ErrFenced) {
		t.Errorf("a process that lost its job ended with %v", err)
	}
}

func testPause(t *testing.T, s servers) {
	insert(t, s.srcDB, "pause", 5)
	j, _ := running(t, s.spec("pause"))
	if err := j.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	kit.Until(t, "the job pauses", func() bool { return j.Status().Waiting != "" })
	insert(t, s.srcDB, "pause", 5)
	kit.Until(t, "the lag shows", func() bool { return j.Status().Follow.LagSeconds > 0 })
	if n := count(t, s.targetC, "pause"); n != 5 {
		t.Errorf("paused, but %d documents arrived", n)
	}
	if err := j.Finalize(t.Context(), false); err == nil {
		t.Error("a paused job was finalized")
	}
	if err := j.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	kit.Until(t, "the documents arrive", func() bool { return count(t, s.targetC, "pause") == 10 })
	if err := j.Finalize(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if st := j.Status(); st.Phase != job.PhaseFinalized || len(st.Differences) != 0 {
		t.Errorf("after finalize: %s, %v", st.Phase, st.Differences)
	}
}

// testIndexesAmidReads: documents that are read for a filter are as they are at the end of
// a batch, and hold keys that others give up before that. An index that is made in between
// meets both, and so does a document that is judged then.
func testIndexesAmidReads(t *testing.T, s servers) {
	unique := func(coll string) {
		if _, err := s.srcDB.Database("reads").Collection(coll).Indexes().CreateOne(t.Context(),
			driver.IndexModel{Keys: bson.D{{Key: "k", Value: 1}},
				Options: options.Index().SetUnique(true).SetSparse(true)}); err != nil {
			t.Fatal(err)
		}
	}
	update := func(coll string, id int, u bson.D) {
		if _, err := s.srcDB.Database("reads").Collection(coll).UpdateOne(t.Context(), bson.D{{Key: "_id", Value: id}},
			u); err != nil {
			t.Fatal(err)
		}
	}
	set := func(name string, v any) bson.D { return bson.D{{Key: "$set", Value: bson.D{{Key: name, Value: v}}}} }
	giveUp := bson.D{{Key: "$unset", Value: bson.D{{Key: "k", Value: 1}}}}
	for _, coll := range []string{"made", "there", "other"} {
		if _, err := s.srcDB.Database("reads").Collection(coll).InsertMany(t.Context(),
			[]any{bson.D{{Key: "_id", Value: 1}, {Key: "s", Value: "a"}}, bson.D{{Key: "_id", Value: 2}, {Key: "s",
				Value: "a"}}}); err != nil {
			t.Fatal(err)
		}
	}
	update("made", 2, set("k", "K"))
	unique("there")
	spec := s.spec("reads")
	spec.Rules.Filter = []string{`reads.*={"s": {"$in": ["a", "b"]}}`}
	j, ended := running(t, spec)
	if err := j.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	kit.Until(t, "the job pauses", func() bool { return j.Status().Waiting != "" })
	update("there", 1, set("s", "b")) // for which it is read
	update("there", 2, set("k", "K"))
	unique("other")
	update("there", 2, giveUp)
	update("there", 1, set("k", "K"))
	update("made", 1, set("s", "b"))
	unique("made")
	update("made", 2, giveUp)
	update("made", 1, set("k", "K"))
	if err := j.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := j.Finalize(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if st := j.Status(); len(st.Differences) != 0 {
		t.Error(st.Differences)
	}
	for _, coll := range []string{"made", "there", "other"} {
		sameCollection(t, s.srcDB.Database("reads").Collection(coll), s.targetC.Database("reads").Collection(coll))
	}
}

// copying runs a job until its copy has begun, which would take days.
func copying(t *testing.T, spec job.Spec) (*job.Job, <-chan error) {
	t.Helper()
	spec.Limits = pace.Rates{Bytes: 1}
	j := open(t, spec)
	ended := make(chan error, 1)
	go func() { ended <- j.Run(t.Context()) }()
	kit.Until(t, "the copy begins", func() bool { return j.Status().Phase == job.PhaseCopying })
	return j, ended
}

// testThrottle: a copy and changes that would take days pass when the limit goes.
func testThrottle(t *testing.T, s servers) {
	insert(t, s.srcDB, "slow", 5000)
	spec := s.spec("slow")
	spec.Until = ""
	j, ended := copying(t, spec)
	if n := count(t, s.targetC, "slow"); n != 0 {
		t.Errorf("the copy was not held back: %d documents", n)
	}
	set := func(r pace.Rates) {
		if err := j.SetLimits(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	set(pace.Rates{})
	kit.Until(t, "the job follows", func() bool { return j.Status().Phase == job.PhaseFollowing })
	set(pace.Rates{Docs: 1})
	insert(t, s.srcDB, "slow", 1000)
	kit.Until(t, "changes wait", func() bool { return j.Status().Follow.LagSeconds > 0 })
	if n := count(t, s.targetC, "slow"); n > 5500 { // one passes each second
		t.Errorf("the changes were not held back: %d documents", n)
	}
	set(pace.Rates{})
	kit.Until(t, "all changes arrive", func() bool { return count(t, s.targetC, "slow") == 6000 })
	if err := j.SetLimits(t.Context(), pace.Rates{Docs: -1}); err == nil {
		t.Error("a negative rate was taken")
	}
	if err := j.Finalize(t.Context(), false); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// testEarlyIndexes: while the documents of a small collection are copied, the source drops an index that the target has
// already, and gets documents that it does not take.
func testEarlyIndexes(t *testing.T, s servers) {
	insert(t, s.srcDB, "early", 1000)
	coll := s.srcDB.Database("early").Collection("c")
	for name, keys := range map[string]bson.D{"pq": {{Key: "p", Value: 1}, {Key: "q", Value: -1}},
		"pr": {{Key: "p", Value: 1}, {Key: "r", Value: 1}}} {
		if _, err := coll.Indexes().CreateOne(t.Context(), driver.IndexModel{Keys: keys,
			Options: options.Index().SetName(name)}); err != nil {
			t.Fatal(err)
		}
	}
	spec := s.spec("early")
	spec.Until = ""
	j, ended := copying(t, spec)
	if n := indexes(t, s.targetC, "early"); n != 3 {
		t.Fatalf("the target has %d indexes before its documents, want 3", n)
	}
	if err := coll.Indexes().DropOne(t.Context(), "pq"); err != nil {
		t.Fatal(err)
	}
	both := bson.D{{Key: "$set", Value: bson.D{{Key: "p", Value: bson.A{1, 2}}, {Key: "q", Value: bson.A{3, 4}}}}}
	if _, err := coll.UpdateMany(t.Context(), bson.D{{Key: "i", Value: bson.D{{Key: "$gte", Value: 500}}}},
		both); err != nil {
		t.Fatal(err)
	}
	if err := j.SetLimits(t.Context(), pace.Rates{}); err != nil {
		t.Fatal(err)
	}
	kit.Until(t, "the job follows", func() bool { return j.Status().Phase == job.PhaseFollowing || len(ended) > 0 })
	if err := j.Finalize(t.Context(), false); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if st := j.Status(); len(st.Differences) != 0 || count(t, s.targetC, "early") != 1000 ||
		indexes(t, s.targetC, "early") != 2 {
		t.Errorf("differences: %v; %d documents, %d indexes", st.Differences, count(t, s.targetC, "early"),
			indexes(t, s.targetC, "early"))
	}
	arrays, err := s.targetC.Database("early").Collection("c").CountDocuments(t.Context(),
		bson.D{{Key: "q", Value: bson.A{3, 4}}})
	if err != nil || arrays != 500 {
		t.Errorf("%d of 500 documents have arrays: %v", arrays, err)
	}
}

func indexes(t *testing.T, c *driver.Client, db string) int {
	t.Helper()
	all, err := c.Database(db).Collection("c").Indexes().ListSpecifications(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// testIncremental continues a target by each capture, from a position and from a second.
func testIncremental(t *testing.T, s servers) {
	for _, capture := range []state.Capture{job.CaptureOplog, job.CaptureStreams} {
		for _, exactly := range []bool{true, false} {
			continueAt(t, s, fmt.Sprintf("inc_%s_%t", capture, exactly), capture, exactly)
		}
	}
}

func continueAt(t *testing.T, s servers, db string, capture state.Capture, exactly bool) {
	insert(t, s.srcDB, db, 5)
	first := open(t, s.spec(db))
	if err := first.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	var doc struct{ Applied mongo.OpTime }
	if err := s.targetC.Database("millrace").Collection("jobs").FindOne(t.Context(),
		bson.D{{Key: "_id", Value: first.ID()}}).Decode(&doc); err != nil {
		t.Fatal(err)
	}
	c := s.srcDB.Database(db).Collection("c")
	insert(t, s.srcDB, db, 7)
	_, err := c.UpdateMany(t.Context(), bson.D{{Key: "i", Value: 2}},
		bson.D{{Key: "$inc", Value: bson.D{{Key: "i", Value: 40}}}})
	if err == nil {
		_, err = c.DeleteMany(t.Context(), bson.D{{Key: "i", Value: 3}})
	}
	if err != nil {
		t.Fatal(err)
	}
	insert(t, s.srcDB, db+"_other", 1) // of another job
	spec := s.spec(db)
	spec.Job, spec.Mode, spec.Capture, spec.StartAt = db+" later", job.ModeIncremental, capture, doc.Applied.String()
	if !exactly {
		spec.StartAt = time.Unix(int64(doc.Applied.TS.T), 0).UTC().Format(time.RFC3339)
	}
	if err := open(t, spec).Run(t.Context()); err != nil {
		t.Fatalf("%s from %s: %v", capture, spec.StartAt, err)
	}
	same(t, s, db)
	if n := count(t, s.targetC, db); n != 10 {
		t.Errorf("%s from %s: %d documents, want 10", capture, spec.StartAt, n)
	}
}

// testWindowLost gives a stopped job a position that the oplog does not hold,
// as if the oplog had rolled on.
func testWindowLost(t *testing.T, s servers) {
	insert(t, s.srcDB, "lost", 5)
	spec := s.spec("lost")
	spec.Job = "lost"
	if err := open(t, spec).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	old := bson.D{{Key: "ts", Value: bson.Timestamp{T: 1000000000, I: 1}}, {Key: "t", Value: int64(1)}}
	if _, err := s.targetC.Database("millrace").Collection("jobs").UpdateByID(t.Context(),
		"lost", bson.D{{Key: "$set", Value: bson.D{
			{Key: "phase", Value: "following"}, {Key: "applied", Value: old}, {Key: "mark", Value: ""},
			{Key: "readFrom", Value: old}}}}); err != nil {
		t.Fatal(err)
	}
	j := open(t, spec)
	if got := failing(t, j); !strings.Contains(got, "no longer holds") {
		t.Errorf("position out of the oplog: %q", got)
	}
}

func testFull(t *testing.T, s servers) {
	standalone := lab.ForTest(t, lab.Options{Topology: "standalone"})
	c, err := driver.Connect(options.Client().ApplyURI(standalone.URI()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Disconnect(context.Background()) })
	insert(t, c, "alone", 20)
	if _, err := c.Database("alone").Collection("c").Indexes().CreateOne(t.Context(), driver.IndexModel{
		Keys: bson.D{{Key: "i", Value: 1}}, Options: options.Index().SetUnique(true)}); err != nil {
		t.Fatal(err)
	}
	insert(t, s.srcDB, "fullrs", 20)
	for db, uri := range map[string]string{"alone": standalone.URI(), "fullrs": s.src.URI()} {
		spec := s.spec(db)
		spec.Source, spec.Mode = uri, job.ModeFull
		j := open(t, spec)
		if err := j.Run(t.Context()); err != nil {
			t.Fatalf("%s: %v", db, err)
		}
		if n := count(t, s.targetC, db); n != 20 {
			t.Errorf("%s: %d documents, want 20", db, n)
		}
		if st := j.Status(); len(st.Differences) != 0 {
			t.Errorf("%s: %v", db, st.Differences)
		}
	}
}

// TestFollowAfterFull: a job that ended with a full copy follows nothing afterwards, and
// says how to go on. One that was begun as a full copy and finalized while it followed has
// nothing left to do.
func TestFollowAfterFull(t *testing.T) {
	t.Parallel()
	s := start(t)
	insert(t, s.srcDB, "full", 20)
	spec := s.spec("full")
	spec.Mode, spec.Until = job.ModeFull, ""
	run := func() *job.Job {
		t.Helper()
		j := open(t, spec)
		if err := j.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		return j
	}
	plan := func() *job.Plan {
		t.Helper()
		p, err := open(t, spec).Plan(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	run()
	insert(t, s.srcDB, "full", 30)
	if p := plan(); p.Checks.Failed() || p.Finalized == nil {
		t.Errorf("the same mode: %+v", p)
	}
	position := ""
	for _, mode := range []job.Mode{job.ModeAll, job.ModeIncremental} {
		spec.Mode, spec.Until = mode, "caught-up"
		p := plan()
		i := slices.IndexFunc(p.Checks, func(c precheck.Check) bool { return c.Level == precheck.Fail && c.Name == "mode" })
		if i < 0 || p.Finalized != nil || !strings.Contains(p.Checks[i].Message, "--mode full") {
			t.Fatalf("%s: %+v", mode, p)
		}
		_, position, _ = strings.Cut(p.Checks[i].Hint, "--start-at ")
		position, _, _ = strings.Cut(position, ",")
	}
	spec.Mode, spec.StartAt, spec.Job = job.ModeIncremental, position, "onwards"
	run()
	if n := count(t, s.targetC, "full"); n != 50 {
		t.Errorf("after the remedy there are %d documents, want 50", n)
	}

	insert(t, s.srcDB, "begun", 500)
	spec = s.spec("begun")
	spec.Mode, spec.Until, spec.Limits.Docs = job.ModeFull, "", 50
	ctx, cancel := context.WithCancel(t.Context())
	j, ended := open(t, spec), make(chan error, 1)
	go func() { ended <- j.Run(ctx) }()
	for count(t, s.targetC, "begun") == 0 {
		select {
		case err := <-ended:
			t.Fatalf("ended early: %v", err)
		default:
		}
	}
	cancel()
	if err := <-ended; err == nil {
		t.Fatal("ended before it was interrupted")
	}
	spec.Mode, spec.Until, spec.Limits.Docs = job.ModeAll, "caught-up", 0
	run()
	if p := plan(); p.Checks.Failed() || p.Finalized == nil {
		t.Errorf("finalized while it followed: %+v", p)
	}
}
