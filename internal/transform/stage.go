package transform

import (
	"context"

	"github.com/millrace/millrace/internal/fields"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// Stage stands between a source and a sink: of what the source tells it lets
// pass what the rules keep, and says where on the target it goes. One goroutine
// at a time may use it.
type Stage struct {
	rules    *Set
	counters *Counters
	known    map[string]*destination // by source namespace
	// The events of a namespace come in runs.
	last string
	dest *destination

	recorder *recorder // nil: there are no histories

	leaves LeftOut // nil: a document that cannot be mapped ends the job
	made   arena
	mark   string // of the last batch that was passed on whole
	atOnce int    // documents to ask for at once
	copies Copies
	came   map[string]mongo.OpTime // names that renames gave to what was not kept, and when

	retainer retainer
}

// Copies tells of copies of collections.
type Copies interface {
	// CopyEnd is the end of the last copy of a source namespace. Up to there the target may be
	// ahead of an event, and lack a document that has changed its place.
	CopyEnd(ns string) mongo.OpTime
}

// destination is where the events of a source namespace go.
type destination struct {
	*Route
	rules  bool        // one of those for documents
	maps   *fields.Map // Fields, with care where the job goes on without those that it cannot map
	count  *count
	left   *skipCount
	marked *markCount
	mapped *mapCount
}

// NewStage makes a stage of rules for events from a position on. It counts in counters. leaves
// keeps documents that cannot be mapped. If leaves is nil, such a document ends the job.
func NewStage(rules *Set, from stream.Position, counters *Counters, leaves LeftOut) *Stage {
	if !rules.mayFail() {
		leaves = nil
	}
	return &Stage{rules: rules, counters: counters, known: map[string]*destination{}, leaves: leaves, mark: from.Mark,
		atOnce: mostAtOnce}
}

// Copies has the stage ask about copies; without it there were none.
func (st *Stage) Copies(c Copies) { st.copies = c }

// maxKnown bounds the names that a Stage remembers; when it is full it starts anew.
const maxKnown = 1 << 16

// Batch removes from a batch the events that are not kept, and gives the others their target.
// Schema changes stay in the source's terms: a rename may cross the edge of what is kept, so
// that the target takes part in what becomes of it. It returns, by their indexes, the updates
// that may take their documents into a filter or out of it. It also returns those that do not
// say what they make of a mapped document. Of these updates nothing is decided.
func (st *Stage) Batch(ctx context.Context, b *stream.Batch) (open []int, err error) {
	kept := 0
	made := st.made.bytes
	for i := range b.Events {
		ev := &b.Events[i]
		v := pass
		if ev.Kind != stream.SchemaChange {
			if st.retainer.of != nil {
				if goes, err := st.retainer.lead(ev); err != nil {
					return nil, err
				} else if !goes {
					continue
				}
			}
			d := st.of(ev.NS)
			if ev.Route = &d.Route.Route; !d.Kept {
				v = drop
			} else if d.rules {
				if v, err = st.judge(ctx, d, ev); err != nil {
					return nil, err
				}
			}
		} else if st.comes(ev); !st.rules.Concerns(ev.Change) {
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
func (st *Stage) judge(ctx context.Context, d *destination, ev *stream.Event) (v verdict, err error) {
	op := ev.Op()
	if d.Skips.Has(op) && !st.bridges(d, ev, op) {
		d.left.add(op)
		return drop, nil
	}
	if d.Skips != 0 {
		d.left.passed.Add(1)
	}
	if d.Skips.Has(stream.OpUpdate | stream.OpReplace) {
		ev.Key.Shard = nil // the target may have the document under an earlier shard key
	}
	if d.Filter != nil {
		v = filterEvent(ev, d)
	}
	if d.Fields != nil && v == pass {
		if ev.Kind != stream.Update && ev.Kind != stream.Delete {
			d.mapped.written.Add(1)
		}
		v, err = st.fit(ctx, d, ev, op)
	}
	switch {
	case ev.Kind == stream.Insert && d.retains():
		ev.Kind, ev.Key.Shard = stream.Put, nil // what was left may be under another shard key
	case ev.Rekeyed && ev.Kind == stream.Put && d.Skips.Has(stream.OpInsert) && !st.copying(ev):
		ev.Kind = stream.Replace // of a document that the target may never have got
	case op == stream.OpDelete && d.SoftDelete != "":
		mark(ev, d.SoftDelete, &st.made)
		d.marked.marked.Add(1)
	}
	return v, err
}

// comes notes a rename that brings a collection among those that are kept: it will be copied.
func (st *Stage) comes(ev *stream.Event) {
	ch := ev.Change
	ofUser := ch.Command == 0 || ch.Command == mongo.CommandMove // what a server fills has other names
	if ch.Kind != stream.ChangeRename || !ofUser || st.rules.Match(ch.NS) || !st.rules.Match(ch.To) ||
		!st.rules.Route(ch.To).Skips.Has(stream.OpInsert|stream.OpUpdate|stream.OpReplace) {
		return
	}
	if st.came == nil || len(st.came) >= maxKnown {
		st.came = map[string]mongo.OpTime{}
	}
	st.came[ch.To] = ev.At
}

// copying reports that the copy of a collection may be ahead of an event. What was read of the
// source before a copy begins is older than the end of the copy.
func (st *Stage) copying(ev *stream.Event) bool {
	if st.copies == nil {
		return false
	}
	end := st.copies.CopyEnd(ev.NS)
	if at, ok := st.came[ev.NS]; ok {
		if end.Before(at) {
			return true
		}
		delete(st.came, ev.NS)
	}
	return !end.Before(ev.At)
}

// bridges reports a change that is applied although the rule skips it: the copy may have read
// what it left. With an earlier replacement and later updates, a document would come to be that
// never was. A document that an update moves to another shard may have been read on both.
func (st *Stage) bridges(d *destination, ev *stream.Event, op stream.Ops) bool {
	return (op == stream.OpReplace && !d.Skips.Has(stream.OpUpdate) || ev.Rekeyed && op == stream.OpUpdate) &&
		st.copying(ev)
}

func (st *Stage) of(ns string) *destination {
	if ns == st.last && st.dest != nil {
		return st.dest
	}
	d := st.known[ns]
	if d == nil {
		if len(st.known) >= maxKnown {
			clear(st.known)
		}
		r := st.rules.Route(ns)
		d = &destination{Route: r, rules: r.SoftDelete != "" || r.Skips != 0 || r.Filter != nil ||
			r.Fields != nil, maps: r.Fields,
			count: st.counters.of(r.filter), left: st.counters.skipped(r.skip), marked: st.counters.marked(r.softDelete),
			mapped: st.counters.mapped(r.fields)}
		if st.leaves != nil && r.Fields != nil {
			d.maps = r.mapping.careful
		}
		st.known[ns] = d
	}
	st.last, st.dest = ns, d
	return d
}

// Concerns reports whether a schema change can touch anything that is kept.
func (s *Set) Concerns(ch *stream.Change) bool {
	db, _ := mongo.SplitNS(ch.NS)
	to, _ := mongo.SplitNS(ch.To)
	return s.MatchDB(db) || to != "" && s.MatchDB(to)
}
