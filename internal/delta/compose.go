package delta

// Compose appends to dst one update, as an oplog `o` document, that has the effect of a and
// then b on every document. It returns the update parsed as c, which points into out. ok is
// false when no single update has that effect, or when b cannot follow a on any document. Then
// dst is returned unchanged.
//
// It holds for each document on which both are valid, that is, on which the server logged them.
// For a newer document, Apply of c may differ from a then b in places that a later update
// overwrites.
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

// openDiff starts {$v: 2, diff: ...} up to where the diff document comes.
func openDiff(dst []byte) ([]byte, int) {
	dst, at := openDoc(dst)
	dst = append(dst, typeInt32, '$', 'v', 0, 2, 0, 0, 0)
	return append(dst, typeObject, 'd', 'i', 'f', 'f', 0), at
}

// diffDelta views what was begun with openDiff.
func diffDelta(o []byte) Delta {
	return Delta{kind: Diff, o: o[:len(o):len(o)], at: diffOffset}
}

func composeDiffs(dst, a, b []byte) ([]byte, bool) {
	dst, at := openDiff(dst)
	dst, ok := composeObjects(dst, a, b, frame{start: at})
	if !ok {
		return nil, false
	}
	return closeDoc(dst, at), true
}

// frame is where a composition is: where its output starts, by which its size
// is bounded, and how deep it has gone down.
type frame struct{ start, depth int }

func (f frame) deeper() frame { return frame{f.start, f.depth + 1} }

// composeSubs composes two sub diffs of the same sort.
func composeSubs(dst, a, b []byte, at frame) ([]byte, bool) {
	array := isArrayDiff(a)
	if array != isArrayDiff(b) || at.depth > maxDepth {
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
// (3) Not nothing: a may have moved the field instead of making it. A d of a
// field that is missing does no harm.
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
	dst, begin := openDoc(dst)
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
	return closeDoc(dst, begin), true
}

// emptyDeletes is an empty section d.
const emptyDeletes = "\x03d\x00\x05\x00\x00\x00\x00"

// opOf returns what an index does to a field: a section, or 0.
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
			dst = append(appendHeader(dst, typeBool, e.name), 0)
		}
	}
	for i := range p.b.list {
		if e := &p.b.list[i]; e.op == rankDelete {
			dst = append(appendHeader(dst, typeBool, e.name), 0)
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
			if dst, ok = applyToValue(dst, field{Type: e.typ, Name: e.name, Value: e.val}, f.val, p.at); !ok {
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

// applyToValue writes an element: a value after a sub diff, which must fit.
func applyToValue(dst []byte, value field, diff []byte, at frame) ([]byte, bool) {
	a := applier{start: at.start, most: maxSize}
	dst, err := a.sub(dst, &value, diff, 0)
	return dst, err == nil && a.skipped == 0
}
