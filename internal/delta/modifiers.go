package delta

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

type modPath struct {
	path  []byte
	val   []byte
	typ   bson.Type
	unset bool
}

func modPaths(list []modPath, o []byte) ([]modPath, error) {
	for f, ok := range bsonraw.Fields(o) {
		switch {
		case !ok:
			return nil, errBadUpdate
		case string(f.Name) == "$v":
			continue
		case dollar(f.Name) && string(f.Name) != "$set" && string(f.Name) != "$unset":
			return nil, fmt.Errorf("%w: operator %s", ErrUnsupported, f.Name)
		case !dollar(f.Name):
			return nil, fmt.Errorf("%w: field %q beside operators", ErrMalformed, f.Name)
		case f.Type != typeObject:
			return nil, fmt.Errorf("%w: %s is not an object", ErrMalformed, f.Name)
		}
		for g, ok := range bsonraw.Fields(f.Value) {
			if !ok {
				return nil, errBadUpdate
			}
			list = append(list, modPath{path: g.Name, val: g.Value, typ: g.Type, unset: f.Name[1] == 'u'})
		}
	}
	return list, nil
}

// parseModifiers checks a $v:1 update as the server does: no empty path or
// component (error 56), no path that is, or lies below, another (error 40).
func parseModifiers(o []byte) (Delta, error) {
	var space [inlineEntries]modPath
	list, err := modPaths(space[:0], o)
	if err != nil {
		return Delta{}, err
	}
	for i := range list {
		if err := checkPath(list[i].path); err != nil {
			return Delta{}, err
		}
	}
	if err := checkConflicts(list); err != nil {
		return Delta{}, err
	}
	return Delta{kind: Modifiers, o: o}, nil
}

func checkPath(p []byte) error {
	n := len(p)
	if n == 0 || p[0] == '.' || p[n-1] == '.' || bytes.Contains(p, []byte("..")) {
		return fmt.Errorf("%w: path %q has an empty field name", ErrMalformed, p)
	}
	if bytes.Count(p, []byte(".")) > maxDepth {
		return fmt.Errorf("%w: path deeper than %d", ErrMalformed, maxDepth)
	}
	return nil
}

// checkConflicts refuses paths of which one contains the other. Sorted, such paths are neighbours.
func checkConflicts(list []modPath) error {
	if len(list) < 2 {
		return nil
	}
	var space [inlineEntries][]byte
	paths := space[:0]
	for i := range list {
		paths = append(paths, list[i].path)
	}
	slices.SortFunc(paths, comparePaths)
	for i := 1; i < len(paths); i++ {
		if covers(paths[i-1], paths[i]) {
			return fmt.Errorf("%w: conflicting paths %q and %q", ErrMalformed, paths[i-1], paths[i])
		}
	}
	return nil
}

// comparePaths orders by component and its bytes; a path comes before those below it.
func comparePaths(a, b []byte) int {
	for i := 0; i < len(a) && i < len(b); i++ {
		if a[i] == b[i] {
			continue
		}
		switch {
		case a[i] == '.':
			return -1
		case b[i] == '.':
			return 1
		case a[i] < b[i]:
			return -1
		}
		return 1
	}
	return len(a) - len(b)
}

// covers reports whether b is a or lies below it.
func covers(a, b []byte) bool {
	return bytes.HasPrefix(b, a) && (len(a) == len(b) || b[len(a)] == '.')
}

func component(p []byte, off int) (name []byte, last bool) {
	if i := bytes.IndexByte(p[off:], '.'); i >= 0 {
		return p[off : off+i], false
	}
	return p[off:], true
}

func group(groups []entry, list []modPath, off int) []entry {
	if !grouped(list, off) {
		regroup(list, off)
	}
	for lo := 0; lo < len(list); {
		name, last := component(list[lo].path, off)
		hi := lo + 1
		for !last && hi < len(list) && sameComponent(list[hi].path, name, off) {
			hi++
		}
		groups = append(groups, entry{name: name, op: rankPaths, lo: int32(lo), hi: int32(hi)})
		lo = hi
	}
	return groups
}

func sameComponent(p, name []byte, off int) bool {
	c, _ := component(p, off)
	return string(c) == string(name)
}

// grouped reports whether equal components are neighbours already, as in every
// update that a server has logged. Only sorted paths prove it cheaply.
func grouped(list []modPath, off int) bool {
	for i := 1; i < len(list); i++ {
		if comparePaths(list[i-1].path[off:], list[i].path[off:]) >= 0 {
			return false
		}
	}
	return true
}

func regroup(list []modPath, off int) {
	first := make(map[string]int, len(list))
	for i := range list {
		c, _ := component(list[i].path, off)
		if _, ok := first[string(c)]; !ok {
			first[string(c)] = i
		}
	}
	slices.SortStableFunc(list, func(p, q modPath) int {
		c, _ := component(p.path, off)
		d, _ := component(q.path, off)
		return first[string(c)] - first[string(d)]
	})
}

func (a *applier) modifiers(dst, doc, o []byte) ([]byte, error) {
	var space [inlineEntries]modPath
	list, err := modPaths(space[:0], o)
	if err != nil {
		return nil, err
	}
	return a.modObject(dst, doc, &place{paths: list})
}

