// Package history holds what writers do to a database as data: generated from
// a seed, run, kept in files, and shrunk to what matters when it made a test
// fail.
package history

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Action is what a step does.
type Action string

// The actions of a step.
const (
	// Run runs the command on the step's database.
	Run Action = ""
	// Fill inserts plain documents, see Filling.
	Fill Action = "fill"
	// Prepare prepares the writer's transaction, which its Commit ends then.
	Prepare Action = "prepare"
	// Commit and Abort end the writer's transaction.
	Commit Action = "commit"
	Abort  Action = "abort"
	// Target runs the command on the target, which nobody should.
	Target Action = "target"
	// Restart kills the job and starts it again.
	Restart Action = "restart"
)

// Step is one thing that a writer does.
type Step struct {
	// Part says when: 0 is before the job, the others are what a test makes
	// of them.
	Part   int
	Writer int
	// DB is empty for the history's database, or names another one of it.
	DB string
	// Txn is the number of the writer's transaction that the step belongs to;
	// the first such step begins it. 0 is none.
	Txn int
	Do  Action
	// Cmd is a command, or a Filling. In renameCollection and applyOps and as the
	// database of $out and $merge, "DB" stands for the history's database.
	Cmd bson.Raw
}

// Filling is the command of a Fill: documents of _id From up to To, each with
// so many bytes more than a few.
type Filling struct {
	Coll string `bson:"fill"`
	From int    `bson:"from"`
	To   int    `bson:"to"`
	Pad  int    `bson:"pad"`
}

// Settings are those of the job that a history is made for.
type Settings struct {
	Partitions int `json:"partitions,omitempty"`
	Readers    int `json:"readers,omitempty"`
	Writers    int `json:"writers,omitempty"`
	// Docs and Bytes a second hold the copy back while part 1 is run.
	Docs  int64 `json:"docs,omitempty"`
	Bytes int64 `json:"bytes,omitempty"`
	// Held holds the changes back while part 3 is run, so that many are
	// applied at once.
	Held bool `json:"held,omitempty"`
	// Exclude, Rename, Filter, Fields, SoftDelete and History are the job's rules. DB stands for the history's
	// database; what is renamed goes to others of it, see Databases.
	Exclude    []string `json:"exclude,omitempty"`
	Rename     []string `json:"rename,omitempty"`
	Filter     []string `json:"filter,omitempty"`
	Fields     []string `json:"fields,omitempty"`
	SoftDelete []string `json:"softDelete,omitempty"`
	History    []string `json:"history,omitempty"`
}

// ruled reports a job whose rules judge users' commands.
func (s Settings) ruled() bool {
	return len(s.Filter)+len(s.Fields)+len(s.SoftDelete)+len(s.History) > 0
}

// Databases are those that a history has on either side, see Name.
func Databases() []string { return []string{"", other, "to", "y"} }

// Streams reports whether change streams carry a step: no applyOps, and for a job with rules no rename between
// databases (docs/reference/capture.md).
func (s Step) Streams(ruled bool) bool {
	first, err := s.Cmd.IndexErr(0)
	if err != nil {
		return true
	}
	if first.Key() != "renameCollection" {
		return first.Key() != "applyOps"
	}
	to, _ := s.Cmd.Lookup("to").StringValueOK()
	from, _, _ := strings.Cut(first.Value().StringValue(), ".")
	db, _, _ := strings.Cut(to, ".")
	return !ruled || from == db
}

// Reported reports whether the change streams of servers before 6.0 have a step. They have no schema changes but drops
// and renames, and none of views.
func (s Step) Reported() bool {
	first, err := s.Cmd.IndexErr(0)
	if err != nil {
		return true
	}
	switch first.Key() {
	case "create", "createIndexes", "dropIndexes", "collMod", "convertToCapped", "cloneCollectionAsCapped":
		return false
	case "drop":
		name, _ := first.Value().StringValueOK()
		return !strings.HasPrefix(name, "v")
	}
	return true
}

// History is what several writers do, in one order of all steps.
type History struct {
	Seed uint64
	// Free lets writers work side by side, so that the order of the steps is
	// that of each writer only.
	Free  bool
	Job   Settings
	Steps []Step
}

// header is the first line of a history's file.
type header struct {
	Seed uint64   `json:"seed"`
	Free bool     `json:"free,omitempty"`
	Job  Settings `json:"job"`
}

