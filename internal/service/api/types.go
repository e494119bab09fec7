package api

import (
	"encoding/json"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/service"
)

// NewJob is the body that creates a job.
type NewJob struct {
	Draft
	Paused bool `json:"paused,omitempty"`
}

// Draft is a job that does not exist yet.
type Draft struct {
	Name string `json:"name"`
	// Settings are the YAML of millrace sync as a text, or an object with the same keys.
	Settings json.RawMessage   `json:"settings"`
	Labels   map[string]string `json:"labels,omitempty"`
}

// Finalize is the body of a finalize; none is the zero value.
type Finalize struct {
	WhenCaughtUp bool `json:"whenCaughtUp"`
}

// Summary is a job in a list. Unknown seconds are -1.
type Summary struct {
	Name  string        `json:"name"`
	State service.State `json:"state"`
	// Phase is "" at first.
	Phase  job.Phase         `json:"phase"`
	Labels map[string]string `json:"labels"`
	// Worker "" is none.
	Worker string `json:"worker"`
	// Paused, Finalize and Removed are desired.
	Paused   bool `json:"paused"`
	Finalize bool `json:"finalize"`
	Removed  bool `json:"removed"`

	LagSeconds     float64 `json:"lagSeconds"`
	WindowSeconds  float64 `json:"windowSeconds"`
	DocsRate       float64 `json:"docsRate"`
	BytesRate      float64 `json:"bytesRate"`
	OperationsRate float64 `json:"operationsRate"`
	// CopyPercent is at most 100.
	CopyPercent float64 `json:"copyPercent"`
	ETASeconds  float64 `json:"etaSeconds"`
	// Conflicts are open or undecided dead letters.
	Conflicts int64 `json:"conflicts"`

	// Error and Hint say why the job failed, or what it waits for; Unmet why a requested change failed.
	Error string `json:"error"`
	Hint  string `json:"hint"`
	Unmet string `json:"unmet"`

	CreatedAt time.Time `json:"createdAt"`
	// ReportedAt is nil without a report.
	ReportedAt *time.Time `json:"reportedAt"`
}

type Job struct {
	Summary
	UID       string          `json:"uid"`
	Settings  string          `json:"settings"`
	CreatedBy string          `json:"createdBy"`
	Desired   service.Desired `json:"wish"`
	// Lease and Report are nil without a worker.
	Lease  *service.Lease  `json:"lease"`
	Report *service.Report `json:"report"`
}

// Jobs is a page of a list. Next is the next cursor, "" at the end.
type Jobs struct {
	Jobs []Summary `json:"jobs"`
	Next string    `json:"next"`
}

// Workers are the present ones.
type Workers struct {
	Workers []service.Worker `json:"workers"`
}

// Audit is a page of the audit trail, the newest first. Next is the next Before, 0 at the end.
type Audit struct {
	Changes []service.Change `json:"changes"`
	Next    uint64           `json:"next"`
}

// Alerts has present alerts by job, and ended ones, the newest first.
type Alerts struct {
	Present []service.Alert `json:"present"`
	Past    []service.Alert `json:"past"`
}

// Removed is the event of a removed job.
type Removed struct {
	Name string `json:"name"`
}

func summary(j *service.Job) Summary {
	d := &j.Definition
	s := Summary{Name: d.Name, State: j.State(), Labels: d.Labels, Paused: d.Desired.Paused, Finalize: d.Desired.Finalize,
		Removed:    d.Desired.Removed,
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
		if s.State == service.Running { // else they are old
			s.DocsRate, s.OperationsRate = st.Copy.DocsRate, st.Follow.OperationsRate
			s.BytesRate = st.Copy.BytesRate + st.Follow.BytesRate
		}
		if s.Error == "" {
			s.Error, s.Hint = st.Error, st.Hint
		}
	}
	return s
}

func JobOf(j *service.Job) Job {
	d := &j.Definition
	return Job{Summary: summary(j), UID: d.UID, Settings: d.Settings, CreatedBy: d.CreatedBy, Desired: d.Desired, Lease: j.Lease,
		Report: j.Known()}
}
