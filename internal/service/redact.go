package service

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/job"
)

// Redacted replaces a value of a document for viewers, who may not see any.
const Redacted = "… (for operators)"

// Redact returns the entry without values of documents.
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

// Redact returns a copy of the job without values of documents, or j if there are none.
func (j *Job) Redact() *Job {
	r := j.Report
	if r == nil {
		return j
	}
	redacted := *r
	redacted.Error, redacted.Unmet = redact(r.Error), redact(r.Unmet)
	same := redacted.Error == r.Error && redacted.Unmet == r.Unmet
	if redacted.Status = redactStatus(r.Status); same && redacted.Status == r.Status {
		return j
	}
	out := *j
	out.Report = &redacted
	return &out
}

// redactStatus returns the status without values of documents, st where there are none.
func redactStatus(st *job.Status) *job.Status {
	if st == nil {
		return nil
	}
	out := *st
	out.Error, out.Waiting = redact(st.Error), redact(st.Waiting)
	same := out.Error == st.Error && out.Waiting == st.Waiting
	out.Copy.Workers = slices.Clone(st.Copy.Workers)
	for i := range out.Copy.Workers {
		w := &out.Copy.Workers[i]
		w.Why = redact(w.Why)
		same = same && w.Why == st.Copy.Workers[i].Why
	}
	if same {
		return st
	}
	return &out
}

// Redact returns the verification without values of documents.
func (v *Verification) Redact() *Verification {
	if v.Report == nil || redact(v.Report.Error) == v.Report.Error {
		return v
	}
	out, r := *v, *v.Report
	r.Error = redact(r.Error)
	out.Report = &r
	return &out
}

// Redact returns the alert without values of documents.
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

// Short returns at most n bytes of a text as UTF-8, and an ellipsis where it was longer.
func Short(text string, n int) string {
	if len(text) <= n {
		return strings.ToValidUTF8(text, "\ufffd")
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return strings.ToValidUTF8(text[:n], "\ufffd") + "…"
}
