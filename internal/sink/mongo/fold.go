package mongosink

import (
	"github.com/millrace/millrace/internal/delta"
)

// fold makes prev do what prev and then next do. It returns false, changing
// nothing, where that cannot be expressed as one operation.
func fold(prev *op, next op, m *memory) (bool, error) {
	if !foldable(prev, &next) {
		return false, nil
	}
	switch next.kind {
	case opDelete:
		// Deleting what was never inserted is harmless, and a document that
		// was there before the insert (inside the window) goes too.
		prev.kind, prev.doc, prev.upd, prev.owned = opDelete, nil, delta.Delta{}, false
	case opInsert:
		prev.kind, prev.doc, prev.owned = opPut, next.doc, false
	case opReplace, opPut:
		if prev.kind == opUpdate {
			prev.kind = opReplace
		}
		prev.doc, prev.upd, prev.owned = next.doc, delta.Delta{}, false
	case opUpdate:
		if ok, err := prev.update(next.upd, m); !ok || err != nil {
			return false, err
		}
	}
	prev.window = prev.window && next.window
	prev.at = next.at
	return true, nil
}

// update makes o do d as well, in memory of m. It returns false, changing
// nothing, where one operation cannot.
func (o *op) update(d delta.Delta, m *memory) (bool, error) {
	if o.kind == opUpdate {
		out, both, ok := delta.Compose(m.scratch[:0], o.upd, d)
		if !ok {
			return false, nil
		}
		o.upd, o.owned = both.In(m.place(o.room(), both.Raw())), true
		m.result(out)
		return true, nil
	}
	out, skipped, err := delta.Apply(m.scratch[:0], o.doc, d)
	if err != nil {
		return false, err
	}
	if skipped == 0 { // else it is not what the source did: let the target decide
		o.doc, o.owned = m.place(o.room(), out), true
	}
	m.result(out)
	return skipped == 0, nil
}

// foldable excludes successions that a source cannot have produced, except
// inside the window, where the target must see them one after the other.
func foldable(prev, next *op) bool {
	if prev.window != next.window || prev.upsert || next.upsert {
		return false
	}
	switch {
	case prev.kind == opDelete:
		return next.kind == opInsert
	case next.kind == opInsert:
		return false
	}
	return true
}
