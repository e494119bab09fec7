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

// KeyOf is what Key tells of a stored document.
func KeyOf(d stream.Place) string { return Key(d.NS, bsonraw.FromRaw(d.ID)) }

func origin(d stream.Place) Origin {
	of := Origin{Target: d.NS, Source: d.Source}
	if len(d.UUID.Data) == len(of.UUID) {
		of.UUID = (*[16]byte)(d.UUID.Data)
	}
	return of
}

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

// skipped are documents that updates found missing in the overlap. A later
// event should have deleted them; whether one did is looked at when the overlap
// ends. It is safe for concurrent use.
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

// Renamed follows a rename, or forgets a namespace that is gone (to is "").
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

// Skipped are the documents that updates found missing in the overlap and
// that no later event has explained yet, and a number that changes with them.
// What is on the list when Applied is read covers that position.
func (r *Resolver) Skipped() ([]stream.Place, int) { return r.skipped.list() }

// excused reports an update whose document may be missing. That is so where the target holds
// only a part of the documents, where operations are left out, and in the overlap. It is also
// so after the overlap until the document has been looked for.
func (r *Resolver) excused(t *fold.Target, o *fold.Op) bool {
	return t.Partial || t.Stale || o.Overlap || r.skipped.has(t.NS, o.ID)
}

// skip leaves out an update whose document is missing and that is excused.
func (r *Resolver) skip(t *fold.Target, o *fold.Op) {
	// A document that is not in the part has to be missing. Of a sharded target a job
	// that was killed may have left one in no place.
	if t.Stale || t.Partial && (t.Key.IsZero() || !o.Overlap) {
		return
	}
	r.skips.Add(1)
	if r.o.Source.Has == nil {
		return // nobody could tell
	}
	id := bsonraw.RawValue(bsonraw.Clone(o.ID))
	p := stream.Place{NS: t.NS, ID: id, At: o.At, Source: t.Source}
	if t.UUID != nil {
		p.UUID = bson.Binary{Subtype: bson.TypeBinaryUUID, Data: t.UUID[:]}
	}
	r.skipped.add(p)
}

// Deleted tells which operations were written. A deletion explains why its
// document was missing, and has to be seen: the source may have another one of
// that _id by the time it is asked.
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

// thinOut forgets the skipped documents that are explained: those that the
// target has again and those that the source has no longer, whose deletion has
// come or is to come.
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
		t, err := r.target(ctx, origin(places[0]))
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

// explain forgets those of some skipped documents that are explained.
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
	has, err := r.o.Source.Has(ctx, originOf(t), ids, r.b.Overlap)
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

// Crowded reports that there are so many skipped documents that the source should
// be asked now, by MakeRoom at a barrier.
func (r *Resolver) Crowded() bool { return r.skipped.crowded() }

// MakeRoom keeps the list of skipped documents short.
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

// ResolveSkipped is called when the overlap is over. A missing document that nothing explains
// was deleted by somebody else, or a job ended while it moved the document to another shard.
// Such a move deletes the document at its old shard key before it writes it at the new one. Up
// to RereadUntil, and where documents move, the document is restored from the source. Otherwise
// it is handled by policy.
func (r *Resolver) ResolveSkipped(ctx context.Context, b Barrier) error {
	if list, _ := r.skipped.list(); len(list) == 0 || !b.over() {
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
		t, err := r.target(ctx, origin(p))
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

// readAgain takes a document from the source. What it says is ahead of the
// stream, so the document waits in a letter until the stream has passed it.
func (r *Resolver) readAgain(ctx context.Context, t *fold.Target, lost *fold.Op) error {
	now, err := r.askSource(ctx, t, lost.ID, lost.At)
	if err != nil || now.Doc == nil { // its deletion, or the drop of its collection, follows
		return err
	}
	r.o.Log.Warn("a document that the source has was not on the target; it is read again", "ns", t.NS,
		"documentId", bsonraw.IDText(lost.ID), "position", lost.At)
	return r.o.Letters.Write(ctx, deadletter.Letter{NS: t.NS, State: deadletter.Undecided, Cause: deadletter.CauseMissing,
		DocID: lost.ID, Doc: now.Doc, At: now.From, Until: now.Until, Reason: textMissing})
}
