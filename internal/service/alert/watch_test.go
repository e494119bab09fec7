package alert

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/state/deadletter"
)

// scene is one job that a watch looks at again and again, and what it has stored.
type scene struct {
	t       *testing.T
	w       *watch
	now     time.Time
	job     service.Job
	gone    bool
	moves   bool // it makes progress
	workers []service.Worker
	stored  map[service.AlertKind]service.Alert
	said    []string
	ids     int
}

func newScene(t *testing.T) *scene {
	s := &scene{t: t, now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), stored: map[service.AlertKind]service.Alert{}}
	s.restart()
	s.job.Definition = service.Definition{Name: "orders", UID: "u1"}
	s.job.Lease = &service.Lease{Worker: "w1", Run: "r1"}
	s.job.Report = &service.Report{UID: "u1", Run: "r1", State: service.Running,
		Status: &job.Status{Phase: job.PhaseFollowing, Follow: job.FollowStatus{WindowSeconds: 90_000}}}
	return s
}

// restart begins anew with what is stored alone, as another process does.
func (s *scene) restart() {
	s.w = newWatch(DefaultRules(), func() string { s.ids++; return fmt.Sprint("id", s.ids) })
}

// pass lets time go by in looks of five seconds, and notes what fires and ends.
func (s *scene) pass(d time.Duration) {
	for end := s.now.Add(d); s.now.Before(end); s.now = s.now.Add(lookEvery) {
		if s.moves {
			s.status().Follow.Operations++
		}
		var stored []service.Alert
		for _, a := range s.stored {
			stored = append(stored, a)
		}
		jobs := []service.Job{s.job}
		if s.gone {
			jobs = nil
		}
		for _, c := range s.w.step(s.now, jobs, s.workers, stored) {
			switch {
			case c.gone:
				delete(s.stored, c.Kind)
				continue
			case c.Firing():
				s.said = append(s.said, fmt.Sprintf("%s fires: %s", c.Kind, c.Text))
			case !c.Notified:
				s.said = append(s.said, fmt.Sprintf("%s is over: %s", c.Kind, c.Ending))
			}
			c.Notified = true
			if s.stored[c.Kind] = c.Alert; !c.Firing() && c.Kind != service.AlertConflict {
				delete(s.stored, c.Kind)
			}
		}
	}
}

// want compares what was said since the last time.
func (s *scene) want(lines ...string) {
	s.t.Helper()
	if got, want := strings.Join(s.said, "\n"), strings.Join(lines, "\n"); got != want {
		s.t.Errorf("said\n%s\nwant\n%s", got, want)
	}
	s.said = nil
}

func (s *scene) status() *job.Status { return s.job.Report.Status }

// TestLagAlert: it fires after its time and once, also over a restart, and what goes up
// and down around the limit is one occurrence.
func TestLagAlert(t *testing.T) {
	s := newScene(t)
	f := &s.status().Follow
	s.moves, f.LagSeconds = true, 61
	s.pass(4 * time.Minute)
	f.LagSeconds = 1 // too short
	s.pass(time.Minute)
	f.LagSeconds = 61
	s.pass(5 * time.Minute)
	s.want()
	s.pass(time.Minute)
	s.want("lag fires: the target is 61 s behind the source, more than 1m0s")
	s.restart()
	s.pass(10 * time.Minute)
	for range 10 {
		f.LagSeconds = 59
		s.pass(30 * time.Second)
		f.LagSeconds = 61
		s.pass(30 * time.Second)
	}
	s.job.Lease = nil // nobody knows now
	s.pass(90 * time.Second)
	s.want()
	s.job.Lease = &service.Lease{Run: "r1"}
	f.LagSeconds = 2
	s.restart()
	s.pass(59 * time.Second)
	s.want()
	s.pass(time.Minute)
	s.want("lag is over: the target has caught up")
	s.pass(time.Hour)
	s.want()
	f.LagSeconds = 600
	s.pass(6 * time.Minute)
	s.want("lag fires: the target is 10 min behind the source, more than 1m0s")
	s.job.Report.State = service.Paused
	s.pass(2 * time.Minute)
	s.want("lag is over: the job is paused")
	if s.ids != 2 {
		t.Errorf("%d occurrences", s.ids)
	}
}

// TestLagOfWhatDoesNotFollow: while a job copies or catches up, it is behind.
func TestLagOfWhatDoesNotFollow(t *testing.T) {
	s := newScene(t)
	s.status().Phase = job.PhaseOverlap
	s.moves, s.status().Follow.LagSeconds = true, 9000
	s.pass(20 * time.Minute)
	s.want()
}

func TestWindowAlert(t *testing.T) {
	s := newScene(t)
	f := &s.status().Follow
	f.WindowSeconds, f.WindowHeld = 600, true
	s.pass(time.Hour)
	s.want()
	s.job.Report.State, f.WindowHeld = service.Paused, false // the oplog goes on
	s.pass(2 * time.Minute)
	s.want("window fires: at its write rate the source's oplog will overwrite in 0:10:00 " +
		"what the job reads next, less than 6h0m0s")
	f.WindowSeconds = 90_000
	s.pass(2 * time.Minute)
	s.want("window is over: the oplog window is long enough")
	f.WindowSeconds = -1
	s.pass(time.Hour)
	s.want()
}

