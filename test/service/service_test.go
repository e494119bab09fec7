// Package service holds tests of the service as processes: serve and workers that are
// killed, frozen and started again while jobs run.
package service

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
	"github.com/millrace/millrace/internal/service/operate"
	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/clock"
	"github.com/millrace/millrace/test/hubtest"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
)

// bed is a service of several processes, and two clusters.
type bed struct {
	*testing.T
	bin, dir string
	listen   string   // of the API
	nats     string   // host:port
	cluster  *cluster // nil where serve has a server of its own
	env      []string
	sc, dc   *mongo.Client
	serve    *test.Process
	workers  map[string]*test.Process
	clocks   map[string]*clock.Clock // of workers, "" of serve; nil where none is to be set
	desk     *operate.Desk
	admin    service.Caller
	run      string // that phase saw last
	lease    string // of serve and workers; "" is 8s
}

// newBed starts serve with a NATS of its own, or with that of a cluster.
func newBed(t *testing.T, c *cluster) *bed {
	t.Helper()
	return start(prepareBed(t, c))
}

// newBedBetween is newBed between two clusters that are there.
func newBedBetween(t *testing.T, src, dst string) *bed {
	t.Helper()
	return start(bedBetween(t, nil, src, dst))
}

func start(b *bed) *bed {
	b.Helper()
	b.startServe()
	b.connect()
	return b
}

// prepareBed is newBed before anything has started but the clusters.
func prepareBed(t *testing.T, c *cluster) *bed {
	t.Helper()
	return bedBetween(t, c, lab.ForTest(t, lab.Options{}).URI(), lab.ForTest(t, lab.Options{}).URI())
}

func bedBetween(t *testing.T, c *cluster, src, dst string) *bed {
	t.Helper()
	return &bed{T: t, cluster: c, bin: test.BuildMillrace(t), dir: t.TempDir(), listen: "127.0.0.1:0",
		nats: fmt.Sprintf("127.0.0.1:%d", lab.PortForTest(t)),
		env:  []string{"MILLRACE_SECRET_SRC=" + src, "MILLRACE_SECRET_DST=" + dst},
		sc:   kit.Client(t, src), dc: kit.Client(t, dst),
		workers: map[string]*test.Process{}, admin: service.Caller{Name: "test", Role: service.Admin, From: "here"}}
}

func (b *bed) startServe() {
	args := []string{"serve", "--no-worker", "--data-dir", b.dir, "--listen", b.listen, "--lease", cmp.Or(b.lease, "8s"),
		"--log-level", "debug"}
	if b.cluster != nil {
		args = append(args, "--nats", b.uri(), "--nats-token-file", b.tokenFile())
	} else {
		args = append(args, "--nats-listen", b.nats)
	}
	b.serve = b.start("", args...)
}

func (b *bed) startWorker(name string) {
	b.workers[name] = b.start(name, "worker", "--nats", b.uri(), "--nats-token-file", b.tokenFile(), "--name", name,
		"--lease", cmp.Or(b.lease, "8s"))
}

func (b *bed) start(name string, args ...string) (p *test.Process) {
	if b.clocks == nil {
		return test.StartWith(b.T, b.env, b.bin, args...)
	}
	p, b.clocks[name] = test.StartClocked(b.T, b.env, b.bin, args...)
	return p
}

func (b *bed) uri() string {
	if b.cluster != nil {
		return b.cluster.uri()
	}
	return "nats://" + b.nats
}

func (b *bed) tokenFile() string {
	if b.cluster != nil {
		return b.cluster.tokenFile
	}
	return filepath.Join(b.dir, "nats-token")
}

