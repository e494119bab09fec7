package transform

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/query"
	"github.com/millrace/millrace/internal/stream"
)

type verdict uint8

const (
	pass verdict = iota
	drop
	undecided // the document's state decides
)

// filterEvent decides an event by its content. A complete document is in the filter or not, whatever
// it was before. A new one outside was never on the target. An update that crosses no edge passes:
// without the document on the target it has no effect.
func filterEvent(ev *stream.Event, d *destination) verdict {
	inserts := ev.Kind == stream.Insert
	v := judge(ev, d)
	switch {
	case v == pass && inserts && ev.Kind == stream.Delete, v == drop:
		d.count.dropped.Add(1)
	case v == pass:
		d.count.kept.Add(1)
	}
	return v
}

func judge(ev *stream.Event, d *destination) verdict {
	keep := d.Filter
	switch ev.Kind {
	case stream.Insert:
		switch {
		case keep.Match(ev.Doc):
		case d.retains(): // what was left of another document with that _id goes
			become(ev, nil, nil)
			ev.Key.Shard = nil
		default:
			return drop
		}
	case stream.Replace, stream.Put:
		become(ev, ev.Doc, keep)
	case stream.Update:
		if d, err := ev.Update(); err == nil && keep.Touched(d) {
			return undecided // the sink reports an unreadable update
		}
	case stream.Upsert: // it may create the document
		return undecided
	}
	return pass
}

// become makes an event write doc, or delete it where it is nil or not in the filter.
func become(ev *stream.Event, doc bson.Raw, keep *query.Query) {
	if doc != nil && (keep == nil || keep.Match(doc)) {
		ev.Kind, ev.Form, ev.Doc = stream.Put, 0, doc
		return
	}
	ev.Kind, ev.Form, ev.Doc = stream.Delete, 0, nil
}

// Read returns documents of the source by _id, as they are at a position or later, and the position
// until which nothing else has happened to them. A nil document does not exist; a nil list says so
// of their collection. of is an event of it. More than one document that together exceed most bytes
// are ErrTooMuch.
type Read func(ctx context.Context, of *stream.Event, ids []bson.RawValue, at mongo.OpTime, most int) (docs []bson.Raw,
	until mongo.OpTime, err error)

var ErrTooMuch = errors.New("the documents are too large to be read at once")

const (
	mostAtOnce = 1000    // documents that are asked for at once
	mostIDs    = 1 << 20 // bytes of their _ids, but for the last
	mostRead   = 8 << 20 // bytes of them
)

// Pass passes a batch to next as Batch leaves it, with open events decided by the documents' states.
// Each such document becomes what it is at the batch's last event, or later; its other events are
// left out. With large documents it is passed in parts, all but the last of them partial.
func (st *Stage) Pass(ctx context.Context, b *stream.Batch, read Read,
	next func(context.Context, *stream.Batch) error) error {
	for rest := b; rest != nil; {
		var some *stream.Batch
		if some, rest = st.cut(rest); rest == nil {
			return st.pass(ctx, some, b.Mark, read, next)
		}
		if err := st.pass(ctx, some, st.mark, read, next); err != nil {
			return err
		}
	}
	return nil
}

// pass is Pass up to a schema change where cut splits; mark is the position after it.
func (st *Stage) pass(ctx context.Context, b *stream.Batch, mark string,
	read Read, next func(context.Context, *stream.Batch) error) error {
	open, err := st.Batch(ctx, b)
	if err != nil {
		return err
	}
	if st.recorder != nil {
		handOn := next
		next = func(ctx context.Context, b *stream.Batch) error { return st.recorder.pass(ctx, b, handOn) }
	}
	if len(open) == 0 {
		if err := next(ctx, b); err != nil { // which may pass it in parts, with the mark before
			return err
		}
		st.mark = mark
		return nil
	}
	d := decision{stage: st, b: b, at: b.Events[len(b.Events)-1].At, open: map[int]bool{}, states: map[string]*document{}}
	if st.rules.SkipsAny(stream.OpTTL) {
		d.findDeleted()
	}
	for _, i := range open {
		d.open[i] = true
	}
	for len(open) > 0 {
		n, err := d.read(ctx, open, read)
		if err != nil {
			return err
		}
		open = open[n:]
		until := len(b.Events)
		if len(open) > 0 {
			until = open[0]
		}
		some, err := d.until(ctx, until)
		if err != nil {
			return err
		}
		if err := next(ctx, some); err != nil {
			return err
		}
	}
	st.mark = mark
	return nil
}

type decision struct {
	stage  *Stage
	b      *stream.Batch
	at     mongo.OpTime
	open   map[int]bool // by index
	states map[string]*document
	from   int // the first event not passed on
	bytes  int // of documents read since
	newest mongo.OpTime
	key    []byte
	// deleted are the clocks of final deletions; nil where no rule needs them.
	deleted map[string]int64
}

type document struct {
	ns      string // another name may have another filter
	doc     bson.Raw
	dropped bool // with its collection
	until   mongo.OpTime
	sent    bool // an event with this state was passed on
	left    bool // the target keeps its document, which later events may not fit
}

func (d *decision) keyOf(ev *stream.Event) string {
	d.key = ev.AppendDocument(d.key[:0])
	return string(d.key)
}