// modObject applies the paths of a $v:1 update to an object. New fields are appended in the order
// of the update, which is that of the server that logged it: 4.4.2 sorts $set by bytes ("10" before
// "9"). A newer server that is fed the same update sorts numbers by value, and differs.
func (a *applier) modObject(dst, doc []byte, in *place) ([]byte, error) {
	var space [inlineEntries]entry
	return a.fields(dst, doc, group(space[:0], in.paths, in.off), in)
}

// modField applies the paths of one group to an existing element. Unsetting an array element
// leaves a null (observed on 6.0.5).
func (a *applier) modField(dst []byte, f *field, in *place, inArray bool) ([]byte, error) {
	p := &in.paths[0]
	switch ends := len(p.path) < in.off; {
	case ends && !p.unset:
		return appendValue(dst, p.typ, f.Name, p.val), nil
	case ends && inArray:
		return bsonraw.AppendHeader(dst, typeNull, f.Name), nil
	case ends:
		return dst, nil
	}
	switch f.Type {
	case typeObject:
		return a.modObject(bsonraw.AppendHeader(dst, f.Type, f.Name), f.Value, in)
	case typeArray:
		return a.modArray(bsonraw.AppendHeader(dst, f.Type, f.Name), f.Value, in)
	}
	a.skip(in.paths)
	return append(dst, f.Raw...), nil
}

// skip counts the sets that do not fit. The server accepts an unset below a scalar, too.
func (a *applier) skip(list []modPath) {
	for i := range list {
		if !list[i].unset {
			a.skipped++
		}
	}
}

// modCreate appends a field that the document does not have, with all objects
// on the way. Missing parents are always objects, also before a number
// (observed on 6.0.5: $set "q.0" makes {q: {"0": ...}}). Unsets create nothing.
func (a *applier) modCreate(dst, name []byte, in *place) ([]byte, error) {
	if !anySet(in.paths) {
		return dst, nil
	}
	if p := &in.paths[0]; len(p.path) < in.off {
		return appendValue(dst, p.typ, name, p.val), nil
	}
	return a.modObject(bsonraw.AppendHeader(dst, typeObject, name), []byte(bsonraw.EmptyDocument), in)
}

func anySet(list []modPath) bool {
	return slices.ContainsFunc(list, func(m modPath) bool { return !m.unset })
}

// modArray applies paths to an array. It skips components that are no index. A set beyond the end
// fills up with nulls (observed on 6.0.5).
func (a *applier) modArray(dst, arr []byte, in *place) ([]byte, error) {
	b, ok := bsonraw.Body(arr)
	if !ok {
		return nil, errBadDoc
	}
	var space [inlineEntries]entry
	groups := a.sortIndexes(group(space[:0], in.paths, in.off), in.paths)
	dst, at := bsonraw.OpenDocument(dst)
	r := elements{dst: dst, rest: b}
	var err error
	for i := range groups {
		e := &groups[i]
		idx, _ := arrayIndex(e.name)
		if idx < r.n { // "1" and "01" name the same element: the first one counts
			a.skip(in.paths[e.lo:e.hi])
			continue
		}
		if r, err = a.element(r, idx, e, in); err != nil {
			return nil, err
		}
	}
	return a.finish(append(r.dst, r.rest...), at)
}

func (a *applier) sortIndexes(groups []entry, list []modPath) []entry {
	keep := groups[:0]
	for _, e := range groups {
		if _, ok := arrayIndex(e.name); ok {
			keep = append(keep, e)
		} else {
			a.skip(list[e.lo:e.hi])
		}
	}
	slices.SortStableFunc(keep, func(p, q entry) int {
		i, _ := arrayIndex(p.name)
		j, _ := arrayIndex(q.name)
		return i - j
	})
	return keep
}

// Sorted returns modifiers with their sets in the order in which a server applies them. A server
// logs them so; a user's applyOps need not have them so. Since 5.0 (numeric) numbers among the
// names sort by value. An invalid $v:1 update is returned unchanged.
func Sorted(o bson.Raw, numeric bool) bson.Raw {
	list, err := modPaths(nil, o)
	if err != nil {
		return o
	}
	order := func(a, b modPath) int {
		return slices.CompareFunc(strings.Split(string(a.path), "."), strings.Split(string(b.path), "."),
			func(x, y string) int {
				if numeric && number([]byte(x)) && number([]byte(y)) && len(x) != len(y) {
					return len(x) - len(y)
				}
				return strings.Compare(x, y)
			})
	}
	if slices.IsSortedFunc(list, order) {
		return o
	}
	slices.SortStableFunc(list, order)
	out, at := bsonraw.OpenDocument(nil)
	for _, name := range []string{"$set", "$unset"} {
		var start int
		out, start = openField(out, name)
		for _, p := range list {
			if p.unset == (name == "$unset") {
				out = appendValue(out, p.typ, p.path, p.val)
			}
		}
		out = closeOrDrop(out, start, name)
	}
	return bsonraw.CloseDocument(out, at)
}
