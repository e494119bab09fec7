package transform

import (
	"github.com/millrace/millrace/internal/fields"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/query"
	"github.com/millrace/millrace/internal/stream"
)

// Stage stands between a source and a sink: of what the source tells it lets
// pass what the rules keep, and says where on the target it goes. One goroutine
// at a time may use it.
type Stage struct {
	rules *Set
	tally *Tally
	known map[string]destination // by source namespace
	// The events of a namespace come in runs.
	last string
	dest destination

	made   arena
	mark   string // of the last batch that was passed on whole
	atOnce int    // documents to ask for at once
}

// destination is where the events of a source namespace go.
type destination struct {
	target string       // "" is not kept
	rules  bool         // one of those below
	keep   *query.Query // nil keeps all documents
	count  *count
	skips  stream.Ops
	left   *skipCount
	soft   string      // the field that marks what is deleted, "" has it deleted
	fields *fields.Map // nil maps nothing
	mapped *mapCount
}

// NewStage makes a stage of rules for events from a position on, which counts in a tally.
func NewStage(rules *Set, from stream.Position, tally *Tally) *Stage {
	return &Stage{rules: rules, tally: tally, known: map[string]destination{}, mark: from.Mark, atOnce: mostAtOnce}
}

// maxKnown bounds the names that a Stage remembers; when it is full it starts anew.
const maxKnown = 1 << 16

// Batch takes the events off a batch that are not kept, and gives the others
// their target. Schema changes stay in the source's terms: a rename may cross the
// edge of what is kept, so that the target takes part in what becomes of it.
// It returns the updates that may take their documents into a filter or out of it,
// by their indexes, and those that do not say what they make of a mapped document: of
// those nothing is decided.
func (st *Stage) Batch(b *stream.Batch) (open []int, err error) {
	kept := 0
	made := st.made.bytes
	for i := range b.Events {
		ev := &b.Events[i]
		v := pass
		if ev.Kind != stream.SchemaChange {
			d := st.of(ev.NS)
			if ev.Target = d.target; d.target == "" {
				v = drop
			} else if d.rules {
				if v, err = d.judge(ev, &st.made); err != nil {
					return nil, err
				}
			}
		} else if !st.rules.Concerns(ev.Change) {
			v = drop
		}
		if v == drop {
			continue
		}
		if v == undecided {
			open = append(open, kept)
		}
		if kept != i {
			b.Events[kept] = *ev
		}
		kept++
	}
	clear(b.Events[kept:])
	b.Events = b.Events[:kept]
	if made < st.made.bytes {
		b.EventBytes = int(b.Held()) + st.made.bytes - made
	}
	return open, nil
}

// judge applies the rules of one collection.
func (d *destination) judge(ev *stream.Event, made *arena) (v verdict, err error) {
	op := ev.Op()
	if d.skips.Has(op) {
		d.left.add(op)
		return drop, nil
	}
	if d.keep != nil {
		v = sift(ev, d)
	}
	if d.fields != nil && v == pass {
		v, err = d.mapEvent(ev, op, made)
	}
	switch {
	case ev.Kind == stream.Insert && (d.soft != "" || d.skips.Has(leaves)):
		ev.Kind = stream.Put
	case op == stream.OpDelete && d.soft != "":
		mark(ev, d.soft, made)
	}
	return v, err
}

func (st *Stage) of(ns string) *destination {
	if ns == st.last {
		return &st.dest
	}
	d, ok := st.known[ns]
	if !ok {
		if len(st.known) >= maxKnown {
			clear(st.known)
		}
		if target, kept := st.rules.Map(ns); kept {
			d = destination{target: target, keep: st.rules.Filter(ns), count: st.tally.of(st.rules.filterOf(ns)),
				skips: st.rules.Skips(ns), left: st.tally.skipped(st.rules.skipOf(ns)),
				fields: st.rules.Fields(ns), mapped: st.tally.mapped(st.rules.fieldsOf(ns))}
			d.soft = st.rules.SoftDelete(ns)
			d.rules = d.soft != "" || d.skips != 0 || d.keep != nil || d.fields != nil
		}
		st.known[ns] = d
	}
	st.last, st.dest = ns, d
	return &st.dest
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
