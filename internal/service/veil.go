package service

import (
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/job"
)

// Veiled replaces a value of a document for viewers, who may not see any.
const Veiled = "… (for operators)"

// Veil returns the entry without values of documents. A text that may quote some keeps what
// precedes them.
func (e Entry) Veil() Entry {
	e.Text, e.Fields = veil(e.Text), slices.Clone(e.Fields)
	for i := range e.Fields {
		f := &e.Fields[i]
		if f.Value = veil(f.Value); f.Name == "documentId" || f.Name == "reason" {
			f.Value = Veiled
		}
	}
	return e
}

// Veil returns the job without values of documents, which errors may quote. It returns j
// where there are none, and changes nothing that j points to.
func (j *Job) Veil() *Job {
	r := j.Report
	if r == nil {
		return j
	}
	veiled := *r
	veiled.Error, veiled.Unmet = veil(r.Error), veil(r.Unmet)
	same := veiled.Error == r.Error && veiled.Unmet == r.Unmet
	if veiled.Status = veilStatus(r.Status); same && veiled.Status == r.Status {
		return j
	}
	out := *j
	out.Report = &veiled
	return &out
}

// veilStatus returns the status without values of documents, st where there are none.
func veilStatus(st *job.Status) *job.Status {
	if st == nil {
		return nil
	}
	out := *st
	out.Error, out.Waiting = veil(st.Error), veil(st.Waiting)
	same := out.Error == st.Error && out.Waiting == st.Waiting
	out.Copy.Workers = slices.Clone(st.Copy.Workers)
	for i := range out.Copy.Workers {
		w := &out.Copy.Workers[i]
		w.Why = veil(w.Why)
		same = same && w.Why == st.Copy.Workers[i].Why
	}
	if same {
		return st
	}
	return &out
}

// Veil returns the verification without values of documents.
func (v *Verification) Veil() *Verification {
	if v.Report == nil || veil(v.Report.Error) == v.Report.Error {
		return v
	}
	out, r := *v, *v.Report
	r.Error = veil(r.Error)
	out.Report = &r
	return &out
}

// Veil returns the alert without values of documents.
func (a Alert) Veil() Alert {
	a.Text = veil(a.Text)
	return a
}

// veil cuts a text before the first value of a document. Errors of ours quote values after
// _id, servers in braces and after the names of duplicate keys.
func veil(text string) string {
	end := len(text)
	for _, before := range []string{"_id ", "{", "dup key", "duplicate key"} {
		if i := strings.Index(text, before); i >= 0 {
			end = min(end, i)
		}
	}
	if end == len(text) {
		return text
	}
	return text[:end] + Veiled
}

// Short returns at most n bytes of a text, and an ellipsis where it was longer.
func Short(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "") + "…"
}
