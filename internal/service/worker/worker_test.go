package worker_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
	"github.com/millrace/millrace/internal/service/operate"
	"github.com/millrace/millrace/internal/service/worker"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/internal/verify"
	"github.com/millrace/millrace/test/hubtest"
	"github.com/millrace/millrace/workshop/lab"
)

// lease is short, so that what is lost is taken soon.
const lease = 3 * time.Second

// Connection strings that reach nothing, and that cannot be read.
const (
	wrong  = "mongodb://ada:geheimnis@127.0.0.1:1/?authMechanism=PLAIN"
	broken = "mongodb://ada:geheimnis@%zz:port/"
)

// bed is a service with workers, and two clusters.
type bed struct {
	lease time.Duration // zero: lease
	*testing.T
	src, dst *lab.Cluster
	source   *driver.Client
	nats     *hub.Embedded
	desk     *operate.Desk
	admin    *service.Caller
}

func newBed(t *testing.T) *bed {
	t.Helper()
	return newBedOf(t, lab.Options{})
}

func newBedOf(t *testing.T, source lab.Options) *bed {
	t.Helper()
	b := &bed{T: t, src: lab.ForTest(t, source), dst: lab.ForTest(t, lab.Options{}),
		admin: &service.Caller{Name: "test", Role: service.Admin, From: "here"}}
	var err error
	b.source, err = driver.Connect(options.Client().ApplyURI(b.src.URI()))
	b.ok(err)
	t.Cleanup(func() { _ = b.source.Disconnect(context.Background()) })
	b.nats, err = hub.Embed(t.Context(), hub.EmbedOptions{Dir: t.TempDir(), Host: "127.0.0.1", Port: -1,
		Token: "sesame, open up", Log: b.log("nats")})
	b.ok(err)
	t.Cleanup(b.nats.Close)
	h, v := b.connect(b.nats.Address())
	b.desk = &operate.Desk{Hub: h, View: v, Now: time.Now}
	return b
}

func (b *bed) ok(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// log is what a part says, shown where the test fails.
func (b *bed) log(name string) *slog.Logger {
	return slog.New(slog.NewTextHandler(b.Output(), nil)).With("of", name)
}

// connect is a process of its own, as far as the store knows.
func (b *bed) connect(address string) (*hub.Hub, *hub.View) {
	b.Helper()
	h, err := hub.Open(b.Context(), hub.Options{URI: "nats://" + address, Token: "sesame, open up",
		Lease: cmp.Or(b.lease, lease), Log: b.log("hub")})
	b.ok(err)
	b.Cleanup(h.Close)
	return h, hubtest.Watch(b, h)
}

// worker runs one until the test ends, or it is stopped, which returns when it has let go.
func (b *bed) worker(address string, o worker.Options) (w *worker.Worker, stop func()) {
	b.Helper()
	o.Hub, o.View = b.connect(address)
	o.Log, o.SpoolDir = b.log(o.Name), b.TempDir()
	o.SpoolBytes = 1 << 30
	o.Access.Secret = func(_, ref string) (string, error) {
		uri, ok := map[string]string{"env:SOURCE": b.src.URI(), "env:TARGET": b.dst.URI(), "env:WRONG": wrong,
			"env:BROKEN": broken}[ref]
		if !ok {
			return "", fmt.Errorf("there is no %s", ref)
		}
		return uri, nil
	}
	w = worker.New(o)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := w.Run(ctx); ctx.Err() == nil {
			b.Errorf("worker %s ended: %v", o.Name, err)
		}
	})
	stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	b.Cleanup(stop)
	return w, stop
}

// create makes a job of one database.
func (b *bed) create(name, db, more string) {
	b.Helper()
	_, made, err := b.desk.Create(b.Context(), b.admin,
		service.Definition{Name: name, Settings: "source: env:SOURCE\ntarget: env:TARGET\ninclude: [" + db +
			".*]\nallow-missing: true\n" + more})
	if err != nil || !made {
		b.Fatalf("made %v: %v", made, err)
	}
}

// until waits until a job is as wanted.
func (b *bed) until(name, what string, holds func(*service.Job) bool) *service.Job {
	b.Helper()
	late := time.After(4 * time.Minute)
	for {
		changed, _ := b.desk.View.Changed()
		if j := b.desk.View.Job(name); j != nil && holds(j) {
			return j
		}
		select {
		case <-changed:
		case <-time.After(200 * time.Millisecond):
		case <-late:
			state, _ := json.Marshal(b.desk.View.Job(name))
			b.Fatalf("%s: %s did not come: %s", name, what, state)
		}
	}
}

