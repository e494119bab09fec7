// Package theme draws short histories around the ways in which replication is
// known to go wrong: few documents, few _ids, and a job that is held back, killed
// and started again in between. Each theme is data from a seed, as a player
// wants it.
package theme

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/millrace/millrace/test/history"
)

// Do is what an event does.
type Do string

// What events do.
const (
	// Source and Target run the event's step on one side. What runs on the
	// target is a foreign writer.
	Source Do = "source"
	Target Do = "target"
	// Clone makes the target what the source is now, as a copy of files does.
	// The next starts follow from its position.
	Clone Do = "clone"
	// Start starts the job. One that runs goes on.
	Start Do = "start"
	// Kill is SIGKILL, Stop SIGTERM and its end.
	Kill Do = "kill"
	Stop Do = "stop"
	// Pause and Resume are the operator's.
	Pause  Do = "pause"
	Resume Do = "resume"
	// Throttle lets so many documents a second pass, Docs 0 all.
	Throttle Do = "throttle"
	// Await waits for a phase of the job, or its end, as CaughtUp does; with Wait
	// only for so long.
	Await Do = "await"
	// CaughtUp waits until the job has applied what the source has now.
	CaughtUp Do = "caught up"
	// Expire waits until the target has looked twice for expired documents.
	Expire Do = "expire"
	// Sleep waits for a time.
	Sleep Do = "sleep"
)

// Event is one thing that happens in a trial.
type Event struct {
	Do    Do            `json:"do"`
	Step  *history.Step `json:"step,omitempty"`
	Args  []string      `json:"args,omitempty"` // of Start, besides the trial's
	Phase string        `json:"phase,omitempty"`
	Docs  int64         `json:"docs,omitempty"`
	Wait  time.Duration `json:"wait,omitempty"`
}

// String is the event as one line.
func (e Event) String() string {
	b, err := json.Marshal(e)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// Trial is a job and what happens around it, in order. At its end the job is
// started if it does not run, let go, and finalized.
type Trial struct {
	Theme string `json:"theme"`
	Seed  uint64 `json:"seed"`
	// Args are flags of every start. DB stands for the trial's database.
	Args []string `json:"args"`
	// Rename are the job's, as in Args; the comparison needs them too.
	Rename []string `json:"rename,omitempty"`
	// Exclude are namespaces outside of the job.
	Exclude []string `json:"exclude,omitempty"`
	Events  []Event  `json:"events"`
}

// Foreign tells whether somebody else writes on the target: then the job may
// end and say so.
func (t Trial) Foreign() bool {
	for _, e := range t.Events {
		if e.Do == Target {
			return true
		}
	}
	return false
}

// Flag is the value of a flag among the trial's.
func (t Trial) Flag(name string) string {
	for i, a := range t.Args {
		if a == name && i+1 < len(t.Args) {
			return t.Args[i+1]
		}
		if v, ok := strings.CutPrefix(a, name+"="); ok {
			return v
		}
	}
	return ""
}

// Theme makes trials.
type Theme struct {
	Name string
	// Points of the issue that it is for.
	Points string
	// Since is the least version of both sides, "" for all.
	Since string
	Make  func(r *rand.Rand) Trial
}

// New is the theme's trial of a seed.
func (t Theme) New(seed uint64) Trial {
	tr := t.Make(rand.New(rand.NewPCG(seed, 0x7468656d65)))
	tr.Theme, tr.Seed = t.Name, seed
	return tr
}

// Themes are all of them.
func Themes() []Theme {
	return []Theme{
		{"ring", "2", "", ring},
		{"ring rotated", "2", "", rotated},
		{"ring with keys", "stops", "", ringKeys},
		{"serial", "3", "", serial},
		{"applyOps", "7", "", applyOps},
		{"foreign", "7", "", foreign},
		{"foreign merged", "7", "", foreignMerged},
		{"into one", "8", "", intoOne},
		{"names in a lag", "9", "", namesInLag},
		{"expiry", "10", "", expiry},
		{"renamed in dispute", "11", "", renamedInDispute},
		{"hostile ids", "stops", "5.3", hostile},
		{"in and out", "stops", "", inAndOut},
		{"long statements", "stops", "5.0", long},
		{"prepared", "", "", prepared},
	}
}

// Find is the theme of a name.
func Find(name string) (Theme, bool) {
	for _, t := range Themes() {
		if t.Name == name {
			return t, true
		}
	}
	return Theme{}, false
}
