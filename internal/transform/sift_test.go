package transform

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

func marshal(v any) bson.Raw {
	raw, err := bson.Marshal(v)
	if err != nil {
		panic(err)
	}
	return raw
}

func TestFilterRules(t *testing.T) {
	for text, want := range map[string]string{
		`shop.orders={"status":"open"}`:            `shop.orders={"status":"open"}`,
		`shop={"a":{"$gt":5},"b":";x\\;"}`:         `shop.*={"a":{"$gt":{"$numberInt":"5"}},"b":"\u003bx\\\u003b"}`,
		`a\=b.c={"x":null}`:                        `a\=b.c={"x":null}`,
		`a.*={"$or":[{"b":1.0},{"b":{"$in":[]}}]}`: `a.*={"$or":[{"b":{"$numberDouble":"1.0"}},{"b":{"$in":[]}}]}`,
	} {
		s, err := New(Config{Filter: []string{text}})
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := s.String(); got != "filter "+want {
			t.Errorf("%s is written as %s", text, got)
		}
		again, err := Parse(s.String())
		if err != nil || again.String() != s.String() || again.Hash() != s.Hash() {
			t.Errorf("%s is read as %v, %v", s, again, err)
		}
	}
	for text, want := range map[string]string{
		`shop.orders`:                            "the =",
		`shop.orders={status}`:                   "JSON",
		`={"a":1}`:                               "database",
		`shop.orders={"$where":"1"}`:             "$where",
		`shop.orders={"a":{"$foo":1}}`:           "$foo",
		`shop.orders={"a":{"$regex":"(?<=a)b"}}`: "regex",
	} {
		if _, err := New(Config{Filter: []string{text}}); err == nil || !bytes.Contains([]byte(err.Error()), []byte(want)) {
			t.Errorf("%s: %v, want something of %q", text, err, want)
		}
	}
	s := mustNew(t, Config{Filter: []string{`a.b={"x":1}`, `a.*={"x":2}`}})
	for ns, want := range map[string]string{"a.b": `{"x": {"$numberInt":"1"}}`, "a.c": `{"x": {"$numberInt":"2"}}`, "b.b": "", "a.system.buckets.b": ""} {
		got := ""
		if q := s.Filter(ns); q != nil {
			got = q.Raw().String()
		}
		if got != want {
			t.Errorf("%s is filtered by %q, want %q", ns, got, want)
		}
	}
	if s.SameDocuments("a.b", "a.c") || !s.SameDocuments("a.c", "a.d") || !s.SameDocuments("b.b", "c.c") {
		t.Error("which namespaces have the same filter")
	}
}

// source is a collection through time.
type source struct {
	r      *rand.Rand
	now    uint32
	states []map[int]bson.Raw // by time
	events []stream.Event
	uuid   [16]byte
}

func (s *source) at() mongo.OpTime { return when(s.now) }

func when(n uint32) mongo.OpTime { return mongo.OpTime{TS: bson.Timestamp{T: n}, Term: 1} }

func idOf(id int) bsoncore.Value {
	return bsoncore.Value{Type: bsoncore.TypeInt32, Data: bsoncore.AppendInt32(nil, int32(id))}
}

// write does something to a document. Some events share a time, as those of a
// transaction.
func (s *source) write() {
	if s.now == 0 || s.r.IntN(4) > 0 {
		s.now++
		s.states = append(s.states, maps.Clone(s.latest()))
	}
	docs := s.states[len(s.states)-1]
	id := s.r.IntN(6)
	ev := stream.Event{NS: "db.c", UUID: &s.uuid, Key: stream.Key{ID: idOf(id)}, At: s.at()}
	doc, there := docs[id]
	fresh := func() bson.Raw {
		return marshal(bson.D{{Key: "_id", Value: id}, {Key: "a", Value: s.r.IntN(4)}, {Key: "b", Value: s.r.IntN(100)}, {Key: "pad", Value: string(make([]byte, s.r.IntN(40)))}})
	}
	switch {
	case !there:
		ev.Kind, ev.Doc = stream.Insert, fresh()
		docs[id] = ev.Doc
	case s.r.IntN(6) == 0:
		ev.Kind = stream.Delete
		delete(docs, id)
	case s.r.IntN(5) == 0:
		ev.Kind, ev.Doc = stream.Replace, fresh()
		docs[id] = ev.Doc
	default:
		field := []string{"a", "b", "b"}[s.r.IntN(3)]
		ev.Kind, ev.Form = stream.Update, delta.Diff
		ev.Doc = marshal(bson.D{{Key: "$v", Value: 2}, {Key: "diff", Value: bson.D{{Key: "u", Value: bson.D{{Key: field, Value: s.r.IntN(4)}}}}}})
		d, err := delta.ParseAs(ev.Form, ev.Doc)
		if err != nil {
			panic(err)
		}
		if docs[id], _, err = delta.Apply(nil, doc, d); err != nil {
			panic(err)
		}
	}
	s.events = append(s.events, ev)
}

func (s *source) latest() map[int]bson.Raw {
	if len(s.states) == 0 {
		return map[int]bson.Raw{}
	}
	return s.states[len(s.states)-1]
}

