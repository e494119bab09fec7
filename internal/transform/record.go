package transform

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/versions"
)

// Versions reads histories on the target, as far as changes are applied.
type Versions interface {
	// Before returns the newest version of each document before a position, in its place; nil for
	// none. More than one version that together exceed most bytes are ErrTooMuch.
	Before(ctx context.Context, target string, asked []versions.Asked, most int) ([]bson.Raw, error)
	// Last calls fn for the newest version before a position of each document of a collection, with
	// the _id of the document only.
	Last(ctx context.Context, target string, before versions.Position, fn func(version bson.Raw) error) error
	// Settle returns when everything that the stage has passed on is applied.
	Settle(ctx context.Context) error
	// Applied returns a position up to which everything is applied.
	Applied() mongo.OpTime
}

// Histories says where histories begin.
type Histories struct {
	// Start is the position before the copy. Up to Copied, its end, what it wrote is changed; each
	// later change is a version.
	Start, Copied mongo.OpTime
	Versions
}

func (st *Stage) Record(h Histories) {
	if st.rules.Histories() {
		st.recorder = &recorder{st: st, Histories: h, atOnce: mostAtOnce, most: mostRecent}
	}
}

// recorder makes versions. An update applies to the version before, which is kept here or read from
// the target: only applied versions leave the memory.
type recorder struct {
	Histories
	st     *Stage
	began  bool           // everything up to Copied is applied
	at     bson.Timestamp // of the last event
	n      int32          // its place at that time
	atOnce int            // versions to read at once
	recent [2]recent
	most   int // bytes of a recent
	key    []byte
	place  []int32 // of a batch's events
}

type recent struct {
	docs  map[string]bson.Raw
	bytes int
	until mongo.OpTime // of the last event
}

const (
	mostRecent  = 16 << 20 // bytes of one of the two
	recentEntry = 96       // bytes that an entry takes besides its key
)

type recording struct {
	*recorder
	b     *stream.Batch
	next  func(context.Context, *stream.Batch) error
	out   []stream.Event
	made  int // bytes in the arena when out was empty
	parts int // passed on
}

// pass passes a batch on with versions in place of changes, in partial batches if they are large.
func (r *recorder) pass(ctx context.Context, b *stream.Batch, next func(context.Context, *stream.Batch) error) error {
	if !r.number(b) {
		return next(ctx, b)
	}
	p := recording{recorder: r, b: b, next: next, made: r.st.made.bytes}
	for i := 0; i < len(b.Events); {
		end, err := p.prepare(ctx, i)
		if err != nil {
			return err
		}
		for ; i < end; i++ {
			ev := &b.Events[i]
			if ev.Kind != stream.SchemaChange && r.st.of(ev.NS).History {
				if err := p.tell(ev, r.place[i]); err != nil {
					return fmt.Errorf("the history of %s, _id %s, at %s: %w", ev.NS, bsonraw.IDText(ev.Key.ID), ev.At, err)
				}
			}
			p.out = append(p.out, *ev)
			if r.st.made.bytes-p.made > mostRead && i+1 < len(b.Events) {
				if err := p.hand(ctx, false); err != nil {
					return err
				}
			}
		}
	}
	return p.hand(ctx, true)
}

// number gives each event its place among those of its time, the same on each read. Events of
// histories count once, changes to collections twice, as a rename may be an end and a beginning. It
// reports whether there is anything to do.
func (r *recorder) number(b *stream.Batch) (any bool) {
	r.place = r.place[:0]
	for i := range b.Events {
		ev := &b.Events[i]
		if ev.At.TS != r.at {
			r.at, r.n = ev.At.TS, 0
		}
		r.place = append(r.place, r.n)
		switch {
		case ev.Kind == stream.SchemaChange:
			r.n += 2
			any = any || r.concerns(ev)
		case r.st.of(ev.NS).History:
			r.n++
			any = true
		}
	}
	return any
}

func (r *recorder) recorded(ev *stream.Event) bool { return r.Copied.Before(ev.At) }

