package transform

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
)

// source is a collection through time, which is dropped now and then.
type source struct {
	r      *rand.Rand
	now    uint32
	states []generation // by time
	events []stream.Event
	uuid   byte
	drops  bool
	alone  bool // what comes next has a time of its own
}

// generation is what a collection holds, from one drop to the next.
type generation struct {
	uuid byte
	docs map[int]bson.Raw
}

func (s *source) at() mongo.OpTime { return when(s.now) }

func when(n uint32) mongo.OpTime { return mongo.OpTime{TS: bson.Timestamp{T: n}, Term: 1} }

func idOf(id int) bsoncore.Value {
	return bsoncore.Value{Type: bsoncore.TypeInt32, Data: bsoncore.AppendInt32(nil, int32(id))}
}

// a is a value of the field that rules are about.
func (s *source) a() any {
	return []any{0, 1, 2, 3, "1", "x"}[s.r.IntN(6)]
}

// write does something to a document, or to all. Some events share a time, as those of a
// transaction.
func (s *source) write() {
	drop := s.drops && s.r.IntN(12) == 0
	if s.now == 0 || s.alone || drop || s.r.IntN(4) > 0 {
		s.now++
		s.states = append(s.states, generation{s.uuid, maps.Clone(s.latest())})
	}
	if s.alone = drop; drop {
		s.events = append(s.events, stream.Event{Kind: stream.SchemaChange, NS: "db.c", At: s.at(),
			Change: &stream.Change{Kind: stream.ChangeDrop, NS: "db.c"}})
		s.uuid++
		s.states[s.now-1] = generation{s.uuid, map[int]bson.Raw{}}
		return
	}
	id := s.r.IntN(6)
	s.events = append(s.events, s.writeTo(s.states[s.now-1].docs, id))
}

func (s *source) writeTo(docs map[int]bson.Raw, id int) stream.Event {
	ev := stream.Event{NS: "db.c", UUID: &[16]byte{s.uuid}, Key: stream.Key{ID: idOf(id)}, At: s.at()}
	doc, there := docs[id]
	fresh := func() bson.Raw {
		return kit.Raw(bson.D{{Key: "_id", Value: id}, {Key: "a", Value: s.a()}, {Key: "b", Value: s.r.IntN(100)},
			{Key: "pad", Value: string(make([]byte, s.r.IntN(40)))}})
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
		ev.Doc = kit.Raw(bson.D{{Key: "$v", Value: 2},
			{Key: "diff", Value: bson.D{{Key: "u", Value: bson.D{{Key: field, Value: s.a()}}}}}})
		docs[id] = updated(doc, &ev)
	}
	return ev
}

func updated(doc bson.Raw, ev *stream.Event) bson.Raw {
	d, err := delta.ParseAs(ev.Form, ev.Doc)
	if err != nil {
		panic(err)
	}
	out, _, err := delta.Apply(nil, doc, d)
	if err != nil {
		panic(err)
	}
	return out
}

func (s *source) latest() map[int]bson.Raw {
	if len(s.states) == 0 {
		return map[int]bson.Raw{}
	}
	return s.states[len(s.states)-1].docs
}

// read tells of documents as of the position, or later.
func (s *source) read(exact bool) Read {
	return func(_ context.Context, of *stream.Event, ids []bson.RawValue, at mongo.OpTime, _ int) ([]bson.Raw,
		mongo.OpTime, error) {
		if len(ids) > 1 && s.r.IntN(3) == 0 {
			return nil, at, ErrTooMuch
		}
		until := at.TS.T
		if !exact {
			until += uint32(s.r.IntN(int(s.now-at.TS.T) + 1))
		}
		var docs []bson.Raw
		for _, id := range ids {
			then := s.states[at.TS.T+uint32(s.r.IntN(int(until-at.TS.T)+1))-1] // each as of another time
			if then.uuid != of.UUID[0] {
				then.docs = nil
			}
			docs = append(docs, then.docs[int(id.Int32())])
		}
		return docs, when(until), nil
	}
}

// sink is a target that says what it did not expect.
type sink struct {
	docs  map[int]bson.Raw
	kept  letters
	until mongo.OpTime // until where it may be ahead
	fed   mongo.OpTime
	kill  func() bool // asked after each batch, and where a letter is written
	wrong []string
}

var errKilled = errors.New("killed")