func TestFailedAlert(t *testing.T) {
	s := newScene(t)
	s.job.Lease = nil
	s.job.Report.State, s.job.Report.Error = service.Failed, "no such host"
	s.pass(time.Minute)
	s.restart()
	s.pass(time.Hour)
	s.want("failed fires: the job has failed: no such host")
	s.job.Definition.Desired.Try++
	s.pass(time.Minute)
	s.want("failed is over: the job is waiting")
	s.job.Report.Try++ // it fails again
	s.pass(time.Minute)
	s.want("failed fires: the job has failed: no such host")
	s.gone = true
	s.pass(time.Minute)
	s.want("failed is over: the job is removed")
}

// TestAnotherJobOfTheName: the alert of a job that was removed ends, and that of the one
// that was made in its place is another occurrence.
func TestAnotherJobOfTheName(t *testing.T) {
	s := newScene(t)
	s.job.Lease, s.job.Report.State = nil, service.Failed
	s.pass(time.Minute)
	s.job.Definition.UID, s.job.Report.UID = "u2", "u2"
	s.pass(time.Minute)
	s.want("failed fires: the job has failed: the worker did not say why", "failed is over: the job is removed",
		"failed fires: the job has failed: the worker did not say why")
}

// TestConflictAlert: documents that come while it fires are of the same occurrence,
// those that were told of fire no more, and the next ones do.
func TestConflictAlert(t *testing.T) {
	s := newScene(t)
	c := &s.status().Conflicts
	s.pass(time.Hour)
	c.Stats = deadletter.Stats{Open: 2}
	s.pass(time.Minute)
	s.want("conflict fires: the target has refused 2 documents, 2 more than were known")
	for range 5 {
		c.Open++
		s.pass(9 * time.Minute)
	}
	s.want()
	s.pass(2 * time.Minute)
	s.want("conflict is over: no more documents were refused")
	c.Open, c.Settled = 0, 7 // dealt with: no new ones
	s.restart()
	s.pass(time.Hour)
	s.want()
	c.Unmapped = 1
	s.pass(time.Minute)
	s.want("conflict fires: the target has refused 8 documents, 1 more than were known")
	s.pass(20 * time.Minute)
	s.want("conflict is over: no more documents were refused")
	c.Stats = deadletter.Stats{Open: 1} // most were taken away
	s.pass(time.Minute)
	c.Open = 2
	s.pass(time.Minute)
	s.want("conflict fires: the target has refused 2 documents, 1 more than were known")
}

func TestNoProgressAlert(t *testing.T) {
	s := newScene(t)
	s.pass(time.Hour) // there is nothing to do
	s.want()
	s.status().Phase, s.status().Follow.LagSeconds, s.status().Waiting = job.PhaseCopying, -1, "the source has no primary"
	for range 10 {
		s.status().Copy.Docs++
		s.pass(14 * time.Minute)
	}
	s.want()
	s.pass(2 * time.Minute)
	s.want("no-progress fires: the job makes no progress: the source has no primary")
	s.status().Copy.Docs++
	s.pass(time.Minute)
	s.want("no-progress is over: the job moves")
	s.job.Report.State, s.job.Report.Status, s.job.Report.Error, s.job.Report.Hint = service.Starting, nil,
		"connection refused", "start it"
	s.pass(16 * time.Minute)
	s.want("no-progress fires: the job makes no progress: connection refused")
	if a := s.stored[service.AlertNoProgress]; a.Hint != "start it" {
		t.Errorf("hint %q", a.Hint)
	}
}

func TestNoWorkerAlert(t *testing.T) {
	s := newScene(t)
	s.job.Lease, s.job.Report = nil, nil
	s.pass(3 * time.Minute)
	s.want("no-worker fires: nobody runs the job: there is no worker")
	s.job.Lease = &service.Lease{Run: "r1"}
	s.pass(time.Minute)
	s.want("no-worker is over: the job is starting")
	s.job.Lease, s.job.Definition.Labels = nil, map[string]string{"dc": "east"}
	s.workers = []service.Worker{{Labels: map[string]string{"dc": "west"}}}
	s.pass(3 * time.Minute)
	s.want("no-worker fires: nobody runs the job: none of 1 workers takes jobs with its labels (dc=east)")
	s.job.Definition.Desired.Paused = true
	s.pass(time.Minute)
	s.job.Definition.Desired.Paused = false
	s.workers = []service.Worker{{Labels: map[string]string{"dc": "east"}, MaxJobs: 1, Jobs: []string{"other"}}}
	s.pass(3 * time.Minute)
	s.want("no-worker is over: the job is paused",
		"no-worker fires: nobody runs the job: the workers that may have no room")
}

// TestRuleTurnedOff: what fires by a rule that is there no more ends.
func TestRuleTurnedOff(t *testing.T) {
	s := newScene(t)
	s.job.Lease, s.job.Report.State = nil, service.Failed
	s.pass(time.Minute)
	s.said = nil
	s.restart()
	s.w.rules[service.AlertFailed] = Rule{Jobs: []string{"shop-*"}}
	s.pass(time.Minute)
	s.want("failed is over: the rule is not asked for")
}
