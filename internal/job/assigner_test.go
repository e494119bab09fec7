package job_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/assign"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/assigntest"
	"github.com/millrace/millrace/test/kit"
)

// lent is a job whose copy others borrow from.
type lent struct {
	*testing.T
	servers
	assigntest.Counter
	db    string
	spec  job.Spec
	job   *job.Job
	ended chan error
	all   sync.WaitGroup
	stop  context.CancelFunc
	ctx   context.Context
}

// fillLarge makes a collection of several slices.
func fillLarge(t *testing.T, s servers, db, coll string) {
	t.Helper()
	pad := bytes.Repeat([]byte("x"), 20_000)
	for from := 0; from < 4000; from += 500 {
		docs := make([]any, 500)
		for i := range docs {
			docs[i] = bson.D{{Key: "_id", Value: from + i}, {Key: "pad", Value: pad}}
		}
		if _, err := s.srcDB.Database(db).Collection(coll).InsertMany(t.Context(), docs); err != nil {
			t.Fatal(err)
		}
	}
}

// lend starts a job that copies as slowly as rates say.
func lend(t *testing.T, s servers, db string, rates pace.Rates, more func(*job.Spec)) *lent {
	t.Helper()
	l := &lent{T: t, servers: s, db: db, ended: make(chan error, 1)}
	l.spec = s.spec(db)
	l.spec.Until, l.spec.Limits = "never", rates
	l.spec.Readers, l.spec.Writers = 1, 2
	l.spec.Offer = l.Offer(2 * time.Second)
	l.spec.Log = slog.New(slog.NewTextHandler(t.Output(), nil)).With("of", "owner")
	if more != nil {
		more(&l.spec)
	}
	l.ctx, l.stop = context.WithCancel(context.Background())
	l.job = open(t, l.spec)
	l.all.Go(func() { l.ended <- l.job.Run(l.ctx) })
	t.Cleanup(func() { l.stop(); l.all.Wait() })
	return l
}

// borrow has a worker copy for the job until it ends.
func (l *lent) borrow(worker string, ask assign.Ask, more func(*job.Spec)) (ended chan error) {
	spec := l.servers.spec(l.db)
	spec.Readers, spec.Writers = 1, 2
	spec.Offer = &assign.Offer{Version: assigntest.Version}
	spec.Log = slog.New(slog.NewTextHandler(l.Output(), nil)).With("of", worker)
	if more != nil {
		more(&spec)
	}
	ended = make(chan error, 1)
	l.all.Go(func() { ended <- job.Assist(l.ctx, spec, worker, ask) })
	return ended
}

// of are the figures of a worker in the status.
func (l *lent) of(worker string) assign.Figures {
	return assigntest.Of(worker, l.job.Status().Copy.Workers)
}

