package delta

import (
	"bytes"

	"github.com/millrace/millrace/internal/bsonraw"
)

// modStatement leaves $v out of a $v:1 update and keeps the rest as it is.
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
	dst, at := openDoc(dst)
	for f, ok := range bsonraw.Fields(o) {
		if !ok {
			return dst, None
		}
		// Servers before 5.0 refuse an empty $set.
		if string(f.Name) != "$v" && len(f.Value) > len(emptyDoc) {
			dst = append(dst, f.Raw...)
		}
	}
	if len(dst) == at+4 {
		return dst, None
	}
	return closeDoc(dst, at), form
}

// modForm returns None unless all paths are plain. It returns Classic if the sets come in the
// order in which every server creates fields. Otherwise it returns Guarded if all are top-level
// fields, for which $exists is exact, and else None.
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

// plainPath reports whether no component is empty or starts with a dollar.
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

// pathBefore compares the first components that differ.
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

// existsTrue is {$exists: true}.
const existsTrue = "\x0f\x00\x00\x00\x08$exists\x00\x01\x00"

func modGuard(dst, o []byte) []byte {
	var space [inlineEntries]modPath
	list, err := modPaths(space[:0], o)
	if err != nil || modForm(list) != Guarded {
		return dst
	}
	for i := range list {
		if !list[i].unset {
			dst = append(appendHeader(dst, typeObject, list[i].path), existsTrue...)
		}
	}
	return dst
}
