package api

import (
	"encoding/json"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/service"
)

// NewJob is the body that makes a job.
type NewJob struct {
	Draft
	Paused bool `json:"paused,omitempty"`
}

// Draft is a job that is not made yet.
type Draft struct {
	Name string `json:"name"`
	// Settings are the YAML of millrace sync as a text, or the same as an object.
	Settings json.RawMessage   `json:"settings"`
	Labels   map[string]string `json:"labels,omitempty"`
}

// Finalize is the body of a request to finalize; none is the zero value.
type Finalize struct {
	WhenCaughtUp bool `json:"whenCaughtUp"`
}

// Summary is a job in a list. Seconds are -1 where they are not known.
type Summary struct {
	Name  string        `json:"name"`
	State service.State `json:"state"`
	// Phase is the job's own; "" before it has one.
	Phase  job.Phase         `json:"phase"`
	Labels map[string]string `json:"labels"`
	// Worker runs the job; "" is nobody.
	Worker string `json:"worker"`
	// Paused, Finalize and Removed are wished for.
	Paused   bool `json:"paused"`
	Finalize bool `json:"finalize"`
	Removed  bool `json:"removed"`

	LagSeconds     float64 `json:"lagSeconds"`
	WindowSeconds  float64 `json:"windowSeconds"`
	DocsRate       float64 `json:"docsRate"`
	BytesRate      float64 `json:"bytesRate"`
	OperationsRate float64 `json:"operationsRate"`
	// CopyPercent is how much of the copy is done, of 100.
	CopyPercent float64 `json:"copyPercent"`
	ETASeconds  float64 `json:"etaSeconds"`
	// Conflicts are dead letters that are open or not decided.
	Conflicts int64 `json:"conflicts"`

	// Error and Hint say why it failed, or what it waits for; Unmet why a wish is not met.
	Error string `json:"error"`
	Hint  string `json:"hint"`
	Unmet string `json:"unmet"`

	CreatedAt time.Time `json:"createdAt"`
	// ReportedAt is when a worker last said something; nil: none has.
	ReportedAt *time.Time `json:"reportedAt"`
}

// Job is all that is known of a job.
type Job struct {
	Summary
	UID       string       `json:"uid"`
	Settings  string       `json:"settings"`
	CreatedBy string       `json:"createdBy"`
	Wish      service.Wish `json:"wish"`
	// Lease is nil where nobody runs it, Report where no worker has had it.
	Lease  *service.Lease  `json:"lease"`
	Report *service.Report `json:"report"`
}

// Jobs are a page of a list. Next is the cursor of the one after it, "" at the end.
type Jobs struct {
	Jobs []Summary `json:"jobs"`
	Next string    `json:"next"`
}

// Workers are those that are there.
type Workers struct {
	Workers []service.Worker `json:"workers"`
}

// Audit is a page of the audit trail, the newest first. Next is the next page's before, 0 at the end.
type Audit struct {
	Changes []service.Change `json:"changes"`
	Next    uint64           `json:"next"`
}

// Alerts are the present ones, by job, and those that are over, the newest first.
type Alerts struct {
	Present []service.ShownAlert `json:"present"`
	Past    []service.ShownAlert `json:"past"`
}

// Removed is the event of a job that is there no more.
type Removed struct {
	Name string `json:"name"`
}

func summary(j *service.Job) Summary {
	d := &j.Definition
	s := Summary{Name: d.Name, State: j.State(), Labels: d.Labels, Paused: d.Wish.Paused, Finalize: d.Wish.Finalize,
		Removed:    d.Wish.Removed,
		LagSeconds: -1, WindowSeconds: -1, ETASeconds: -1, CreatedAt: d.CreatedAt}
	if s.Labels == nil {
		s.Labels = map[string]string{}
	}
	if j.Lease != nil {
		s.Worker = j.Lease.Worker
	}
	r := j.Known()
	if r == nil {
		return s
	}
	s.Error, s.Hint, s.Unmet = r.Error, r.Hint, r.Unmet
	s.ReportedAt = &r.At
	if st := r.Status; st != nil {
		s.Phase = st.Phase
		s.LagSeconds, s.WindowSeconds, s.ETASeconds = st.Follow.LagSeconds, st.Follow.WindowSeconds, st.Copy.ETASeconds
		s.CopyPercent = 100 * st.Copy.Share(st.Phase.AfterCopy())
		s.Conflicts = st.Conflicts.Open + st.Conflicts.Undecided + st.Conflicts.Unmapped
		if s.State == service.Running { // else they are of the past
			s.DocsRate, s.OperationsRate = st.Copy.DocsRate, st.Follow.OperationsRate
			s.BytesRate = st.Copy.BytesRate + st.Follow.BytesRate
		}
		if s.Error == "" {
			s.Error, s.Hint = st.Error, st.Hint
		}
	}
	return s
}

// JobOf is a job with all that is known of it.
func JobOf(j *service.Job) Job {
	d := &j.Definition
	return Job{Summary: summary(j), UID: d.UID, Settings: d.Settings, CreatedBy: d.CreatedBy, Wish: d.Wish, Lease: j.Lease,
		Report: j.Known()}
}
