package mongosink

import (
	"bytes"
	"context"
	"fmt"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/state/deadletter"
)

// Place is a document of target namespace NS at the position of an event.
type Place struct {
	NS string
	ID bson.RawValue
	At mongo.OpTime
	// Source and UUID are those of the source's collection, as far as an event
	// told.
	Source string
	UUID   *[16]byte
}

func (p Place) origin() Origin { return Origin{Target: p.NS, Source: p.Source, UUID: p.UUID} }

const (
	// manySkipped is from how many skipped documents on the source is asked
	// which of them it still has.
	manySkipped = 1000
	// mostSkipped and mostSkippedBytes bound those that remain.
	mostSkipped      = 50_000
	mostSkippedBytes = 8 << 20
	// askAtOnce is how many documents one question names.
	askAtOnce = 500
)

// skipped are documents that updates found missing inside the window. A later
// event should have deleted them; whether one did is looked at when the window
// ends. It is safe for concurrent use.
type skipped struct {
	mu      sync.Mutex
	byKey   map[string]Place
	bytes   int
	version int // changes with the list
	askFrom int // how many there have to be for the next question
}

func newSkipped(list []Place) *skipped {
	s := &skipped{byKey: map[string]Place{}, askFrom: manySkipped}
	for _, p := range list {
		s.put(p)
	}
	s.version = 0
	return s
}

func placeKey(ns string, id bsoncore.Value) string { return parkKey(&target{ns: ns}, id) }

func (p Place) value() bsoncore.Value {
	return bsonraw.FromRaw(p.ID)
}

// put is called with mu held, or before anybody else knows s.
func (s *skipped) put(p Place) {
	key := placeKey(p.NS, p.value())
	if _, known := s.byKey[key]; known {
		return // the first one counts
	}
	s.bytes += len(key) + len(p.ID.Value)
	s.byKey[key] = p
	s.version++
}

func (s *skipped) has(ns string, id bsoncore.Value) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.byKey) == 0 {
		return false
	}
	_, known := s.byKey[placeKey(ns, id)]
	return known
}

func (s *skipped) add(p Place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(p)
}

func (s *skipped) remove(p Place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := placeKey(p.NS, p.value())
	if _, known := s.byKey[key]; known {
		s.bytes -= len(key) + len(p.ID.Value)
		delete(s.byKey, key)
		s.version++
	}
}

func (s *skipped) list() (list []Place, version int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.byKey {
		list = append(list, p)
	}
	return list, s.version
}

func (s *skipped) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byKey)
}

// crowded reports that the source should be asked now.
func (s *skipped) crowded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byKey) >= s.askFrom || s.bytes >= mostSkippedBytes
}

func (s *skipped) asked() (full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.askFrom = max(manySkipped, 2*len(s.byKey))
	return len(s.byKey) > mostSkipped || s.bytes >= mostSkippedBytes
}

// renamed follows a rename, or forgets a namespace that is gone (to is "").
func (s *skipped) renamed(from, to string) {
	list, _ := s.list()
	for _, p := range list {
		if p.NS != from {
			continue
		}
		s.remove(p)
		if p.NS, p.Source = to, ""; to != "" {
			s.add(p)
		}
	}
}

// Skipped are the documents that updates found missing inside the window and
// that no later event has explained yet, and a number that changes with them.
// What is on the list when Applied is read covers that position.
func (e *Engine) Skipped() ([]Place, int) { return e.skipped.list() }

// excused reports an update whose document may be missing: inside the window, and
// after it until the document has been looked for.
func (w *worker) excused(t *target, o *op) bool { return o.window || w.e.skipped.has(t.ns, o.id) }

// skip leaves out an update whose document is missing and that is excused.
func (w *worker) skip(t *target, o *op) {
	w.e.n.skipped.Add(1)
	if w.e.o.OnSource == nil {
		return // nobody could tell
	}
	w.e.skipped.add(Place{NS: t.ns, ID: bson.RawValue{Type: bson.Type(o.id.Type), Value: bytes.Clone(o.id.Data)}, At: o.at, Source: t.source, UUID: t.uuid})
}

// collection is one of the target that stands for one of the source.
type collection struct {
	ns   string
	uuid [16]byte // zero where no event told
}

func (p Place) collection() collection {
	c := collection{ns: p.NS}
	if p.UUID != nil {
		c.uuid = *p.UUID
	}
	return c
}

