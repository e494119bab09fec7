package delta

import (
	"bytes"
	"slices"
)

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

// sets reports that something at or below a path is set, or also above it. The
// entries are not copied: this is done for each update that meets another.
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
	value := field{Type: a.typ, Name: a.path, Value: a.val}
	dst, err := run.modField(dst, &value, &place{paths: below, off: len(a.path) + 1}, false)
	return dst, err == nil && run.skipped == 0
}

func composeUnsets(dst []byte, p, q []modPath) []byte {
	dst, at := openField(dst, "$unset")
	for _, a := range p {
		if a.unset && !slices.ContainsFunc(q, func(b modPath) bool { return covers(b.path, a.path) }) {
			dst = append(appendHeader(dst, typeBool, a.path), 1)
		}
	}
	for _, b := range q {
		// It is applied already to the value of a set above it.
		if b.unset && !slices.ContainsFunc(p, func(a modPath) bool {
			return !a.unset && len(a.path) < len(b.path) && covers(a.path, b.path)
		}) {
			dst = append(appendHeader(dst, typeBool, b.path), 1)
		}
	}
	return closeOrDrop(dst, at, "$unset")
}
