package service

import (
	"slices"
	"strings"
	"unicode/utf8"
)

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
