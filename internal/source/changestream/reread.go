package changestream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/source/lookup"
	"github.com/millrace/millrace/internal/stream"
)

const (
	mostAtOnce = 1000    // documents that are asked for at once
	mostRead   = 8 << 20 // bytes of several documents
)

// rereader replaces events that do not say what their documents have become by the documents, as they are at
// the batch's last event or later. Other events of such a document in the batch are left out. It emits large
// batches in parts.
type rereader struct {
	a      *assembler
	at     mongo.OpTime // of the batch's last event
	states map[string]*state
	most   int // documents of the next question
	bytes  int // of documents read since the last part
	newest mongo.OpTime
	key    []byte
}

// state is a document as it was read.
type state struct {
	doc   bson.Raw // nil: there is none any more
	until mongo.OpTime
	sent  bool
}

// reread emits a batch in which the events at open are to be read. mark is that of the batch before.
func (a *assembler) reread(ctx context.Context, b *stream.Batch, open []int, mark string) error {
	r := &rereader{a: a, at: b.Events[len(b.Events)-1].At, states: map[string]*state{}, most: mostAtOnce}
	isOpen := make([]bool, len(b.Events))
	for _, i := range open {
		isOpen[i] = true
	}
	for b != nil {
		n, err := r.read(ctx, b.Events, open)
		if err != nil {
			return err
		}
		part, rest := b, (*stream.Batch)(nil)
		if open = open[n:]; len(open) > 0 {
			cut := open[0]
			part, rest = cutAt(b, cut, mark)
			for i := range open {
				open[i] -= cut
			}
		}
		part.Events = r.resolve(part.Events, isOpen)
		isOpen = isOpen[len(isOpen)-countOf(rest):]
		part.EventBytes += r.bytes
		part.Until, r.bytes = r.newest, 0
		if err := a.emit(ctx, part); err != nil {
			return err
		}
		b = rest
	}
	return nil
}

// cutAt cuts a batch before an event. The first part ends at the position before that event, which it has.
func cutAt(b *stream.Batch, i int, mark string) (part, rest *stream.Batch) {
	part, rest = b.Cut(i, mark)
	part.End = mongo.MaxOpTime(b.Start, mongo.MinOpTime(rest.Events[0].At.Previous(), b.End))
	part.Partial = i > 0 && part.End.Before(part.Events[i-1].At)
	rest.Start = part.End
	return part, rest
}

func countOf(b *stream.Batch) int {
	if b == nil {
		return 0
	}
	return len(b.Events)
}

func (r *rereader) keyOf(ev *stream.Event) string {
	r.key = ev.AppendDocument(r.key[:0])
	return string(r.key)
}

// read reads the documents of the first open events of one collection, and returns how many events.
func (r *rereader) read(ctx context.Context, events []stream.Event, open []int) (n int, err error) {
	var ids []bson.RawValue
	var keys []string
	first := &events[open[0]]
	asked := map[string]bool{}
	for _, i := range open {
		ev := &events[i]
		if len(ids) == r.most || ev.NS != first.NS || !ev.SameUUID(first) {
			break
		}
		if key := r.keyOf(ev); r.states[key] == nil && !asked[key] {
			asked[key] = true
			ids, keys = append(ids, bsonraw.RawValue(ev.Key.ID)), append(keys, key)
		}
		n++
	}
	if len(ids) == 0 {
		return n, nil
	}
	docs, until, err := r.a.s.find(ctx, first, lookup.Question{IDs: ids, At: r.at, Most: mostRead})
	switch {
	case errors.Is(err, lookup.ErrTooMuch) && len(ids) > 1:
		r.most = max(len(ids)/4, 1)
		return r.read(ctx, events, open)
	case errors.Is(err, errOther) && len(ids) > 1:
		r.most = 1
		return r.read(ctx, events, open)
	case errors.Is(err, errOther) && first.Kind == stream.Insert: // it says itself what was inserted
		return n, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read documents of %s, as change events up to %s do not say how they have changed: %w",
			first.NS, r.at, err)
	}
	r.most = min(2*r.most, mostAtOnce)
	r.newest = mongo.MaxOpTime(r.newest, until)
	for i, key := range keys {
		s := &state{until: until}
		if docs != nil {
			s.doc = docs[i]
		}
		r.bytes += len(s.doc)
		r.states[key] = s
	}
	return n, nil
}

func (r *rereader) resolve(events []stream.Event, open []bool) []stream.Event {
	out := make([]stream.Event, 0, len(events))
	for i := range events {
		ev := events[i]
		if ev.Kind == stream.SchemaChange {
			out = append(out, ev)
			continue
		}
		s := r.states[r.keyOf(&ev)]
		switch {
		case s == nil:
		case s.sent:
			continue
		case s.doc == nil && open[i] && ev.Kind == stream.Update: // an event deletes it, or drops its collection
			continue
		case s.doc == nil:
			ev.Until = s.until
		case open[i]:
			s.sent = true
			out = append(out, made(ev, s)...)
			continue
		}
		out = append(out, ev)
	}
	return out
}

