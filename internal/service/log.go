package service

import "time"

// EntryKind separates events from log lines.
type EntryKind string

const (
	KindEvent EntryKind = "event"
	KindLog   EntryKind = "log"
)

// Entry is an event or a log line of a job.
type Entry struct {
	At     time.Time `json:"at"`
	Kind   EntryKind `json:"kind"`
	Level  string    `json:"level"` // info, warn or error
	Text   string    `json:"text"`
	Fields []Field   `json:"fields,omitempty"`
	Worker string    `json:"worker"`
	// Lost counts the entries before this one that could not be stored.
	Lost int64 `json:"lost,omitempty"`
	// Seq is the sequence in the store.
	Seq uint64 `json:"seq"`
}

type Field struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// MaxEntry bounds a stored entry, in bytes.
const MaxEntry = 4 << 10

// Page selects up to Limit entries before one; 0 is the end.
type Page struct {
	Before uint64
	Limit  int
}
