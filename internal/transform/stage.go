package transform

import (
	"context"

	"github.com/millrace/millrace/internal/fields"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// Stage stands between a source and a sink. It passes what the rules keep, with its route. It is not
// safe for concurrent use.
type Stage struct {
	rules    *Set
	counters *Counters
	known    map[string]*destination // by source namespace
	// The events of a namespace come in runs.
	last string
	dest *destination

	recorder *recorder // nil without histories

	leaves LeftOut // nil: a document that cannot be mapped ends the job
	made   arena
	mark   string // of the last batch that was passed on completely
	atOnce int    // documents to read at once
	copies Copies
	came   map[string]mongo.OpTime // names that renames gave to what was not kept, and when

	retainer retainer
}

// Copies knows copies of collections.
type Copies interface {
	// CopyEnd returns the end of the last copy of a source namespace. Up to there, the target may be
	// ahead of an event, and lack a document that has moved.
	CopyEnd(ns string) mongo.OpTime
}

type destination struct {
	*Route
	rules  bool        // some for documents
	maps   *fields.Map // Fields, or its careful form
	count  *filterCounts
	left   *skipCounts
	marked *markCounts
	mapped *mapCounts
}

// NewStage returns a stage for events from a position on. It counts in counters. leaves keeps
// documents that cannot be mapped; if it is nil, they end the job.
func NewStage(rules *Set, from stream.Position, counters *Counters, leaves LeftOut) *Stage {
	if !rules.mayFail() {
		leaves = nil
	}
	return &Stage{rules: rules, counters: counters, known: map[string]*destination{}, leaves: leaves, mark: from.Mark,
		atOnce: mostAtOnce}
}

// Copies sets the source of CopyEnd; without it there were no copies.
func (st *Stage) Copies(c Copies) { st.copies = c }

const maxKnown = 1 << 16

// Batch removes events that are not kept, and gives the others their route. Schema changes keep the
// source's names: a rename may cross the edge of what is kept. It returns the indexes of undecided
// updates: they may move a document into a filter or out of it, or need it for its mapping.
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
		ev.Key.Shard = nil // the target may have an earlier shard key
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
		ev.Kind, ev.Key.Shard = stream.Put, nil // what was left may have another shard key
	case ev.Rekeyed && ev.Kind == stream.Put && d.Skips.Has(stream.OpInsert) && !st.copying(ev):
		ev.Kind = stream.Replace // the target may never have got it
	case op == stream.OpDelete && d.SoftDelete != "":
		mark(ev, d.SoftDelete, &st.made)
		d.marked.marked.Add(1)
	}
	return v, err
}

// comes notes a rename that brings in a collection, which will be copied.
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

// copying reports that the copy of a collection may be ahead of an event. Reads of the source before
// a copy are older than its end.
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

// bridges reports a skipped change that is applied, as the copy may have read its result: an earlier
// replacement with later updates would be a document that never was. A document that an update moves
// to another shard may have been read on both.
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
		r, n := st.rules.Route(ns), st.counters.all()
		d = &destination{Route: r, rules: r.SoftDelete != "" || r.Skips != 0 || r.Filter != nil ||
			r.Fields != nil, maps: r.Fields,
			count: countsOf(n.filters, r.filter), left: countsOf(n.skips, r.skip), marked: countsOf(n.marks, r.softDelete),
			mapped: countsOf(n.maps, r.fields)}
		if st.leaves != nil && r.Fields != nil {
			d.maps = r.mapping.careful
		}
		st.known[ns] = d
	}
	st.last, st.dest = ns, d
	return d
}

// Concerns reports whether a schema change may affect anything kept.
func (s *Set) Concerns(ch *stream.Change) bool {
	db, _ := mongo.SplitNS(ch.NS)
	to, _ := mongo.SplitNS(ch.To)
	return s.MatchDB(db) || to != "" && s.MatchDB(to)
}
