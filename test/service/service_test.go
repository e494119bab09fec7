// Package service holds tests of the service as processes: serve and workers that are
// killed, frozen and started again while jobs run.
package service

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/lab"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
	"github.com/millrace/millrace/internal/service/hub/hubtest"
	"github.com/millrace/millrace/internal/service/operate"
	"github.com/millrace/millrace/test"
)

// bed is a service of several processes, and two clusters.
type bed struct {
	*testing.T
	bin, dir string
	nats     string // host:port
	env      []string
	sc, dc   *mongo.Client
	serve    *test.Process
	workers  map[string]*test.Process
	desk     *operate.Desk
	admin    service.Caller
	run      string // that phase saw last
}

func newBed(t *testing.T) *bed {
	t.Helper()
	src, dst := lab.ForTest(t, lab.Options{}), lab.ForTest(t, lab.Options{})
	b := &bed{T: t, bin: test.BuildMillrace(t), dir: t.TempDir(), nats: fmt.Sprintf("127.0.0.1:%d", lab.PortForTest(t)),
		env: []string{"MILLRACE_SECRET_SRC=" + src.URI(), "MILLRACE_SECRET_DST=" + dst.URI()},
		sc:  test.Connect(t, src.URI()), dc: test.Connect(t, dst.URI()),
		workers: map[string]*test.Process{}, admin: service.Caller{Name: "test", Role: service.Admin, From: "here"}}
	b.startServe()
	b.connect()
	return b
}

func (b *bed) startServe() {
	b.serve = test.StartWith(b.T, b.env, b.bin, "serve", "--no-worker", "--data-dir", b.dir, "--listen", "127.0.0.1:0", "--nats-listen", b.nats, "--lease", "8s", "--log-level", "debug")
}

func (b *bed) startWorker(name string) {
	b.workers[name] = test.StartWith(b.T, b.env, b.bin, "worker", "--nats", "nats://"+b.nats, "--nats-token-file", filepath.Join(b.dir, "nats-token"), "--name", name, "--lease", "8s")
}

// connect is the test's own way to the store.
func (b *bed) connect() {
	b.Helper()
	log := slog.New(slog.NewTextHandler(b.Output(), nil))
	var h *hub.Hub
	b.until("NATS", func() bool {
		token, err := os.ReadFile(filepath.Join(b.dir, "nats-token"))
		if err == nil {
			h, err = hub.Open(b.Context(), hub.Options{URI: "nats://" + b.nats, Token: strings.TrimSpace(string(token)), Lease: 8 * time.Second, Log: log})
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
		if j == nil || j.State() != service.Running || j.Report.Status == nil || another && j.Lease.Run == b.run || !slices.Contains(phases, j.Report.Status.Phase) {
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
	b := newBed(t)
	test.LoadChurn(t, b.sc.Database("svc"))
	churn := test.StartChurn(t, b.sc.Database("svc"), test.ChurnOptions{Seed: uint64(time.Now().UnixNano()), SchemaEvery: 200 * time.Millisecond, Pause: 5 * time.Millisecond})
	b.startWorker("w1")
	b.startWorker("w2")
	_, made, err := b.desk.Create(t.Context(), &b.admin, service.Definition{Name: "churn",
		Settings: "source: env:SRC\ntarget: env:DST\ninclude: ['svc.*', 'svc-x.*']\nallow-missing: true\nmax-rate-docs: 4000\n"})
	if err != nil || !made {
		t.Fatal(made, err)
	}
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

	func() { // on a busy machine it would never catch up
		defer churn.Hold()()
		b.phase(false, job.PhaseFollowing)
	}()
	b.serve.Kill()
	b.startServe()
	b.phase(false, job.PhaseFollowing)
	churn.Stop()
	if _, err := b.desk.Finalize(t.Context(), &b.admin, "churn", true); err != nil {
		t.Fatal(err)
	}
	b.until("its end", func() bool { j := b.job(); return j != nil && j.State() == service.Finished })
	diffs, err := test.Compare(t.Context(), b.sc, b.dc, test.CompareOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range diffs {
		t.Error(d)
	}
	t.Logf("%d operations written meanwhile", churn.Operations())
	for name, w := range b.workers { // at its end each gives back what it has, and has not failed
		if w.Interrupt(); w.ExitCode() != 0 {
			t.Errorf("worker %s ended with %d", name, w.ExitCode())
		}
	}
	if b.serve.Interrupt(); b.serve.ExitCode() != 0 {
		t.Errorf("serve ended with %d", b.serve.ExitCode())
	}
}