func (r *recorder) concerns(ev *stream.Event) bool {
	ch := ev.Change
	if ch.Kind != stream.ChangeDrop && ch.Kind != stream.ChangeRename || ch.Buckets || !r.recorded(ev) {
		return false
	}
	if ch.Kind == stream.ChangeRename && ch.Command != 0 && ch.Command != mongo.CommandMove {
		return false // the collection stays
	}
	return r.kept(ch.NS) || ch.To != "" && r.kept(ch.To)
}

func (r *recorder) kept(ns string) bool { return r.st.of(ns).Kept && r.st.of(ns).History }

func (r *recorder) keyOf(ev *stream.Event) []byte {
	r.key = append(append(r.key[:0], ev.NS...), 0)
	r.key = delta.AppendKey(r.key, ev.Key.ID)
	return r.key
}

func (r *recorder) known(key []byte) (doc bson.Raw, ok bool) {
	for i := range r.recent {
		if doc, ok = r.recent[i].docs[string(key)]; ok {
			return doc, true
		}
	}
	return nil, false
}

func (r *recorder) keep(key []byte, doc bson.Raw) {
	to := &r.recent[0]
	if to.docs == nil {
		to.docs = map[string]bson.Raw{}
	}
	to.docs[string(key)] = doc
	to.bytes += len(key) + len(doc) + recentEntry
}

// forget drops the older versions, once they are applied. All of them were passed on.
func (r *recorder) forget(ctx context.Context) error {
	if older := &r.recent[1]; len(older.docs) > 0 && r.Applied().Before(older.until) {
		if err := r.Settle(ctx); err != nil {
			return err
		}
	}
	r.recent[0], r.recent[1] = recent{}, r.recent[0]
	return nil
}

func (r *recorder) settle(ctx context.Context) error {
	r.recent = [2]recent{}
	return r.Settle(ctx)
}

func needs(ev *stream.Event) bool {
	return ev.Kind == stream.Update || ev.Kind == stream.Upsert || ev.Kind == stream.Put
}

func (p *recording) prepare(ctx context.Context, from int) (end int, err error) {
	if p.recent[0].bytes > p.most {
		if err := p.hand(ctx, false); err != nil {
			return from, err
		}
		if err := p.forget(ctx); err != nil {
			return from, err
		}
	}
	var asked []versions.Asked
	var keys []string
	var of *stream.Event
	defined := map[string]bool{} // by what comes before in the batch
	size, ids := 0, 0            // bytes, roughly: in memory, and of _ids to read
	for end = from; end < len(p.b.Events) && len(asked) < p.atOnce && size < mostRead && ids < mostIDs; end++ {
		ev := &p.b.Events[end]
		if ev.Kind == stream.SchemaChange {
			if !p.concerns(ev) {
				continue
			}
			if end == from {
				return end + 1, p.change(ctx, ev, p.place[end])
			}
			break
		}
		if !p.st.of(ev.NS).History || !p.recorded(ev) {
			continue
		}
		if !p.began {
			if end > from {
				break
			}
			if err := p.begin(ctx); err != nil {
				return end, err
			}
		}
		size += len(ev.Doc)
		key := p.keyOf(ev)
		if _, ok := p.known(key); ok || defined[string(key)] {
			continue
		}
		if needs(ev) {
			if of != nil && of.NS != ev.NS {
				break
			}
			of = ev
			asked, keys = append(asked, versions.Asked{Key: ev.Key.ID, Before: versions.Position{T: ev.At.TS, N: p.place[end]}}),
				append(keys, string(key))
			ids += len(ev.Key.ID.Data)
		}
		defined[string(key)] = true
	}
	if of == nil {
		return end, nil
	}
	found, err := p.load(ctx, of.Route.Target, asked)
	if err != nil {
		return from, fmt.Errorf("read versions of documents of %s from the target: %w", of.NS, err)
	}
	for i, version := range found {
		p.keep([]byte(keys[i]), versions.Unwrap(version))
	}
	if n := len(found); n < len(asked) { // the rest is read next time
		end = slices.IndexFunc(p.b.Events[from:], func(ev stream.Event) bool {
			return ev.Kind != stream.SchemaChange && string(p.keyOf(&ev)) == keys[n]
		}) + from
	}
	return end, nil
}