// connect is the test's own way to the store.
func (b *bed) connect() {
	b.Helper()
	log := slog.New(slog.NewTextHandler(b.Output(), nil))
	var h *hub.Hub
	lease, err := time.ParseDuration(cmp.Or(b.lease, "8s"))
	defer func() {
		if h == nil {
			b.Log(err)
		}
	}()
	b.until("NATS", func() bool {
		var token []byte
		token, err = os.ReadFile(b.tokenFile())
		if err == nil {
			h, err = hub.Open(b.Context(), hub.Options{URI: b.uri(), Token: strings.TrimSpace(string(token)),
				Lease: lease, Log: log})
		}
		return err == nil
	})
	b.Cleanup(h.Close)
	b.desk = &operate.Desk{Hub: h, View: hubtest.Watch(b, h), Now: time.Now}
}

func (b *bed) until(what string, holds func() bool) {
	b.Helper()
	for end := time.Now().Add(4 * time.Minute); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			state, _ := json.Marshal(b.job())
			b.Fatalf("%s did not come: %s", what, state)
		}
	}
}

func (b *bed) job() *service.Job {
	if b.desk == nil {
		return nil
	}
	return b.desk.View.Job("churn")
}

// phase waits until a worker has the job in a phase, in another run than the last one
// that this returned.
func (b *bed) phase(another bool, phases ...job.Phase) (worker string) {
	b.Helper()
	b.until(fmt.Sprintf("%v, in another run: %v", phases, another), func() bool {
		j := b.job()
		if j == nil || j.State() != service.Running || j.Report.Status == nil || another && j.Lease.Run == b.run ||
			!slices.Contains(phases, j.Report.Status.Phase) {
			return false
		}
		b.run, worker = j.Lease.Run, j.Lease.Worker
		return true
	})
	return worker
}

// TestProcessesDie: workers are killed and frozen, and the service with its NATS is
// killed, while a job copies and follows. There is one owner each time, and the target
// is the same in the end.
func TestProcessesDie(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	churn := b.churn()
	b.startWorker("w1")
	b.startWorker("w2")
	b.create()
	begun := []job.Phase{job.PhaseCopying, job.PhaseIndexing, job.PhaseOverlap, job.PhaseFollowing}
	owner := b.phase(true, begun...)
	b.workers[owner].Kill()
	b.startWorker(owner)
	owner = b.phase(true, begun...)

	frozen := b.workers[owner]
	frozen.Freeze()
	b.phase(true, begun...)
	select {
	case <-frozen.Done(): // its connections have ended with it
	default:
		t.Error("another worker has the job of one that hangs and may go on")
	}
	b.startWorker(owner)

	b.catchUp(churn)
	b.serve.Kill()
	b.startServe()
	b.phase(false, job.PhaseFollowing)
	churn.Stop()
	b.finish()
	t.Logf("%d operations written meanwhile", churn.Operations())
	b.endAll()
}

// churn fills a database, and changes it until the end.
func (b *bed) churn() *test.Churn {
	b.Helper()
	test.LoadChurn(b.T, b.sc.Database("svc"))
	return test.StartChurn(b.T, b.sc.Database("svc"),
		test.ChurnOptions{Seed: testseed.Of(b), SchemaEvery: 200 * time.Millisecond, Pause: 5 * time.Millisecond})
}

// create makes the job of the churn.
func (b *bed) create() {
	b.Helper()
	_, made, err := b.desk.Create(b.Context(), &b.admin, service.Definition{Name: "churn",
		Settings: "source: env:SRC\ntarget: env:DST\ninclude: ['svc.*', 'svc-x.*']\nallow-missing: true\nmax-rate-docs: " +
			"4000\n"})
	b.made(made, err)
}

// made fails the test where a job was not made. That the audit trail has it takes longer
// than it may on a very busy machine.
func (b *bed) made(made bool, err error) {
	b.Helper()
	if !made {
		b.Fatal(err)
	}
	if err != nil {
		b.Log(err)
	}
}

// catchUp has the job follow. On a busy machine it never would beside the writes.
func (b *bed) catchUp(churn *test.Churn) {
	b.Helper()
	defer churn.Hold()()
	b.phase(false, job.PhaseFollowing)
}

// finish finalizes the job, and compares.
func (b *bed) finish() {
	b.Helper()
	b.finalize()
	diffs, err := test.Compare(b.Context(), b.sc, b.dc, test.CompareOptions{})
	if err != nil {
		b.Fatal(err)
	}
	for _, d := range diffs {
		b.Error(d)
	}
}

