package transform

import (
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// Stage stands between a source and a sink: of what the source tells it lets
// pass what the rules keep, and says where on the target it goes. One goroutine
// at a time may use it.
type Stage struct {
	rules *Set
	known map[string]string // target by source namespace; "" is not kept
	// The events of a namespace come in runs.
	last, target string
}

// NewStage makes a stage of rules.
func NewStage(rules *Set) *Stage { return &Stage{rules: rules, known: map[string]string{}} }

// maxKnown bounds the names that a Stage remembers; when it is full it starts anew.
const maxKnown = 1 << 16

// Batch takes the events off a batch that are not kept, and gives the others
// their target. Schema changes stay in the source's terms: a rename may cross the
// edge of what is kept, so that the target takes part in what becomes of it.
func (st *Stage) Batch(b *stream.Batch) {
	kept := 0
	for i := range b.Events {
		ev := &b.Events[i]
		if ev.Kind == stream.SchemaChange {
			if !st.rules.Concerns(ev.Change) {
				continue
			}
		} else if ev.Target = st.name(ev.NS); ev.Target == "" {
			continue
		}
		if kept != i {
			b.Events[kept] = *ev
		}
		kept++
	}
	clear(b.Events[kept:])
	b.Events = b.Events[:kept]
}

func (st *Stage) name(ns string) string {
	if ns == st.last {
		return st.target
	}
	target, ok := st.known[ns]
	if !ok {
		if len(st.known) >= maxKnown {
			clear(st.known)
		}
		target, _ = st.rules.Map(ns)
		st.known[ns] = target
	}
	st.last, st.target = ns, target
	return target
}

// Map gives the name that a source namespace has on the target; false when it is
// not kept.
func (s *Set) Map(ns string) (target string, kept bool) {
	if !s.Match(ns) {
		return "", false
	}
	return s.Target(ns), true
}

// Concerns reports whether a schema change can touch anything that is kept.
func (s *Set) Concerns(ch *stream.Change) bool {
	db, _ := mongo.SplitNS(ch.NS)
	to, _ := mongo.SplitNS(ch.To)
	return s.MatchDB(db) || to != "" && s.MatchDB(to)
}