// thinOut forgets the skipped documents that are explained: those that the
// target has again and those that the source has no longer, whose deletion has
// come or is to come. Everything fed must be drained.
func (e *Engine) thinOut(ctx context.Context) error {
	list, _ := e.skipped.list()
	byNS := map[collection][]Place{}
	for _, p := range list {
		if e.o.Letters.Disputed(p.NS, p.value()) {
			e.skipped.remove(p) // its letter knows its state
			continue
		}
		byNS[p.collection()] = append(byNS[p.collection()], p)
	}
	w := newWorker(e, -1)
	defer w.letGo()
	for of, places := range byNS {
		t, err := e.newTarget(ctx, of.ns)
		if err != nil {
			return err
		}
		for from := 0; from < len(places); from += askAtOnce {
			if err := w.explain(ctx, t, places[from:min(from+askAtOnce, len(places))]); err != nil {
				return err
			}
		}
	}
	return nil
}

// explain forgets those of some skipped documents that are explained.
func (w *worker) explain(ctx context.Context, t *target, places []Place) error {
	ops := make([]*op, len(places))
	for i, p := range places {
		ops[i] = &op{id: p.value()}
	}
	docs, err := w.fetchFields(ctx, t, ops, onlyIDs())
	if err != nil {
		return err
	}
	var missing []Place
	var ids []bson.RawValue
	for i, p := range places {
		if docs[i] != nil {
			w.e.skipped.remove(p)
			continue
		}
		missing, ids = append(missing, p), append(ids, p.ID)
	}
	if len(missing) == 0 {
		return nil
	}
	has, err := w.e.o.OnSource(ctx, missing[0].origin(), ids, *w.e.window.Load())
	if err != nil {
		return fmt.Errorf("look for documents of %s on the source: %w", t.ns, err)
	}
	for i, p := range missing {
		if !has[i] {
			w.e.skipped.remove(p)
		}
	}
	return nil
}

// makeRoom keeps the list of skipped documents short.
func (e *Engine) makeRoom(ctx context.Context) error {
	if !e.skipped.crowded() {
		return nil
	}
	if err := e.drain(ctx, false); err != nil {
		return err
	}
	if err := e.thinOut(ctx); err != nil {
		return err
	}
	if !e.skipped.asked() {
		return nil
	}
	list, _ := e.skipped.list()
	return conflict("update", list[0].NS, &op{id: list[0].value(), at: list[0].At},
		fmt.Sprintf("%d documents that the source has are missing on the target", len(list)))
}

// judgeSkipped is called when the window is over: what nothing has explained is
// missing because somebody else deleted it. In the overlap it is made good, later
// it is handled by policy.
func (e *Engine) judgeSkipped(ctx context.Context) error {
	if e.skipped.len() == 0 || e.fed.Before(*e.window.Load()) {
		return nil
	}
	if err := e.thinOut(ctx); err != nil {
		return err
	}
	list, _ := e.skipped.list()
	for _, p := range list {
		t, err := e.newTarget(ctx, p.NS)
		if err != nil {
			return err
		}
		t.source, t.uuid = p.Source, p.UUID
		id := p.value()
		if !e.o.Overlap.Before(p.At) && e.o.Letters != nil && e.o.Reread != nil {
			if err := e.readAgain(ctx, t, p); err != nil {
				return err
			}
			e.skipped.remove(p)
			continue
		}
		lost := &parkedOp{t: t, hash: t.hash(id), id: id, refused: &refusal{cause: deadletter.CauseMissing, text: textMissing},
			steps: []op{{kind: opUpdate, id: id, at: p.At, since: p.At.TS}}}
		e.skipped.remove(p)
		if _, err := e.settle(ctx, parkedBatch{ops: []*parkedOp{lost}}, true); err != nil {
			return err
		}
	}
	return nil
}

// readAgain takes a document from the source. What it says is ahead of the
// stream, so the document waits in a letter until the stream has passed it.
func (e *Engine) readAgain(ctx context.Context, t *target, p Place) error {
	id := p.value()
	r, err := e.o.Reread(ctx, p.origin(), id, p.At)
	if err != nil {
		return fmt.Errorf("read %s, _id %s, from the source: %w", t.ns, bsonraw.IDText(id), err)
	}
	if r.Doc == nil {
		return nil // its deletion, or the drop of its collection, follows
	}
	e.o.Log.Warn("a document that the source has was not on the target; it is read again", "ns", t.ns, "_id", bsonraw.IDText(id), "position", p.At)
	return e.o.Letters.Write(ctx, deadletter.Letter{NS: t.ns, State: deadletter.Undecided, Cause: deadletter.CauseMissing, DocID: id, Doc: r.Doc,
		At: r.From, Until: r.Until, Reason: textMissing})
}