// lending waits until slices wait for others.
func (l *lent) lending(t *testing.T) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !l.lends() {
		if time.Now().After(deadline) {
			t.Fatalf("nothing is lent: %+v", l.job.Status().Copy)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (l *lent) lends() bool      { return l.job.Status().Copy.Lendable > 0 }
func (l *lent) phase() job.Phase { return l.job.Status().Phase }

// end has the job finalized.
func (l *lent) end() {
	l.Helper()
	if err := l.job.SetLimits(l.Context(), pace.Rates{}); err != nil {
		l.Fatal(err)
	}
	if err := l.job.Finalize(l.Context(), true); err != nil {
		l.Fatal(err)
	}
	if err := <-l.ended; err != nil {
		l.Fatal(err)
	}
}

func TestLent(t *testing.T) {
	s := start(t)
	t.Run("with others", func(t *testing.T) { testLent(t, s) })
	t.Run("others go on after their end", func(t *testing.T) { testUnaware(t, s) })
	t.Run("too late", func(t *testing.T) { testTooLate(t, s) })
	t.Run("at the end", func(t *testing.T) { testJoinAtEnd(t, s) })
	t.Run("unfit", func(t *testing.T) { testUnfit(t, s) })
	t.Run("attempts", func(t *testing.T) { testLentAttempts(t, s) })
	t.Run("limits", func(t *testing.T) { testLentLimits(t, s) })
}

// testLent: three copy a job, with filters and mapped fields, while its collections are
// written to, renamed and dropped.
func testLent(t *testing.T, s servers) {
	for _, coll := range []string{"c", "gone"} {
		fillLarge(t, s, "lent", coll)
	}
	rules := transform.Config{Include: []string{"lent.*"}, Filter: []string{`lent.*={"_id": {"$lt": 3900}}`},
		Fields: []string{`lent.*={"set": {"by": "rule"}}`}}
	with := func(spec *job.Spec) { spec.Rules = rules }
	l := lend(t, s, "lent", pace.Rates{Bytes: 16 << 20}, with)
	l.lending(t)
	one, two := l.borrow("one", l.Ask, with), l.borrow("two", l.Ask, with)
	kit.Until(t, "both copy", func() bool { return l.of("one").Docs > 0 && l.of("two").Docs > 0 && l.of("one").Parts > 0 })
	db := s.srcDB.Database("lent")
	if _, err := db.Collection("c").UpdateMany(t.Context(),
		bson.D{{Key: "_id", Value: bson.D{{Key: "$mod", Value: bson.A{7, 1}}}}}, bson.D{{Key: "$set",
			Value: bson.D{{Key: "n", Value: 1}}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Collection("c").DeleteMany(t.Context(),
		bson.D{{Key: "_id", Value: bson.D{{Key: "$mod", Value: bson.A{11, 1}}}}}); err != nil {
		t.Fatal(err)
	}
	if err := db.Collection("gone").Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.srcDB.Database("admin").RunCommand(t.Context(),
		bson.D{{Key: "renameCollection", Value: "lent.c"}, {Key: "to", Value: "lent.d"}}).Err(); err != nil {
		t.Fatal(err)
	}
	if p := l.phase(); p != job.PhaseCopying {
		t.Fatalf("all of that came in phase %s", p)
	}
	kit.Until(t, "the job follows", func() bool { return l.phase() == job.PhaseFollowing })
	for _, ended := range []chan error{one, two} {
		if err := <-ended; err != nil && !errors.Is(err, assigntest.ErrNobody) {
			t.Error(err)
		}
	}
	l.end()
	st := l.job.Status()
	t.Logf("%+v of %d", st.Copy.Workers, st.Copy.Docs)
	for _, f := range st.Filters {
		if f.Copied == 0 || f.Copied < st.Fields[0].Copied {
			t.Errorf("the rules have counted %+v, %+v", f, st.Fields[0])
		}
	}
	n, err := s.targetC.Database("lent").Collection("d").CountDocuments(t.Context(), bson.D{{Key: "by", Value: "rule"}})
	want, werr := db.Collection("d").CountDocuments(t.Context(),
		bson.D{{Key: "_id", Value: bson.D{{Key: "$lt", Value: 3900}}}})
	if err != nil || werr != nil || n != want {
		t.Errorf("%d documents, want %d (%v, %v)", n, want, err, werr)
	}
	noted(t, l, 0)
}

// testJoinAtEnd: a worker that joins at the moment at which nothing is lent any more does
// not end the job.
func testJoinAtEnd(t *testing.T, s servers) {
	fillLarge(t, s, "atend", "c")
	l := lend(t, s, "atend", pace.Rates{Bytes: 16 << 20}, nil)
	l.lending(t)
	one := l.borrow("one", func(ctx context.Context, request []byte) ([]byte, error) {
		if assigntest.Kind(request) == "join" {
			return l.AskAtEnd(ctx, request)
		}
		return l.Ask(ctx, request)
	}, nil)
	kit.Until(t, "it copies", func() bool { return l.of("one").Docs > 0 })
	l.end()
	if err := <-one; err != nil && !errors.Is(err, assigntest.ErrNobody) {
		t.Error(err)
	}
	noted(t, l, 0)
}

// noted expects so many who may write, as the target knows.
func noted(t *testing.T, l *lent, want int) {
	t.Helper()
	kit.Until(t, fmt.Sprintf("%d borrowers may write", want), func() bool {
		var doc struct {
			Borrowers []string `bson:"borrowers"`
		}
		if err := l.targetC.Database("millrace").Collection("jobs").FindOne(t.Context(),
			bson.D{{Key: "_id", Value: l.job.ID()}}).Decode(&doc); err != nil {
			t.Fatal(err)
		}
		return len(doc.Borrowers) == want
	})
}

// testUnaware: what a worker has on its way that does not know that it was given up is
// waited for, before its slices are taken back and before changes are applied.
func testUnaware(t *testing.T, s servers) {
	fillLarge(t, s, "unaware", "c")
	l := lend(t, s, "unaware", pace.Rates{Bytes: 1 << 20}, nil)
	l.lending(t)
	d := &assigntest.Deaf{Ask: l.Ask}
	ended := l.borrow("one", d.Way, nil)
	kit.Until(t, "it copies", func() bool { return l.of("one").Docs > 0 })
	doc, err := s.targetC.Database("millrace").Collection("jobs").FindOne(t.Context(),
		bson.D{{Key: "_id", Value: l.job.ID()}}).Raw()
	if err != nil {
		t.Fatal(err)
	}
	name, err := assigntest.Name(l.job.ID(), doc)
	if err != nil {
		t.Fatal(err)
	}
	// A connection as one of the worker's that a machine has left behind.
	left, err := mongo.Connect(t.Context(), s.dst.URI(), mongo.Options{AppName: name})
	if err != nil {
		t.Fatal(err)
	}
	d.From.Store(true)
	if err := l.job.SetLimits(t.Context(), pace.Rates{}); err != nil {
		t.Fatal(err)
	}
	kit.Until(t, "it is given up", func() bool { return l.of("one").Why != "" })
	kit.Until(t, "all else is copied", func() bool {
		st := l.job.Status().Copy
		return st.Lendable == 0 && st.Docs >= st.DocsTotal/2
	})
	noted(t, l, 0)
	if l.phase() != job.PhaseCopying || l.of("one").Parts == 0 {
		t.Errorf("phase %s, and it has %d slices, while a worker may write still", l.phase(), l.of("one").Parts)
	}
	left.Close()
	d.Over.Store(true) // its own have ended by that
	<-ended
	kit.Until(t, "the job follows", func() bool { return l.phase() == job.PhaseFollowing })
	l.end()
	same(t, s, "unaware")
}

// testTooLate: a worker that reaches the target after it was given up writes nothing,
// whatever it believes.
func testTooLate(t *testing.T, s servers) {
	fillLarge(t, s, "late", "c")
	l := lend(t, s, "late", pace.Rates{Bytes: 1 << 20}, nil)
	l.lending(t)
	late := assigntest.NewLate(l.Ask)
	early := l.borrow("early", late.Early, nil)
	kit.Until(t, "one copies", func() bool { return l.of("early").Docs > 0 })
	ended := l.borrow("late", late.Way, late.Hold)
	<-late.Connecting
	late.Void.From.Store(true)
	if err := l.job.SetLimits(t.Context(), pace.Rates{}); err != nil {
		t.Fatal(err)
	}
	kit.Until(t, "the job follows", func() bool { return l.phase() == job.PhaseFollowing })
	if err := <-early; err != nil && !errors.Is(err, assigntest.ErrNobody) {
		t.Error(err)
	}
	if _, err := s.srcDB.Database("late").Collection("c").DeleteMany(t.Context(),
		bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: 10}}}}); err != nil {
		t.Fatal(err)
	}
	kit.Until(t, "the deletions arrive", func() bool { return count(t, s.targetC, "late") == 10 })
	late.Void.Over.Store(true)
	close(late.Release)
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "gone on without") {
		t.Errorf("the late one ended with %v", err)
	}
	if n := count(t, s.targetC, "late"); n != 10 {
		t.Errorf("%d documents", n)
	}
	l.end()
	same(t, s, "late")
}