// made returns the events that write a document. With its _id in other bytes it is another document, and the
// former is gone.
func made(ev stream.Event, s *state) []stream.Event {
	ev.Kind, ev.Form, ev.Doc, ev.Until = stream.Put, 0, s.doc, s.until
	id := bsonraw.IDOf(s.doc)
	if id.Equal(ev.Key.ID) {
		return []stream.Event{ev}
	}
	gone := ev
	gone.Kind, gone.Doc = stream.Delete, nil
	ev.Key.ID, ev.Key.Shard = id, nil
	return []stream.Event{gone, ev}
}

// find reads documents of an event's collection as of a position or later, and the position until which they
// have what happened. Nil documents say that their collection is gone.
func (s *Source) find(ctx context.Context, ev *stream.Event, q lookup.Question) (docs []bson.Raw, until mongo.OpTime,
	err error) {
	if ev.UUID == nil {
		return nil, until, fmt.Errorf("%w: it does not say the UUID of the collection", ErrUnknown)
	}
	of := lookup.Collection{UUID: bson.Binary{Subtype: bson.TypeBinaryUUID, Data: ev.UUID[:]}}
	of.DB, of.Name = mongo.SplitNS(ev.NS)
	if s.cluster.Info.Kind == mongo.KindSharded {
		return s.findThroughRouter(ctx, of, q)
	}
	of.Name, q.Exact = "", true
	if docs, err = lookup.Find(ctx, s.cluster, of, q); err == nil {
		return docs, q.At, nil
	}
	if q.Exact = false; errors.Is(err, lookup.ErrForgotten) {
		docs, err = lookup.Find(ctx, s.cluster, of, q)
	}
	if mongo.IsCode(err, mongo.CodeNamespaceNotFound) {
		gone, err := s.cluster.Vanished(ctx, of.DB, of.UUID)
		if err == nil && !gone {
			err = mongo.Retry("a drop is not committed", nil, "")
		}
		return nil, q.At, err
	}
	if err != nil {
		return nil, until, err
	}
	after, err := s.cluster.Positions(ctx)
	return docs, mongo.MaxOpTime(after.Last, q.At), err
}

// findThroughRouter finds the collection by its UUID before and after, as routers read by names.
func (s *Source) findThroughRouter(ctx context.Context, of lookup.Collection, q lookup.Question) (docs []bson.Raw,
	until mongo.OpTime, err error) {
	const looks = 10 // at what is renamed meanwhile
	for range looks {
		name, err := s.nameOf(ctx, of)
		if err != nil || name == "" {
			return nil, q.At, err
		}
		now := of
		now.Name = name
		if docs, err = s.findOnce(ctx, now, q); err != nil {
			return nil, until, err
		}
		if again, err := s.nameOf(ctx, of); err != nil || again == name {
			after, cause := s.cluster.ClusterTime(ctx)
			return docs, mongo.MaxOpTime(after, q.At), errors.Join(err, cause)
		}
	}
	return nil, until, mongo.Retry("the collection is renamed again and again", nil, "")
}

var errOther = mongo.WithHint(errors.New("the collection now has another UUID, so it may have been moved"),
	"start the job again with --restart, which copies the present state; sources from 6.0 on need fewer such reads")

// nameOf returns the present name of a collection, "" if it is gone. It fails if another collection has its
// name: it was moved to another shard, or dropped and created again.
func (s *Source) nameOf(ctx context.Context, of lookup.Collection) (string, error) {
	db := s.cluster.Client.Database(of.DB)
	found, err := db.ListCollectionSpecifications(ctx, bson.D{{Key: "$or", Value: bson.A{
		bson.D{{Key: "info.uuid", Value: of.UUID}}, bson.D{{Key: "name", Value: of.Name}}}}})
	if err != nil {
		return "", err
	}
	for _, one := range found {
		if one.UUID != nil && one.UUID.Equal(of.UUID) {
			return one.Name, nil
		}
	}
	if len(found) > 0 {
		return "", errOther
	}
	return "", nil
}

// findOnce waits while a document is on two shards. A transaction may be moving it, whose halves shards commit at times
// of their own, and one that has died commits late.
func (s *Source) findOnce(ctx context.Context, of lookup.Collection, q lookup.Question) (docs []bson.Raw, err error) {
	const most = 30 * time.Second
	for began := time.Now(); ; {
		docs, err = lookup.Find(ctx, s.cluster, of, q)
		if !errors.Is(err, lookup.ErrTwice) || time.Since(began) > most {
			return docs, err
		}
		if err := pace.Pause(ctx, 100*time.Millisecond); err != nil {
			return nil, err
		}
	}
}
