package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
)

// sharing gives jobs to workers. Workers that see the same come to the same result.
type sharing struct {
	workers []service.Worker
	loads   map[string]int
}

func (w *Worker) sharing(jobs []service.Job) *sharing {
	s := &sharing{loads: map[string]int{}}
	for _, o := range w.View.Workers() {
		if o.Name != w.Name && !o.Draining {
			s.workers = append(s.workers, o)
		}
	}
	s.workers = append(s.workers, service.Worker{Name: w.Name, Labels: w.Labels, MaxJobs: w.MaxJobs})
	for i := range jobs {
		if l := jobs[i].Lease; l != nil {
			s.loads[l.Worker]++
		}
	}
	s.loads[w.Name] = len(w.Jobs())
	return s
}

func (s *sharing) next(d *service.Definition, forget bool) string {
	best := s.least(d, forget)
	if best != "" {
		s.loads[best]++
	}
	return best
}

// least returns the fitting worker with room and the fewest jobs, "" for none. Any worker can remove a job.
func (s *sharing) least(d *service.Definition, forget bool) (best string) {
	for _, o := range s.workers {
		n := s.loads[o.Name]
		if !forget && !d.Fits(o.Labels) || o.MaxJobs > 0 && n >= o.MaxJobs {
			continue
		}
		if best == "" || n < s.loads[best] || n == s.loads[best] && o.Name < best {
			best = o.Name
		}
	}
	return best
}

func (s *sharing) text() string {
	var all []string
	for _, o := range s.workers {
		all = append(all, fmt.Sprintf("%s %d", o.Name, s.loads[o.Name]))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

type move struct {
	job      *service.Job
	from, to string
}

// leastGap is how many jobs fewer the other worker has. With one job less, the move would only swap the two.
const leastGap = 2

// move returns the next move that evens the loads, nil for none. The worker with the most jobs comes first.
func (s *sharing) move(jobs []service.Job, movable func(*service.Job) bool) *move {
	from := slices.Clone(s.workers)
	slices.SortFunc(from, func(a, b service.Worker) int {
		return cmp.Or(cmp.Compare(s.loads[b.Name], s.loads[a.Name]), strings.Compare(a.Name, b.Name))
	})
	for _, o := range from {
		for i := range jobs {
			j := &jobs[i]
			if j.Lease == nil || j.Lease.Worker != o.Name || !movable(j) {
				continue
			}
			if to := s.least(&j.Definition, false); to != "" && s.loads[o.Name]-s.loads[to] >= leastGap {
				return &move{j, o.Name, to}
			}
		}
	}
	return nil
}

type balance struct {
	loads string
	since time.Time      // they have been the same since then
	tried map[string]int // how often this worker acted, by loads
}

const (
	// steadyLeases is how many leases the loads must last before a job moves, so that a restart causes no moves.
	steadyLeases = 2
	// mostWaits bounds the doubling of that time: 2^9 times 30 s is four hours.
	mostWaits = 9
)

// rebalance hands one job over when another worker has had clearly fewer jobs for some time. All workers see the
// same move, and only the worker that has the job acts. A move changes the loads, so the next one waits again.
// At loads where a move was tried before, the wait doubles.
func (w *Worker) rebalance(ctx context.Context) {
	jobs := w.View.Jobs()
	s, b := w.sharing(jobs), &w.balance
	if loads := s.text(); loads != b.loads {
		b.loads, b.since = loads, time.Now()
		return
	}
	if time.Since(b.since) < steadyLeases*w.Hub.Lease()<<min(b.tried[b.loads], mostWaits) {
		return
	}
	m := s.move(jobs, w.movable())
	if m == nil {
		clear(b.tried)
		return
	}
	name := m.job.Definition.Name
	w.mu.Lock()
	defer w.mu.Unlock()
	u := w.units[name]
	if m.from != w.Name || u == nil || w.retrying[name] || w.moving {
		return
	}
	b.since, w.moving = time.Now(), true
	b.tried[b.loads]++
	why := fmt.Errorf("worker %s takes it over (jobs there: %d, here: %d)", m.to, s.loads[m.to], s.loads[w.Name])
	w.group.Go(func() error {
		err := w.canRun(ctx, m)
		if err != nil {
			u.log.Warn("a job stays on this worker: one with fewer jobs cannot take it", "worker", m.to, "error", err,
				"hint", "give that worker what the settings refer to, or bind jobs to workers by labels")
		} else if j := w.View.Job(name); j != nil && w.movable()(j) {
			u.cancel(why)
		}
		w.mu.Lock()
		w.moving = false
		w.mu.Unlock()
		return nil
	})
}

// movable returns what reports whether a job can change its worker at little cost: it follows, nobody finalizes,
// removes or verifies it. A copy is not interrupted.
func (w *Worker) movable() func(*service.Job) bool {
	verified := map[string]bool{}
	for _, v := range w.View.OpenVerifications() {
		verified[v.Request.Job] = true
	}
	return func(j *service.Job) bool {
		want := &j.Definition.Desired
		return j.Live() && j.State() == service.Running && j.Report.Status.Phase == job.PhaseFollowing &&
			!j.Report.Status.FinalizeWanted && !want.Finalize && !want.Paused && !want.Removed && !verified[j.Definition.Name]
	}
}

// canRun asks the worker of a move whether it can read what the settings refer to, and reach both sides.
func (w *Worker) canRun(ctx context.Context, m *move) error {
	ctx, cancel := context.WithTimeout(ctx, draftTime)
	defer cancel()
	d := &m.job.Definition
	question, err := json.Marshal(service.Question{What: service.AskInspect, Job: d.Name,
		Draft: &service.DraftQuestion{Settings: d.Settings}})
	if err != nil {
		return err
	}
	found, a, err := hub.AskFor[service.Inspection](ctx, w.Hub, m.to, question)
	if err != nil {
		return err
	}
	if trouble := cmp.Or(a.Error, found.Source.Error, found.Target.Error); trouble != "" {
		return errors.New(trouble)
	}
	return nil
}
