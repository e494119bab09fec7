package delta

import (
	"go.mongodb.org/mongo-driver/v2/bson"
)

// maxFill bounds the nulls that a composition writes out for a gap that b left
// behind a's truncation; servers log no gaps, so this is for strange input.
const maxFill = 1024

// composeArrays composes two array diffs. The result has b's length, or a's length plus what b
// appended. After a cut to n elements, an append of n.. by b equals a cut to the new length
// with these elements set.
//
// A cut alone lengthens no array: servers log it only to shorten one, and $slice can do no
// more. b may cut off all that a has set. Then the array may still be longer than before a,
// filled up with nulls. This case is refused.
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
	dst, begin := openDoc(dst)
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
	return closeDoc(dst, begin), true
}

// arrayWriter writes the merged changes in ascending order of index.
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

// beyond reports a change of a that b cuts off. That of an existing element, s,
// shows that the array was longer before.
func (w *arrayWriter) beyond(c change) bool {
	if c.idx < w.limit {
		return false
	}
	w.lost = w.lost || !c.sub
	return true
}

// one writes a change that only one side makes.
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

// both writes what a's change c and b's change d of one element come to.
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
	value := field{Type: c.f.Type, Name: decimalName(append(name[:0], 'u'), c.idx), Value: c.f.Value}
	return applyToValue(dst, value, d.f.Value, w.at)
}

// appendChange writes u<idx> or s<idx>.
func appendChange(dst []byte, letter byte, idx int, typ bson.Type, val []byte) []byte {
	dst = decimalName(append(dst, byte(typ), letter), idx)
	dst = append(dst, 0)
	return append(dst, val...)
}
