// Package service has the types of a service of many jobs. hub stores them, worker runs jobs, api answers.
// Checkpoint and fence of a job are on its target: without these types no document is lost.
package service

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/pace"
)

// Definition is a desired job.
type Definition struct {
	Name string `json:"name"`
	// UID is unique among all jobs that ever had this name.
	UID string `json:"uid"`
	// Settings are those of `millrace sync`: the given YAML or JSON, with references to secrets.
	Settings string `json:"settings"`
	// Labels are required of a worker.
	Labels  map[string]string `json:"labels,omitempty"`
	Desired Desired           `json:"wish"`

	CreatedAt time.Time `json:"createdAt"`
	CreatedBy string    `json:"createdBy"`
	Stored
}

// Stored is embedded in values that the store changes by comparing revisions.
type Stored struct {
	// Revision is the store's; 0 if not stored.
	Revision uint64 `json:"-"`
}

// At returns the revision, to read or set.
func (s *Stored) At() *uint64 { return &s.Revision }

// Desired is the desired state of a job, to which its worker brings it.
type Desired struct {
	Paused bool `json:"paused"`
	// Finalize takes effect when the job follows.
	Finalize bool `json:"finalize"`
	// Removed deletes the definition once no worker runs the job. Data on the target stay.
	Removed bool `json:"removed,omitempty"`
	// Try grows when an operator resumes a failed job.
	Try int `json:"try,omitempty"`
	// Limits and Loads replace those of the settings unless they are nil.
	Limits *pace.Rates `json:"limits,omitempty"`
	Loads  *pace.Loads `json:"loads,omitempty"`
	// Verify is nil without scheduled verifications.
	Verify *VerifySchedule `json:"verify,omitempty"`
}

const maxName = 100

// CheckName checks a job's name, which is a key of the store and part of paths.
func CheckName(name string) error {
	if len(name) > maxName || !regexp.MustCompile(`^[0-9A-Za-z_-]+(\.[0-9A-Za-z_-]+)*$`).MatchString(name) {
		return fmt.Errorf("%q is not a name of a job: want up to %d letters, digits, dashes and underlines, with dots "+
			"between them", name, maxName)
	}
	return nil
}

// MaxSettings is in bytes.
const MaxSettings = 256 << 10

// Fits reports whether a worker with these labels may run the job.
func (d *Definition) Fits(labels map[string]string) bool {
	for k, v := range d.Labels {
		if labels[k] != v {
			return false
		}
	}
	return true
}

// LabelTexts returns labels as key=value, by key.
func LabelTexts(labels map[string]string) (list []string) {
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		list = append(list, k+"="+labels[k])
	}
	return list
}

// ParseLabels reads labels of the form key=value.
func ParseLabels(list []string) (map[string]string, error) {
	labels := map[string]string{}
	for _, l := range list {
		k, v, ok := strings.Cut(l, "=")
		if k = strings.TrimSpace(k); !ok || k == "" {
			return nil, fmt.Errorf("label %q: want key=value", l)
		}
		labels[k] = strings.TrimSpace(v)
	}
	return labels, nil
}

// Role is a set of permissions. Each role includes those before it.
type Role string

const (
	Viewer   Role = "viewer"   // reads
	Operator Role = "operator" // pauses, resumes, throttles and finalizes jobs
	Admin    Role = "admin"    // creates and removes jobs, drains workers, reads the audit trail
)

// Roles returns all roles, the least first.
func Roles() []Role { return []Role{Viewer, Operator, Admin} }

// May reports whether the role includes another one.
func (r Role) May(needed Role) bool {
	return slices.Index(Roles(), r) >= max(slices.Index(Roles(), needed), 0)
}

// Caller is the origin of a request.
type Caller struct {
	Name string
	Role Role
	// Jobs are patterns (path.Match) of visible job names; none is all.
	Jobs []string
	// From is the client's address.
	From string
}

func (c *Caller) Sees(job string) bool { return MatchJob(c.Jobs, job) }

// MatchJob reports whether a pattern (path.Match) matches a job's name. No patterns match all.
func MatchJob(patterns []string, job string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(pattern string) bool {
		ok, err := path.Match(pattern, job)
		return err == nil && ok
	})
}

// Redacted replaces values of documents, which viewers may not see.
const Redacted = "… (for operators)"

// Redact returns a copy without values of documents.
func (e Entry) Redact() Entry {
	e.Text, e.Fields = redact(e.Text), slices.Clone(e.Fields)
	for i := range e.Fields {
		f := &e.Fields[i]
		if f.Value = redact(f.Value); f.Name == "documentId" || f.Name == "reason" {
			f.Value = Redacted
		}
	}
	return e
}

// Redact returns a copy without values of documents.
func (j Job) Redact() Job {
	if j.Report == nil {
		return j
	}
	r := *j.Report
	r.Error, r.Unmet = redact(r.Error), redact(r.Unmet)
	if r.Status != nil {
		st := *r.Status
		st.Error, st.Waiting = redact(st.Error), redact(st.Waiting)
		st.Copy.Workers = slices.Clone(st.Copy.Workers)
		for i := range st.Copy.Workers {
			st.Copy.Workers[i].Why = redact(st.Copy.Workers[i].Why)
		}
		r.Status = &st
	}
	j.Report = &r
	return j
}

// Redact returns a copy without values of documents.
func (v Verification) Redact() Verification {
	if v.Report != nil {
		r := *v.Report
		r.Error = redact(r.Error)
		v.Report = &r
	}
	return v
}

// Redact returns a copy without values of documents.
func (a Alert) Redact() Alert {
	a.Text = redact(a.Text)
	return a
}

// redact cuts a text before the first value. Our errors quote values after _id, servers in braces and after the
// names of duplicate keys.
func redact(text string) string {
	end := len(text)
	for _, before := range []string{"_id ", "{", "dup key", "duplicate key"} {
		if i := strings.Index(text, before); i >= 0 {
			end = min(end, i)
		}
	}
	if end == len(text) {
		return text
	}
	return text[:end] + Redacted
}

// Short returns at most n bytes of valid UTF-8, with an ellipsis if it cuts.
func Short(text string, n int) string {
	if len(text) <= n {
		return strings.ToValidUTF8(text, "\ufffd")
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return strings.ToValidUTF8(text[:n], "\ufffd") + "…"
}
