package changestream

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
)

// described makes an update of an updateDescription. The form is delta.Invalid if the description does not say
// which fields it means. "a.b" may be a field of a, or one with a dot in its name. "a.0" may be an element of
// an array, or a field. Since 6.0 disambiguatedPaths says so.
//
// A description does not say whether a set field was there: the update changes it in place, or appends it.
// Only pipelines move fields.
func described(doc bson.Raw) (delta.Kind, bson.Raw, error) {
	d, err := readDescription(doc)
	if err != nil {
		return delta.Invalid, nil, err
	}
	if !d.diff {
		return delta.Modifiers, d.modifiers(), nil
	}
	root := &node{component: component{index: -1}}
	for _, one := range d.paths {
		path, known := d.split(one.path)
		if !known || !root.add(path, one) {
			return delta.Invalid, nil, nil
		}
	}
	out, start := bsonraw.OpenDocument(nil)
	out = append(bsonraw.AppendHeader(out, bson.TypeInt32, "$v"), 2, 0, 0, 0)
	out = root.appendTo(bsonraw.AppendHeader(out, bson.TypeEmbeddedDocument, "diff"))
	return delta.Diff, bsonraw.CloseDocument(out, start), nil
}

// description is a parsed updateDescription.
type description struct {
	paths []pathChange
	clear []byte // disambiguatedPaths; nil where the server says none
	// diff: the server has logged a diff. Before 5.0 it logged modifiers, whose paths mean what they meet.
	diff bool
}

// pathChange is what happens to a path: it is set, removed, or the array there is cut.
type pathChange struct {
	path    []byte
	set     bsonraw.View
	removed bool
	length  []byte // of the cut array, an int32
}

func readDescription(doc bson.Raw) (d description, err error) {
	if !bsonraw.Valid(doc, bsonraw.MaxDepth) {
		return d, fmt.Errorf("%w: no updateDescription", ErrUnknown)
	}
	for f := range bsonraw.Fields(doc) {
		switch string(f.Name) {
		case "updatedFields":
			for g := range bsonraw.Fields(f.Value) {
				d.paths = append(d.paths, pathChange{path: g.Name, set: g.View})
			}
		case "removedFields":
			for g := range bsonraw.Fields(f.Value) {
				path, ok := g.Str()
				if !ok {
					return d, fmt.Errorf("%w: a removed field without a name", ErrUnknown)
				}
				d.paths = append(d.paths, pathChange{path: path, removed: true})
			}
		case "truncatedArrays":
			d.diff = true
			for g := range bsonraw.Fields(f.Value) {
				field, _ := bsonraw.Field(g.Value, "field")
				size, _ := bsonraw.Field(g.Value, "newSize")
				path, ok := field.Str()
				if !ok || size.Type != bson.TypeInt32 {
					return d, fmt.Errorf("%w: a truncated array without a name or a size", ErrUnknown)
				}
				d.paths = append(d.paths, pathChange{path: path, length: size.Value})
			}
		case "disambiguatedPaths":
			d.diff, d.clear = true, f.Value
		default:
			return d, fmt.Errorf("%w: updateDescription.%s", ErrUnknown, f.Name)
		}
	}
	return d, nil
}

// modifiers returns the update as servers before 5.0 log it.
func (d *description) modifiers() bson.Raw {
	out, start := bsonraw.OpenDocument(nil)
	out = append(bsonraw.AppendHeader(out, bson.TypeInt32, "$v"), 1, 0, 0, 0)
	for _, name := range []string{"$unset", "$set"} {
		before := len(out)
		var at int
		out, at = bsonraw.OpenDocument(bsonraw.AppendHeader(out, bson.TypeEmbeddedDocument, name))
		for _, p := range d.paths {
			switch {
			case p.removed != (name == "$unset"):
			case p.removed:
				out = append(bsonraw.AppendHeader(out, bson.TypeBoolean, p.path), 1)
			default:
				out = append(bsonraw.AppendHeader(out, p.set.Type, p.path), p.set.Value...)
			}
		}
		if len(out) == at+4 {
			out = out[:before]
			continue
		}
		out = bsonraw.CloseDocument(out, at)
	}
	return bsonraw.CloseDocument(out, start)
}

// component is a part of a path: the name of a field, or an index of an array.
type component struct {
	name  []byte
	index int // -1 for a name
}