func (p *recording) begin(ctx context.Context) error {
	if err := p.hand(ctx, false); err != nil {
		return err
	}
	if err := p.settle(ctx); err != nil {
		return err
	}
	p.began = true
	return nil
}

// load reads the versions before the first of those asked for, as many as are read at once.
func (r *recorder) load(ctx context.Context, target string, asked []versions.Asked) ([]bson.Raw, error) {
	for {
		n := min(len(asked), r.atOnce)
		found, err := r.Before(ctx, target, asked[:n], mostRead)
		if errors.Is(err, ErrTooMuch) && n > 1 {
			r.atOnce = max(n/4, 1)
			continue
		}
		if err == nil {
			r.atOnce = min(2*r.atOnce, mostAtOnce)
		}
		return found, err
	}
}

// tell turns a change into a version, or into a change of the copied version.
func (p *recording) tell(ev *stream.Event, place int32) error {
	if !ev.Until.IsZero() {
		return mongo.WithHint(
			errors.New(
				"--fields needs the document as of this change, but the source has only a later version"),
			"map fewer fields of the collection, or leave it out of --history; then start again with --restart")
	}
	ev.Key.Shard = nil
	if !p.recorded(ev) {
		return p.changeCopy(ev)
	}
	key := p.keyOf(ev)
	before, _ := p.known(key)
	v := versions.Version{Key: ev.Key.ID, Position: versions.Position{T: ev.At.TS, N: place}, Op: ev.Kind.String(),
		Doc: ev.Doc}
	var err error
	switch ev.Kind {
	case stream.Put:
		if v.Op = stream.Replace.String(); before == nil {
			v.Op = stream.Insert.String()
		}
	case stream.Update, stream.Upsert:
		if v.Op = stream.Update.String(); before == nil && ev.Kind == stream.Upsert {
			v.Op = stream.Insert.String()
			before = bson.Raw(bsoncore.NewDocumentBuilder().AppendValue("_id", ev.Key.ID).Build())
		}
		v.Doc, err = changed(before, ev)
	case stream.Delete:
		v.Doc = nil
	}
	if err != nil {
		return err
	}
	p.write(ev, v)
	p.keep(key, versions.Unwrap(ev.Doc))
	return nil
}

func changed(before bson.Raw, ev *stream.Event) (bson.Raw, error) {
	if before == nil {
		return nil, mongo.WithHint(errors.New("the target has no version of an updated document"),
			"stop other writers to the versions on the target, then start again with --restart")
	}
	d, err := ev.Update()
	if err != nil {
		return nil, err
	}
	doc, skipped, err := delta.Apply(nil, before, d)
	if err == nil && skipped > 0 {
		err = mongo.WithHint(errors.New("an update does not fit the previous version on the target"),
			"stop other writers to the versions on the target, then start again with --restart")
	}
	return doc, err
}

func (p *recording) write(ev *stream.Event, v versions.Version) {
	made := &p.st.made
	doc := made.take(versions.Append(made.room(len(v.Doc)+len(v.Key.Data)+versions.Size), v))
	ev.Kind, ev.Form, ev.Doc = stream.Insert, 0, doc
	ev.Key = stream.Key{ID: bsonraw.IDOf(doc)}
}

func (p *recording) changeCopy(ev *stream.Event) (err error) {
	made := &p.st.made
	switch ev.Kind {
	case stream.Upsert:
		return mongo.WithHint(errors.New(
			"a user's applyOps command during the copy: cannot tell whether it updates or inserts a document"),
			"start again with --restart after the last such command")
	case stream.Update:
		var out []byte
		if out, err = versions.AppendUpdate(made.room(len(ev.Doc)), ev.Form, ev.Doc, ev.At.TS); err != nil {
			return err
		}
		ev.Doc = made.take(out)
	case stream.Delete:
	default:
		ev.Doc = made.take(versions.AppendCopy(made.room(len(ev.Doc)+len(ev.Key.ID.Data)+versions.Size), ev.Doc, p.Start.TS,
			ev.At.TS))
	}
	id := made.take(versions.AppendID(made.room(len(ev.Key.ID.Data)+versions.Size), ev.Key.ID,
		versions.Position{T: p.Start.TS}))
	ev.Key.ID = bsonraw.ID{Type: bsoncore.TypeEmbeddedDocument, Data: id}
	return nil
}

