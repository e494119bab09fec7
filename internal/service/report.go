package service

import (
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/precheck"
)

// State is how a job stands, in one word.
type State string

// The states of a job.
const (
	Waiting  State = "waiting"  // for a worker
	Starting State = "starting" // a worker connects and checks
	Running  State = "running"
	Paused   State = "paused"
	Failed   State = "failed"   // until it is resumed
	Finished State = "finished" // finalized, or done by itself
)

// States are all of them, in the order in which a job usually passes them.
func States() []State { return []State{Waiting, Starting, Running, Paused, Failed, Finished} }

// Report is what the worker that runs a job, or ran it last, says of it.
type Report struct {
	// UID is that of the definition that it speaks of.
	UID string `json:"uid"`
	// Run is another one each time that a worker takes the job.
	Run    string    `json:"run"`
	Worker string    `json:"worker"`
	State  State     `json:"state"`
	At     time.Time `json:"at"`
	// Try is that of the wish that the run answers.
	Try int `json:"try,omitempty"`
	// Status is the job's own; nil before it has one.
	Status *job.Status `json:"status,omitempty"`
	// Checks are those of the precheck that refused the job.
	Checks []precheck.Check `json:"checks,omitempty"`
	// Error and Hint say why it failed, and what to do.
	Error string `json:"error,omitempty"`
	Hint  string `json:"hint,omitempty"`
	// Wrote is set once a run of the definition may have written to the target.
	Wrote bool `json:"wrote,omitempty"`
	// Unmet says why a wish could not be met, "" where all are.
	Unmet string `json:"unmet,omitempty"`
}

// Lease is the right of a worker to run a unit of work.
type Lease struct {
	Worker string    `json:"worker"`
	Run    string    `json:"run"`
	Since  time.Time `json:"since"`
}

// Job is all that is known of a job.
type Job struct {
	Definition Definition
	// Report is nil where no worker has ever had the job.
	Report *Report
	// Lease is nil where nobody runs it.
	Lease *Lease
}

// Known returns the report if it is of the present definition, else nil.
func (j *Job) Known() *Report {
	if j.Report == nil || j.Report.UID != j.Definition.UID {
		return nil
	}
	return j.Report
}

// Status is what its present worker, or the last, said of it; nil for nothing.
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

// Live reports that the status is of now: somebody runs the job, and has reported it.
func (j *Job) Live() bool { return j.Lease != nil && j.Status() != nil && j.Report.Run == j.Lease.Run }

// State is how the job stands, from what is wanted, who has it and what was said last.
func (j *Job) State() State {
	d, r := &j.Definition, j.Report
	// The word of a run that has lost its lease does not count against the next one's.
	last := j.Known() != nil && (j.Lease == nil || j.Lease.Run == r.Run)
	switch {
	case last && r.State == Finished:
		return Finished
	case last && r.State == Failed && r.Try >= d.Wish.Try:
		return Failed
	case j.Lease != nil && last:
		return r.State
	case j.Lease != nil:
		return Starting
	case d.Wish.Paused:
		return Paused
	}
	return Waiting
}

// Refused counts the documents that a job's target refused, those dealt with since included.
func Refused(s *job.Status) int64 {
	c := s.Conflicts
	return c.Open + c.Undecided + c.Settled + c.Removed + c.Unmapped
}

// Wanted reports whether a worker is to run the job.
func (j *Job) Wanted() bool {
	return j.State() == Waiting && !j.Definition.Wish.Removed
}

// Worker is a process that runs jobs, as it says of itself.
type Worker struct {
	Name    string            `json:"name"`
	Version string            `json:"version"`
	Host    string            `json:"host"`
	PID     int               `json:"pid"`
	Labels  map[string]string `json:"labels,omitempty"`
	// Jobs are those that it runs, MaxJobs how many it takes; 0 is any number.
	Jobs    []string `json:"jobs"`
	MaxJobs int      `json:"maxJobs"`
	// Draining takes no more, and gives away what it has.
	Draining  bool      `json:"draining"`
	StartedAt time.Time `json:"startedAt"`
	At        time.Time `json:"at"`
}

// Drain is the request that a worker returns its jobs and takes no others.
type Drain struct {
	// StartedAt is the worker's: the next process of its name is another one.
	StartedAt time.Time `json:"startedAt"`
	By        string    `json:"by"`
	At        time.Time `json:"at"`
}

// Change is an entry of the audit trail.
type Change struct {
	At   time.Time `json:"at"`
	Who  string    `json:"who"`
	From string    `json:"from"` // the address of the client
	What string    `json:"what"` // create, pause, …
	Job  string    `json:"job,omitempty"`
	// Worker is that of a change which is about no job.
	Worker string `json:"worker,omitempty"`
	// Before and After are the wish; nil where there was or is none.
	Before *Wish `json:"before,omitempty"`
	After  *Wish `json:"after,omitempty"`
	// Refused says why nothing was changed.
	Refused string `json:"refused,omitempty"`
	// Seq is the entry's place in the trail.
	Seq uint64 `json:"seq"`
}
