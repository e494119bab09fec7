package apply

import (
	"github.com/millrace/millrace/internal/delta"
)

// fold makes prev do what prev and then next do. It returns false, changing
// nothing, where that cannot be expressed as one operation.
func fold(prev *op, next op) (bool, error) {
	if !foldable(prev, &next) {
		return false, nil
	}
	switch next.kind {
	case opDelete:
		// Deleting what was never inserted is harmless, and a document that
		// was there before the insert (inside the window) goes too.
		prev.kind, prev.doc, prev.upd = opDelete, nil, delta.Delta{}
	case opInsert:
		prev.kind, prev.doc = opPut, next.doc
	case opReplace, opPut:
		if prev.kind == opUpdate {
			prev.kind = opReplace
		}
		prev.doc, prev.upd = next.doc, delta.Delta{}
	case opUpdate:
		if prev.kind == opUpdate {
			a, b := prev.upd, next.upd
			_, d, ok := delta.Compose(make([]byte, 0, len(a.Raw())+len(b.Raw())), a, b)
			if !ok {
				return false, nil
			}
			prev.upd = d
			break
		}
		doc, skipped, err := delta.Apply(make([]byte, 0, len(prev.doc)+len(next.upd.Raw())), prev.doc, next.upd)
		if err != nil {
			return false, err
		}
		if skipped > 0 {
			return false, nil // not what the source did: let the target decide
		}
		prev.doc = doc
	}
	prev.window = prev.window && next.window
	prev.at = next.at
	return true, nil
}

// foldable excludes successions that a source cannot have produced, except
// inside the window, where the target must see them one after the other.
func foldable(prev, next *op) bool {
	if prev.window != next.window {
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