// split cuts a path; false if it is ambiguous.
func (d *description) split(path []byte) ([]component, bool) {
	if d.clear == nil {
		return []component{{path, -1}}, !bytes.ContainsRune(path, '.')
	}
	given, times := bsonraw.Element{}, 0
	for f := range bsonraw.Fields(d.clear) {
		if bytes.Equal(f.Name, path) {
			given, times = f, times+1
		}
	}
	var out []component
	switch {
	case times > 1:
		return nil, false
	case times == 0:
		for _, name := range bytes.Split(path, []byte(".")) {
			out = append(out, component{name, -1})
		}
		return out, true
	}
	for f := range bsonraw.Fields(given.Value) {
		if n, ok := f.Int(); ok && n >= 0 {
			out = append(out, component{strconv.AppendInt(nil, n, 10), int(n)})
			continue
		}
		name, ok := f.Str()
		if !ok {
			return nil, false
		}
		out = append(out, component{name, -1})
	}
	return out, len(out) > 0
}

// node is a document or an array that an update changes, or a place in one.
type node struct {
	component
	pathChange
	ends bool // pathChange is of this place
	kids []*node
}

// add adds a change; false if it is in conflict with another one: two paths look alike.
func (n *node) add(path []component, change pathChange) bool {
	for _, c := range path {
		if n.ends && (n.length == nil || c.index < 0) {
			return false
		}
		i := slices.IndexFunc(n.kids, func(k *node) bool { return k.index == c.index && bytes.Equal(k.name, c.name) })
		if i < 0 {
			if len(n.kids) > 0 && (n.kids[0].index < 0) != (c.index < 0) {
				return false
			}
			i = len(n.kids)
			n.kids = append(n.kids, &node{component: c})
		}
		n = n.kids[i]
	}
	if n.ends || len(n.kids) > 0 && change.length == nil || n.index >= 0 && change.removed {
		return false
	}
	n.ends, n.pathChange = true, change
	return true
}

func (n *node) isArray() bool { return n.length != nil || len(n.kids) > 0 && n.kids[0].index >= 0 }

// appendTo appends the node as a diff.
func (n *node) appendTo(out []byte) []byte {
	out, start := bsonraw.OpenDocument(out)
	if n.isArray() {
		out = n.appendArray(out)
	} else {
		out = n.appendObject(out)
	}
	return bsonraw.CloseDocument(out, start)
}

func (n *node) appendArray(out []byte) []byte {
	out = append(bsonraw.AppendHeader(out, bson.TypeBoolean, "a"), 1)
	if n.length != nil {
		out = append(bsonraw.AppendHeader(out, bson.TypeInt32, "l"), n.length...)
	}
	slices.SortFunc(n.kids, func(a, b *node) int { return a.index - b.index })
	for _, k := range n.kids {
		if k.set.Type != 0 {
			out = append(bsonraw.AppendHeader(out, k.set.Type, "u"+string(k.name)), k.set.Value...)
			continue
		}
		out = k.appendTo(bsonraw.AppendHeader(out, bson.TypeEmbeddedDocument, "s"+string(k.name)))
	}
	return out
}

func (n *node) appendObject(out []byte) []byte {
	section := func(name string, of func(*node) bool, add func([]byte, *node) []byte) {
		if !slices.ContainsFunc(n.kids, of) {
			return
		}
		var start int
		out, start = bsonraw.OpenDocument(bsonraw.AppendHeader(out, bson.TypeEmbeddedDocument, name))
		for _, k := range n.kids {
			if of(k) {
				out = add(out, k)
			}
		}
		out = bsonraw.CloseDocument(out, start)
	}
	isSet := func(k *node) bool { return k.set.Type != 0 }
	section("d", func(k *node) bool { return k.removed }, func(out []byte, k *node) []byte {
		return append(bsonraw.AppendHeader(out, bson.TypeBoolean, k.name), 0)
	})
	section("u", isSet, func(out []byte, k *node) []byte {
		return append(bsonraw.AppendHeader(out, k.set.Type, k.name), k.set.Value...)
	})
	for _, k := range n.kids {
		if !k.removed && !isSet(k) {
			out = k.appendTo(bsonraw.AppendHeader(out, bson.TypeEmbeddedDocument, "s"+string(k.name)))
		}
	}
	return out
}
