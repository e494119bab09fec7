package service

import "time"

// EntryKind tells what happened to a job from what its log says.
type EntryKind string

// The kinds of entries.
const (
	KindEvent EntryKind = "event"
	KindLog   EntryKind = "log"
)

// Entry is one thing that happened to a job, or one line of its log.
type Entry struct {
	At    time.Time `json:"at"`
	Kind  EntryKind `json:"kind"`
	Level string    `json:"level"` // info, warn or error
	Text  string    `json:"text"`
	// Fields are what the line says besides, in its order.
	Fields []Field `json:"fields,omitempty"`
	Worker string  `json:"worker"`
	// Lost is how many entries before this one could not be kept.
	Lost int64 `json:"lost,omitempty"`
	// Seq is the entry's place among all.
	Seq uint64 `json:"seq"`
}

// Field is a name with its value.
type Field struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// MaxEntry bounds an entry as it is stored, in bytes.
const MaxEntry = 4 << 10

// Page is a part of a trail: up to Limit entries that come before one; 0 is the end.
type Page struct {
	Before uint64
	Limit  int
}
