package delta

import (
	"bytes"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// Apply appends to dst the document that d makes of doc, byte for byte as the server does. dst
// must not overlap doc or the update. On error, out is nil.
//
// A path that does not fit is left alone and counted in skipped: a sub diff of a missing value or of
// another type, a dotted $set into a scalar. Then doc is newer than the update, and a later update
// overwrites the place. For a diff, a secondary writes null there (observed on 6.0.5).
func Apply(dst []byte, doc bson.Raw, d Delta) (out []byte, skipped int, err error) {
	return apply(dst, doc, d, maxSize)
}

// ApplyAhead is Apply for a doc that is newer than the update. Such a result may exceed the
// server's size limit until later updates have been applied.
func ApplyAhead(dst []byte, doc bson.Raw, d Delta) (out []byte, skipped int, err error) {
	return apply(dst, doc, d, maxAhead)
}

func apply(dst []byte, doc bson.Raw, d Delta, most int) (out []byte, skipped int, err error) {
	a := applier{start: len(dst), most: most}
	switch d.kind {
	case Diff:
		out, err = a.object(dst, doc, d.diff(), 0)
	case Modifiers:
		out, err = a.modifiers(dst, doc, d.o)
	default:
		err = fmt.Errorf("%w: not parsed", ErrMalformed)
	}
	if err != nil {
		return nil, 0, err
	}
	return out, a.skipped, nil
}

type applier struct {
	start   int // where the result starts in the buffer
	most    int // bytes of it
	skipped int
}

var errBadDoc = fmt.Errorf("%w: document is not valid BSON", ErrMalformed)

// place locates a document of the result in an update: its depth, and the $v:1 paths that go on in
// it from off on.
type place struct {
	depth int
	paths []modPath
	off   int
}

func (at *place) below(e *entry) *place {
	return &place{depth: at.depth + 1, paths: at.paths[e.lo:e.hi], off: at.off + len(e.name) + 1}
}

func (a *applier) object(dst, doc, diff []byte, depth int) ([]byte, error) {
	var space [inlineEntries]entry
	list, err := diffEntries(space[:0], diff)
	if err != nil {
		return nil, err
	}
	return a.fields(dst, doc, list, &place{depth: depth})
}

// fields applies entries to an object. Observed on 6.0.5: u changes a field in place, and so
// does s. A d of a missing field does nothing. A u of a missing field appends it. An i whose
// field exists removes it and appends it: so the server logs that a pipeline moved a field to
// the end. Appended fields come in the order of the update, u before i.
func (a *applier) fields(dst, doc []byte, list []entry, in *place) ([]byte, error) {
	x := indexOf(list)
	if in.depth > maxDepth {
		return nil, errBadDoc
	}
	dst, start := bsonraw.OpenDocument(dst)
	left, done, at := len(list), 4, 4 // done: all before it is written
	var err error
	for f, ok := range bsonraw.Fields(doc) {
		if !ok {
			return nil, errBadDoc
		}
		if i := x.find(f.Name); i >= 0 && !list[i].seen {
			list[i].seen = true
			left--
			dst = append(dst, doc[done:at]...)
			if dst, err = a.field(dst, &f, &list[i], in, false); err != nil {
				return nil, err
			}
			done = at + len(f.Raw)
		}
		if at += len(f.Raw); left == 0 {
			break
		}
	}
	dst = append(dst, doc[done:len(doc)-1]...)
	for i := range list {
		if e := &list[i]; !e.seen || e.op == rankInsert { // not, or no longer there
			if dst, err = a.create(dst, e.name, e, in); err != nil {
				return nil, err
			}
		}
	}
	return a.finish(dst, start)
}

func (a *applier) field(dst []byte, f *field, e *entry, in *place, inArray bool) ([]byte, error) {
	switch e.op {
	case rankUpdate:
		return appendValue(dst, e.typ, f.Name, e.val), nil
	case rankSub:
		return a.sub(dst, f, e.val, in.depth)
	case rankPaths:
		return a.modField(dst, f, in.below(e), inArray)
	}
	return dst, nil // deleted, or moved to the end
}

func (a *applier) create(dst, name []byte, e *entry, in *place) ([]byte, error) {
	switch e.op {
	case rankInsert, rankUpdate:
		return appendValue(dst, e.typ, name, e.val), nil
	case rankSub:
		a.skipped++
	case rankPaths:
		return a.modCreate(dst, name, in.below(e))
	}
	return dst, nil
}

func (a *applier) sub(dst []byte, f *field, diff []byte, depth int) ([]byte, error) {
	array := IsArrayDiff(diff)
	if array && f.Type != typeArray || !array && f.Type != typeObject {
		a.skipped++
		return append(dst, f.Raw...), nil
	}
	dst = bsonraw.AppendHeader(dst, f.Type, f.Name)
	if array {
		return a.array(dst, f.Value, diff, depth+1)
	}
	return a.object(dst, f.Value, diff, depth+1)
}

// array applies an array diff. Observed on 6.0.5: l cuts the array, or fills
// it up with nulls; u<idx> beyond the end fills up with nulls as well.
func (a *applier) array(dst, arr, diff []byte, depth int) ([]byte, error) {
	d, ok := openArrayDiff(diff)
	b, ok2 := bsonraw.Body(arr)
	if !ok || !ok2 || depth > maxDepth {
		return nil, errBadDoc
	}
	dst, at := bsonraw.OpenDocument(dst)
	r := elements{dst: dst, rest: b}
	var err error
	for c := d.changes; len(c) > 0; {
		ch, rest, ok := nextChange(c)
		if !ok {
			return nil, errBadDoc
		}
		e := entry{typ: ch.f.Type, val: ch.f.Value, op: rankUpdate}
		if ch.sub {
			e.op = rankSub
		}
		if r, err = a.element(r, ch.idx, &e, &place{depth: depth}); err != nil {
			return nil, err
		}
		c = rest
	}
	if !d.cut {
		return a.finish(append(r.dst, r.rest...), at)
	}
	if r, err = r.copy(d.length); err != nil {
		return nil, err
	}
	if dst, err = a.pad(r.dst, r.n, d.length); err != nil {
		return nil, err
	}
	return a.finish(dst, at)
}

// elements is an array under way: n elements are in dst, rest holds those that follow.
type elements struct {
	dst, rest []byte
	n         int
}

func (a *applier) element(r elements, idx int, e *entry, in *place) (elements, error) {
	r, err := r.copy(idx)
	if err != nil {
		return r, err
	}
	if r.n == idx && len(r.rest) > 0 {
		f, rest, ok := bsonraw.Next(r.rest)
		if !ok {
			return r, errBadDoc
		}
		r.dst, err = a.field(r.dst, &f, e, in, true)
		r.rest, r.n = rest, r.n+1
		return r, err
	}
	if e.op == rankSub || e.op == rankPaths && !anySet(in.paths[e.lo:e.hi]) {
		r.dst, err = a.create(r.dst, nil, e, in) // nothing
		return r, err
	}
	if r.dst, err = a.pad(r.dst, r.n, idx); err != nil {
		return r, err
	}
	var digits [20]byte
	r.dst, err = a.create(r.dst, decimalName(digits[:0], idx), e, in)
	r.n = idx + 1
	return r, err
}

func (r elements) copy(until int) (elements, error) {
	b := r.rest
	for r.n < until && len(b) > 0 {
		_, rest, ok := bsonraw.Next(b)
		if !ok {
			return r, errBadDoc
		}
		b = rest
		r.n++
	}
	r.dst, r.rest = append(r.dst, r.rest[:len(r.rest)-len(b)]...), b
	return r, nil
}

func (a *applier) pad(dst []byte, n, until int) ([]byte, error) {
	// A null takes at least three bytes; refuse before building it.
	if until > n && len(dst)-a.start+3*(until-n) > a.most {
		return nil, ErrTooLarge
	}
	for ; n < until; n++ {
		dst = append(decimalName(append(dst, typeNull), n), 0)
	}
	return dst, nil
}

func (a *applier) finish(dst []byte, at int) ([]byte, error) {
	dst = bsonraw.CloseDocument(dst, at)
	if len(dst)-a.start > a.most {
		return nil, ErrTooLarge
	}
	return dst, nil
}

// Touches reports that an update may change the value at a path, something in it, or a value or an
// array on the way. Without names it always may.
func (d Delta) Touches(names ...string) bool {
	if d.kind == Diff {
		return diffTouches(d.diff(), names)
	}
	for section, ok := range bsonraw.Fields(d.o) {
		if !ok {
			return true
		}
		if section.Type != typeObject {
			continue // $v
		}
		set := string(section.Name) != "$unset"
		for f, ok := range bsonraw.Fields(section.Value) {
			if !ok || pathTouches(f.Name, names, set, true) {
				return true
			}
		}
	}
	return false
}

// diffTouches is for a diff of a value on the path, with names still to go. In an array, another
// length or element may lead to other values. Below an element the path goes on with the next name,
// or behind the name that is the element's index.
func diffTouches(diff []byte, names []string) bool {
	if len(names) == 0 {
		return true
	}
	array := IsArrayDiff(diff)
	for e, ok := range bsonraw.Fields(diff) {
		switch {
		case !ok || len(e.Name) == 0:
			return true
		case array && string(e.Name) == "a":
		case array && e.Name[0] != 's':
			return true
		case array:
			if diffTouches(e.Value, names) || sameIndex(e.Name[1:], names[0]) && diffTouches(e.Value, names[1:]) {
				return true
			}
		case e.Name[0] == 's':
			if string(e.Name[1:]) == names[0] && diffTouches(e.Value, names[1:]) {
				return true
			}
		default:
			if _, found := bsonraw.Field(e.Value, names[0]); found {
				return true
			}
		}
	}
	return false
}

// sameIndex compares indexes as updates do, for which 01 is 1.
func sameIndex(a []byte, b string) bool {
	return bsonraw.IsIndex(a) && bsonraw.IsIndex(b) && string(bytes.TrimLeft(a, "0")) == strings.TrimLeft(b, "0")
}

// pathTouches is for setting, or unsetting, a path. It does not say whether there are arrays: a
// number may be an index, and a set beyond the end of an array makes elements.
func pathTouches(path []byte, names []string, set, top bool) bool {
	if len(names) == 0 {
		return true
	}
	name, below, more := bytes.Cut(path, []byte("."))
	if !top && bsonraw.IsIndex(name) && (set || !more || pathTouches(below, names, set, false) ||
		sameIndex(name, names[0]) && pathTouches(below, names[1:], set, false)) {
		return true
	}
	return string(name) == names[0] && (!more || pathTouches(below, names[1:], set, false))
}