func following(j *service.Job) bool {
	return j.State() == service.Running && j.Report.Status != nil && j.Report.Status.Phase == job.PhaseFollowing
}

func (b *bed) insert(db string, from, n int) {
	b.Helper()
	docs := make([]any, 0, n)
	for i := range n {
		docs = append(docs, bson.D{{Key: "_id", Value: from + i}, {Key: "text", Value: strings.Repeat("x", 100)}})
	}
	_, err := b.source.Database(db).Collection("c").InsertMany(b.Context(), docs)
	b.ok(err)
}

// same compares what a job has brought over.
func (b *bed) same(db string) {
	b.Helper()
	r, err := verify.Clusters(b.Context(), verify.Spec{Source: b.src.URI(), Target: b.dst.URI(),
		Rules: transform.Config{Include: []string{db + ".*"}}})
	b.ok(err)
	if !r.Same || len(r.Collections) != 1 {
		b.Errorf("%s differs: %+v", db, r)
	}
}

// TestJobs: a job that is wanted is run; it is paused, resumed, finalized and removed
// as its definition says.
func TestJobs(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.insert("jobs", 0, 2000)
	b.create("first", "jobs", "")
	if s := b.desk.View; s.Job("first") != nil && s.Job("first").State() != service.Waiting {
		t.Errorf("without a worker: %s", s.Job("first").State())
	}
	b.worker(b.nats.Address(), worker.Options{Name: "w1"})
	b.until("first", "following", following)
	_, err := b.desk.Pause(t.Context(), b.admin, "first")
	b.ok(err)
	b.until("first", "the pause", func(j *service.Job) bool { return j.State() == service.Paused })
	b.insert("jobs", 2000, 500)
	if _, err := b.desk.Finalize(t.Context(), b.admin, "first", false); err == nil {
		t.Error("a paused job is finalized")
	}
	_, err = b.desk.Resume(t.Context(), b.admin, "first")
	b.ok(err)
	b.until("first", "following", following)
	_, err = b.desk.Finalize(t.Context(), b.admin, "first", true)
	b.ok(err)
	b.until("first", "its end", func(j *service.Job) bool { return j.State() == service.Finished && j.Lease == nil })
	b.same("jobs")
	_, err = b.desk.Remove(t.Context(), b.admin, "first")
	b.ok(err)
	for b.desk.View.Job("first") != nil {
		time.Sleep(20 * time.Millisecond)
	}
	// The same name again is the same job on the target, and is done already.
	b.create("first", "jobs", "")
	b.until("first", "its end", func(j *service.Job) bool { return j.State() == service.Finished })
}

