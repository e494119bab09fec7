// Package sinktest checks that a sink is one: whatever it writes to, it runs the
// sink on random histories and compares its target with a model. It is for tests,
// and may import what tests import; the model must not use the code that sinks use
// to apply updates.
package sinktest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/kit"
)

// Namespaces are those that histories write to.
func Namespaces() []string { return []string{"sinktest.a", "sinktest.b"} }

// model is what a target has to hold: by namespace and _id, in plain words.
type model map[string]map[int32]bson.D

// History is a random run of events, which a source may have had.
type History struct {
	*rand.Rand
	Events []stream.Event
	now    model
}

// NewHistory makes a history of about n events; the same for the same seed.
func NewHistory(seed uint64, n int) *History {
	h, clock := &History{Rand: rand.New(rand.NewPCG(seed, 11)), now: model{}}, uint32(0)
	for len(h.Events) < n {
		clock++
		at := mongo.OpTime{TS: bson.Timestamp{T: 1000 + clock/10, I: 1 + clock%10}, Term: 1}
		if h.IntN(150) == 0 {
			h.drop(at)
			continue
		}
		group := 1
		if h.IntN(10) == 0 {
			group = 2 + h.IntN(12) // a transaction
		}
		for range group {
			h.event(at)
		}
	}
	return h
}

func (h *History) namespace() string { return Namespaces()[h.IntN(len(Namespaces()))] }

// drop appends a schema change, with which nothing shares a position.
func (h *History) drop(at mongo.OpTime) {
	ns := h.namespace()
	h.Events = append(h.Events, stream.Event{Kind: stream.SchemaChange, NS: ns,
		Change: &stream.Change{Kind: stream.ChangeDrop, NS: ns}, At: at})
	delete(h.now, ns)
}

// event appends one event that fits what is there.
func (h *History) event(at mongo.OpTime) {
	ns := h.namespace()
	id := int32(h.IntN(12))
	if h.IntN(2) == 0 {
		id = int32(h.IntN(2)) // hot ones
	}
	ev := stream.Event{NS: ns, Route: &stream.Route{Source: ns, Target: ns}, Key: stream.Key{ID: idValue(id)}, At: at}
	was := h.now[ns][id]
	switch k := h.IntN(10); {
	case was == nil:
		ev.Kind, ev.Doc = stream.Insert, kit.Raw(h.document(id))
	case k == 0:
		ev.Kind = stream.Delete
	case k == 1:
		ev.Kind, ev.Doc = stream.Replace, kit.Raw(h.document(id))
	default:
		ev.Kind, ev.Form, ev.Doc = stream.Update, delta.Diff, h.diff(was)
		if k == 2 {
			ev.Form, ev.Doc = delta.Modifiers, h.modifiers(was)
		}
	}
	h.now.apply(&ev)
	h.Events = append(h.Events, ev)
}

func (h *History) document(id int32) bson.D {
	doc := bson.D{{Key: "_id", Value: id}, {Key: "a", Value: int32(h.IntN(1000))}}
	for _, f := range []string{"b", "c", "d"} {
		if h.IntN(2) == 0 {
			doc = append(doc, bson.E{Key: f, Value: h.IntN(1000)})
		}
	}
	return doc
}

// diff changes a field, inserts one or removes one, as an update's diff has it.
func (h *History) diff(was bson.D) bson.Raw {
	f := string(rune('a' + h.IntN(6)))
	i := find(was, f)
	part := bson.E{Key: "u", Value: bson.D{{Key: f, Value: fmt.Sprint("u", h.IntN(1000))}}}
	if i < 0 {
		part.Key = "i"
	} else if h.IntN(3) == 0 {
		part = bson.E{Key: "d", Value: bson.D{{Key: f, Value: false}}}
	}
	return kit.Raw(bson.D{{Key: "$v", Value: int32(2)}, {Key: "diff", Value: bson.D{part}}})
}

// modifiers sets a field that is there, as servers before 5.0 tell it.
func (h *History) modifiers(was bson.D) bson.Raw {
	f := was[h.IntN(len(was))].Key
	if f == "_id" {
		f = "_set"
	}
	if find(was, f) < 0 { // only _id is left: nothing changes
		return kit.Raw(bson.D{{Key: "$v", Value: int32(1)}, {Key: "$set", Value: bson.D{{Key: "_id", Value: was[0].Value}}}})
	}
	return kit.Raw(bson.D{{Key: "$v", Value: int32(1)}, {Key: "$set", Value: bson.D{{Key: f, Value: h.IntN(1000)}}}})
}

