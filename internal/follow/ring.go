package follow

import (
	"bytes"
	"container/list"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/delta"
)

// ring replays the source's events on a capped collection and reports after which of them the
// content can equal the target's.
//
// The content is a list: unknown documents from before the first event, then the inserted ones. The
// oldest are evicted. The target matches if its newest documents are the inserted ones in order, none
// of the others was deleted, and no update would change the others.
//
// Events are applied in order, so the target matches after one of them. If several match, the last
// is right: the events between them change nothing.
type ring struct {
	target targetDocs
	limit  limit

	byID   map[string]*list.Element
	since  list.List // of *entry: what was inserted since, oldest first
	bytes  int64
	turned bool // all documents from before were evicted

	// Differences from the target.
	differ   int                 // documents of the list that differ on the target or are missing
	unsorted int                 // neighbours in the list in another order on the target
	gone     map[string]struct{} // deleted, but on the target
	updated  map[string]bson.Raw // updated documents from before that are on the target
	changed  int                 // of updated, those that differ from the target
}

type targetDocs struct {
	docs  map[string]targetDoc // by _id
	n     int                  // all documents, if whole
	whole bool                 // docs is complete
}

type targetDoc struct {
	doc   bson.Raw
	place int // among the newest ones: 0 is the newest; far for the others
}

const far = 1 << 60

// limit is the maximum size of a capped collection; 0: no limit.
type limit struct {
	bytes, docs int64
}

func (l limit) exceeded(bytes int64, docs int) bool {
	return l.bytes > 0 && bytes > l.bytes || l.docs > 0 && int64(docs) > l.docs
}

type entry struct {
	id         string
	doc        bson.Raw // nil if unknown
	place      int      // on the target; -1 if missing
	same       bool     // equal to the target's
	unrepaired bool     // same except for zero timestamps that were not restored
}

func entryOf(at *list.Element) *entry {
	if at == nil {
		return nil
	}
	return at.Value.(*entry)
}

func newRing(target targetDocs, l limit) *ring {
	return &ring{target: target, limit: l, byID: map[string]*list.Element{}, gone: map[string]struct{}{},
		updated: map[string]bson.Raw{}}
}

func (r *ring) matches() bool {
	switch {
	case r.differ > 0 || r.unsorted > 0 || len(r.gone) > 0 || r.changed > 0:
		return false
	case r.turned:
		return r.target.whole && r.since.Len() == r.target.n
	}
	return r.since.Len() == 0 || entryOf(r.since.Front()).place == r.since.Len()-1
}

func (r *ring) insert(id string, doc bson.Raw) {
	for r.byID[id] != nil { // it was evicted, with all before it
		r.roll()
	}
	delete(r.gone, id)
	r.forget(id)
	e := &entry{id: id, doc: doc, place: -1}
	if d, ok := r.target.docs[id]; ok {
		e.place, e.same = d.place, bytes.Equal(d.doc, doc)
		if !e.same && delta.MayHoldEmptyTimestamp(doc) {
			e.same = sameRepaired(d.doc, doc)
			e.unrepaired = e.same
		}
	}
	newest := r.since.Back()
	r.byID[id] = r.since.PushBack(e)
	r.pair(newest, r.byID[id], 1)
	r.bytes += int64(len(doc))
	r.count(e, 1)
	for r.since.Len() > 1 && r.limit.exceeded(r.bytes, r.since.Len()) {
		r.roll()
	}
}

func (r *ring) roll() {
	r.turned = true
	r.unlink(r.since.Front())
}

func (r *ring) remove(id string) {
	if at := r.byID[id]; at != nil {
		r.unlink(at)
	}
	r.forget(id)
	if _, ok := r.target.docs[id]; ok {
		r.gone[id] = struct{}{}
	}
}

func (r *ring) update(id string, o bson.Raw) {
	if e := entryOf(r.byID[id]); e != nil {
		r.count(e, -1)
		r.bytes -= int64(len(e.doc))
		if e.doc != nil {
			e.doc = updated(e.doc, o)
		}
		r.bytes += int64(len(e.doc))
		e.same = e.place >= 0 && e.doc != nil && bytes.Equal(e.doc, r.target.docs[id].doc)
		e.unrepaired = false
		r.count(e, 1)
		return
	}
	there, ok := r.target.docs[id]
	if _, gone := r.gone[id]; gone || !ok {
		return
	}
	now := r.updated[id]
	if now == nil {
		now = there.doc
	}
	if next := updated(now, o); next != nil {
		now = next
	}
	r.forget(id)
	r.updated[id] = now
	if !bytes.Equal(now, there.doc) {
		r.changed++
	}
}

func (r *ring) forget(id string) {
	now, ok := r.updated[id]
	if !ok {
		return
	}
	delete(r.updated, id)
	if !bytes.Equal(now, r.target.docs[id].doc) {
		r.changed--
	}
}

func (r *ring) unlink(at *list.Element) {
	prev, e, next := at.Prev(), entryOf(at), at.Next()
	r.pair(prev, at, -1)
	r.pair(at, next, -1)
	r.pair(prev, next, 1)
	r.count(e, -1)
	r.bytes -= int64(len(e.doc))
	r.since.Remove(at)
	delete(r.byID, e.id)
}

func (r *ring) count(e *entry, n int) {
	if !e.same {
		r.differ += n
	}
}

func (r *ring) pair(older, newer *list.Element, n int) {
	if older != nil && newer != nil && entryOf(older).place <= entryOf(newer).place {
		r.unsorted += n
	}
}

// sameRepaired reports whether the documents are equal except for zero timestamps, which servers
// replace by the present time in an insert.
func sameRepaired(there, doc bson.Raw) bool {
	_, d, ok := delta.AppendTimestampRepair(nil, doc)
	if !ok {
		return false
	}
	out, _, err := delta.Apply(nil, there, d)
	return err == nil && bytes.Equal(out, doc)
}

func (r *ring) unrepaired() (docs []bson.Raw) {
	for at := r.since.Front(); at != nil; at = at.Next() {
		if e := entryOf(at); e.unrepaired {
			docs = append(docs, e.doc)
		}
	}
	return docs
}

// updated applies an oplog update; nil if it fails.
func updated(doc, o bson.Raw) bson.Raw {
	kind := delta.KindOf(o)
	if kind == delta.Replacement {
		return o
	}
	d, err := delta.ParseAs(kind, o)
	if err != nil {
		return nil
	}
	out, _, err := delta.Apply(nil, doc, d)
	if err != nil {
		return nil
	}
	return out
}