func (k *sink) feed(_ context.Context, b *stream.Batch) error {
	if err := marked(b); err != nil {
		return err
	}
	if b.End.Before(b.Until) {
		k.until = mongo.MaxOpTime(k.until, b.Until)
	}
	for i := range b.Events {
		ev := &b.Events[i]
		ahead := !ev.Until.IsZero() || !k.until.Before(ev.At)
		id := 0
		if ev.Kind != stream.SchemaChange {
			id = int(bsonraw.RawValue(ev.Key.ID).Int32())
		}
		doc, there := k.docs[id]
		switch ev.Kind {
		case stream.SchemaChange:
			clear(k.docs)
			clear(k.kept.docs)
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
			if there {
				k.docs[id] = updated(doc, ev)
			}
		case stream.Replace:
			if there {
				k.docs[id] = ev.Doc
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

// letters is a LeftOut that outlives a kill.
type letters struct {
	docs map[int]bson.Raw
	kill func() bool
}

func (l letters) LeaveOut(_ context.Context, u Unmapped) error {
	l.docs[int(bsonraw.RawValue(u.ID).Int32())] = u.Doc
	return l.written()
}

func (l letters) IsUnmapped(_ string, id bsonraw.ID) bool {
	return l.docs[int(bsonraw.RawValue(id).Int32())] != nil
}

func (l letters) SettleUnmapped(_ context.Context, _ string, id bsonraw.ID, _ string) error {
	delete(l.docs, int(bsonraw.RawValue(id).Int32()))
	return l.written()
}

func (l letters) written() error {
	if l.kill() {
		return errKilled
	}
	return nil
}

// passing is a run of the model: a source, a target, and rules between them.
type passing struct {
	*source
	sink  *sink
	rules *Set
	exact bool
}

// expected is what the rules make of the source as of a time, and what they cannot map. It
// asks no rule for fields: they make an integer of a, and name b z.
func (p *passing) expected(at uint32) (docs, unmapped map[int]bson.Raw) {
	docs, unmapped = map[int]bson.Raw{}, map[int]bson.Raw{}
	if at == 0 {
		return docs, unmapped
	}
	keep := p.rules.Route("db.c").Filter
	for id, doc := range p.states[at-1].docs {
		if keep != nil && !keep.Match(doc) {
			continue
		}
		if len(p.rules.mappings) == 0 {
			docs[id] = doc
			continue
		}
		var d bson.D
		if err := bson.Unmarshal(doc, &d); err != nil {
			panic(err)
		}
		text, isText := d[1].Value.(string)
		n, err := strconv.Atoi(text)
		switch {
		case isText && err != nil:
			unmapped[id] = doc
			continue
		case isText:
			d[1].Value = int32(n)
		}
		d[2].Key = "z"
		docs[id] = kit.Raw(d)
	}
	return docs, unmapped
}

func same(a, b map[int]bson.Raw) bool {
	return maps.EqualFunc(a, b, func(a, b bson.Raw) bool { return bytes.Equal(a, b) })
}

func (p *passing) check(at uint32) error {
	docs, unmapped := p.expected(at)
	if !same(p.sink.docs, docs) {
		return fmt.Errorf("exact %v: at %d the target has\n%v\nwant\n%v", p.exact, at, p.sink.docs, docs)
	}
	if !same(p.sink.kept.docs, unmapped) {
		return fmt.Errorf("exact %v: at %d there are letters of\n%v\nwant\n%v", p.exact, at, p.sink.kept.docs, unmapped)
	}
	return nil
}

// run passes all events on, in random batches.
func (p *passing) run(ctx context.Context) error {
	st, k := NewStage(p.rules, stream.Position{Mark: "0"}, nil, p.sink.kept), p.sink
	for from, start := 0, uint32(0); from < len(p.events); {
		to := min(from+1+p.r.IntN(10), len(p.events))
		last := p.events[to-1].At.TS.T
		b := &stream.Batch{Events: slices.Clone(p.events[from:to]), Start: when(start), End: when(last)}
		if to < len(p.events) && p.events[to].At.TS.T == last {
			b.End, b.Partial = when(last-1), true
		}
		b.Mark = strconv.Itoa(int(b.End.TS.T))
		err := st.Pass(ctx, b, p.read(p.exact), k.feed)
		from, start = to, b.End.TS.T
		switch {
		case errors.Is(err, errKilled):
			start, st, k.until = k.fed.TS.T, NewStage(p.rules, stream.Position{At: k.fed, Mark: strconv.Itoa(int(k.fed.TS.T))},
				nil, k.kept), p.at()
			from = slices.IndexFunc(p.events, func(ev stream.Event) bool { return k.fed.Before(ev.At) })
			if from < 0 {
				from = len(p.events)
			}
		case err != nil:
			return err
		case p.exact && !b.Partial && k.until.IsZero():
			if err := p.check(last); err != nil {
				return err
			}
		}
	}
	if len(k.wrong) > 0 {
		return fmt.Errorf("%v", k.wrong)
	}
	return p.check(p.now)
}

// TestPass: whatever the history and wherever it is cut into batches, the target ends
// with what the rules make of the source, and the letters with what they cannot map.
// Where documents are read as of the very position it has that after each batch. A job
// that is killed begins again behind what it has fed last, with a target that may be
// ahead.
func TestPass(t *testing.T) { testseed.Each(t, passes) }

func passes(t *testing.T, seed uint64) {
	mapped := []string{`db.c={"convert":{"a":{"to":"int"}},"rename":{"b":"z"}}`}
	for name, c := range map[string]Config{
		"filter": {Filter: []string{`db.c={"a":{"$in":[1,2]}}`}},
		"fields": {Fields: mapped},
		"both":   {Filter: []string{`db.c={"a":{"$in":[1,2,"1","x"]}}`}, Fields: mapped},
	} {
		t.Run(name, func(t *testing.T) {
			rules := mustNew(t, c)
			for round := range 2000 {
				s := &source{r: rand.New(rand.NewPCG(seed, uint64(round)))}
				s.drops = s.r.IntN(2) == 0
				for range 5 + s.r.IntN(60) {
					s.write()
				}
				kill := func() bool { return s.r.IntN(30) == 0 }
				p := passing{source: s, rules: rules, exact: s.r.IntN(2) == 0,
					sink: &sink{docs: map[int]bson.Raw{}, kill: kill, kept: letters{map[int]bson.Raw{}, kill}}}
				if err := p.run(t.Context()); err != nil {
					t.Fatalf("seed %d round %d, %v", seed, round, err)
				}
			}
		})
	}
}

// TestPassGone: of a document that is gone when it is read, what the target has of it
// decides whether it had expired.
func TestPassGone(t *testing.T) {
	rules := mustNew(t, Config{Filter: []string{`db.c={"a":1}`}, Skip: []string{"db.c=ttl"}})
	update := stream.Event{Kind: stream.Update, Form: delta.Diff, NS: "db.c", Key: stream.Key{ID: idOf(1)}, At: when(5),
		Doc: kit.Raw(bson.D{{Key: "$v", Value: 2},
			{Key: "diff", Value: bson.D{{Key: "u", Value: bson.D{{Key: "a", Value: 1}}}}}})}
	left := update
	left.Key.ID = idOf(2)
	read := func(_ context.Context, _ *stream.Event, ids []bson.RawValue, _ mongo.OpTime, _ int) ([]bson.Raw, mongo.OpTime,
		error) {
		docs := make([]bson.Raw, len(ids))
		for i, id := range ids {
			if id.Int32() == 2 { // is in the filter no more
				docs[i] = kit.Raw(bson.D{{Key: "_id", Value: 2}, {Key: "a", Value: 2}})
			}
		}
		return docs, when(9), nil
	}
	b := &stream.Batch{Events: []stream.Event{update, left}, End: when(5)}
	var walls []int64
	err := NewStage(rules, stream.Position{}, nil, nil).Pass(t.Context(), b,
		read, func(_ context.Context, b *stream.Batch) error {
			for _, ev := range b.Events {
				if ev.Kind != stream.Delete {
					t.Errorf("%s of %s", ev.Kind, bsonraw.IDText(ev.Key.ID))
				}
				walls = append(walls, ev.Wall)
			}
			return nil
		})
	if err != nil || !slices.Equal(walls, []int64{10_000, 0}) {
		t.Errorf("%v, %v", walls, err)
	}
}

// TestPassGoneByUser: a document that is gone when it is read, and whose deletion is in the
// batch, had expired as that says: by the server's clock, which the cluster's time may be far
// ahead of, and not at all where a session deletes it. One that comes again is deleted later.
func TestPassGoneByUser(t *testing.T) {
	rules := mustNew(t, Config{Filter: []string{`db.c={"a":1}`}, Skip: []string{"db.c=ttl"}})
	read := func(_ context.Context, _ *stream.Event, ids []bson.RawValue, _ mongo.OpTime, _ int) ([]bson.Raw, mongo.OpTime,
		error) {
		return make([]bson.Raw, len(ids)), when(3609), nil
	}
	var events []stream.Event
	for id := 1; id <= 3; id++ {
		events = append(events, stream.Event{Kind: stream.Update, Form: delta.Diff, NS: "db.c", Key: stream.Key{ID: idOf(id)},
			At: when(3605), Wall: 5000,
			Doc: kit.Raw(bson.D{{Key: "$v", Value: 2},
				{Key: "diff", Value: bson.D{{Key: "u", Value: bson.D{{Key: "a", Value: 1}}}}}})})
	}
	for i, wall := range []int64{7000, 0, 7000} {
		events = append(events, stream.Event{Kind: stream.Delete, NS: "db.c", Key: events[i].Key, At: when(3607), Wall: wall})
	}
	events = append(events, stream.Event{Kind: stream.Insert, NS: "db.c", Key: events[2].Key, At: when(3608), Wall: 8000,
		Doc: kit.Raw(bson.D{{Key: "_id", Value: 3}, {Key: "a", Value: 1}})})
	var walls []int64
	err := NewStage(rules, stream.Position{}, nil, nil).Pass(t.Context(), &stream.Batch{Events: events, End: when(3608)},
		read, func(_ context.Context, b *stream.Batch) error {
			for _, ev := range b.Events {
				if ev.Kind != stream.Delete {
					t.Errorf("%s of %s", ev.Kind, bsonraw.IDText(ev.Key.ID))
				}
				walls = append(walls, ev.Wall)
			}
			return nil
		})
	if err != nil || !slices.Equal(walls, []int64{7000, 0, 3610_000}) {
		t.Errorf("%v, %v", walls, err)
	}
}

// TestPassGoneStays: a document that is gone when it is read stays on the target where
// rules say that what the source deletes does, and what tells of its deletion passes.
func TestPassGoneStays(t *testing.T) {
	update := stream.Event{Kind: stream.Update, Form: delta.Diff, NS: "db.c", Key: stream.Key{ID: idOf(1)}, At: when(5),
		Doc: kit.Raw(bson.D{{Key: "$v", Value: 2},
			{Key: "diff", Value: bson.D{{Key: "u", Value: bson.D{{Key: "a", Value: 1}}}}}})}
	other := update // does not concern the filter
	other.Doc = kit.Raw(bson.D{{Key: "$v", Value: 2},
		{Key: "diff", Value: bson.D{{Key: "u", Value: bson.D{{Key: "b", Value: 1}}}}}})
	gone := stream.Event{Kind: stream.Delete, NS: "db.c", Key: update.Key, At: when(6)}
	for _, c := range []struct {
		name    string
		rules   Config
		dropped bool
		want    string
	}{
		{"deleted", Config{}, false, "delete"},
		{"dropped", Config{}, true, "delete"},
		{"skip delete", Config{Skip: []string{"db.c=delete"}}, false, "update"}, // the other one
		{"skip delete, dropped", Config{Skip: []string{"db.c=delete"}}, true, "update"},
		{"skip drop", Config{Skip: []string{"db.c=drop"}}, false, "delete"},
		{"skip drop, dropped", Config{Skip: []string{"db.c=drop"}}, true, "update delete"}, // the events' own
		{"skip rename", Config{Skip: []string{"db.c=rename"}}, false, "delete"},
		{"skip rename, dropped", Config{Skip: []string{"db.c=rename"}}, true, "update delete"}, // by one onto it
		{"soft delete", Config{SoftDelete: []string{"db.c=deletedAt"}}, false, "update update"},
		{"soft delete, dropped", Config{SoftDelete: []string{"db.c=deletedAt"}}, true, "update update"},
	} {
		for _, later := range []bool{false, true} { // the deletion is told of by the next batch
			c.rules.Filter = []string{`db.c={"a":1}`}
			read := func(_ context.Context, _ *stream.Event, ids []bson.RawValue, _ mongo.OpTime, _ int) ([]bson.Raw,
				mongo.OpTime, error) {
				if c.dropped {
					return nil, when(9), nil
				}
				return make([]bson.Raw, len(ids)), when(9), nil
			}
			batches := [][]stream.Event{{update, other, gone}}
			if later {
				batches = [][]stream.Event{{update, other}, {gone}}
			}
			stage := NewStage(mustNew(t, c.rules), stream.Position{}, nil, nil)
			var got []string
			for _, events := range batches {
				b := &stream.Batch{Events: events, End: when(6)}
				err := stage.Pass(t.Context(), b, read, func(_ context.Context, b *stream.Batch) error {
					for _, ev := range b.Events {
						got = append(got, ev.Kind.String())
						if b.Until.IsZero() != (ev.Until.IsZero()) {
							t.Errorf("%s: %s may meet another document than it expects, and does not say so", c.name, ev.Kind)
						}
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
			want := c.want
			if later && want == "delete" { // the one that was made of the update comes first
				want = "delete delete"
			}
			if strings.Join(got, " ") != want {
				t.Errorf("%s, later %t: %q pass, want %q", c.name, later, got, want)
			}
		}
	}
}
