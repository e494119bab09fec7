package delta

import (
	"bytes"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// Compose appends to dst one update with the effect of a and then b, as an oplog `o` document, and
// returns it parsed as c, which points into out. If no single update has that effect, or b cannot
// follow a, ok is false and dst is unchanged.
//
// The effect is exact on documents on which both updates are valid. On a newer document, Apply of
// c may differ in places that a later update overwrites.
func Compose(dst []byte, a, b Delta) (out []byte, c Delta, ok bool) {
	start := len(dst)
	switch {
	case a.kind != b.kind:
		return dst, Delta{}, false
	case a.kind == Diff:
		out, ok = composeDiffs(dst, a.diff(), b.diff())
	case a.kind == Modifiers:
		out, ok = composeModifiers(dst, a, b)
	}
	if !ok || len(out)-start > maxSize {
		return dst[:start], Delta{}, false
	}
	if a.kind == Diff {
		return out, diffDelta(out[start:]), true
	}
	return out, Delta{kind: a.kind, o: out[start:len(out):len(out)]}, true
}

// diffOffset is where the diff document starts in {$v: int32, diff: {...}}.
const diffOffset = 4 + (1 + 3 + 4) + (1 + 5)

func openDiff(dst []byte) ([]byte, int) {
	dst, at := bsonraw.OpenDocument(dst)
	dst = append(dst, typeInt32, '$', 'v', 0, 2, 0, 0, 0)
	return append(dst, typeObject, 'd', 'i', 'f', 'f', 0), at
}

func diffDelta(o []byte) Delta {
	return Delta{kind: Diff, o: o[:len(o):len(o)], at: diffOffset}
}

func composeDiffs(dst, a, b []byte) ([]byte, bool) {
	dst, at := openDiff(dst)
	dst, ok := composeObjects(dst, a, b, frame{start: at})
	if !ok {
		return nil, false
	}
	return bsonraw.CloseDocument(dst, at), true
}

type frame struct{ start, depth int }

func (f frame) deeper() frame { return frame{f.start, f.depth + 1} }

func composeSubs(dst, a, b []byte, at frame) ([]byte, bool) {
	array := IsArrayDiff(a)
	if array != IsArrayDiff(b) || at.depth > maxDepth {
		return nil, false
	}
	if array {
		return composeArrays(dst, a, b, at)
	}
	return composeObjects(dst, a, b, at)
}

// pair is two object diffs side by side. This table gives the result for one field:
//
//	a \ b    none     d      u          i      s
//	none     none     d      u          i      s
//	d        d        - (4)  -          i (1)  -
//	u        u        d      b's value  i (2)  u of s applied to a's value
//	i        i        d (3)  b's value  i (2)  i of s applied to a's value
//	s        s        d      u          i (2)  s of both composed
//
// A dash is a pair that cannot follow each other.
//
// (1) The field goes to the end. An i of a field that exists does just that.
// (2) The server logs a field that a pipeline moved to the end as an i.
// (3) Not nothing: a may have moved the field. A d of a missing field does no harm.
// (4) Each deletes one of two fields of that name, and one d can delete one.
//
// New fields come in the order of a, then of b, without those that b deletes or moves.
type pair struct {
	a, b index
	at   frame
}

func composeObjects(dst, a, b []byte, at frame) ([]byte, bool) {
	var spaceA, spaceB [inlineEntries]entry
	listA, err1 := diffEntries(spaceA[:0], a)
	listB, err2 := diffEntries(spaceB[:0], b)
	if err1 != nil || err2 != nil {
		return nil, false
	}
	p := pair{a: indexOf(listA), b: indexOf(listB), at: at}
	dst, begin := bsonraw.OpenDocument(dst)
	dst, ok := p.deletes(dst)
	if !ok {
		return nil, false
	}
	if dst, ok = p.values(dst, "u", rankUpdate); !ok {
		return nil, false
	}
	if dst, ok = p.values(dst, "i", rankInsert); !ok {
		return nil, false
	}
	if dst, ok = p.subs(dst); !ok {
		return nil, false
	}
	if len(dst) == begin+4 { // empty sections only; an empty diff is an error
		dst = append(dst, emptyDeletes...)
	}
	return bsonraw.CloseDocument(dst, begin), true
}

const emptyDeletes = "\x03d\x00\x05\x00\x00\x00\x00"

func (x *index) opOf(name []byte) uint8 {
	if i := x.find(name); i >= 0 {
		return x.list[i].op
	}
	return 0
}

// deletes writes the section d. It refuses the pairs that cannot follow each other,
// or not become one: of a field that a has deleted only an i can.
func (p *pair) deletes(dst []byte) ([]byte, bool) {
	dst, at := openField(dst, "d")
	for i := range p.a.list {
		e := &p.a.list[i]
		if e.op != rankDelete {
			continue
		}
		switch p.b.opOf(e.name) {
		case rankDelete, rankUpdate, rankSub:
			return nil, false
		case rankInsert:
		default:
			dst = append(bsonraw.AppendHeader(dst, typeBool, e.name), 0)
		}
	}
	for i := range p.b.list {
		if e := &p.b.list[i]; e.op == rankDelete {
			dst = append(bsonraw.AppendHeader(dst, typeBool, e.name), 0)
		}
	}
	return closeOrDrop(dst, at, "d"), true
}

// values writes the section u or i: what b makes of a's values in it, then those
// that b adds to it. A u of what a has in u or i counts there.
func (p *pair) values(dst []byte, section string, op uint8) ([]byte, bool) {
	dst, at := openField(dst, section)
	for i := range p.a.list {
		e := &p.a.list[i]
		if e.op != op {
			continue
		}
		at := p.b.find(e.name)
		if at < 0 {
			dst = appendValue(dst, e.typ, e.name, e.val)
			continue
		}
		switch f := &p.b.list[at]; f.op {
		case rankUpdate:
			dst = appendValue(dst, f.typ, f.name, f.val)
		case rankSub:
			var ok bool
			value := field{View: bsonraw.View{Type: e.typ, Value: e.val}, Name: e.name}
			if dst, ok = applyToValue(dst, value, f.val, p.at); !ok {
				return nil, false
			}
		}
	}
	for i := range p.b.list {
		e := &p.b.list[i]
		if e.op != op {
			continue
		}
		if before := p.a.opOf(e.name); op == rankInsert || before == 0 || before == rankSub {
			dst = appendValue(dst, e.typ, e.name, e.val)
		}
	}
	return closeOrDrop(dst, at, section), true
}

func (p *pair) subs(dst []byte) ([]byte, bool) {
	for i := range p.a.list {
		e := &p.a.list[i]
		if e.op != rankSub {
			continue
		}
		at := p.b.find(e.name)
		if at < 0 {
			dst = append(appendSubHeader(dst, e.name), e.val...)
			continue
		}
		if f := &p.b.list[at]; f.op == rankSub {
			var ok bool
			dst = appendSubHeader(dst, e.name)
			if dst, ok = composeSubs(dst, e.val, f.val, p.at.deeper()); !ok {
				return nil, false
			}
		}
	}
	for i := range p.b.list {
		if e := &p.b.list[i]; e.op == rankSub && p.a.opOf(e.name) == 0 {
			dst = append(appendSubHeader(dst, e.name), e.val...)
		}
	}
	return dst, true
}

func appendSubHeader(dst, name []byte) []byte {
	return append(append(append(dst, typeObject, 's'), name...), 0)
}

// applyToValue writes a value after a sub diff, which must fit.
func applyToValue(dst []byte, value field, diff []byte, at frame) ([]byte, bool) {
	a := applier{start: at.start, most: maxSize}
	dst, err := a.sub(dst, &value, diff, 0)
	return dst, err == nil && a.skipped == 0
}

// maxFill bounds the nulls written for a gap behind a's truncation. Servers log no gaps.
const maxFill = 1024

// composeArrays composes two array diffs. The result has b's length, or a's length plus what b
// appended: after a cut to n elements, an append of n.. equals a cut to the new length.
//
// A cut never lengthens an array: servers log it only to shorten one. It is refused when b cuts
// off everything that a set, as the array may then have been filled up with nulls.
func composeArrays(dst, a, b []byte, at frame) ([]byte, bool) {
	x, ok1 := openArrayDiff(a)
	y, ok2 := openArrayDiff(b)
	if !ok1 || !ok2 {
		return nil, false
	}
	if x.cut && y.cut && y.length > x.length {
		return nil, false // b fills up with nulls what a has cut: never logged
	}
	out := arrayWriter{at: at, limit: maxSize}
	switch {
	case y.cut:
		out.limit = y.length
	case x.cut:
		out.fill, out.next = true, x.length
	}
	dst, begin := bsonraw.OpenDocument(dst)
	dst = append(dst, typeBool, 'a', 0, 1)
	lengthAt := 0
	if x.cut || y.cut {
		dst = append(dst, typeInt32, 'l', 0, 0, 0, 0, 0)
		lengthAt = len(dst) - 4
	}
	head := len(dst)
	dst, ok := out.merge(dst, x, y)
	if !ok || out.lost && len(dst) == head {
		return nil, false
	}
	if lengthAt > 0 {
		n := out.limit
		if out.fill {
			n = out.next
		}
		putInt32(dst[lengthAt:], n)
	}
	return bsonraw.CloseDocument(dst, begin), true
}

type arrayWriter struct {
	at    frame
	limit int  // changes at or beyond it are cut off by b
	fill  bool // a cuts and b does not: elements from next on must be complete
	next  int  // with fill: the length so far
	lost  bool // an element that a sets is cut off
}

func (w *arrayWriter) merge(dst []byte, x, y arrayDiff) ([]byte, bool) {
	p, q := x.changes, y.changes
	for len(p) > 0 || len(q) > 0 {
		var c, d change
		var restC, restD []byte
		ok := true
		if len(p) > 0 {
			c, restC, ok = nextChange(p)
		}
		if ok && len(q) > 0 {
			d, restD, ok = nextChange(q)
		}
		if !ok {
			return nil, false
		}
		switch {
		case len(q) == 0 || len(p) > 0 && c.idx < d.idx:
			dst, ok = w.one(dst, c, false)
			p = restC
		case len(p) == 0 || d.idx < c.idx:
			dst, ok = w.one(dst, d, true)
			q = restD
		default:
			dst, ok = w.both(dst, c, d)
			p, q = restC, restD
		}
		if !ok {
			return nil, false
		}
	}
	return dst, true
}

// beyond reports a change of a that b cuts off. An s shows that the array was longer before.
func (w *arrayWriter) beyond(c change) bool {
	if c.idx < w.limit {
		return false
	}
	w.lost = w.lost || !c.sub
	return true
}

func (w *arrayWriter) one(dst []byte, c change, fromB bool) ([]byte, bool) {
	if w.beyond(c) {
		return dst, true
	}
	if fromB && w.fill && c.idx >= w.next {
		if c.sub || c.idx-w.next > maxFill {
			return nil, false
		}
		for ; w.next < c.idx; w.next++ {
			dst = appendChange(dst, 'u', w.next, typeNull, nil)
		}
		w.next = c.idx + 1
	}
	letter := byte('u')
	if c.sub {
		letter = 's'
	}
	return appendChange(dst, letter, c.idx, c.f.Type, c.f.Value), true
}

func (w *arrayWriter) both(dst []byte, c, d change) ([]byte, bool) {
	switch {
	case w.beyond(c):
		return dst, true
	case !d.sub:
		return appendChange(dst, 'u', d.idx, d.f.Type, d.f.Value), true
	case c.sub:
		return composeSubs(appendChange(dst, 's', d.idx, typeObject, nil), c.f.Value, d.f.Value, w.at.deeper())
	}
	var name [24]byte
	value := field{View: c.f.View, Name: decimalName(append(name[:0], 'u'), c.idx)}
	return applyToValue(dst, value, d.f.Value, w.at)
}

func appendChange(dst []byte, letter byte, idx int, typ bson.Type, val []byte) []byte {
	dst = decimalName(append(dst, byte(typ), letter), idx)
	dst = append(dst, 0)
	return append(dst, val...)
}

// composeModifiers composes two $v:1 updates:
//
//   - A path that only one of them touches stays, if no path of the other lies
//     above or below it.
//   - b's set replaces a's set of the same path, or of paths below it, and takes
//     the place of the first of them in the order.
//   - b's unset of a top-level field replaces what a did to it or below it.
//   - b's paths below a value that a set are applied to this value.
//
// Everything else is refused. If a unset what b sets, b moves it to the end, which $v:1 cannot
// say. An unset deeper down leaves behind the parents that a has made. Two unsets of one path
// remove two fields of that name.
func composeModifiers(dst []byte, a, b Delta) ([]byte, bool) {
	var spaceA, spaceB [inlineEntries]modPath
	p, err1 := modPaths(spaceA[:0], a.o)
	q, err2 := modPaths(spaceB[:0], b.o)
	if err1 != nil || err2 != nil || !modsFit(p, q) {
		return nil, false
	}
	dst, at := bsonraw.OpenDocument(dst)
	dst = append(dst, typeInt32, '$', 'v', 0, 1, 0, 0, 0)
	dst, ok := composeSets(dst, p, q, at)
	if !ok {
		return nil, false
	}
	return bsonraw.CloseDocument(composeUnsets(dst, p, q), at), true
}

// maxPairs bounds the work on two $v:1 updates with very many paths.
const maxPairs = 1 << 20

func modsFit(p, q []modPath) bool {
	if len(p)*len(q) > maxPairs {
		return false
	}
	for j := range p {
		if ambiguous(p[j].path) {
			return false
		}
	}
	for i := range q {
		b := &q[i]
		if ambiguous(b.path) {
			return false
		}
		for j := range p {
			if !modPairFits(&p[j], b) {
				return false
			}
		}
	}
	return true
}

func modPairFits(a, b *modPath) bool {
	switch {
	case covers(b.path, a.path):
		if b.unset {
			return !bytes.Contains(b.path, []byte(".")) && !(a.unset && len(a.path) == len(b.path))
		}
		return !a.unset || len(a.path) > len(b.path)
	case covers(a.path, b.path): // b is strictly below a
		return !a.unset
	}
	return true
}

// ambiguous reports whether a component is a number with leading zeros, which
// in an array names the same element as another component would.
func ambiguous(path []byte) bool {
	for off := 0; off < len(path); {
		c, _ := component(path, off)
		if len(c) > 1 && c[0] == '0' {
			return true
		}
		off += len(c) + 1
	}
	return false
}

func composeSets(dst []byte, p, q []modPath, start int) ([]byte, bool) {
	dst, at := openField(dst, "$set")
	for i := range p {
		if p[i].unset {
			continue
		}
		var ok bool
		if dst, ok = composeSet(dst, p[:i], &p[i], q, start); !ok {
			return nil, false
		}
	}
	for i := range q {
		b := &q[i]
		// A set of a at, below or above its path has decided the place.
		if !b.unset && !sets(p, b.path, true) {
			dst = appendValue(dst, b.typ, b.path, b.val)
		}
	}
	return closeOrDrop(dst, at, "$set"), true
}

// sets reports a set at or below a path, or also above it. Entries are not copied, for speed.
func sets(list []modPath, path []byte, above bool) bool {
	for i := range list {
		if m := &list[i]; !m.unset && (covers(path, m.path) || above && covers(m.path, path)) {
			return true
		}
	}
	return false
}

// composeSet writes what q makes of a's set; before are a's earlier paths.
func composeSet(dst []byte, before []modPath, a *modPath, q []modPath, start int) ([]byte, bool) {
	for i := range q {
		b := &q[i]
		if !covers(b.path, a.path) {
			continue
		}
		// The first set of a at or below b's path has written it.
		if !b.unset && !sets(before, b.path, false) {
			dst = appendValue(dst, b.typ, b.path, b.val)
		}
		return dst, true
	}
	var below []modPath
	for i := range q {
		if covers(a.path, q[i].path) {
			below = append(below, q[i])
		}
	}
	if below == nil {
		return appendValue(dst, a.typ, a.path, a.val), true
	}
	if a.typ != typeObject && a.typ != typeArray {
		return nil, false
	}
	run := applier{start: start, most: maxSize}
	value := field{View: bsonraw.View{Type: a.typ, Value: a.val}, Name: a.path}
	dst, err := run.modField(dst, &value, &place{paths: below, off: len(a.path) + 1}, false)
	return dst, err == nil && run.skipped == 0
}

func composeUnsets(dst []byte, p, q []modPath) []byte {
	dst, at := openField(dst, "$unset")
	for _, a := range p {
		if a.unset && !slices.ContainsFunc(q, func(b modPath) bool { return covers(b.path, a.path) }) {
			dst = append(bsonraw.AppendHeader(dst, typeBool, a.path), 1)
		}
	}
	for _, b := range q {
		// It is applied already to the value of a set above it.
		if b.unset && !slices.ContainsFunc(p, func(a modPath) bool {
			return !a.unset && len(a.path) < len(b.path) && covers(a.path, b.path)
		}) {
			dst = append(bsonraw.AppendHeader(dst, typeBool, b.path), 1)
		}
	}
	return closeOrDrop(dst, at, "$unset")
}