func (p *recording) hand(ctx context.Context, last bool) error {
	if len(p.out) == 0 && !last {
		return nil
	}
	b := *p.b
	b.Events = p.out
	made := p.st.made.bytes - p.made
	if b.EventBytes = int(b.Held()) + made; p.parts > 0 {
		b.Bytes, b.EventBytes, b.Entries = 0, made, 0
	}
	if !last {
		b.End, b.Mark, b.Partial, b.More = b.Start, p.st.mark, true, true
	}
	at := b.End
	if len(p.out) > 0 {
		at = p.out[len(p.out)-1].At
	}
	p.out, p.made = nil, p.st.made.bytes
	p.parts++
	p.recent[0].until = at
	return p.next(ctx, &b)
}

func (p *recording) change(ctx context.Context, ev *stream.Event, place int32) error {
	ch := ev.Change
	if err := p.begin(ctx); err != nil {
		return err
	}
	end := func(ns, op string) error {
		return p.end(ctx, ev, ns, versions.Version{Position: versions.Position{T: ev.At.TS, N: place}, Op: op})
	}
	op := versions.Drop
	if ch.Kind == stream.ChangeRename {
		op = versions.Rename
		if ch.DropTarget && p.kept(ch.To) {
			if err := end(ch.To, versions.Drop); err != nil {
				return err
			}
		}
		if p.kept(ch.NS) && p.kept(ch.To) {
			if err := p.carry(ctx, ev, place); err != nil {
				return err
			}
		}
	}
	if p.kept(ch.NS) {
		if err := end(ch.NS, op); err != nil {
			return err
		}
	}
	if err := p.hand(ctx, false); err != nil {
		return err
	}
	return p.settle(ctx)
}

func (p *recording) end(ctx context.Context, ev *stream.Event, ns string, v versions.Version) error {
	return p.Last(ctx, p.st.rules.Target(ns), v.Position, func(version bson.Raw) error {
		last, err := versions.Parse(version)
		if err != nil || last.Doc == nil {
			return err
		}
		v.Key = last.Key
		return p.add(ctx, ev, ns, v)
	})
}

func (p *recording) add(ctx context.Context, of *stream.Event, ns string, v versions.Version) error {
	ev := stream.Event{NS: ns, Route: &p.st.of(ns).Route.Route, At: of.At, Txn: of.Txn}
	p.write(&ev, v)
	p.out = append(p.out, ev)
	if p.st.made.bytes-p.made > mostRead || len(p.out) >= mostAdded {
		return p.hand(ctx, false)
	}
	return nil
}

const mostAdded = 10_000 // events of one part

func (p *recording) carry(ctx context.Context, ev *stream.Event, place int32) error {
	from := p.st.rules.Target(ev.Change.NS)
	before := versions.Position{T: ev.At.TS, N: place}
	var asked []versions.Asked
	size := 0
	some := func() error {
		for len(asked) > 0 {
			found, err := p.load(ctx, from, asked)
			if err != nil {
				return err
			}
			for _, version := range found {
				last, err := versions.Parse(version)
				if err != nil {
					return err
				}
				last.Position, last.Op, last.At = versions.Position{T: ev.At.TS, N: place + 1}, versions.Rename, bson.Timestamp{}
				if err := p.add(ctx, ev, ev.Change.To, last); err != nil {
					return err
				}
			}
			asked = asked[len(found):]
		}
		size = 0
		return nil
	}
	err := p.Last(ctx, from, before, func(version bson.Raw) error {
		last, err := versions.Parse(version)
		if err != nil || last.Doc == nil {
			return err
		}
		asked = append(asked, versions.Asked{Key: bsonraw.Clone(last.Key), Before: before})
		if size += len(last.Key.Data); len(asked) >= mostAtOnce || size > mostIDs {
			return some()
		}
		return nil
	})
	if err != nil {
		return err
	}
	return some()
}
