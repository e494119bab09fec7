package resolve

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
	"github.com/millrace/millrace/internal/sink/mongo/write"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/stream"
)

func KeyOf(d stream.Place) string { return Key(d.NS, bsonraw.FromRaw(d.ID)) }

const (
	// manySkipped is how many skipped documents the source is asked about for the first time.
	manySkipped = 1000
	// mostSkipped and mostSkippedBytes bound what remains.
	mostSkipped      = 50_000
	mostSkippedBytes = 8 << 20
	// askAtOnce bounds the documents of one question.
	askAtOnce = 500
)

// skipped are documents that updates found missing in the overlap. A later event should delete them,
// which is checked after the overlap. It is safe for concurrent use.
type skipped struct {
	mu      sync.Mutex
	byKey   map[string]stream.Place
	bytes   int
	version int // changes with the list
	askFrom int // how many there have to be for the next question
}

func newSkipped(list []stream.Place) *skipped {
	s := &skipped{byKey: map[string]stream.Place{}, askFrom: manySkipped}
	for _, p := range list {
		s.add(p)
	}
	s.version = 0
	return s
}

func (s *skipped) has(ns string, id bsonraw.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.byKey) == 0 {
		return false
	}
	_, known := s.byKey[Key(ns, id)]
	return known
}

func (s *skipped) add(p stream.Place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := KeyOf(p)
	if _, known := s.byKey[key]; known {
		return // the first one counts
	}
	s.bytes += len(key) + len(p.ID.Value)
	s.byKey[key] = p
	s.version++
}

func (s *skipped) remove(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, known := s.byKey[key]; known {
		s.bytes -= len(key) + len(p.ID.Value)
		delete(s.byKey, key)
		s.version++
	}
}

func (s *skipped) empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byKey) == 0
}

func (s *skipped) list() (list []stream.Place, version int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.byKey)), s.version
}

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

// Renamed follows a rename, or forgets a dropped namespace (to is "").
func (r *Resolver) Renamed(from, to string) {
	list, _ := r.skipped.list()
	for _, p := range list {
		if p.NS != from {
			continue
		}
		r.skipped.remove(KeyOf(p))
		if p.NS, p.Source = to, ""; to != "" {
			r.skipped.add(p)
		}
	}
}

// Skipped returns the documents that updates found missing in the overlap and that no later event
// explained, and the list's version. A list read after Applied covers that position.
func (r *Resolver) Skipped() ([]stream.Place, int) { return r.skipped.list() }

// excused reports an update whose document may be missing. That is so in the overlap and until the
// document was looked for. It is also so if the target gets only some documents or operations.
func (r *Resolver) excused(t *fold.Target, o *fold.Op) bool {
	return t.Partial || t.Stale || o.Overlap || r.skipped.has(t.NS, o.ID)
}

// skip skips an excused update.
func (r *Resolver) skip(t *fold.Target, o *fold.Op) {
	// Filtered documents are missing. But on a sharded target, a killed job may have lost one while
	// moving it.
	if t.Stale || t.Partial && (t.Key.IsZero() || !o.Overlap) {
		return
	}
	r.skips.Add(1)
	if r.o.Source.Has == nil {
		return // nobody could tell
	}
	id := bsonraw.RawValue(bsonraw.Clone(o.ID))
	r.skipped.add(stream.Place{Origin: t.Origin, ID: id, At: o.At})
}

// Deleted removes deleted documents from the skipped ones. Later the source may have another document
// with that _id.
func (s *Parked) Deleted(t *fold.Target, ops []fold.Op) {
	if s.r.skipped.empty() {
		return
	}
	for i := range ops {
		if ops[i].Kind == stream.Delete {
			s.r.skipped.remove(Key(t.NS, ops[i].ID))
		}
	}
}