// read tells of documents as of the position, or later.
func (s *source) read(exact bool) Read {
	return func(_ context.Context, _ *stream.Event, ids []bson.RawValue, at mongo.OpTime, _ int) ([]bson.Raw, mongo.OpTime, error) {
		if len(ids) > 1 && s.r.IntN(3) == 0 {
			return nil, at, ErrTooMuch
		}
		until := at.TS.T
		if !exact {
			until += uint32(s.r.IntN(int(s.now-at.TS.T) + 1))
		}
		var docs []bson.Raw
		for _, id := range ids {
			then := at.TS.T + uint32(s.r.IntN(int(until-at.TS.T)+1)) // each as of another time
			docs = append(docs, s.states[then-1][int(id.Int32())])
		}
		return docs, when(until), nil
	}
}

// sink is a target that says what it did not expect.
type sink struct {
	docs  map[int]bson.Raw
	until mongo.OpTime // until where it may be ahead
	fed   mongo.OpTime
	kill  func() bool // asked after each batch
	wrong []string
}

var errKilled = errors.New("killed")

func (k *sink) feed(_ context.Context, b *stream.Batch) error {
	if b.End.Before(b.Until) {
		k.until = mongo.MaxOpTime(k.until, b.Until)
	}
	for i := range b.Events {
		ev := &b.Events[i]
		ahead := !ev.Until.IsZero() || !k.until.Before(ev.At)
		id := int(bsonraw.RawValue(ev.Key.ID).Int32())
		doc, there := k.docs[id]
		switch ev.Kind {
		case stream.Insert:
			if there && !ahead {
				k.wrong = append(k.wrong, fmt.Sprintf("%d is inserted at %s and there already", id, ev.At))
			}
			k.docs[id] = ev.Doc
		case stream.Put:
			k.docs[id] = ev.Doc
		case stream.Delete:
			delete(k.docs, id)
		case stream.Update:
			if d, err := delta.ParseAs(ev.Form, ev.Doc); err != nil {
				return err
			} else if there {
				out, _, err := delta.Apply(nil, doc, d)
				if err != nil {
					return err
				}
				k.docs[id] = out
			}
		default:
			k.wrong = append(k.wrong, ev.Kind.String())
		}
	}
	if b.End.Before(k.fed) {
		k.wrong = append(k.wrong, "the position goes back")
	}
	k.fed = b.End
	if k.kill() {
		return errKilled
	}
	return nil
}

// TestPass: whatever the history and wherever it is cut into batches, the target ends
// with what the filter keeps. Where documents are read as of the very position it has
// that after each batch. A job that is killed begins again behind what it has fed last,
// with a target that may be ahead.
func TestPass(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rules := mustNew(t, Config{Filter: []string{`db.c={"a":{"$in":[1,2]}}`}})
	keep := rules.Filter("db.c")
	for round := range 3000 {
		s := &source{r: rand.New(rand.NewPCG(seed, uint64(round)))}
		for range 5 + s.r.IntN(60) {
			s.write()
		}
		exact := s.r.IntN(2) == 0
		st, k := NewStage(rules, stream.Position{}, nil), &sink{docs: map[int]bson.Raw{}, kill: func() bool { return s.r.IntN(30) == 0 }}
		filtered := func(at uint32) map[int]bson.Raw {
			out := map[int]bson.Raw{}
			if at > 0 {
				for id, doc := range s.states[at-1] {
					if keep.Match(doc) {
						out[id] = doc
					}
				}
			}
			return out
		}
		check := func(at uint32) {
			if want := filtered(at); !maps.EqualFunc(k.docs, want, func(a, b bson.Raw) bool { return bytes.Equal(a, b) }) {
				t.Fatalf("seed %d round %d, exact %v: at %d the target has\n%v\nwant\n%v", seed, round, exact, at, k.docs, want)
			}
		}
		for from, start := 0, uint32(0); from < len(s.events); {
			to := min(from+1+s.r.IntN(10), len(s.events))
			last := s.events[to-1].At.TS.T
			b := &stream.Batch{Events: slices.Clone(s.events[from:to]), Start: when(start), End: when(last), Mark: fmt.Sprint(to)}
			if to < len(s.events) && s.events[to].At.TS.T == last {
				b.End, b.Partial = when(last-1), true
			}
			err := st.Pass(t.Context(), b, s.read(exact), k.feed)
			from, start = to, b.End.TS.T
			switch {
			case errors.Is(err, errKilled):
				start, st, k.until = k.fed.TS.T, NewStage(rules, stream.Position{At: k.fed}, nil), s.at()
				from = slices.IndexFunc(s.events, func(ev stream.Event) bool { return k.fed.Before(ev.At) })
				if from < 0 {
					from = len(s.events)
				}
			case err != nil:
				t.Fatal(err)
			case exact && !b.Partial && k.until.IsZero():
				check(last)
			}
		}
		check(s.now)
		if len(k.wrong) > 0 {
			t.Fatalf("seed %d round %d: %v", seed, round, k.wrong)
		}
	}
}