// finalize ends the job.
func (b *bed) finalize() {
	b.Helper()
	if _, err := b.desk.Finalize(b.Context(), &b.admin, "churn", true); err != nil {
		b.Fatal(err)
	}
	b.until("its end", func() bool { j := b.job(); return j != nil && j.State() == service.Finished })
}

// endAll ends all processes: each gives back what it has, and has not failed.
func (b *bed) endAll() {
	b.Helper()
	for name, w := range b.workers {
		if w.Interrupt(); w.ExitCode() != 0 {
			b.Errorf("worker %s ended with %d", name, w.ExitCode())
		}
	}
	if b.serve.Interrupt(); b.serve.ExitCode() != 0 {
		b.Errorf("serve ended with %d", b.serve.ExitCode())
	}
}

// TestVerifyProcessesDie: the worker that verifies is killed, and serve with its NATS,
// while writes go on. Another begins again, and finds what was changed behind the job's
// back, and nothing else.
func TestVerifyProcessesDie(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	b := newBed(t, nil)
	source := b.sc.Database("svc").Collection("c")
	docs := make([]any, 5000)
	for i := range docs {
		docs[i] = bson.D{{Key: "_id", Value: i}, {Key: "n", Value: 0}}
	}
	if _, err := source.InsertMany(t.Context(), docs); err != nil {
		t.Fatal(err)
	}
	b.startWorker("w1")
	b.startWorker("w2")
	_, made, err := b.desk.Create(t.Context(), &b.admin,
		service.Definition{Name: "churn", Settings: "source: env:SRC\ntarget: env:DST\ninclude: ['svc.*']\n"})
	if err != nil || !made {
		t.Fatal(made, err)
	}
	b.phase(false, job.PhaseFollowing)
	if _, err := b.dc.Database("svc").Collection("c").
		DeleteOne(t.Context(), bson.D{{Key: "_id", Value: 4321}}); err != nil {
		t.Fatal(err)
	}
	writing, stop := context.WithCancel(context.Background())
	var writers sync.WaitGroup
	writers.Go(func() {
		for i := 0; writing.Err() == nil; i++ {
			if _, err := source.UpdateOne(context.WithoutCancel(writing), bson.D{{Key: "_id", Value: i * 13 % 4000}},
				bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}); err != nil {
				t.Error(err)
				return
			}
			select {
			case <-writing.Done():
			case <-time.After(5 * time.Millisecond):
			}
		}
	})
	defer writers.Wait()
	defer stop()
	if _, _, err := b.desk.Verify(t.Context(), &b.admin, "churn", "v",
		service.VerifyOptions{BytesPerSecond: service.LeastVerifyRate}); err != nil {
		t.Fatal(err)
	}
	running := func(attempt int) (worker string) {
		b.until(fmt.Sprintf("attempt %d", attempt), func() bool {
			v := b.desk.View.Verification("churn", "v")
			if v == nil || v.State() != service.VerifyRunning || v.Report.Attempt != attempt || v.Report.Progress.Docs == 0 {
				return false
			}
			worker = v.Report.Worker
			return true
		})
		return worker
	}
	w := running(1)
	b.workers[w].Kill()
	again := running(2)
	if again == w {
		t.Errorf("worker %s verifies, which was killed", w)
	}
	b.startWorker(w)
	b.serve.Kill()
	b.startServe()
	b.until("the result", func() bool {
		v := b.desk.View.Verification("churn", "v")
		return v != nil &&
			v.State().Final()
	})
	v, found, err := b.desk.Verification(t.Context(), &b.admin, "churn", "v")
	if err != nil || v.State() != service.VerifyDifferent || found == nil || len(found.Differences) != 1 ||
		found.Differences[0].ID != `{"$numberInt":"4321"}` || found.Differences[0].Kind != "missing" {
		t.Errorf("%+v %+v %+v, %v", v.Request, v.Report, found, err)
	}
}
