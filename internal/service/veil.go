package service

import (
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/job"
)

// Veiled is in place of a value of a document, for those who may not see any.
const Veiled = "… (for operators)"

// valueFields are the fields of entries that are values of documents, or may quote them.
func valueFields() []string { return []string{"documentId", "reason"} }

// valueMarks are what comes before values of documents in the texts of errors: of our own,
// and of servers, which quote documents and keys in braces.
func valueMarks() []string { return []string{"_id ", "{", "dup key", "duplicate key"} }

// Veil is the entry without values of documents. Of a text that may quote some, what comes
// before is left.
func (e Entry) Veil() Entry {
	e.Text, e.Fields = veil(e.Text), slices.Clone(e.Fields)
	for i := range e.Fields {
		f := &e.Fields[i]
		if f.Value = veil(f.Value); slices.Contains(valueFields(), f.Name) {
			f.Value = Veiled
		}
	}
	return e
}

// Veil is the job without values of documents, which errors may quote. It is the same one
// where there are none; what it points to is not changed.
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

// veilStatus is the status without values of documents; the same one where there are none.
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

// Veil is the verification without values of documents, as those of jobs are.
func (v *Verification) Veil() *Verification {
	if v.Report == nil || veil(v.Report.Error) == v.Report.Error {
		return v
	}
	out, r := *v, *v.Report
	r.Error = veil(r.Error)
	out.Report = &r
	return &out
}

// Veil is the alert without values of documents, as those of jobs are.
func (a Alert) Veil() Alert {
	a.Text = veil(a.Text)
	return a
}

func veil(text string) string {
	end := len(text)
	for _, mark := range valueMarks() {
		if i := strings.Index(text, mark); i >= 0 {
			end = min(end, i)
		}
	}
	if end == len(text) {
		return text
	}
	return text[:end] + Veiled
}

// Short is a text of at most n bytes, with a mark where it was longer.
func Short(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "") + "…"
}
