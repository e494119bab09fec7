package service

import (
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/precheck"
)

type State string

// The states of a job.
const (
	Waiting  State = "waiting"
	Starting State = "starting" // a worker connects and checks
	Running  State = "running"
	Paused   State = "paused"
	Failed   State = "failed"   // until it is resumed
	Finished State = "finished" // finalized, or ended by itself
)

// States returns all states, in their usual order.
func States() []State { return []State{Waiting, Starting, Running, Paused, Failed, Finished} }

// Report is what a job's present or last worker reported.
type Report struct {
	// UID is the definition's.
	UID string `json:"uid"`
	// Run is new each time a worker takes the job.
	Run    string    `json:"run"`
	Worker string    `json:"worker"`
	State  State     `json:"state"`
	At     time.Time `json:"at"`
	// Try is that of the desired state at the start of the run.
	Try int `json:"try,omitempty"`
	// Status is nil at first.
	Status *job.Status `json:"status,omitempty"`
	// Checks are those of a failed precheck.
	Checks []precheck.Check `json:"checks,omitempty"`
	Error  string           `json:"error,omitempty"`
	Hint   string           `json:"hint,omitempty"`
	// Wrote is set once a run of the definition may have written to the target.
	Wrote bool `json:"wrote,omitempty"`
	// Unmet says why a requested change failed, "" if none did.
	Unmet string `json:"unmet,omitempty"`
}

// Lease is a worker's right to a unit of work.
type Lease struct {
	Worker string    `json:"worker"`
	Run    string    `json:"run"`
	Since  time.Time `json:"since"`
}

// Job is a definition with what is known of it.
type Job struct {
	Definition Definition
	// Report is nil before the first worker.
	Report *Report
	// Lease is nil if no worker has the job.
	Lease *Lease
}

// Known returns the report if it is of the present definition.
func (j *Job) Known() *Report {
	if j.Report == nil || j.Report.UID != j.Definition.UID {
		return nil
	}
	return j.Report
}

// Status returns the last known status, nil for none.
func (j *Job) Status() *job.Status {
	if r := j.Known(); r != nil {
		return r.Status
	}
	return nil
}

// Untouched reports that the job failed before any of its runs could write to the target.
func (j *Job) Untouched() bool {
	r := j.Known()
	return r != nil && j.State() == Failed && !r.Wrote && r.Status == nil
}

// Live reports whether the status comes from the present run.
func (j *Job) Live() bool { return j.Lease != nil && j.Status() != nil && j.Report.Run == j.Lease.Run }

// State derives the state from the desired state, the lease and the last report.
func (j *Job) State() State {
	d, r := &j.Definition, j.Report
	// A report of a run that lost its lease does not count for the next run.
	last := j.Known() != nil && (j.Lease == nil || j.Lease.Run == r.Run)
	switch {
	case last && r.State == Finished:
		return Finished
	case last && r.State == Failed && r.Try >= d.Desired.Try:
		return Failed
	case j.Lease != nil && last:
		return r.State
	case j.Lease != nil:
		return Starting
	case d.Desired.Paused:
		return Paused
	}
	return Waiting
}

// Refused counts documents that the target refused, including resolved ones.
func Refused(s *job.Status) int64 {
	c := s.Conflicts
	return c.Open + c.Undecided + c.Settled + c.Removed + c.Unmapped
}

// Wanted reports whether a worker should run the job.
func (j *Job) Wanted() bool {
	return j.State() == Waiting && !j.Definition.Desired.Removed
}

// Worker is a process that runs jobs.
type Worker struct {
	Name    string            `json:"name"`
	Version string            `json:"version"`
	Host    string            `json:"host"`
	PID     int               `json:"pid"`
	Labels  map[string]string `json:"labels,omitempty"`
	// MaxJobs 0 is unlimited.
	Jobs      []string  `json:"jobs"`
	MaxJobs   int       `json:"maxJobs"`
	Draining  bool      `json:"draining"`
	StartedAt time.Time `json:"startedAt"`
	At        time.Time `json:"at"`
}

// Drain asks a worker to return its jobs and to take no others.
type Drain struct {
	// StartedAt is the worker's: a later process with its name is not drained.
	StartedAt time.Time `json:"startedAt"`
}

// Change is an entry of the audit trail.
type Change struct {
	At   time.Time `json:"at"`
	Who  string    `json:"who"`
	From string    `json:"from"` // the address of the client
	What string    `json:"what"` // create, pause, …
	Job  string    `json:"job,omitempty"`
	// Worker is set if no job is concerned.
	Worker string `json:"worker,omitempty"`
	// Before and After are nil where there is no desired state.
	Before *Desired `json:"before,omitempty"`
	After  *Desired `json:"after,omitempty"`
	// Refused says why nothing was changed.
	Refused string `json:"refused,omitempty"`
	Seq     uint64 `json:"seq"`
}