func (d *decision) read(ctx context.Context, open []int, read Read) (n int, err error) {
	var ids []bson.RawValue
	var keys []string
	first := &d.b.Events[open[0]]
	asked, size := map[string]bool{}, 0
	for _, i := range open {
		ev := &d.b.Events[i]
		if len(ids) == d.stage.atOnce || size > mostIDs || ev.NS != first.NS || !ev.SameUUID(first) {
			break
		}
		key := d.keyOf(ev)
		if known := d.states[key]; (known == nil || known.ns != ev.NS) && !asked[key] {
			asked[key] = true
			ids, keys = append(ids, bsonraw.RawValue(ev.Key.ID)), append(keys, key)
			size += len(ev.Key.ID.Data)
		}
		n++
	}
	if len(ids) == 0 {
		return n, nil
	}
	docs, until, err := read(ctx, first, ids, d.at, mostRead)
	if errors.Is(err, ErrTooMuch) && len(ids) > 1 {
		d.stage.atOnce = max(len(ids)/4, 1)
		return d.read(ctx, open, read)
	}
	if err != nil {
		return 0, fmt.Errorf("read documents of %s from the source, as rules need them at %s: %w", first.NS, d.at, err)
	}
	d.stage.atOnce = min(2*d.stage.atOnce, mostAtOnce)
	for i, key := range keys {
		s := &document{ns: first.NS, until: until, dropped: docs == nil}
		if docs != nil {
			s.doc = docs[i]
		}
		d.bytes += len(s.doc)
		d.states[key] = s
	}
	return n, nil
}

func (d *decision) until(ctx context.Context, end int) (*stream.Batch, error) {
	b := *d.b
	b.Events = make([]stream.Event, 0, end-d.from)
	made := d.stage.made.bytes
	for i := d.from; i < end; i++ {
		var err error
		if b.Events, err = d.tell(ctx, b.Events, i); err != nil {
			return nil, err
		}
	}
	d.bytes += d.stage.made.bytes - made
	if b.EventBytes = int(b.Held()); d.from > 0 {
		b.Bytes, b.EventBytes, b.Entries = 0, 0, 0
	}
	b.EventBytes += d.bytes
	b.Until = d.newest
	if end < len(d.b.Events) {
		b.End, b.Mark, b.Partial, b.More = b.Start, d.stage.mark, true, true
	}
	d.from, d.bytes = end, 0
	return &b, nil
}

// tell appends what an event becomes. The first open event of a document that was read makes it
// what it is; earlier ones stay.
func (d *decision) tell(ctx context.Context, to []stream.Event, i int) (_ []stream.Event, err error) {
	ev := &d.b.Events[i]
	if ev.Kind == stream.SchemaChange {
		return append(to, *ev), nil
	}
	s := d.states[d.keyOf(ev)]
	switch {
	case s == nil:
	case s.ns != ev.NS:
		ev.Until = s.until
	case s.sent:
		return to, nil
	case d.open[i]:
		if dest := d.stage.of(ev.NS); s.doc == nil && dest.stays(s.dropped) {
			dest.count.dropped.Add(1)
			s.left, d.newest = true, mongo.MaxOpTime(d.newest, s.until)
			return to, nil // the target's copy is the latest known state
		}
		to, err = d.made(ctx, to, ev, s)
	case s.left:
		ev.Until = s.until
	}
	return append(to, *ev), err
}

// retains reports that the target keeps documents that the source no longer has.
func (d *destination) retains() bool { return d.SoftDelete != "" || d.Skips.Has(leaves) }

// stays is retains, or where the collection was dropped, also by a rename onto it, that those rules
// keep its documents. The event of a deletion marks them.
func (d *destination) stays(dropped bool) bool {
	return d.SoftDelete != "" || d.Skips.Has(stream.OpDelete) || dropped && d.Skips.Has(stream.OpDrop|stream.OpRename)
}

// deletedAt is when the target's copy of a deleted document had to expire. It is the server's clock in
// the batch's deletion, as cluster time may be far ahead of it. Else a later time does no harm, as a
// later deletion has an event of its own.
func (d *decision) deletedAt(key string, s *document) int64 {
	if wall, ok := d.deleted[key]; ok && !s.dropped {
		return wall
	}
	return int64(s.until.TS.T+1) * 1000
}

func (d *decision) findDeleted() {
	d.deleted = map[string]int64{}
	for i := range d.b.Events {
		switch ev := &d.b.Events[i]; ev.Kind {
		case stream.SchemaChange:
		case stream.Delete:
			d.deleted[d.keyOf(ev)] = ev.Wall
		default:
			delete(d.deleted, d.keyOf(ev))
		}
	}
}

// made makes an event write the document as it was read. With its _id in other bytes it is another
// document, and the former is gone.
func (d *decision) made(ctx context.Context, to []stream.Event, ev *stream.Event, s *document) ([]stream.Event, error) {
	s.sent, ev.Until = true, s.until
	d.newest = mongo.MaxOpTime(d.newest, s.until)
	dest, op := d.stage.of(ev.NS), ev.Op()
	become(ev, s.doc, dest.Filter)
	if s.doc == nil && dest.Skips.Has(stream.OpTTL) {
		ev.Wall = d.deletedAt(d.keyOf(ev), s)
	}
	if ev.Kind == stream.Put {
		dest.count.entered.Add(1)
	} else {
		dest.count.left.Add(1)
	}
	if dest.Fields != nil {
		dest.mapped.read.Add(1)
		if _, err := d.stage.fit(ctx, dest, ev, op); err != nil {
			return nil, err
		}
	}
	if id := bsonraw.IDOf(s.doc); ev.Kind == stream.Put && !id.Equal(ev.Key.ID) {
		gone := *ev
		become(&gone, nil, nil)
		to, ev.Key.ID = append(to, gone), id
	}
	s.doc = nil
	return to, nil
}
