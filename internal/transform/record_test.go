package transform

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/versions"
	"github.com/millrace/millrace/test/testseed"
)

// recordSink is a target that applies what it is fed whenever it likes, different
// documents in any order.
type recordSink struct {
	r       *rand.Rand
	docs    map[string]bson.Raw // by the _id of a version
	fed     []fedBatch
	applied mongo.OpTime
	durable mongo.OpTime // one of those that were applied
	kill    func() bool
	copied  mongo.OpTime
	strict  bool // no attempt before this one: nothing is written twice
	reach   mongo.OpTime
}

type fedBatch struct {
	events []stream.Event
	end    mongo.OpTime
}

func (k *recordSink) feed(_ context.Context, b *stream.Batch) error {
	if k.kill() {
		return errKilled
	}
	if err := marked(b); err != nil {
		return err
	}
	for i := range b.Events {
		if ev := &b.Events[i]; ev.Kind == stream.SchemaChange {
			k.fed = append(k.fed, fedBatch{events: slices.Clone(b.Events[:i])})
			if err := k.all(); err != nil {
				return err
			}
			if !k.copied.Before(ev.At) { // the copies go
				clear(k.docs)
			}
			b.Events = b.Events[i+1:]
			k.fed = nil
			return k.feed(context.Background(), b)
		}
	}
	k.fed = append(k.fed, fedBatch{slices.Clone(b.Events), b.End})
	return k.some(k.r.IntN(4))
}

// marked checks that nothing is lost when the source is read again from a batch's end: its
// mark is the number of a position, and not behind that end.
func marked(b *stream.Batch) error {
	if mark, err := strconv.Atoi(b.Mark); err != nil || mark > int(b.End.TS.T) {
		return fmt.Errorf("a batch that ends at %s has the mark %q", b.End, b.Mark)
	}
	return nil
}

// some applies so many events, of documents in any order.
func (k *recordSink) some(n int) error {
	for range n {
		if len(k.fed) == 0 {
			return nil
		}
		var open []int // the first of each document
		var where []int
		seen := map[string]bool{}
		for i := range k.fed {
			for j := range k.fed[i].events {
				if key := delta.KeyOf(k.fed[i].events[j].Key.ID); !seen[key] {
					seen[key] = true
					open, where = append(open, i), append(where, j)
				}
			}
		}
		if len(open) > 0 {
			at := k.r.IntN(len(open))
			b := &k.fed[open[at]]
			ev := b.events[where[at]]
			b.events = slices.Delete(b.events, where[at], where[at]+1)
			if err := k.apply(&ev); err != nil {
				return err
			}
		}
		for len(k.fed) > 0 && len(k.fed[0].events) == 0 {
			if k.applied = mongo.MaxOpTime(k.applied, k.fed[0].end); k.r.IntN(3) == 0 {
				k.durable = k.applied
			}
			k.fed = k.fed[1:]
		}
	}
	return nil
}

func (k *recordSink) all() error {
	for len(k.fed) > 0 {
		if err := k.some(1); err != nil {
			return err
		}
	}
	return nil
}

func (k *recordSink) apply(ev *stream.Event) error {
	key := delta.KeyOf(ev.Key.ID)
	was, there := k.docs[key]
	recorded := k.copied.Before(ev.At)
	k.reach = mongo.MaxOpTime(k.reach, ev.At)
	switch ev.Kind {
	case stream.Insert, stream.Put, stream.Replace:
		if !bsonraw.IDOf(ev.Doc).Equal(ev.Key.ID) {
			return fmt.Errorf("%s has the key %s", ev.Doc, ev.Key.ID)
		}
		if recorded && there && (k.strict || !bytes.Equal(was, ev.Doc)) {
			return fmt.Errorf("the version %s is there as %s (%v)", ev.Doc, was, k.strict)
		}
		k.docs[key] = ev.Doc
	case stream.Update:
		if there {
			k.docs[key] = updated(was, ev)
		}
	case stream.Delete:
		delete(k.docs, key)
	}
	if recorded && ev.Kind != stream.Insert {
		return fmt.Errorf("a version is written by %s", ev.Kind)
	}
	return nil
}

