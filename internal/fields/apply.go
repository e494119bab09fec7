package fields

import (
	"bytes"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// Apply appends the mapped document. An error is a *Misfit, or reports invalid BSON; what was
// appended then is useless.
func (m *Map) Apply(dst []byte, doc bson.Raw, meta Meta) ([]byte, error) {
	w := writer{doc: doc, meta: meta}
	return w.document(dst, doc, m.root, 0)
}

type writer struct {
	doc  []byte
	meta Meta
}

// document writes a document by a node's rules. What passes unchanged is copied in stretches.
func (w *writer) document(dst, doc []byte, n *node, depth int) ([]byte, error) {
	rest, ok := bsonraw.Body(doc)
	if !ok || depth > bsonraw.MaxDepth {
		return nil, errBadDocument
	}
	dst, start := bsonraw.OpenDocument(dst)
	var err error
	if len(n.outs) > 0 {
		if dst, rest, err = w.first(dst, doc, rest, n); err != nil {
			return nil, err
		}
	}
	passed := rest
	for len(rest) > 0 {
		z := bsonraw.NameLen(rest[1:])
		if z < 0 {
			return nil, errBadDocument
		}
		size, ok := bsonraw.ValueSize(bson.Type(rest[0]), rest[z+2:])
		if !ok {
			return nil, errBadDocument
		}
		next := rest[z+2+size:]
		if c := n.find(rest[1 : z+1]); c != nil || n.only {
			dst = append(dst, passed[:len(passed)-len(rest)]...)
			if c != nil {
				if dst, err = w.field(dst, value{Type: bson.Type(rest[0]), Value: rest[z+2 : z+2+size]}, c, depth); err != nil {
					return nil, err
				}
			}
			passed = next
		}
		rest = next
	}
	return bsonraw.CloseDocument(append(dst, passed...), start), nil
}

func (w *writer) first(dst, doc, rest []byte, n *node) ([]byte, []byte, error) {
	if n.root {
		if e, next, ok := bsonraw.Next(rest); ok && string(e.Name) == "_id" {
			dst, rest = append(dst, e.Raw...), next
		}
	}
	var err error
	for _, o := range n.outs {
		if o.home {
			if _, found := bsonraw.Field(doc, o.name); found {
				continue
			}
		}
		if dst, err = w.output(dst, o); err != nil {
			return nil, nil, err
		}
	}
	return dst, rest, nil
}

func (w *writer) output(dst []byte, o *outNode) ([]byte, error) {
	if o.made != nil {
		return w.make(dst, o.name, o.made)
	}
	at := len(dst)
	dst, start := bsonraw.OpenDocument(bsonraw.AppendHeader(dst, bson.TypeEmbeddedDocument, o.name))
	empty := len(dst)
	var err error
	for _, in := range o.inner {
		if dst, err = w.output(dst, in); err != nil {
			return nil, err
		}
	}
	if len(dst) == empty {
		return dst[:at], nil
	}
	return bsonraw.CloseDocument(dst, start), nil
}

func (w *writer) field(dst []byte, v value, c *node, depth int) ([]byte, error) {
	if c.gone {
		return dst, nil
	}
	at := len(dst)
	dst = bsonraw.AppendHeader(dst, v.Type, c.as)
	dst, typ, err := w.value(dst, v, c, depth)
	if err != nil {
		return nil, err
	}
	if typ == none {
		return dst[:at], nil
	}
	dst[at] = byte(typ)
	return dst, nil
}

const none bson.Type = 0

func (w *writer) value(dst []byte, v value, n *node, depth int) ([]byte, bson.Type, error) {
	var err error
	switch {
	case n.rule != nil:
		return n.rule.append(dst, v, n.path)
	case n.plain():
		return append(dst, v.Value...), v.Type, nil
	case v.IsDocument():
		dst, err = w.document(dst, v.Value, n, depth+1)
		return dst, v.Type, err
	case len(n.outs) > 0:
		return w.home(dst, v, n, depth)
	}
	return w.scattered(dst, v, n, depth)
}

// scattered handles a value that is no document, under rules for fields.
func (w *writer) scattered(dst []byte, v value, n *node, depth int) ([]byte, bson.Type, error) {
	switch {
	case v.IsArray():
		dst, err := w.array(dst, v.Value, n, depth+1)
		return dst, v.Type, err
	case n.only:
		return dst, none, nil
	}
	return append(dst, v.Value...), v.Type, nil
}

func (w *writer) home(dst []byte, v value, n *node, depth int) ([]byte, bson.Type, error) {
	at := len(dst)
	dst, err := w.document(dst, []byte(bsonraw.EmptyDocument), n, depth+1)
	switch {
	case err != nil:
		return nil, none, err
	case len(dst) == at+len(bsonraw.EmptyDocument): // no output has a value
		return w.scattered(dst[:at], v, n, depth)
	case v.IsNull(), n.only && !v.IsArray():
		return dst, bson.TypeEmbeddedDocument, nil
	}
	return nil, none, &Misfit{n.path, "fields are to be put into it, and it is not a document"}
}

func (w *writer) array(dst, array []byte, n *node, depth int) ([]byte, error) {
	if depth > bsonraw.MaxDepth {
		return nil, errBadDocument
	}
	dst, start := bsonraw.OpenDocument(dst)
	i := 0
	for e, ok := range bsonraw.Fields(array) {
		if !ok {
			return nil, errBadDocument
		}
		at := len(dst)
		if n.only {
			dst = append(strconv.AppendInt(append(dst, byte(e.Type)), int64(i), 10), 0)
		} else {
			dst = bsonraw.AppendHeader(dst, e.Type, e.Name)
		}
		var typ bson.Type
		var err error
		if v := e.View; v.IsDocument() {
			typ = v.Type
			dst, err = w.document(dst, v.Value, n, depth+1)
		} else {
			dst, typ, err = w.scattered(dst, v, n, depth)
		}
		if err != nil {
			return nil, err
		}
		if typ == none {
			dst = dst[:at]
			continue
		}
		i++
	}
	return bsonraw.CloseDocument(dst, start), nil
}

// modifiers translates {$set, $unset}. Paths create what is missing, so a path is left out only
// with all others of its top-level field.
func (t *translator) modifiers(dst, o []byte) []byte {
	dst, start := bsonraw.OpenDocument(dst)
	volatile := len(t.m.volatile) > 0
	for section, ok := range bsonraw.Fields(o) {
		if !ok {
			return nil
		}
		if section.Type != bson.TypeEmbeddedDocument {
			dst = append(dst, section.Raw...)
			continue
		}
		set := string(section.Name) == "$set"
		if dst = t.operator(dst, section, set, set && volatile); dst == nil {
			return nil
		}
		volatile = volatile && !set
	}
	if volatile {
		none := bsonraw.Element{Name: []byte("$set"), View: value{Value: []byte(bsonraw.EmptyDocument)}}
		dst = t.operator(dst, none, true, true)
	}
	return bsonraw.CloseDocument(dst, start)
}

func (t *translator) operator(dst []byte, section bsonraw.Element, set, volatile bool) []byte {
	at := len(dst)
	dst, start := bsonraw.OpenDocument(bsonraw.AppendHeader(dst, bson.TypeEmbeddedDocument, section.Name))
	empty := len(dst)
	for e, ok := range bsonraw.Fields(section.Value) {
		if !ok {
			return nil
		}
		if dst = t.modifier(dst, e, set); dst == nil {
			return nil
		}
	}
	if volatile {
		dst = t.volatile(dst)
	}
	if len(dst) == empty {
		return dst[:at]
	}
	return bsonraw.CloseDocument(dst, start)
}

func (t *translator) modifier(dst []byte, e bsonraw.Element, set bool) []byte {
	name, below, more := bytes.Cut(e.Name, []byte("."))
	c := t.m.root.find(name)
	switch {
	case c == nil && t.m.root.only, c != nil && c.gone:
		t.changed = true
		return dst
	case c == nil:
		t.wrote++
		return append(dst, e.Raw...)
	case len(c.outs) > 0:
		return nil
	case !more && set:
		return t.whole(dst, e, c, c.as)
	case !more:
		return t.named(dst, e, c)
	case c.rule != nil || c.only:
		return nil
	case len(c.children) > 0:
		return t.below(dst, e, below, c, set)
	}
	t.wrote++
	if c.as == c.name {
		return append(dst, e.Raw...)
	}
	t.changed = true
	dst = append(append(dst, byte(e.Type)), c.as...)
	return append(dst, e.Raw[1+len(name):]...)
}

func (t *translator) whole(dst []byte, e bsonraw.Element, c *node, as string) []byte {
	if c.mayVanish() {
		return nil
	}
	at := len(dst)
	dst, typ, err := t.w.value(bsonraw.AppendHeader(dst, e.Type, as), e.View, c, 0)
	if err != nil {
		return nil
	}
	dst[at] = byte(typ)
	t.wrote++
	t.changed = t.changed || string(dst[at:]) != string(e.Raw)
	return dst
}

func (t *translator) below(dst []byte, e bsonraw.Element, rest []byte, n *node, set bool) []byte {
	c, end, ok := follow(rest, n, set)
	switch {
	case !ok:
		return nil
	case c == nil || !set:
		t.wrote++
		return append(dst, e.Raw...)
	case !end || c.gone:
		return nil
	}
	return t.whole(dst, e, c, string(e.Name))
}

// follow goes down a path to the node that it sets as a whole (end), or below which it continues;
// to none where it touches no rule. A number may be an index or a name: not ok where that matters.
func follow(rest []byte, n *node, set bool) (c *node, end, ok bool) {
	name, below, more := bytes.Cut(rest, []byte("."))
	if bsonraw.IsIndex(name) {
		if !more {
			return nil, false, !set
		}
		c, _, ok = follow(below, n, set)
		return nil, false, ok && c == nil
	}
	c = n.find(name)
	switch {
	case c == nil:
		return nil, false, true
	case !more:
		return c, true, true
	case c.rule == nil && !c.gone:
		return follow(below, c, set)
	}
	// Below what is left out there is nothing to unset; what is mapped as a whole is another.
	return nil, false, !set && c.gone
}
