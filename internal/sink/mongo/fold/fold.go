package fold

import (
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/stream"
)

// fold makes prev do what prev and then next do. It returns false, changing nothing, if one operation
// cannot.
func fold(prev, next *Op, key docwrite.Key, m *memory) (bool, error) {
	if !foldable(prev, next) || !follows(prev, next, key) {
		return false, nil
	}
	switch next.Kind {
	case stream.Delete:
		// In the overlap the document may have existed before the insert.
		prev.Kind, prev.Doc, prev.Delta, prev.owned = stream.Delete, nil, delta.Delta{}, false
	case stream.Insert:
		prev.Kind, prev.Doc, prev.owned = stream.Put, next.Doc, false
	case stream.Replace, stream.Put:
		if prev.Kind == stream.Update { // which may be of a document that is not there
			prev.Kind = next.Kind
		}
		prev.Doc, prev.Delta, prev.owned = next.Doc, delta.Delta{}, false
	case stream.Update:
		if prev.full() {
			return false, nil
		}
		if ok, err := prev.update(next.Delta, m); !ok {
			return false, err
		}
		prev.folds = min(prev.folds+1, foldsOfLarge)
	}
	prev.At = next.At
	return true, nil
}

// update makes o also do d, in memory of m. It returns false, changing nothing, if one operation cannot.
func (o *Op) update(d delta.Delta, m *memory) (bool, error) {
	if o.Kind == stream.Update {
		out, both, ok := delta.Compose(m.scratch[:0], o.Delta, d)
		if !ok {
			return false, nil
		}
		o.Delta, o.owned = both.In(m.place(o.room(), both.Raw())), true
		m.result(out)
		return true, nil
	}
	out, skipped, err := delta.Apply(m.scratch[:0], o.Doc, d)
	if err != nil {
		return false, err
	}
	if skipped == 0 { // else it is not what the source did: let the target decide
		o.Doc, o.owned = m.place(o.room(), out), true
	}
	m.result(out)
	return skipped == 0, nil
}

// foldable excludes sequences that a source cannot produce. They occur in the overlap, where the target
// must see them one by one, as it must where the document's state matters (Wall, Upsert).
func foldable(prev, next *Op) bool {
	return prev.Wall == 0 && next.Wall == 0 && prev.Overlap == next.Overlap && !prev.Upsert && !next.Upsert &&
		(prev.Kind == stream.Delete) == (next.Kind == stream.Insert)
}

// follows reports whether next may be on the document that prev leaves. Shards can have two documents
// with one _id under different keys, and updates of a key do not tell them apart.
func follows(prev, next *Op, key docwrite.Key) bool {
	if key.IsZero() || next.Where == nil || prev.Kind == stream.Delete {
		return true
	}
	if prev.Kind == stream.Update {
		return prev.Where == nil || key.Same(prev.Where, next.Where)
	}
	return key.Stays(next.Where, prev.Doc)
}
