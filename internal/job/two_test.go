package job_test

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/procstat"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/kit"
)

// lines is a log that a test may read while it is written.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Contains(l.buf.Bytes(), []byte(text))
}

// TestTwoJobs: two jobs in one process, between the same servers, keep to
// themselves: rules, budgets, logs, connections, pauses and ends.
func TestTwoJobs(t *testing.T) {
	t.Parallel()
	s := start(t)
	const docs = 3000
	for _, db := range []string{"twoa", "twob"} {
		fill(t, s.srcDB, db, 0, docs)
	}
	var logs [2]lines
	var connecting sync.Mutex
	var connected [2][]string
	open2 := func(i int, spec job.Spec) *job.Job {
		spec.Until, spec.WarnWindow = "never", time.Hour
		spec.Log = slog.New(slog.NewTextHandler(&logs[i], nil))
		spec.Connect = func(ctx context.Context, uri string, o mongo.Options) (*mongo.Cluster, error) {
			connecting.Lock() // both sides connect at once
			connected[i] = append(connected[i], o.AppName)
			connecting.Unlock()
			return mongo.Connect(ctx, uri, o)
		}
		spec.Usage = func() procstat.Usage { return procstat.Usage{PID: i + 1} }
		return open(t, spec)
	}
	one := s.spec("twoa")
	one.Readers, one.Writers, one.Partitions, one.Memory = 1, 1, 1, 8<<20
	two := s.spec("twob")
	two.Rules = transform.Config{Include: []string{"twob.*"}, Rename: []string{"twob=twoc"}}
	two.Limits = pace.Rates{Bytes: 1} // it cannot copy until it may
	jobs := [2]*job.Job{open2(0, one), open2(1, two)}
	if jobs[0].ID() == jobs[1].ID() {
		t.Fatal("two jobs of one name")
	}
	ctx, stop := context.WithCancel(t.Context())
	var ended [2]chan error
	for i, j := range jobs {
		ended[i] = make(chan error, 1)
		go func() { ended[i] <- j.Run(ctx) }()
	}
	t.Cleanup(stop)
	phase := func(i int, p job.Phase) func() bool { return func() bool { return jobs[i].Status().Phase == p } }

	kit.Until(t, "the first follows", phase(0, job.PhaseFollowing))
	kit.Until(t, "the second begins to copy", phase(1, job.PhaseCopying))
	if n := count(t, s.targetC, "twoc"); n == docs || jobs[1].Status().Limits.Bytes != 1 ||
		jobs[0].Status().Limits.Bytes != 0 {
		t.Errorf("the limit of one is not its own: %d documents, %+v", n, jobs[0].Status().Limits)
	}
	if err := jobs[1].SetLimits(ctx, pace.Rates{}); err != nil {
		t.Fatal(err)
	}
	kit.Until(t, "the second follows", phase(1, job.PhaseFollowing))

	// One is paused; the other goes on and is finalized.
	if err := jobs[0].Pause(ctx); err != nil {
		t.Fatal(err)
	}
	kit.Until(t, "the first pauses", func() bool { return jobs[0].Status().Waiting != "" })
	for _, db := range []string{"twoa", "twob"} {
		change(t, s.srcDB, db, docs, 0)
	}
	if err := jobs[1].Finalize(ctx, false); err != nil {
		t.Fatal(err)
	}
	if err := <-ended[1]; err != nil || !phase(1, job.PhaseFinalized)() {
		t.Fatalf("the second ended with %v in %s", err, jobs[1].Status().Phase)
	}
	jobs[1].Close()
	if n := count(t, s.targetC, "twoa"); n != docs || !jobs[0].Status().Paused || jobs[1].Status().Paused {
		t.Errorf("paused, the first has %d documents", n)
	}
	if err := jobs[0].Resume(ctx); err != nil {
		t.Fatal(err)
	}
	if err := jobs[0].Finalize(ctx, false); err != nil {
		t.Fatal(err)
	}
	if err := <-ended[0]; err != nil {
		t.Fatal(err)
	}
	same(t, s, "twoa")
	sameAs(t, s, "twob", "twoc")
	for i := range jobs {
		if u := jobs[i].Status().Process; u.PID != i+1 || u.CPUSeconds != 0 {
			t.Errorf("job %d shows what another uses: %+v", i, u)
		}
		if len(connected[i]) != 2 {
			t.Errorf("job %d was connected by %q", i, connected[i])
		}
	}
	if !logs[0].has("paused by operator") || logs[1].has("paused by operator") || !logs[1].has("limits changed") ||
		logs[0].has("limits changed") {
		t.Error("the jobs share a log")
	}
}
