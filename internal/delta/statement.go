package delta

import (
	"bytes"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// Form says what a statement of AppendStatement is worth.
type Form uint8

// The forms of a statement.
const (
	// None: there is no exact classic update. Read the document, Apply, and write it. Or send Raw
	// through applyOps, which 6.0.5 does exactly and 4.4.2 refuses.
	//
	// A replacement by the update command refuses top-level names with a leading dollar (error 52).
	// An applyOps "u" with the document as o takes them. Both fill in empty timestamps (see
	// AppendTimestampRepair).
	None Form = iota
	// Classic: exact on every document on which the delta is valid.
	Classic
	// Guarded: exact if the document has, or has not, certain fields. Add AppendGuard's conditions to
	// the query. If nothing matches, read, Apply and write.
	Guarded
)

func (f Form) String() string { return [...]string{"none", "classic", "guarded"}[f] }

// AppendStatement appends the update document {$set, $unset, $push} that has the same effect as
// d, byte for byte and in field order, on every document on which d is valid. With None, dst is
// returned unchanged.
//
// A classic update cannot express the following changes, as 6.0.5 servers show.
//
//   - A field name with a dot, an empty one, or one with a leading dollar on
//     the path: $set takes the dot for nesting and refuses the other two.
//   - An i, unguarded. A server logs a field that a pipeline moved to the end as an
//     i, but $set changes it in place. Hence the form Guarded.
//   - Several new fields of one (sub)document in another order than the server
//     creates them: by bytes, and from 5.0 on numbers by value. Names have to be in
//     order by both rules. Beside other names that start with a digit, one that is
//     no plain number is out of order, as "9" < "10" < "1a" < "9".
//   - A u of several missing fields out of that order, as in diffs of time-series
//     buckets (control.min and max). It is Guarded, or None in an array, where a
//     guard could hold for another place.
//   - l together with another change in the same array: $push with $slice and
//     $set of an element conflict (error 40).
//   - Many fields below one long path, which each of them would be sent with.
//   - A $v:1 update with sets out of that order: from Compose, or from a 4.4 source
//     with numbers in its names. It is Guarded if all are top-level fields.
//
// An i is never sent as a pipeline: a pipeline update of a document that has a field name twice
// ends a 6.0.5 server (invariant failure).
//
// On a document newer than the delta, the server may refuse the statement (28 PathNotViable, 2
// BadValue for $push), or create a missing parent, which a later update removes.
func AppendStatement(dst []byte, d Delta) ([]byte, Form) {
	start := len(dst)
	form := None
	switch d.kind {
	case Diff:
		dst, form = diffStatement(dst, d.diff())
	case Modifiers:
		dst, form = modStatement(dst, d.o)
	}
	if form == None {
		return dst[:start], None
	}
	return dst, form
}

// AppendGuard appends the conditions of a Guarded statement to an open query document. Fields that a
// Diff inserts must not exist. Those that it sets out of order, or that Modifiers set, must.
//
// Paths through arrays may match at other places: a guard can fail without need, but not hold
// wrongly.
func AppendGuard(dst []byte, d Delta) []byte {
	if d.kind == Modifiers {
		return modGuard(dst, d.o)
	}
	if d.kind != Diff {
		return dst
	}
	var space [pathSpace]byte
	w := stmtWriter{dst: dst, pass: passGuard}
	if !w.object(space[:0], d.diff()) {
		return dst
	}
	return w.dst
}

// pathSpace is how long a path may be without an allocation.
const pathSpace = 128

const (
	passSet = iota
	passUnset
	passPush
	passGuard
)

// stmtWriter walks a diff and writes what belongs to one pass. The path of the current place is
// passed down, so that it stays on the stack; it is empty or ends with a dot.
type stmtWriter struct {
	dst    []byte
	limit  int // of dst
	pass   int
	arrays int  // around the current place
	unset  bool // set by the first pass: the diff deletes,
	cut    bool // truncates,
	insert bool // inserts,
	loose  bool // sets fields out of order
}

func diffStatement(dst, diff []byte) ([]byte, Form) {
	w := stmtWriter{dst: dst, limit: len(dst) + mayTake + timesLonger*len(diff)}
	w.dst, _ = bsonraw.OpenDocument(dst)
	at := len(dst)
	if !w.operator("$set", passSet, diff) ||
		w.unset && !w.operator("$unset", passUnset, diff) ||
		w.cut && !w.operator("$push", passPush, diff) {
		return dst, None
	}
	if len(w.dst) == at+4 { // nothing to change, and {} would replace
		return dst, None
	}
	w.dst = bsonraw.CloseDocument(w.dst, at)
	if w.insert || w.loose {
		return w.dst, Guarded
	}
	return w.dst, Classic
}

func (w *stmtWriter) operator(name string, pass int, diff []byte) bool {
	var at int
	w.dst, at = openField(w.dst, name)
	w.pass = pass
	var space [pathSpace]byte
	if !w.object(space[:0], diff) {
		return false
	}
	w.dst = closeOrDrop(w.dst, at, name)
	return true
}

func (w *stmtWriter) object(path, diff []byte) bool {
	for f, ok := range bsonraw.Fields(diff) {
		if !ok || len(f.Name) == 0 || !w.section(path, f) {
			return false
		}
	}
	return true
}

func (w *stmtWriter) section(path []byte, f field) bool {
	switch f.Name[0] {
	case 's':
		return plain(f.Name[1:]) && w.sub(path, f.Name[1:], f.Value)
	case 'u':
		if w.pass == passGuard && !sorted(f.Value) {
			return w.leaves(path, f.Value, typeObject, existsTrue)
		}
		return w.pass != passSet || w.sets(path, f.Value, false)
	case 'i':
		if w.pass == passGuard {
			return w.leaves(path, f.Value, typeObject, existsFalse)
		}
		w.insert = w.insert || len(f.Value) > len(bsonraw.EmptyDocument)
		return w.pass != passSet || w.sets(path, f.Value, true)
	case 'd':
		w.unset = w.unset || len(f.Value) > len(bsonraw.EmptyDocument)
		return w.pass != passUnset || w.leaves(path, f.Value, typeBool, "\x01")
	}
	return false
}

// sets writes the elements of a u or i section. Those at the top are copied in
// one piece.
func (w *stmtWriter) sets(path, section []byte, ordered bool) bool {
	var last []byte
	for f, ok := range bsonraw.Fields(section) {
		if !ok || !plain(f.Name) {
			return false
		}
		if last != nil && !before(last, f.Name) {
			if ordered || w.arrays > 0 {
				return false
			}
			w.loose = true
		}
		if len(path) > 0 {
			if w.full(path) {
				return false
			}
			w.dst = append(w.dst, byte(f.Type))
			w.dst = append(w.dst, path...)
			w.dst = append(w.dst, f.Raw[1:]...)
		}
		last = f.Name
	}
	if len(path) == 0 {
		w.dst = append(w.dst, section[4:len(section)-1]...)
	}
	return true
}

// A statement is given up when it is longer than timesLonger its diff plus mayTake: to read the
// document costs less.
const (
	timesLonger = 8
	mayTake     = 16 << 10
)

func (w *stmtWriter) full(path []byte) bool {
	return w.pass != passGuard && len(w.dst)+len(path) > w.limit
}

// sorted reports whether a section's elements are in the order in which every server creates them.
func sorted(section []byte) bool {
	var last []byte
	for f, ok := range bsonraw.Fields(section) {
		if !ok || last != nil && !before(last, f.Name) {
			return false
		}
		last = f.Name
	}
	return true
}

const existsFalse = "\x0f\x00\x00\x00\x08$exists\x00\x00\x00"

func (w *stmtWriter) leaves(path, section []byte, typ bson.Type, value string) bool {
	for f, ok := range bsonraw.Fields(section) {
		if !ok || !plain(f.Name) || w.full(path) {
			return false
		}
		w.leaf(path, typ, f.Name)
		w.dst = append(w.dst, value...)
	}
	return true
}

func (w *stmtWriter) leaf(path []byte, typ bson.Type, name []byte) {
	w.dst = append(w.dst, byte(typ))
	w.dst = append(w.dst, path...)
	w.dst = append(w.dst, name...)
	w.dst = append(w.dst, 0)
}

func (w *stmtWriter) sub(path, name, diff []byte) bool {
	path = append(path, name...)
	if IsArrayDiff(diff) {
		w.arrays++
		ok := w.array(path, diff)
		w.arrays--
		return ok
	}
	return w.object(append(path, '.'), diff)
}

// array writes the changes of an array diff; path has no dot at its end.
func (w *stmtWriter) array(path, diff []byte) bool {
	d, ok := openArrayDiff(diff)
	if !ok || d.cut && len(d.changes) > 0 {
		return false
	}
	if d.cut {
		w.cut = true
		if w.full(path) {
			return false
		}
		if w.pass == passPush {
			w.slice(path, d.length)
		}
		return true
	}
	path = append(path, '.')
	for b := d.changes; len(b) > 0; {
		c, rest, ok := nextChange(b)
		if !ok {
			return false
		}
		name := c.f.Name[1:]
		switch {
		case c.sub:
			if !w.sub(path, name, c.f.Value) {
				return false
			}
		case w.pass == passSet:
			if w.full(path) {
				return false
			}
			w.leaf(path, c.f.Type, name)
			w.dst = append(w.dst, c.f.Value...)
		}
		b = rest
	}
	return true
}

// slice writes path: {$each: [], $slice: n}, which keeps the first n elements. It does nothing to
// a shorter array.
func (w *stmtWriter) slice(path []byte, n int) {
	w.leaf(path, typeObject, nil)
	var at int
	w.dst, at = bsonraw.OpenDocument(w.dst)
	w.dst = append(w.dst, "\x04$each\x00\x05\x00\x00\x00\x00\x10$slice\x00\x00\x00\x00\x00"...)
	putInt32(w.dst[len(w.dst)-4:], n)
	w.dst = bsonraw.CloseDocument(w.dst, at)
}

func plain(name []byte) bool {
	return len(name) > 0 && name[0] != '$' && bytes.IndexByte(name, '.') < 0
}

// before reports whether every server creates field a before field b when one
// $set makes both.
func before(a, b []byte) bool {
	if bytes.Compare(a, b) >= 0 {
		return false
	}
	// Names may be empty; an empty one is before all others.
	if len(a) == 0 || !isDigit(a[0]) || !isDigit(b[0]) {
		return true
	}
	return number(a) && number(b) && len(a) <= len(b)
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// number reports whether a name is a number that is written in the one way.
func number(s []byte) bool { return bsonraw.IsIndex(s) && (s[0] != '0' || len(s) == 1) }

func modStatement(dst, o []byte) ([]byte, Form) {
	var space [inlineEntries]modPath
	list, err := modPaths(space[:0], o)
	if err != nil {
		return dst, None
	}
	form := modForm(list)
	if form == None {
		return dst, None
	}
	dst, at := bsonraw.OpenDocument(dst)
	for f, ok := range bsonraw.Fields(o) {
		if !ok {
			return dst, None
		}
		// Servers before 5.0 refuse an empty $set.
		if string(f.Name) != "$v" && len(f.Value) > len(bsonraw.EmptyDocument) {
			dst = append(dst, f.Raw...)
		}
	}
	if len(dst) == at+4 {
		return dst, None
	}
	return bsonraw.CloseDocument(dst, at), form
}

// modForm returns None unless all paths are plain. It is Classic if the sets are in the order in which
// every server creates fields, and Guarded if all are top-level fields, for which $exists is exact.
func modForm(list []modPath) Form {
	var last []byte
	ordered, flat := true, true
	for i := range list {
		p := &list[i]
		if !plainPath(p.path) {
			return None
		}
		if p.unset {
			continue
		}
		ordered = ordered && (last == nil || pathBefore(last, p.path))
		flat = flat && bytes.IndexByte(p.path, '.') < 0
		last = p.path
	}
	switch {
	case len(list) == 0:
		return None
	case ordered:
		return Classic
	case flat:
		return Guarded
	}
	return None
}

func plainPath(p []byte) bool {
	for off := 0; off <= len(p); {
		c, _ := component(p, off)
		if len(c) == 0 || c[0] == '$' {
			return false
		}
		off += len(c) + 1
	}
	return true
}

func pathBefore(a, b []byte) bool {
	for off := 0; off < len(a) && off < len(b); {
		c, _ := component(a, off)
		d, _ := component(b, off)
		if string(c) != string(d) {
			return before(c, d)
		}
		off += len(c) + 1
	}
	return false // conflicting paths, which Parse refuses
}

const existsTrue = "\x0f\x00\x00\x00\x08$exists\x00\x01\x00"

func modGuard(dst, o []byte) []byte {
	var space [inlineEntries]modPath
	list, err := modPaths(space[:0], o)
	if err != nil || modForm(list) != Guarded {
		return dst
	}
	for i := range list {
		if !list[i].unset {
			dst = append(bsonraw.AppendHeader(dst, typeObject, list[i].path), existsTrue...)
		}
	}
	return dst
}
