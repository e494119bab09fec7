package service

import (
	"slices"
	"strings"
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