// thinOut forgets skipped documents that the target has again or the source no longer has.
func (r *round) thinOut(ctx context.Context) error {
	list, _ := r.skipped.list()
	byOrigin := map[string][]stream.Place{} // a collection of the target may have stood for several of the source
	for _, p := range list {
		if r.o.Letters.Disputed(p.NS, bsonraw.FromRaw(p.ID)) {
			r.skipped.remove(KeyOf(p)) // its letter knows its state
			continue
		}
		of := p.NS + string(p.UUID.Data)
		byOrigin[of] = append(byOrigin[of], p)
	}
	for _, places := range byOrigin {
		t, err := r.target(ctx, places[0].Origin)
		if err != nil {
			return err
		}
		for some := range slices.Chunk(places, askAtOnce) {
			if err := r.explain(ctx, t, some); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *round) explain(ctx context.Context, t *fold.Target, places []stream.Place) error {
	of := make([]bsonraw.ID, len(places))
	for i, p := range places {
		of[i] = bsonraw.FromRaw(p.ID)
	}
	var missing []stream.Place
	var ids []bson.RawValue
	err := r.w.Read(ctx, t, of, write.OnlyIDs(), func(some []int, docs []bson.Raw) error {
		for i, doc := range docs {
			if p := places[some[i]]; doc != nil {
				r.skipped.remove(KeyOf(p))
			} else {
				missing, ids = append(missing, p), append(ids, p.ID)
			}
		}
		return nil
	})
	if err != nil || len(missing) == 0 {
		return err
	}
	has, err := r.o.Source.Has(ctx, t.Origin, ids, r.b.Overlap)
	if err != nil {
		return fmt.Errorf("look for documents of %s on the source: %w", t.NS, err)
	}
	for i, p := range missing {
		if !has[i] {
			r.skipped.remove(KeyOf(p))
		}
	}
	return nil
}

// Crowded reports that there are many skipped documents, so that MakeRoom should ask the source.
func (r *Resolver) Crowded() bool { return r.skipped.crowded() }

// MakeRoom shortens the list of skipped documents.
func (r *Resolver) MakeRoom(ctx context.Context, b Barrier) error {
	round := r.begin(b)
	defer round.w.Release()
	if err := round.thinOut(ctx); err != nil {
		return err
	}
	if !r.skipped.asked() {
		return nil
	}
	list, _ := r.skipped.list()
	return conflict(list[0].NS, &fold.Op{Kind: stream.Update, ID: bsonraw.FromRaw(list[0].ID), At: list[0].At},
		fmt.Sprintf("%d documents that the source has are missing on the target", len(list)))
}

// ResolveSkipped decides about skipped documents after the overlap. Somebody else deleted an unexplained
// document, or a job ended while moving it between shards: a move deletes at the old shard key, then
// writes at the new one. Up to RereadUntil, and on sharded collections, the source restores it. Else
// policy decides.
func (r *Resolver) ResolveSkipped(ctx context.Context, b Barrier) error {
	if r.skipped.empty() || !b.over() {
		return nil
	}
	round := r.begin(b)
	defer round.w.Release()
	if err := round.thinOut(ctx); err != nil {
		return err
	}
	b.Must = true
	list, _ := r.skipped.list()
	for _, p := range list {
		t, err := r.target(ctx, p.Origin)
		if err != nil {
			return err
		}
		lost := fold.NewMissing(bsonraw.FromRaw(p.ID), p.At)
		good := !b.RereadUntil.Before(p.At) || !t.Key.IsZero()
		if good && r.o.Letters != nil && r.o.Source.Reread != nil {
			if err := r.readAgain(ctx, t, &lost); err != nil {
				return err
			}
			r.skipped.remove(KeyOf(p))
			continue
		}
		r.skipped.remove(KeyOf(p))
		d := &Document{Target: t, ID: lost.ID, Steps: []fold.Op{lost}}
		d.refused = &refusal{cause: deadletter.CauseMissing, text: textMissing}
		if _, err := r.Resolve(ctx, b, []*Document{d}); err != nil {
			return err
		}
	}
	return nil
}

// readAgain reads a document from the source and keeps it as a dead letter until the stream has passed
// it.
func (r *Resolver) readAgain(ctx context.Context, t *fold.Target, lost *fold.Op) error {
	now, err := r.askSource(ctx, t, lost.ID, lost.At)
	if err != nil || now.Doc == nil { // its deletion, or the drop of its collection, follows
		return err
	}
	r.o.Log.Warn("a document that the source has was not on the target; it is read again", "ns", t.NS,
		"documentId", bsonraw.IDText(lost.ID), "position", lost.At)
	return r.o.Letters.Write(ctx, deadletter.Letter{Origin: stream.Origin{NS: t.NS},
		State: deadletter.Undecided, Cause: deadletter.CauseMissing, DocID: lost.ID, Doc: now.Doc, At: now.From,
		Until: now.Until, Reason: textMissing})
}
