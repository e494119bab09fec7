package worker

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/test/testseed"
)

// shared makes workers with some jobs each: w0 has j0-0, j0-1 and so on.
func shared(loads ...int) (*sharing, []service.Job) {
	s := &sharing{loads: map[string]int{}}
	var jobs []service.Job
	for i, n := range loads {
		name := fmt.Sprintf("w%d", i)
		s.workers, s.loads[name] = append(s.workers, service.Worker{Name: name}), n
		for k := range n {
			jobs = append(jobs, service.Job{Definition: service.Definition{Name: fmt.Sprintf("j%d-%d", i, k)},
				Lease: &service.Lease{Worker: name}})
		}
	}
	return s, jobs
}

func anyJob(*service.Job) bool { return true }

func text(m *move) string {
	if m == nil {
		return ""
	}
	return m.job.Definition.Name + " to " + m.to
}

// TestMove: a job moves from the worker with the most jobs to the one with the fewest, if that is clearly fewer,
// fits, and has room.
func TestMove(t *testing.T) {
	for _, c := range []struct {
		loads []int
		want  string
	}{{[]int{9, 0, 0}, "j0-0 to w1"}, {[]int{3, 3, 3}, ""}, {[]int{3, 4, 3}, ""}, {[]int{0, 1}, ""}, {[]int{0}, ""},
		{[]int{4, 2, 4}, "j0-0 to w1"}, {[]int{2, 5, 2}, "j1-0 to w0"}} {
		s, jobs := shared(c.loads...)
		if got := text(s.move(jobs, anyJob)); got != c.want {
			t.Errorf("%v: %q, want %q", c.loads, got, c.want)
		}
	}
	s, jobs := shared(5, 0, 3)
	for i := range jobs[:5] {
		jobs[i].Definition.Labels = map[string]string{"site": "a"}
	}
	s.workers[0].Labels = map[string]string{"site": "a"}
	if got := text(s.move(jobs, anyJob)); got != "j2-0 to w1" {
		t.Errorf("bound by labels: %q", got)
	}
	s.workers[1].MaxJobs, s.loads["w1"] = 1, 1
	if got := text(s.move(jobs, anyJob)); got != "" {
		t.Errorf("to a full worker: %q", got)
	}
	s, jobs = shared(3, 0)
	if got := text(s.move(jobs, func(j *service.Job) bool { return j.Definition.Name == "j0-2" })); got != "j0-2 to w1" {
		t.Errorf("one that may move: %q", got)
	}
}

// TestMovesEnd: from any loads, moves end with even ones after fewer moves than there are jobs.
func TestMovesEnd(t *testing.T) {
	r := rand.New(rand.NewPCG(testseed.Of(t), 1))
	for range 200 {
		loads := make([]int, 1+r.IntN(6))
		for i := range loads {
			loads[i] = r.IntN(12)
		}
		s, jobs := shared(loads...)
		moves := 0
		for m := s.move(jobs, anyJob); m != nil; m = s.move(jobs, anyJob) {
			m.job.Lease.Worker = m.to
			s.loads[m.from]--
			s.loads[m.to]++
			if moves++; moves > len(jobs) {
				t.Fatalf("%v: does not end", loads)
			}
		}
		least, most := 1<<30, 0
		for _, n := range s.loads {
			least, most = min(least, n), max(most, n)
		}
		if most-least > 1 {
			t.Errorf("%v: ends at %v", loads, s.loads)
		}
	}
}