func find(d bson.D, name string) int {
	return slices.IndexFunc(d, func(e bson.E) bool { return e.Key == name })
}

func idValue(id int32) bsoncore.Value {
	return bsoncore.Value{Type: bsoncore.TypeInt32, Data: bsoncore.AppendInt32(nil, id)}
}

// apply interprets an event word by word.
func (m model) apply(ev *stream.Event) {
	if ev.Kind == stream.SchemaChange {
		delete(m, ev.Change.NS)
		return
	}
	if m[ev.NS] == nil {
		m[ev.NS] = map[int32]bson.D{}
	}
	id, _ := ev.Key.ID.AsInt32OK()
	var doc bson.D
	if ev.Doc != nil {
		if err := bson.Unmarshal(ev.Doc, &doc); err != nil {
			panic(err)
		}
	}
	switch ev.Kind {
	case stream.Delete:
		delete(m[ev.NS], id)
	case stream.Update:
		m[ev.NS][id] = changed(slices.Clone(m[ev.NS][id]), doc)
	default:
		m[ev.NS][id] = doc
	}
}

// changed makes of a document what an update of one section makes of it.
func changed(doc, update bson.D) bson.D {
	section := update[1]
	if section.Key == "diff" {
		section = section.Value.(bson.D)[0]
	}
	for _, f := range section.Value.(bson.D) {
		i := find(doc, f.Key)
		switch {
		case section.Key == "d":
			doc = slices.Delete(doc, i, i+1)
		case i < 0:
			doc = append(doc, f)
		default:
			doc[i].Value = f.Value
		}
	}
	return doc
}

// after is the model after all events up to and including a position.
func (h *History) after(at mongo.OpTime) model {
	m := model{}
	for i := range h.Events {
		if !at.Before(h.Events[i].At) {
			m.apply(&h.Events[i])
		}
	}
	return m
}

// end is the position of the last event.
func (h *History) end() mongo.OpTime { return h.Events[len(h.Events)-1].At }

// differs reports where a target is not as the model, "" when it is.
func (m model) differs(ns string, docs []bson.Raw) string {
	there := map[int32]bson.Raw{}
	for _, d := range docs {
		id, _ := d.Lookup("_id").Int32OK()
		there[id] = d
	}
	if len(there) != len(docs) {
		return fmt.Sprintf("%s has %d documents under %d _ids", ns, len(docs), len(there))
	}
	for id, want := range m[ns] {
		if !bytes.Equal(there[id], kit.Raw(want)) {
			return fmt.Sprintf("%s, _id %d: %s, want %s", ns, id, there[id], kit.Raw(want))
		}
	}
	for id := range there {
		if m[ns][id] == nil {
			return fmt.Sprintf("%s, _id %d is there and should not be", ns, id)
		}
	}
	return ""
}

// batches cuts the events after a position into batches as a source does, of
// random sizes: transactions, too, fall apart into several.
func (h *History) batches(from mongo.OpTime) (list []*stream.Batch) {
	events := h.Events
	for len(events) > 0 && !from.Before(events[0].At) {
		events = events[1:]
	}
	end := from
	for len(events) > 0 {
		n := min(1+h.IntN(25), len(events))
		b := &stream.Batch{Events: slices.Clone(events[:n]), Start: end, Mark: fmt.Sprint("m", h.IntN(1000)),
			More: h.IntN(2) == 0}
		for i := range b.Events {
			b.Bytes += 50 + len(b.Events[i].Doc)
			if at := b.Events[i].At; i+1 < len(events) && at.Before(events[i+1].At) || i+1 == len(events) {
				end = at
			}
		}
		b.Partial = end.Before(b.Events[n-1].At)
		b.End = end
		list, events = append(list, b), events[n:]
		if !b.Partial && h.IntN(6) == 0 {
			list = append(list, &stream.Batch{Start: end, End: end}) // an idle source
		}
	}
	return list
}