func (k *recordSink) Settle(context.Context) error { return k.all() }
func (k *recordSink) Applied() mongo.OpTime        { return k.applied }

func (k *recordSink) Before(_ context.Context, _ string, asked []versions.Asked, _ int) ([]bson.Raw, error) {
	if len(asked) > 1 && k.r.IntN(3) == 0 {
		return nil, ErrTooMuch
	}
	out := make([]bson.Raw, len(asked))
	for i, a := range asked {
		var last versions.Version
		for _, doc := range k.docs {
			v, err := versions.Parse(doc)
			if err != nil {
				return nil, err
			}
			if delta.KeyOf(v.Key) == delta.KeyOf(a.Key) && v.Compare(a.Before) < 0 &&
				(out[i] == nil || v.Compare(last.Position) > 0) {
				out[i], last = doc, v
			}
		}
	}
	return out, nil
}

func (k *recordSink) Last(_ context.Context, _ string, before versions.Position, fn func(bson.Raw) error) error {
	var all []versions.Version
	of := map[string]bson.Raw{}
	for _, doc := range k.docs {
		v, err := versions.Parse(doc)
		if err != nil {
			return err
		}
		all = append(all, v)
		of[fmt.Sprint(v.Key, v.Position)] = doc
	}
	slices.SortFunc(all, func(a, b versions.Version) int {
		return cmp.Or(bytes.Compare(a.Key.Data, b.Key.Data), a.Compare(b.Position))
	})
	newest := versions.NewNewest(before)
	for _, v := range all {
		last, err := newest.Add(of[fmt.Sprint(v.Key, v.Position)])
		if err == nil && last != nil {
			err = fn(last)
		}
		if err != nil {
			return err
		}
	}
	if last := newest.End(); last != nil {
		return fn(last)
	}
	return nil
}

// recordCase is a history, and a copy of it.
type recordCase struct {
	*source
	start, copied uint32
	sink          *recordSink
}

// copy writes each document as it was at some time while the copy went on.
func (c *recordCase) copy() {
	of := c.states[c.start-1].uuid
	for id := range 6 {
		s := c.states[c.start-1+uint32(c.r.IntN(int(c.copied-c.start+1)))]
		if doc := s.docs[id]; doc != nil && s.uuid == of {
			v := bson.Raw(versions.AppendCopy(nil, doc, when(c.start).TS, when(c.start).TS))
			c.sink.docs[delta.KeyOf(bsonraw.IDOf(v))] = v
		}
	}
}

// expected is all versions that there have to be.
func (c *recordCase) expected() map[string]bson.Raw {
	want, docs, changed := map[string]bson.Raw{}, map[int]bson.Raw{}, map[int]bson.Timestamp{}
	add := func(v versions.Version) {
		doc := bson.Raw(versions.Append(nil, v))
		want[delta.KeyOf(bsonraw.IDOf(doc))] = doc
	}
	var last bson.Timestamp
	place, began := int32(0), false
	begin := func() {
		for id, doc := range docs {
			at := when(c.start).TS
			if later, ok := changed[id]; ok {
				at = later
			}
			add(versions.Version{Key: idOf(id), Position: versions.Position{T: when(c.start).TS}, Op: versions.Copy, At: at,
				Doc: doc})
		}
		began = true
	}
	for i := range c.events {
		ev := &c.events[i]
		if ev.At.TS != last {
			last, place = ev.At.TS, 0
		}
		if !began && ev.At.TS.T > c.copied {
			begin()
		}
		v := versions.Version{Key: ev.Key.ID, Position: versions.Position{T: ev.At.TS, N: place}, Op: ev.Kind.String()}
		if ev.Kind == stream.SchemaChange {
			for id := range docs {
				if v.Op, v.Key = versions.Drop, idOf(id); began {
					add(v)
				}
			}
			clear(docs)
			place += 2
			continue
		}
		place++
		id := int(bsonraw.RawValue(ev.Key.ID).Int32())
		switch ev.Kind {
		case stream.Insert, stream.Replace:
			docs[id] = ev.Doc
		case stream.Update:
			docs[id] = updated(docs[id], ev)
		case stream.Delete:
			delete(docs, id)
		}
		if v.Doc = docs[id]; began {
			add(v)
		} else if ev.At.TS.T > c.start {
			changed[id] = ev.At.TS
		}
	}
	if !began {
		begin()
	}
	return want
}