// TestNamesake: of two workers with one name the later ends, unless the earlier is dead.
func TestNamesake(t *testing.T) {
	h, v := hubtest.Start(t, time.Second)
	past := &service.Worker{Name: "w1", StartedAt: time.Now().Add(-time.Hour), At: time.Now()}
	if err := h.Workers.Present(t.Context(), past); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var runs sync.WaitGroup
	defer runs.Wait()
	defer cancel()
	run := func() <-chan error {
		ended := make(chan error, 1)
		w := worker.New(worker.Options{Name: "w1", Hub: h, View: v, SpoolDir: t.TempDir(),
			Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
		runs.Go(func() { ended <- w.Run(ctx) })
		return ended
	}
	first := run()
	for !slices.ContainsFunc(v.Workers(), func(w service.Worker) bool { return w.PID > 0 }) {
		changed, _ := v.Changed()
		<-changed
	}
	select {
	case err := <-run():
		if err == nil || !strings.Contains(err.Error(), "another worker has this name: w1 on host") {
			t.Error(err)
		}
	case err := <-first:
		t.Errorf("the first ends: %v", err)
	case <-time.After(20 * time.Second):
		t.Error("the second runs on")
	}
}

// TestFailed: a job that cannot be run says why and waits; when it is resumed it is
// tried again.
func TestFailed(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.insert("failed", 0, 10)
	target, err := driver.Connect(options.Client().ApplyURI(b.dst.URI()))
	b.ok(err)
	defer func() { _ = target.Disconnect(context.Background()) }()
	_, err = target.Database("failed").Collection("c").InsertOne(t.Context(), bson.D{{Key: "_id", Value: "in the way"}})
	b.ok(err)
	b.worker(b.nats.Address(), worker.Options{Name: "w1"})
	b.create("failed", "failed", "")
	j := b.until("failed", "the refusal", func(j *service.Job) bool {
		return j.State() == service.Failed &&
			j.Lease == nil
	})
	if !strings.Contains(j.Report.Error, "failed.c") || j.Report.Hint == "" || len(j.Report.Checks) == 0 {
		t.Errorf("%+v", j.Report)
	}
	b.create("unknown", "other", "max-rate-docs: 5\nsource-shard: [\"a=env:NONE\"]\n")
	j = b.until("unknown", "the refusal", func(j *service.Job) bool { return j.State() == service.Failed })
	if !strings.Contains(j.Report.Error, "env:NONE") {
		t.Errorf("%+v", j.Report)
	}
	_, err = b.desk.Resume(t.Context(), b.admin, "unknown")
	b.ok(err)
	b.until("unknown", "the second refusal", func(j *service.Job) bool {
		return j.State() == service.Failed && j.Report.Try == 1
	})
	edited := service.Definition{Name: "unknown",
		Settings: "source: env:SOURCE\ntarget: env:TARGET\ninclude: [other.*]\nallow-missing: true\n"}
	_, err = b.desk.Edit(t.Context(), b.admin, edited)
	b.ok(err)
	b.until("unknown", "following", following)
	b.ok(target.Database("failed").Collection("c").Drop(t.Context()))
	_, err = b.desk.Resume(t.Context(), b.admin, "failed")
	b.ok(err)
	b.until("failed", "following", following)
	_, err = b.desk.Finalize(t.Context(), b.admin, "failed", true)
	b.ok(err)
	b.until("failed", "its end", func(j *service.Job) bool { return j.State() == service.Finished })
	b.same("failed")
	if _, err = b.desk.Edit(t.Context(), b.admin, edited); err == nil {
		t.Error("a job that has written is edited")
	}
}

// TestSharing: jobs are shared evenly among workers that fit; one that is drained gives
// its jobs to the others, and takes jobs again when that is taken back. The next process
// of its name is not drained.
func TestSharing(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	east := map[string]string{"dc": "east"}
	w1, stop := b.worker(b.nats.Address(), worker.Options{Name: "w1", Labels: east})
	w2, _ := b.worker(b.nats.Address(), worker.Options{Name: "w2"})
	for i := range 4 {
		b.create(fmt.Sprintf("job%d", i), fmt.Sprintf("sharing%d", i), "")
	}
	_, _, err := b.desk.Create(t.Context(), b.admin, service.Definition{Name: "east", Labels: east,
		Settings: "source: env:SOURCE\ntarget: env:TARGET\ninclude: [sharing-east.*]\nallow-missing: true\n"})
	b.ok(err)
	all := []string{"job0", "job1", "job2", "job3", "east"}
	for _, name := range all {
		b.until(name, "following", following)
	}
	if n1, n2 := len(w1.Jobs()), len(w2.Jobs()); n1+n2 != 5 || n1 < 2 || n2 < 2 {
		t.Errorf("w1 has %v, w2 %v", w1.Jobs(), w2.Jobs())
	}
	if j := b.desk.View.Job("east"); j.Lease.Worker != "w1" {
		t.Errorf("a job for dc=east is run by %s", j.Lease.Worker)
	}
	drain := func(on bool) {
		t.Helper()
		w, err := b.desk.Drain(t.Context(), b.admin, "w1", on)
		b.ok(err)
		if w.Draining != on {
			t.Errorf("w1 drains: %v, not %v", w.Draining, on)
		}
	}
	drain(true)
	for _, name := range all[:4] {
		b.until(name, "w2", func(j *service.Job) bool { return following(j) && j.Lease.Worker == "w2" })
	}
	b.until("east", "nobody", func(j *service.Job) bool { return j.State() == service.Waiting })
	drain(false)
	b.until("east", "w1 again", func(j *service.Job) bool { return following(j) && j.Lease.Worker == "w1" })
	drain(true)
	b.until("east", "nobody", func(j *service.Job) bool { return j.State() == service.Waiting })
	stop()
	b.worker(b.nats.Address(), worker.Options{Name: "w1", Labels: east})
	b.until("east", "the next w1", func(j *service.Job) bool { return following(j) && j.Lease.Worker == "w1" })
}

// TestCutOff: a worker that cannot reach NATS ends its jobs before another has them,
// and none of them is run twice or loses a change.
func TestCutOff(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	cut := lab.ProxyForTest(t, b.nats.Address())
	w1, _ := b.worker(cut.Addr(), worker.Options{Name: "w1"})
	b.insert("cut", 0, 3000)
	b.create("cut", "cut", "")
	first := b.until("cut", "following", following)
	if first.Lease.Worker != "w1" {
		t.Fatalf("run by %s", first.Lease.Worker)
	}
	b.worker(b.nats.Address(), worker.Options{Name: "w2"})
	cut.Stall()
	b.insert("cut", 3000, 1000)
	b.until("cut", "the other worker", func(j *service.Job) bool { return following(j) && j.Lease.Worker == "w2" })
	for end := time.Now().Add(2 * time.Minute); len(w1.Jobs()) > 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("w1 has %v still", w1.Jobs())
		}
	}
	cut.Restore()
	b.insert("cut", 4000, 1000)
	_, err := b.desk.Finalize(t.Context(), b.admin, "cut", true)
	b.ok(err)
	b.until("cut", "its end", func(j *service.Job) bool { return j.State() == service.Finished })
	b.same("cut")
}

