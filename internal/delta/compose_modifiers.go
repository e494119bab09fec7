package delta

import "bytes"

// composeModifiers composes two $v:1 updates:
//
//   - a path that only one of them touches stays, if no path of the other lies
//     above or below it;
//   - b's set replaces a's set of the same path, or of paths below it, and takes
//     the place of the first of them in the order;
//   - b's unset of a top-level field replaces what a did to it or below it;
//   - b's paths below a value that a set are applied to this value.
//
// Everything else is refused: what b sets after a unset it moves to the end,
// which $v:1 cannot say; an unset deeper down leaves behind the parents that a
// has made.
func composeModifiers(dst []byte, a, b Delta) ([]byte, bool) {
	var spaceA, spaceB [inlineEntries]modPath
	p, err1 := modPaths(spaceA[:0], a.o)
	q, err2 := modPaths(spaceB[:0], b.o)
	if err1 != nil || err2 != nil || !modsFit(p, q) {
		return nil, false
	}
	dst, at := openDoc(dst)
	dst = append(dst, typeInt32, '$', 'v', 0, 1, 0, 0, 0)
	dst, ok := composeSets(dst, p, q, at)
	if !ok {
		return nil, false
	}
	return closeDoc(composeUnsets(dst, p, q), at), true
}

// maxPairs bounds the work on two $v:1 updates with very many paths.
const maxPairs = 1 << 20

// modsFit refuses what one $v:1 update cannot express.
func modsFit(p, q []modPath) bool {
	if len(p)*len(q) > maxPairs {
		return false
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
	for j := range p {
		if ambiguous(p[j].path) {
			return false
		}
	}
	return true
}

func modPairFits(a, b *modPath) bool {
	switch {
	case covers(b.path, a.path):
		if b.unset {
			return !bytes.Contains(b.path, []byte("."))
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
	empty := len(dst)
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
		if !b.unset && !related(p, b.path) {
			dst = appendValue(dst, b.typ, b.path, b.val)
		}
	}
	return closeOperator(dst, at, empty), true
}

// composeSet writes what q makes of a's set; before are a's earlier paths.
func composeSet(dst []byte, before []modPath, a *modPath, q []modPath, start int) ([]byte, bool) {
	for i := range q {
		b := &q[i]
		if !covers(b.path, a.path) {
			continue
		}
		if b.unset || coveredSet(before, b.path) {
			return dst, true
		}
		return appendValue(dst, b.typ, b.path, b.val), true
	}
	if !anyBelow(q, a.path) {
		return appendValue(dst, a.typ, a.path, a.val), true
	}
	return applyBelow(dst, a, q, start)
}

// coveredSet reports whether a set in list is at or below path.
func coveredSet(list []modPath, path []byte) bool {
	for i := range list {
		if !list[i].unset && covers(path, list[i].path) {
			return true
		}
	}
	return false
}

// related reports whether a set in p decides the place of path: it is at or
// below path, or path is below it.
func related(p []modPath, path []byte) bool {
	for i := range p {
		if !p[i].unset && (covers(path, p[i].path) || covers(p[i].path, path)) {
			return true
		}
	}
	return false
}

func anyBelow(q []modPath, path []byte) bool {
	for i := range q {
		if covers(path, q[i].path) {
			return true
		}
	}
	return false
}

// applyBelow writes a's set with the value that q's paths below it make of it.
func applyBelow(dst []byte, a *modPath, q []modPath, start int) ([]byte, bool) {
	if a.typ != typeObject && a.typ != typeArray {
		return nil, false
	}
	var below []modPath
	for i := range q {
		if covers(a.path, q[i].path) {
			below = append(below, q[i])
		}
	}
	run := applier{start: start}
	dst = appendHeader(dst, a.typ, a.path)
	var err error
	if a.typ == typeArray {
		dst, err = run.modArray(dst, a.val, below, len(a.path)+1)
	} else {
		dst, err = run.modObject(dst, a.val, below, len(a.path)+1)
	}
	return dst, err == nil && run.skipped == 0
}

func composeUnsets(dst []byte, p, q []modPath) []byte {
	dst, at := openField(dst, "$unset")
	empty := len(dst)
	for i := range p {
		if p[i].unset && !covered(q, p[i].path) {
			dst = append(appendHeader(dst, typeBool, p[i].path), 1)
		}
	}
	for i := range q {
		if q[i].unset && !setAbove(p, q[i].path) {
			dst = append(appendHeader(dst, typeBool, q[i].path), 1)
		}
	}
	return closeOperator(dst, at, empty)
}

// covered reports whether a path in q is at or above path.
func covered(q []modPath, path []byte) bool {
	for i := range q {
		if covers(q[i].path, path) {
			return true
		}
	}
	return false
}

// setAbove reports whether a set in p is strictly above path; then the unset
// has been applied to its value.
func setAbove(p []modPath, path []byte) bool {
	for i := range p {
		if !p[i].unset && len(p[i].path) < len(path) && covers(p[i].path, path) {
			return true
		}
	}
	return false
}

// closeOperator ends $set or $unset and takes it back if it is empty.
func closeOperator(dst []byte, at, empty int) []byte {
	if len(dst) > empty {
		return closeDoc(dst, at)
	}
	start := at - 2 // the zero after the name
	for dst[start] != typeObject {
		start--
	}
	return dst[:start]
}
