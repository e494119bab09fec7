package trial

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test/history"
)

// Shape is what a cluster is made of.
type Shape struct {
	// Members is 1 or 3; 0 is 1.
	Members int `json:"members,omitempty"`
	// Version is a series of the server; empty is 6.0.
	Version string `json:"version,omitempty"`
	// Proxy puts a proxy before each member, so that it can be isolated.
	Proxy bool `json:"proxy,omitempty"`
	// Params are server parameters. Test commands are on, and the TTL monitor is
	// off unless they say otherwise.
	Params map[string]string `json:"params,omitempty"`
}

// Trial is a history of one job and of all that happens around it. Each
// sub-list of its events is a trial too: an event that makes no sense when its
// turn comes is left out.
type Trial struct {
	Theme  string `json:"theme"`
	Seed   uint64 `json:"seed"`
	Source Shape  `json:"source"`
	Target Shape  `json:"target"`
	// Args are the options of the job in each of its runs, such as --include.
	Args []string `json:"args,omitempty"`
	// Keep are namespaces of the target that are not the job's: they have to be
	// in the end as the last event has left them.
	Keep []string `json:"keep,omitempty"`
	// Calm: no server fails, and one process runs at a time. One that ends with an
	// error, while nobody else writes on the target, is a false alarm, although
	// the next may go on.
	Calm bool `json:"calm,omitempty"`
	// Settle: before the end a process that runs has to catch up, for what is
	// stuck may go on when it is started again.
	Settle bool `json:"settle,omitempty"`
	// Commands: the job has rules for documents or operations. The target is
	// compared with the model of package test/commands, in place of the source.
	Commands bool `json:"commands,omitempty"`
	// Retained compares the target with what retainedModel expects, in place of
	// the source.
	Retained bool `json:"retained,omitempty"`
	// Served: the job runs in a service of its own until the end.
	Served bool `json:"served,omitempty"`
	// Events come one after the other.
	Events []Event `json:"-"`
}

// Database is where the steps of histories write.
const Database = "db"

// Action is what an event does.
type Action string

// The actions. Those on a server are for the source unless the event says
// otherwise; those on a process are for the first, number 0.
const (
	// Run runs Cmd in database DB. On the target it is a foreign writer.
	Run Action = "run"
	// Fill inserts plain documents into database DB; Cmd is a history.Filling.
	Fill Action = "fill"
	// Step does a step of a history on the source, in database Database.
	Step Action = "step"
	// Pause waits for For.
	Pause Action = "pause"
	// Await waits until what Want says is so, for For at most (a minute):
	//
	//	phase:following       the checkpoint is in this phase or past it
	//	caught-up             the checkpoint has what the source has now
	//	count:db.c=10         the target's primary has so many documents
	//	point, point:a.before the process has met one of its points once more
	//	ended                 the process has ended
	//	ttl                   the TTL monitor of the side has begun and ended a pass
	//	primary               the side has a primary that is neither isolated nor down
	//	entered:failCommand   a fail point of the side was met since it was set
	Await Action = "await"

	// Start starts millrace with Args beside those of the trial, with Points
	// (see package failpoint). Without --until it is --until never.
	Start Action = "start"
	// Arm gives other Points to a process that was started.
	Arm Action = "arm"
	// Kill, Stop and Wake are SIGKILL, SIGSTOP and SIGCONT.
	Kill Action = "kill"
	Stop Action = "stop"
	Wake Action = "wake"
	// Finalize asks a process to finalize.
	Finalize Action = "finalize"

	// Hold keeps secondaries from reading the oplog, Release ends that.
	Hold    Action = "hold"
	Release Action = "release"
	// Down kills the mongod of Member, Up starts all that are down.
	Down Action = "down"
	Up   Action = "up"
	// StepDown has the primary step down. Elect has a secondary that is not
	// isolated stand for election at once.
	StepDown Action = "step-down"
	Elect    Action = "elect"
	// Isolate cuts Member off from the others, Rejoin ends that. With Alone its
	// clients do not reach the others either; commands of the trial do.
	Isolate Action = "isolate"
	Rejoin  Action = "rejoin"
	// FailPoint configures a fail point of Member by Cmd, or of all members.
	FailPoint Action = "fail-point"
	// KillCursors kills all cursors of the side, KillSessions its sessions too.
	KillCursors  Action = "kill-cursors"
	KillSessions Action = "kill-sessions"
	// Note writes a note into the oplog.
	Note Action = "note"
)

// Sides of an event.
const (
	Source = "source"
	Target = "target"
)