// TestEarlierRunComesBack: a worker that stood still comes back when its lease has ended and
// another worker waits for the job. It proves itself to the target until it notices. The job
// goes on once it has ended.
func TestEarlierRunComesBack(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.insert("back", 0, 100)
	b.create("back", "back", "")
	_, stop := b.worker(b.nats.Address(), worker.Options{Name: "w1"})
	b.until("back", "following", following)
	stop()
	target, err := mongo.Connect(t.Context(), b.dst.URI(), mongo.Options{})
	b.ok(err)
	defer target.Close()
	earlier := state.Open(target, state.Options{Job: "back", Run: state.NewRun(), Write: "majority"})
	_, err = earlier.TakeOver(t.Context(), func(state.Owner) {})
	b.ok(err)
	beating, end := context.WithCancel(t.Context())
	var beats sync.WaitGroup
	beats.Go(func() {
		for beating.Err() == nil {
			if err := earlier.Beat(t.Context()); err != nil {
				t.Error(err)
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
	b.worker(b.nats.Address(), worker.Options{Name: "w2"})
	b.until("back", "that it waits", func(j *service.Job) bool {
		return j.Report != nil && strings.Contains(j.Report.Error, state.ErrRunning.Error())
	})
	end()
	beats.Wait()
	b.ok(earlier.Release(t.Context()))
	b.until("back", "following", func(j *service.Job) bool {
		if j.State() == service.Failed {
			t.Fatalf("the job has failed: %+v", j.Report)
		}
		return following(j) && j.Lease.Worker == "w2" && j.Report.Error == ""
	})
}

// TestHungWorker: what a worker that hung says of a job that another has does not count.
func TestHungWorker(t *testing.T) {
	d := service.Definition{Name: "a", UID: "u"}
	late := &service.Report{UID: "u", Run: "old", State: service.Failed}
	for _, c := range []struct {
		lease *service.Lease
		want  service.State
	}{{&service.Lease{Run: "new"}, service.Starting}, {&service.Lease{Run: "old"}, service.Failed},
		{nil, service.Failed}} {
		if s := (&service.Job{Definition: d, Report: late, Lease: c.lease}).State(); s != c.want {
			t.Errorf("lease %+v: %s, want %s", c.lease, s, c.want)
		}
	}
}

// TestRecords: a job's points add up to what it copied and applied, whoever had it; its
// log says what happened, in order; both are gone with the job.
func TestRecords(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	h, _ := b.connect(b.nats.Address())
	ctx := t.Context()
	b.insert("records", 0, 3000)
	b.create("records", "records", "")
	began := time.Now()
	_, stop := b.worker(b.nats.Address(), worker.Options{Name: "w1", PointEvery: time.Second})
	uid := b.until("records", "following", following).Definition.UID
	b.insert("records", 3000, 500)
	// total waits until as much was done as is given here. What follows the checkpoint is
	// applied once more after a restart.
	total := func(docs, operations, again int64) (list []service.Bucket) {
		t.Helper()
		for end := time.Now().Add(3 * time.Minute); ; {
			var err error
			list, err = h.Records.Points(ctx, uid, service.Period{From: began, To: time.Now().Add(time.Minute)},
				service.PointEvery)
			b.ok(err)
			var d, o int64
			for i := range list {
				d, o = d+list[i].Docs.Sum, o+list[i].Operations.Sum
			}
			if d == docs && o >= operations && o <= operations+again {
				return list
			}
			if d > docs || o > operations+again {
				t.Fatalf("%d documents, %d operations: more than were done", d, o)
			}
			if time.Now().After(end) {
				t.Fatalf("%d documents of %d, %d operations of %d", d, docs, o, operations)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	total(3000, 500, 0)
	stop()
	b.until("records", "nobody", func(j *service.Job) bool { return j.Lease == nil })
	b.insert("records", 3500, 250)
	b.worker(b.nats.Address(), worker.Options{Name: "w2", PointEvery: time.Second})
	b.until("records", "following", following)
	list := total(3000, 750, 500)
	last := list[len(list)-1]
	if !last.Memory.Known() || last.Memory.Mean < 1<<20 || !last.CPU.Known() || !last.Window.Known() || !last.Lag.Known() {
		t.Errorf("%+v", last)
	}
	_, err := b.desk.Limit(ctx, b.admin, "records", server.Limits{Docs: new(int64(100_000))})
	b.ok(err)
	_, err = b.desk.Pause(ctx, b.admin, "records")
	b.ok(err)
	b.until("records", "the pause", func(j *service.Job) bool { return j.State() == service.Paused })
	_, err = b.desk.Resume(ctx, b.admin, "records")
	b.ok(err)
	b.until("records", "following", following)
	_, err = b.desk.Finalize(ctx, b.admin, "records", true)
	b.ok(err)
	b.until("records", "its end", func(j *service.Job) bool { return j.State() == service.Finished && j.Lease == nil })
	// The longer ones have it, too: they are written at the end.
	hours, err := h.Records.Points(ctx, uid, service.Period{From: began, To: time.Now().Add(time.Hour)}, time.Hour)
	b.ok(err)
	if p, err := h.Records.LastPoint(ctx, uid, time.Hour); err != nil || p == nil || len(hours) > 2 ||
		hours[0].Docs.Sum != 3000 {
		t.Errorf("%+v, %+v, %v", p, hours, err)
	}
	entries, err := h.Records.Entries(ctx, uid, "", service.Page{Limit: 1000})
	b.ok(err)
	var events, lines []string
	for _, e := range slices.Backward(entries) {
		if e.Kind == service.KindEvent {
			events = append(events, e.Text)
		} else {
			lines = append(lines, e.Text)
		}
	}
	rest := strings.Join(events, " | ")
	for _, want := range []string{"taken by worker w1", "the copy has begun", "the copy has ended: 3000 documents",
		"it follows", "let go by worker w1", "taken by worker w2", "it follows",
		"limits changed: 100000 documents a second", "paused", "resumed", "it is to finalize", "finished"} {
		_, after, found := strings.Cut(rest, want)
		if !found {
			t.Errorf("no %q in %s", want, strings.Join(events, " | "))
		}
		rest = after
	}
	all := strings.Join(lines, " | ")
	if n := strings.Count(all, "resumed by operator"); n != 1 || !strings.Contains(all, "documents copied") ||
		strings.Count(all, "limits changed by operator") != 1 {
		t.Errorf("resumed %d times: %s", n, all)
	}
	_, err = b.desk.Remove(ctx, b.admin, "records")
	b.ok(err)
	for b.desk.View.Job("records") != nil {
		time.Sleep(20 * time.Millisecond)
	}
	hours, err = h.Records.Points(ctx, uid, service.Period{From: began, To: time.Now().Add(time.Hour)}, service.PointEvery)
	b.ok(err)
	entries, err = h.Records.Entries(ctx, uid, "", service.Page{Limit: 1000})
	b.ok(err)
	if len(hours) > 0 || len(entries) > 0 {
		t.Errorf("after the removal: %d points, %+v", len(hours), entries)
	}
}