// run passes all events on, in random batches, from the beginning of the copy.
func (c *recordCase) run(ctx context.Context, rules *Set) error {
	k := c.sink
	stage := func(at mongo.OpTime) *Stage {
		st := NewStage(rules, stream.Position{At: at, Mark: strconv.Itoa(int(at.TS.T))}, nil, nil)
		st.Record(Histories{Start: when(c.start), Copied: when(c.copied), Versions: k})
		st.atOnce = 1 + c.r.IntN(3)
		st.recorder.atOnce = 1 + c.r.IntN(3)
		st.recorder.most = c.r.IntN(600)
		return st
	}
	st, from, start := stage(when(c.start)), c.after(when(c.start)), c.start
	k.applied, k.durable, k.strict = when(start), when(start), true
	for from < len(c.events) {
		to := min(from+1+c.r.IntN(10), len(c.events))
		last := c.events[to-1].At.TS.T
		b := &stream.Batch{Events: slices.Clone(c.events[from:to]), Start: when(start), End: when(last)}
		if to < len(c.events) && c.events[to].At.TS.T == last {
			b.End, b.Partial = when(last-1), true
		}
		b.Mark = strconv.Itoa(int(b.End.TS.T))
		err := st.Pass(ctx, b, nil, k.feed)
		from, start = to, b.End.TS.T
		switch {
		case errors.Is(err, errKilled):
			if err := k.some(k.r.IntN(10)); err != nil { // the rest is lost
				return err
			}
			k.fed, k.applied, k.strict = nil, k.durable, false
			start, st, from = k.durable.TS.T, stage(k.durable), c.after(k.durable)
		case err != nil:
			return err
		}
	}
	if err := k.all(); err != nil {
		return err
	}
	if want := c.expected(); !maps.EqualFunc(k.docs, want, func(a, b bson.Raw) bool { return bytes.Equal(a, b) }) {
		return fmt.Errorf("the copy was from %d to %d; versions\n%s\nwant\n%s\nof %v", c.start, c.copied, list(k.docs),
			list(want), c.events)
	}
	return nil
}

func list(docs map[string]bson.Raw) (out string) {
	var lines []string
	for _, doc := range docs {
		lines = append(lines, doc.String()+"\n")
	}
	slices.Sort(lines)
	return fmt.Sprint(lines)
}

// after is the first event after a position.
func (c *recordCase) after(at mongo.OpTime) int {
	i := slices.IndexFunc(c.events, func(ev stream.Event) bool { return at.Before(ev.At) })
	if i < 0 {
		return len(c.events)
	}
	return i
}

// TestRecord: whatever the history, wherever it is cut into batches, however late a target
// applies them, and whenever the job is killed, each change after the copy is a version of
// what the document was then, written once, and what the copy wrote is what the documents
// were at its end.
func TestRecord(t *testing.T) { testseed.Each(t, records) }

func records(t *testing.T, seed uint64) {
	rules := mustNew(t, Config{History: []string{"db.c"}})
	for round := range 2000 {
		s := &source{r: rand.New(rand.NewPCG(seed, uint64(round)))}
		for range 5 + s.r.IntN(60) {
			s.write()
			s.drops = round%2 == 0
		}
		c := recordCase{source: s, start: 1 + uint32(s.r.IntN(int(s.now)))}
		c.copied = c.start + uint32(s.r.IntN(int(s.now-c.start+1)))
		kills := round%3 == 0
		c.sink = &recordSink{r: s.r, docs: map[string]bson.Raw{}, copied: when(c.copied),
			kill: func() bool { return kills && s.r.IntN(15) == 0 }}
		c.copy()
		if err := c.run(t.Context(), rules); err != nil {
			t.Fatalf("seed %d round %d, %v", seed, round, err)
		}
	}
}
