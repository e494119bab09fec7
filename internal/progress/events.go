package progress

import (
	"time"

	"github.com/millrace/millrace/internal/copy"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/state"
)

// Step is a kind of what a job does.
type Step string

// The kinds of steps.
const (
	StepPhase      Step = "phase"      // Name is the phase; one ends where the next begins
	StepCollection Step = "collection" // the copy of one; Name is its namespace on the source
	StepSchema     Step = "schema"     // a schema change; Name is the namespace, What its kind
	StepFinalize   Step = "finalize"   // a step of the phase finalizing, by its name
)

// Event says that a step begins or has ended. It holds no values of documents.
type Event struct {
	At    time.Time
	Step  Step
	Name  string
	What  string // of a schema change its kind, of a collection the shard that it is read from
	Ended bool
	// Docs and Bytes are those of a collection that has been copied.
	Docs, Bytes int64
	// Class is that of the error with which the step has ended; empty for none.
	Class string
}

// tell hands out an event.
func (p *Progress) tell(e Event) {
	if p.o.Told != nil {
		e.At = p.o.Now()
		p.o.Told(e)
	}
}

// phaseOf tells that a phase follows another one. It is called with mu held.
func (p *Progress) phaseOf(next state.Phase) {
	if was := p.st.Phase; was != next {
		p.tell(Event{Step: StepPhase, Name: string(was), Ended: true})
		p.tell(Event{Step: StepPhase, Name: string(next)})
	}
}

// Begin tells of a step, and gives what tells of its end.
func (p *Progress) Begin(step Step, name, what string) (end func(error)) {
	p.tell(Event{Step: step, Name: name, What: what})
	return func(err error) {
		e := Event{Step: step, Name: name, What: what, Ended: true}
		if err != nil {
			e.Class = string(mongo.Classify(err))
		}
		p.tell(e)
	}
}

// Collection tells of the copy of a collection that begins or has ended, from one shard
// where the source has several.
func (p *Progress) Collection(c copy.CollectionStats, shard string) {
	p.tell(Event{Step: StepCollection, Name: c.Source, What: shard, Ended: c.State != copy.StateCopying, Docs: c.Docs, Bytes: c.Bytes})
}