// testUnfit: who is of another version, has other clusters or other keys does not copy,
// and says why.
func testUnfit(t *testing.T, s servers) {
	fillLarge(t, s, "unfit", "c")
	secret := func(key string) func(*job.Spec) {
		return func(spec *job.Spec) {
			spec.Rules.Fields = []string{`unfit.c={"mask": {"name": {"hmac": "env:KEY"}}}`}
			spec.Rules.Secret = func(string) (string, error) { return key, nil }
		}
	}
	good := secret("a key of sixteen bytes or more")
	l := lend(t, s, "unfit", pace.Rates{Bytes: 1 << 20}, good)
	l.lending(t)
	for _, c := range []struct {
		worker, why string
		spec        func(*job.Spec)
	}{
		{"version", "of version other", func(spec *job.Spec) { good(spec); spec.Offer = &assign.Offer{Version: "other"} }},
		{"key", "keys that they mask by", secret("another key of sixteen bytes or more")},
		{"rules", "its rules", func(spec *job.Spec) { good(spec); spec.Rules.Rename = []string{"unfit=fit"} }},
		{"cluster", "other clusters", func(spec *job.Spec) { good(spec); spec.Target = s.src.URI() }},
		{"nothing", "cannot be read", func(spec *job.Spec) {
			good(spec)
			spec.Rules.Secret = func(string) (string, error) { return "", errors.New("no such file") }
		}},
	} {
		if err := <-l.borrow(c.worker, l.Ask, c.spec); err == nil || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: %v", c.worker, err)
		}
		if t.Failed() {
			return
		}
		kit.Until(t, "why "+c.worker+" does not copy", func() bool { return strings.Contains(l.of(c.worker).Why, c.why) })
		if n := l.of(c.worker).Docs; n != 0 {
			t.Errorf("%s has copied %d documents", c.worker, n)
		}
	}
	fit := l.borrow("fit", l.Ask, good)
	kit.Until(t, "one that fits copies", func() bool { return l.of("fit").Docs > 0 })
	l.end()
	if err := <-fit; err != nil && !errors.Is(err, assigntest.ErrNobody) {
		t.Error(err)
	}
	same(t, s, "unfit")
}