// Event is one thing that happens.
type Event struct {
	Do Action
	// On is the side, empty for the source.
	On string
	// Member is "primary" (or empty), "secondary", "isolated", or "all".
	Member string
	Alone  bool
	DB     string
	Cmd    bson.Raw
	Step   *history.Step
	// Aside runs a command beside what follows.
	Aside bool
	// Process is the number of a process.
	Process int
	Args    []string
	Points  string
	Want    string
	For     time.Duration
	// With is not 0 for events that make sense together only: they are left out
	// together.
	With int
}

// line is an event in a file.
type line struct {
	Do      Action          `json:"do"`
	On      string          `json:"on,omitempty"`
	Member  string          `json:"member,omitempty"`
	Alone   bool            `json:"alone,omitempty"`
	DB      string          `json:"db,omitempty"`
	Step    *history.Step   `json:"step,omitempty"`
	Aside   bool            `json:"aside,omitempty"`
	Process int             `json:"process,omitempty"`
	Args    []string        `json:"args,omitempty"`
	Points  string          `json:"points,omitempty"`
	Want    string          `json:"want,omitempty"`
	For     string          `json:"for,omitempty"`
	With    int             `json:"with,omitempty"`
	Cmd     json.RawMessage `json:"cmd,omitempty"`
	// BSON is the command where extended JSON cannot say it.
	BSON []byte `json:"bson,omitempty"`
}

// MarshalJSON writes the event as one line.
func (e Event) MarshalJSON() ([]byte, error) {
	l := line{Do: e.Do, On: e.On, Member: e.Member, Alone: e.Alone, DB: e.DB, Step: e.Step, Aside: e.Aside,
		Process: e.Process, Args: e.Args, Points: e.Points, Want: e.Want, With: e.With}
	if e.For > 0 {
		l.For = e.For.String()
	}
	if len(e.Cmd) > 0 {
		cmd, err := bson.MarshalExtJSON(e.Cmd, true, false)
		if err != nil {
			return nil, fmt.Errorf("an event's command: %w", err)
		}
		l.Cmd = cmd
		if again, err := fromExtJSON(cmd); err != nil || !bytes.Equal(again, e.Cmd) {
			l.BSON = e.Cmd
		}
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(l)
	return bytes.TrimSpace(b.Bytes()), err
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (e *Event) UnmarshalJSON(b []byte) error {
	var l line
	if err := json.Unmarshal(b, &l); err != nil {
		return err
	}
	*e = Event{Do: l.Do, On: l.On, Member: l.Member, Alone: l.Alone, DB: l.DB, Step: l.Step, Aside: l.Aside,
		Process: l.Process, Args: l.Args, Points: l.Points, Want: l.Want, With: l.With, Cmd: l.BSON}
	var err error
	if l.For != "" {
		if e.For, err = time.ParseDuration(l.For); err != nil {
			return err
		}
	}
	if len(l.BSON) == 0 && len(l.Cmd) > 0 {
		e.Cmd, err = fromExtJSON(l.Cmd)
	}
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

// String is the event's line.
func (e Event) String() string {
	b, err := e.MarshalJSON()
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// Write writes the trial: a line of its own, then a line for each event.
func (t Trial) Write(w io.Writer) error {
	b := bufio.NewWriter(w)
	head, err := json.Marshal(t)
	if err != nil {
		return err
	}
	fmt.Fprintf(b, "%s\n", head)
	for _, e := range t.Events {
		l, err := e.MarshalJSON()
		if err != nil {
			return err
		}
		fmt.Fprintf(b, "%s\n", l)
	}
	return b.Flush()
}

// Read reads what Write wrote.
func Read(r io.Reader) (t Trial, err error) {
	all, err := io.ReadAll(r)
	if err != nil {
		return t, err
	}
	for n, text := range bytes.Split(bytes.TrimSpace(all), []byte("\n")) {
		if n == 0 {
			err = json.Unmarshal(text, &t)
		} else {
			var e Event
			err = json.Unmarshal(text, &e)
			t.Events = append(t.Events, e)
		}
		if err != nil {
			return t, fmt.Errorf("trial, line %d: %w", n+1, err)
		}
	}
	return t, nil
}

// ReadFile reads a trial from a file.
func ReadFile(name string) (Trial, error) {
	f, err := os.Open(name)
	if err != nil {
		return Trial{}, err
	}
	defer func() { _ = f.Close() }()
	return Read(f)
}

// Script is the trial as a script that runs by itself, in a clone of millrace.
func (t Trial) Script() string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "#!/bin/bash\n# Theme %s, seed %d. Run it in a clone of millrace.\nset -e\nfile=$(mktemp)\ntrap 'rm "+
		"-f \"$file\"' EXIT\ncat > \"$file\" <<'END OF TRIAL'\n", t.Theme, t.Seed)
	_ = t.Write(&b) // what was made or read can be written
	fmt.Fprintf(&b, "END OF TRIAL\nMILLRACE_TRIAL=$file go test -count=1 -v -run 'TestTrial$' ./test/trial\n")
	return b.String()
}
