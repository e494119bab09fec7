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
	// None means that there is no exact classic update. Either read the document, Apply and
	// write it, or send Raw through applyOps to a server that knows $v:2. (Observed on 6.0.5:
	// exact, also for results of Compose. 4.4.2 refuses it.)
	//
	// To write a complete document, mind two limits. A replacement by the update command
	// refuses top-level names with a leading dollar (error 52). The applyOps command with op
	// "u" and the document as o takes them. Both fill in empty timestamps (see
	// AppendTimestampRepair).
	None Form = iota
	// Classic: exact on every document on which the delta is valid.
	Classic
	// Guarded: exact if the document has, or has not, certain fields. Add
	// AppendGuard's conditions to the query. If the statement then matches
	// nothing, read, Apply and write.
	Guarded
)

// String names the form for logs.
func (f Form) String() string { return [...]string{"none", "classic", "guarded"}[f] }

// AppendStatement appends the update document {$set, $unset, $push} that has the same effect as
// d, byte for byte and in field order, on every document on which d is valid. With None, dst is
// returned unchanged.
//
// A classic update cannot express the following changes, all observed on 6.0.5 servers.
//
//   - A field name with a dot, an empty one, or one with a leading dollar on
//     the path: $set takes the dot for nesting and refuses the other two.
//   - An i, unguarded. The server logs a pipeline that moves a field to the end
//     as an i of the existing field, but $set changes it in place. The diff
//     does not distinguish the two. Hence the form Guarded.
//   - Several new fields in one (sub)document in another order than the server
//     would create them. Servers from 5.0 on sort by bytes, but numbers by value.
//     Servers up to 4.4 sort by bytes only ("10" before "9"). Names have to be in
//     order by both rules. A name that starts with a digit but is no plain
//     number counts as out of order beside others that start with a digit.
//     The newer rule is no order there ("9" < "10" < "1a" < "9").
//   - A u of several missing fields out of that order. Only diffs of time-series
//     buckets hold it (control.min and max). It is Guarded, or None in an array,
//     where a guard could hold for another place.
//   - l together with another change in the same array: $push with $slice and
//     $set of an element conflict (error 40).
//   - A diff that names a long path once and changes many fields below it. Each of
//     them would be sent with the complete path.
//   - A $v:1 update with sets out of that order: from Compose, or from a 4.4
//     source with numbers in its names. If all of them are top-level fields, it
//     is exact when these exist, and Guarded.
//
// An i is never sent as a pipeline: a pipeline update of a document that has a field name twice
// ends a 6.0.5 server (invariant failure).
//
// The statement does not skip a path that does not fit. On a document newer than the delta the
// server may refuse the statement (28 PathNotViable, 2 BadValue for $push). Or it creates a
// missing parent, which Apply does not. A later update removes that parent.
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

// AppendGuard appends the conditions of a Guarded statement, as elements of a query document
// that the caller has open. For each field that a Diff inserts the condition is {"path":
// {$exists: false}}. For each field that it sets out of order, or that Modifiers set, it is
// {"path": {$exists: true}}.
//
// Paths through arrays may match more than the one place. So a guard can fail without need, but
// cannot hold wrongly.
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

// The passes over a diff, one for each operator of the statement.
const (
	passSet = iota
	passUnset
	passPush
	passGuard
)

// stmtWriter walks a diff and writes what belongs to one pass. The path of the
// current place is passed down, empty or with a dot at its end; kept in here,
// it could not stay on the stack.
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
	w.dst, _ = openDoc(dst)
	at := len(dst)
	if !w.operator("$set", passSet, diff) ||
		w.unset && !w.operator("$unset", passUnset, diff) ||
		w.cut && !w.operator("$push", passPush, diff) {
		return dst, None
	}
	if len(w.dst) == at+4 { // nothing to change, and {} would replace
		return dst, None
	}
	w.dst = closeDoc(w.dst, at)
	if w.insert || w.loose {
		return w.dst, Guarded
	}
	return w.dst, Classic
}

// operator writes one operator, or nothing if nothing belongs to it.
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
		w.insert = w.insert || len(f.Value) > len(emptyDoc)
		return w.pass != passSet || w.sets(path, f.Value, true)
	case 'd':
		w.unset = w.unset || len(f.Value) > len(emptyDoc)
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

// A statement is given up when it becomes so many times longer than its diff,
// and longer than mayTake: reading the document costs less then.
const (
	timesLonger = 8
	mayTake     = 16 << 10
)

func (w *stmtWriter) full(path []byte) bool {
	return w.pass != passGuard && len(w.dst)+len(path) > w.limit
}

// sorted reports whether the elements of a section are in the order in which
// every server creates them.
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

// existsFalse is {$exists: false}.
const existsFalse = "\x0f\x00\x00\x00\x08$exists\x00\x00\x00"

// leaves writes one value for each field of a section.
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

// leaf writes the header of an element with the full path as its name.
func (w *stmtWriter) leaf(path []byte, typ bson.Type, name []byte) {
	w.dst = append(w.dst, byte(typ))
	w.dst = append(w.dst, path...)
	w.dst = append(w.dst, name...)
	w.dst = append(w.dst, 0)
}

// sub goes down into a sub diff.
func (w *stmtWriter) sub(path, name, diff []byte) bool {
	path = append(path, name...)
	if isArrayDiff(diff) {
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

// slice writes path: {$each: [], $slice: n}, which keeps the first n elements
// and, for n = 0, none. It is no operation on an array that is shorter.
func (w *stmtWriter) slice(path []byte, n int) {
	w.leaf(path, typeObject, nil)
	var at int
	w.dst, at = openDoc(w.dst)
	w.dst = append(w.dst, "\x04$each\x00\x05\x00\x00\x00\x00\x10$slice\x00\x00\x00\x00\x00"...)
	putInt32(w.dst[len(w.dst)-4:], n)
	w.dst = closeDoc(w.dst, at)
}

// plain reports whether a classic update can name the field.
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
func number(s []byte) bool { return allDigits(s) && (s[0] != '0' || len(s) == 1) }