// testLentAttempts: a pause ends those who copy a part, and the next attempt lends anew.
func testLentAttempts(t *testing.T, s servers) {
	fillLarge(t, s, "attempts", "c")
	l := lend(t, s, "attempts", pace.Rates{Bytes: 1 << 20}, nil)
	l.lending(t)
	first := l.borrow("one", l.Ask, nil)
	kit.Until(t, "it copies", func() bool { return l.of("one").Docs > 0 })
	if err := l.job.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-first; err == nil {
		t.Error("it ends as if all were done")
	}
	if err := l.job.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.lending(t)
	before := l.of("one").Docs
	second := l.borrow("one", l.Ask, nil)
	kit.Until(t, "it copies again", func() bool {
		select {
		case <-second: // the owner did not lend again yet
			second = l.borrow("one", l.Ask, nil)
		default:
		}
		return l.of("one").Docs > before
	})
	l.end()
	if err := <-second; err != nil && !errors.Is(err, assigntest.ErrNobody) {
		t.Error(err)
	}
	same(t, s, "attempts")
}

// testLentLimits: rates are those of all together, and under a low load the owner copies
// alone.
func testLentLimits(t *testing.T, s servers) {
	fillLarge(t, s, "limits", "c")
	l := lend(t, s, "limits", pace.Rates{Bytes: 1}, nil)
	l.lending(t)
	var granted, sent atomic.Int64
	one := l.borrow("one", func(ctx context.Context, request []byte) ([]byte, error) {
		reply, err := l.Ask(ctx, request)
		if assigntest.Kind(request) == "grant" && err == nil {
			sent.Add(1)
			if _, waits := bson.Raw(reply).Lookup("more").BooleanOK(); !waits {
				granted.Add(1)
			}
		}
		return reply, err
	}, nil)
	kit.Until(t, "it has asked twice", func() bool { return sent.Load() >= 2 || l.of("one").Docs > 0 })
	if n, docs := granted.Load(), l.of("one").Docs; n > 0 || docs > 0 {
		t.Errorf("%d parts may pass at a byte a second, %d documents have", n, docs)
	}
	if err := l.job.SetLimits(t.Context(), pace.Rates{Bytes: 4 << 20}); err != nil {
		t.Fatal(err)
	}
	kit.Until(t, "it copies", func() bool { return l.of("one").Docs > 0 })
	if err := l.job.SetLoads(t.Context(), pace.Loads{Source: pace.Low, Target: pace.Normal}); err != nil {
		t.Fatal(err)
	}
	// nil: it had leave for all of its slices
	if err := <-one; err != nil && !strings.Contains(err.Error(), "load is low") {
		t.Errorf("it ended with %v", err)
	}
	kit.Until(t, "its slices are taken back", func() bool { return l.of("one").Parts == 0 })
	if l.lends() {
		t.Error("slices are offered under a low load")
	}
	l.end()
	same(t, s, "limits")
}