// line is a step in a file.
type line struct {
	Part   int             `json:"part"`
	Writer int             `json:"writer"`
	DB     string          `json:"db,omitempty"`
	Txn    int             `json:"txn,omitempty"`
	Do     Action          `json:"do,omitempty"`
	Cmd    json.RawMessage `json:"cmd,omitempty"`
	// BSON is the command where extended JSON cannot say it (payload of a NaN).
	BSON []byte `json:"bson,omitempty"`
}

// MarshalJSON writes the step as one line: its command is extended JSON.
func (s Step) MarshalJSON() ([]byte, error) {
	l := line{Part: s.Part, Writer: s.Writer, DB: s.DB, Txn: s.Txn, Do: s.Do}
	if len(s.Cmd) > 0 {
		cmd, err := bson.MarshalExtJSON(s.Cmd, true, false)
		if err != nil {
			return nil, fmt.Errorf("a step's command: %w", err)
		}
		l.Cmd = cmd
		if again, err := fromExtJSON(cmd); err != nil || !bytes.Equal(again, s.Cmd) {
			l.BSON = s.Cmd
		}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(l)
	return bytes.TrimSpace(b.Bytes()), err
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (s *Step) UnmarshalJSON(b []byte) error {
	var l line
	if err := json.Unmarshal(b, &l); err != nil {
		return err
	}
	*s = Step{Part: l.Part, Writer: l.Writer, DB: l.DB, Txn: l.Txn, Do: l.Do, Cmd: l.BSON}
	if len(l.BSON) > 0 || len(l.Cmd) == 0 {
		return nil
	}
	var err error
	s.Cmd, err = fromExtJSON(l.Cmd)
	return err
}

// fromExtJSON keeps the order of fields, and those that occur twice.
func fromExtJSON(b []byte) (bson.Raw, error) {
	var d bson.D
	if err := bson.UnmarshalExtJSON(b, true, &d); err != nil {
		return nil, err
	}
	return bson.Marshal(d)
}

// Schema reports whether the step changes collections or indexes.
func (s Step) Schema() bool {
	if s.Do != Run || len(s.Cmd) == 0 {
		return false
	}
	e, err := s.Cmd.IndexErr(0)
	if err != nil {
		return false
	}
	switch e.Key() {
	case "insert", "update", "delete", "findAndModify":
		return false
	}
	return true
}

// String is the step's line.
func (s Step) String() string {
	b, err := s.MarshalJSON()
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// Write writes the history: a line of settings, then a line for each step.
func (h History) Write(w io.Writer) error {
	b := bufio.NewWriter(w)
	first, err := json.Marshal(header{h.Seed, h.Free, h.Job})
	if err != nil {
		return err
	}
	fmt.Fprintf(b, "%s\n", first)
	for _, s := range h.Steps {
		l, err := s.MarshalJSON()
		if err != nil {
			return err
		}
		fmt.Fprintf(b, "%s\n", l)
	}
	return b.Flush()
}

// Read reads what Write wrote.
func Read(r io.Reader) (h History, err error) {
	b := bufio.NewReader(r)
	for n := 1; ; n++ {
		text, readErr := b.ReadBytes('\n')
		text = bytes.TrimSpace(text)
		switch {
		case len(text) == 0:
		case n == 1:
			var first header
			err = json.Unmarshal(text, &first)
			h.Seed, h.Free, h.Job = first.Seed, first.Free, first.Job
		default:
			var s Step
			err = json.Unmarshal(text, &s)
			h.Steps = append(h.Steps, s)
		}
		if err != nil {
			return h, fmt.Errorf("line %d: %w", n, err)
		}
		if errors.Is(readErr, io.EOF) {
			return h, nil
		}
		if readErr != nil {
			return h, readErr
		}
	}
}

// WriteFile writes the history to a file.
func (h History) WriteFile(name string) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(h.Write(f), f.Close())
}

// ReadFile reads a file that WriteFile wrote.
func ReadFile(name string) (History, error) {
	f, err := os.Open(name)
	if err != nil {
		return History{}, err
	}
	defer func() { _ = f.Close() }()
	h, err := Read(f)
	if err != nil {
		return h, fmt.Errorf("history %s: %w", name, err)
	}
	return h, nil
}
