package transform

import (
	"context"
	"encoding/binary"
	"math/bits"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
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

// fit applies the mapping to an event. If the document cannot be mapped and that does not end the
// job, the target goes without it.
func (st *Stage) fit(ctx context.Context, d *destination, ev *stream.Event, op stream.Ops) (verdict, error) {
	missing := st.leaves != nil && st.leaves.IsUnmapped(ev.Route.Target, ev.Key.ID)
	switch ev.Kind {
	case stream.Insert, stream.Replace, stream.Put:
		err := d.mapDocument(ev, op, &st.made)
		if why, ok := Unmappable(err); ok && st.leaves != nil {
			d.mapped.failed.Add(1)
			return pass, st.leaveOut(ctx, ev, why, err)
		}
		if err != nil || st.leaves == nil || ev.Kind == stream.Insert && !missing {
			return pass, err
		}
		// after a crash the target may lack a document without a dead letter
		ev.Kind, ev.Form = stream.Put, 0
		return pass, st.leaves.SettleUnmapped(ctx, ev.Route.Target, ev.Key.ID, "it can be mapped now")
	case stream.Update:
		if missing { // the update may fix the document, which its dead letter has to record
			return undecided, nil
		}
		return d.mapUpdate(ev, op, &st.made), nil
	case stream.Upsert: // it may create the document
		return undecided, nil
	case stream.Delete:
		if missing {
			return pass, st.leaves.SettleUnmapped(ctx, ev.Route.Target, ev.Key.ID,
				"the document is gone from the source, or is none that is wanted")
		}
	}
	return pass, nil
}

func (d *destination) mapUpdate(ev *stream.Event, op stream.Ops, made *arena) verdict {
	change, err := ev.Update()
	if err != nil {
		return pass // the sink reports an unreadable update
	}
	out, v := d.maps.Update(made.room(len(ev.Doc)), change, metaOf(ev, op))
	switch v {
	case fields.State:
		return undecided
	case fields.Nothing:
		d.mapped.nothing.Add(1)
		return drop
	case fields.Translated:
		ev.Doc = made.take(out)
		d.mapped.translated.Add(1)
	default:
		d.mapped.passed.Add(1)
	}
	return pass
}

func (d *destination) mapDocument(ev *stream.Event, op stream.Ops, made *arena) error {
	out, err := d.maps.Apply(made.room(len(ev.Doc)), ev.Doc, metaOf(ev, op))
	if err != nil {
		return misfit(err, ev.NS, ev.Doc)
	}
	ev.Doc = made.take(out)
	return nil
}

func metaOf(ev *stream.Event, op stream.Ops) fields.Meta {
	first := stream.Ops(1) << bits.TrailingZeros16(uint16(op))
	return fields.Meta{Namespace: ev.NS, Operation: first.String(), ClusterTime: ev.At.TS}
}

type arena struct {
	free  []byte
	bytes int // taken so far
}

const arenaBlock = 64 << 10

func (a *arena) room(size int) []byte {
	if size += size/2 + 256; cap(a.free) < size {
		a.free = make([]byte, 0, max(size, arenaBlock))
	}
	return a.free[:0]
}

// take keeps what was appended to room.
func (a *arena) take(b []byte) []byte {
	a.bytes += len(b)
	if len(b) <= cap(a.free) && len(b) > 0 && &b[0] == &a.free[:1][0] {
		a.free = a.free[len(b):len(b):cap(a.free)]
	}
	return b[:len(b):len(b)]
}

// Unmapped is a document of the source that the rules cannot map.
type Unmapped struct {
	stream.Origin // its collection
	ID            bsonraw.ID
	Doc           bson.Raw
	// At is the position of Doc, which may include changes up to Until.
	At, Until mongo.OpTime
	Reason    string
	Err       error // ends a job that does not continue without the document
}

// LeftOut keeps documents that the rules cannot map, which the target then lacks. It is safe for
// concurrent use for different documents.
type LeftOut interface {
	// LeaveOut keeps a document and replaces an earlier one. An error ends the job.
	LeaveOut(ctx context.Context, u Unmapped) error
	// IsUnmapped reports a kept document, by its collection on the target.
	IsUnmapped(target string, id bsonraw.ID) bool
	// SettleUnmapped records that the target has the document now, or need not have it.
	SettleUnmapped(ctx context.Context, target string, id bsonraw.ID, reason string) error
}

func (st *Stage) leaveOut(ctx context.Context, ev *stream.Event, why string, err error) error {
	u := Unmapped{Origin: ev.Origin(), ID: ev.Key.ID, Doc: ev.Doc, At: ev.At, Until: mongo.MaxOpTime(ev.At, ev.Until),
		Reason: why, Err: err}
	become(ev, nil, nil)
	return st.leaves.LeaveOut(ctx, u)
}

// cut splits a batch after the first change to collections, if documents may be left out or renames
// skipped. The change settles what is kept of them, before later events are decided.
func (st *Stage) cut(b *stream.Batch) (some, rest *stream.Batch) {
	if st.leaves == nil && st.retainer.of == nil {
		return b, nil
	}
	i := 1 + slices.IndexFunc(b.Events, moves)
	if i == 0 || i == len(b.Events) {
		return b, nil
	}
	return b.Cut(i, st.mark)
}

func moves(ev stream.Event) bool {
	if ev.Kind != stream.SchemaChange {
		return false
	}
	switch ev.Change.Kind {
	case stream.ChangeCreate, stream.ChangeDrop, stream.ChangeRename, stream.ChangeDropDatabase:
		return true
	}
	return false
}

// mark turns a deletion into an update that sets a field to its time.
func mark(ev *stream.Event, field string, made *arena) {
	at := binary.LittleEndian.AppendUint64(nil, uint64(ev.At.TS.T)*1000)
	date := bsoncore.Value{Type: bsoncore.TypeDateTime, Data: at}
	change := bsoncore.NewDocumentBuilder().AppendInt32("$v", 2).
		AppendDocument("diff", bsoncore.NewDocumentBuilder().
			AppendDocument("i", bsoncore.NewDocumentBuilder().AppendValue(field, date).Build()).Build()).Build()
	ev.Kind, ev.Form, ev.Doc = stream.Update, delta.Diff, bson.Raw(made.take(append(made.room(len(change)), change...)))
}
