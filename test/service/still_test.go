package service

import (
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
)

// still is a bed in which workers stand still together with their guardians, as on a
// machine that is suspended, and go on.
type still struct {
	*bed
	r     *rand.Rand
	names []string
}

// TestMachinesStandStill: three workers copy a job. The owner, a worker that copies a part,
// or both stand still, for longer or shorter than a lease, and go on; so do the servers of
// both sides, and the target is killed. No job fails, and the target is the same in the end.
func TestMachinesStandStill(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	src, dst := lab.ForTest(t, lab.Options{}), lab.ForTest(t, lab.Options{})
	s := &still{bed: newBedBetween(t, src.URI(), dst.URI()), r: rand.New(rand.NewPCG(testseed.Of(t), 9)),
		names: []string{"w1", "w2", "w3"}}
	for _, coll := range []string{"large", "doomed", "moved"} {
		s.fillLarge("svc", coll, 64)
	}
	for _, name := range s.names {
		s.startWorker(name)
	}
	s.until("the workers", func() bool { return len(s.desk.View.Workers()) == len(s.names) })
	_, made, err := s.desk.Create(t.Context(), &s.admin, service.Definition{Name: "churn",
		Settings: "source: env:SRC\ntarget: env:DST\ninclude: ['svc.*', 'svc-x.*']\nallow-missing: true\nmax-rate-bytes: " +
			"1500kB\n"})
	s.made(made, err)
	owner := s.phase(true, job.PhaseCopying)
	s.copies(slices.DeleteFunc(slices.Clone(s.names), func(n string) bool { return n == owner })[0])
	s.changeLarge()
	for range testseed.Rounds(t, 6) {
		s.round(src.Members()[0], dst.Members()[0])
		if j := s.job(); j.State() == service.Failed {
			t.Fatalf("the job has failed: %s", j.Report.Error)
		}
	}
	if _, err := s.desk.Limit(t.Context(), &s.admin, "churn", server.Limits{Bytes: new(int64)}); err != nil {
		t.Fatal(err)
	}
	s.phase(false, job.PhaseFollowing)
	s.finish()
}

// round has something stand still, and go on.
func (s *still) round(src, dst *lab.Member) {
	s.Helper()
	owner := s.names[0]
	if j := s.job(); j.Lease != nil {
		owner = j.Lease.Worker
	}
	other := s.names[s.r.IntN(len(s.names))]
	var stopped []int
	stop := func(pids ...int) {
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGSTOP)
		}
		stopped = append(stopped, pids...)
	}
	switch what := s.r.IntN(6); what {
	case 0, 1, 2:
		if what != 1 {
			stop(s.machine(owner)...)
		}
		if what != 0 && other != owner {
			stop(s.machine(other)...)
		}
	case 3:
		stop(dst.Pid())
	case 4:
		stop(src.Pid())
	case 5:
		if err := dst.Kill(); err != nil {
			s.Fatal(err)
		}
		if err := dst.Start(s.Context()); err != nil {
			s.Fatal(err)
		}
	}
	time.Sleep(time.Duration(s.r.IntN(14)) * time.Second) // some longer than a lease of 8 s
	for _, i := range s.r.Perm(len(stopped)) {
		_ = syscall.Kill(stopped[i], syscall.SIGCONT)
	}
	// Whoever finds that it stood still ends, and its system starts it again.
	time.Sleep(time.Second)
	for _, name := range s.names {
		select {
		case <-s.workers[name].Done():
			s.startWorker(name)
		default:
		}
	}
}

// machine is a worker with its guardian, which is first.
func (s *still) machine(worker string) []int {
	pid := s.workers[worker].Pid()
	return append(test.Children(pid), pid)
}
