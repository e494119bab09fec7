package fields

import (
	"bytes"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
)

// Verdict is the effect of the rules on an update.
type Verdict uint8

// The verdicts on an update.
const (
	// State: read the document, Apply, and write it whole.
	State Verdict = iota
	// Unchanged: the same update applies to the mapped document.
	Unchanged
	// Translated: the appended update of the same form applies.
	Translated
	// Nothing: the mapped document does not change.
	Nothing
)

func (v Verdict) String() string {
	return [...]string{"state", "unchanged", "translated", "nothing"}[v]
}

// Update translates an update of a source document to the mapped one. If Translated, the new update
// is appended to dst as the o of an oplog entry, else nothing.
//
// Unless it is State, the result on the mapped document is byte for byte the mapping of the updated
// document, if both can be mapped. Exception: a document with a name twice, one of which a rule
// leaves out (otherwise drop, or a value under keep that is no document).
func (m *Map) Update(dst []byte, d delta.Delta, meta Meta) ([]byte, Verdict) {
	if m.passes(d) {
		return dst, Unchanged
	}
	if m.touched(d) {
		return dst, State
	}
	t := translator{m: m, w: writer{meta: meta}}
	var out []byte
	switch d.Kind() {
	case delta.Diff:
		out = t.diff(dst, d.Raw())
	case delta.Modifiers:
		out = t.modifiers(dst, d.Raw())
	}
	switch {
	case out == nil:
		return dst, State
	case t.wrote == 0:
		return out[:len(dst)], Nothing
	case !t.changed:
		return out[:len(dst)], Unchanged
	}
	return out, Translated
}

func (m *Map) passes(d delta.Delta) bool {
	if m.root.only || len(m.volatile) > 0 || len(m.reads) > 0 {
		return false
	}
	diff := d.Raw()
	if d.Kind() == delta.Diff {
		e, _ := bsonraw.Field(diff, "diff")
		diff = e.Value
	}
	for section, ok := range bsonraw.Fields(diff) {
		switch {
		case !ok:
			return false
		case section.Type != bson.TypeEmbeddedDocument: // $v
		case d.Kind() == delta.Diff && section.Name[0] == 's':
			if m.root.find(section.Name[1:]) != nil {
				return false
			}
		case !m.ruleless(section.Value):
			return false
		}
	}
	return true
}

func (m *Map) ruleless(section []byte) bool {
	for e, ok := range bsonraw.Fields(section) {
		if name, _, _ := bytes.Cut(e.Name, []byte(".")); !ok || m.root.find(name) != nil || m.root.find(e.Name) != nil {
			return false
		}
	}
	return true
}

// translator translates one update. Its methods return nil where the document's state is needed.
type translator struct {
	m       *Map
	w       writer
	changed bool // the result differs from the update
	wrote   int  // changes
}

func (t *translator) diff(dst, o []byte) []byte {
	dst, start := bsonraw.OpenDocument(dst)
	for e, ok := range bsonraw.Fields(o) {
		if !ok {
			return nil
		}
		if string(e.Name) != "diff" {
			dst = append(dst, e.Raw...)
			continue
		}
		dst = bsonraw.AppendHeader(dst, e.Type, e.Name)
		if dst = t.object(dst, e.Value, t.m.root, 0); dst == nil {
			return nil
		}
	}
	return bsonraw.CloseDocument(dst, start)
}

func (t *translator) object(dst, diff []byte, n *node, depth int) []byte {
	if len(n.outs) > 0 && !n.root || depth > bsonraw.MaxDepth {
		return nil
	}
	dst, start := bsonraw.OpenDocument(dst)
	for _, section := range []byte("dui") {
		if dst = t.section(dst, diff, section, n, depth); dst == nil {
			return nil
		}
	}
	for e, ok := range bsonraw.Fields(diff) {
		if !ok {
			return nil
		}
		if e.Name[0] != 's' {
			continue
		}
		if dst = t.sub(dst, e, n, depth); dst == nil {
			return nil
		}
	}
	return bsonraw.CloseDocument(dst, start)
}

func (t *translator) section(dst, diff []byte, name byte, n *node, depth int) []byte {
	at := len(dst)
	dst, start := bsonraw.OpenDocument(append(dst, byte(bson.TypeEmbeddedDocument), name, 0))
	empty := len(dst)
	for section, ok := range bsonraw.Fields(diff) {
		if !ok {
			return nil
		}
		other := len(section.Name) != 1 || section.Name[0] != name
		if other && (name != 'd' || !n.vanish || section.Name[0] == 's') {
			continue
		}
		for e, ok := range bsonraw.Fields(section.Value) {
			if !ok {
				return nil
			}
			if dst = t.entry(dst, e, entryOf{section.Name[0], name}, n, depth); dst == nil {
				return nil
			}
		}
	}
	if name == 'u' && n.root {
		dst = t.volatile(dst)
	}
	if len(dst) == empty {
		return dst[:at]
	}
	return bsonraw.CloseDocument(dst, start)
}

type entryOf struct{ from, to byte }

func (t *translator) entry(dst []byte, e bsonraw.Element, of entryOf, n *node, depth int) []byte {
	c := n.find(e.Name)
	switch {
	case c == nil && n.only, c != nil && c.gone:
		t.changed = true
		return dst
	case c != nil && len(c.outs) > 0:
		return nil
	case c == nil || of.from == 'd':
		if of.from == of.to {
			dst = t.named(dst, e, c)
		}
		return dst
	}
	return t.set(dst, e, of, c, depth)
}

func (t *translator) named(dst []byte, e bsonraw.Element, c *node) []byte {
	t.wrote++
	if c == nil || c.as == c.name {
		return append(dst, e.Raw...)
	}
	t.changed = true
	return append(bsonraw.AppendHeader(dst, e.Type, c.as), e.Value...)
}

// set writes the result of u or i: the value, or in d its removal. Where a field gets a value again,
// only i tells its place.
func (t *translator) set(dst []byte, e bsonraw.Element, of entryOf, c *node, depth int) []byte {
	if of.to == 'd' && !c.mayVanish() {
		return dst
	}
	at := len(dst)
	dst, err := t.w.field(dst, e.View, c, depth)
	switch {
	case err != nil, len(dst) > at && c.mayVanish() && of.from == 'u':
		return nil
	case of.to != 'd':
		if len(dst) > at {
			t.wrote++
		}
		t.changed = t.changed || string(dst[at:]) != string(e.Raw)
		return dst
	case len(dst) > at: // it is written in its own section
		return dst[:at]
	}
	t.changed = true
	t.wrote++
	return append(bsonraw.AppendHeader(dst, bson.TypeBoolean, c.as), 0)
}

func (t *translator) volatile(dst []byte) []byte {
	for i := range t.m.volatile {
		o := &t.m.volatile[i]
		dst, _ = t.w.make(dst, o.path.text, o)
		t.changed = true
		t.wrote++
	}
	return dst
}

func (t *translator) sub(dst []byte, e bsonraw.Element, n *node, depth int) []byte {
	c := n.find(e.Name[1:])
	switch {
	case c == nil && n.only, c != nil && (c.gone || c.rule != nil && c.rule.kind == maskNull):
		t.changed = true
		return dst
	case c == nil:
		t.wrote++
		return append(dst, e.Raw...)
	case c.rule != nil:
		return nil
	}
	at := len(dst)
	dst = append(dst, byte(e.Type), 's')
	dst = append(append(dst, c.as...), 0)
	t.changed = t.changed || c.as != c.name
	empty := len(dst) + len(bsonraw.EmptyDocument)
	if dst = t.change(dst, e.Value, c, depth); len(dst) == empty {
		return dst[:at]
	}
	return dst
}

func (t *translator) change(dst, diff []byte, n *node, depth int) []byte {
	switch {
	case n.plain():
		t.wrote++
		return append(dst, diff...)
	case !delta.IsArrayDiff(diff):
		return t.object(dst, diff, n, depth+1)
	case n.only || len(n.outs) > 0:
		return nil // elements have other indexes
	}
	return t.array(dst, diff, n, depth+1)
}

func (t *translator) array(dst, diff []byte, n *node, depth int) []byte {
	if depth > bsonraw.MaxDepth {
		return nil
	}
	before := t.wrote
	dst, start := bsonraw.OpenDocument(dst)
	for e, ok := range bsonraw.Fields(diff) {
		if !ok {
			return nil
		}
		at := len(dst)
		switch e.Name[0] {
		case 'u':
			if dst = t.element(dst, e, n, depth); dst == nil {
				return nil
			}
		case 's':
			dst = bsonraw.AppendHeader(dst, e.Type, e.Name)
			empty := len(dst) + len(bsonraw.EmptyDocument)
			if dst = t.change(dst, e.Value, n, depth); dst == nil {
				return nil
			} else if len(dst) == empty {
				dst = dst[:at]
			}
		default: // a, l
			if e.Name[0] == 'l' {
				t.wrote++
			}
			dst = append(dst, e.Raw...)
		}
	}
	if t.wrote == before {
		dst = dst[:start+4]
	}
	return bsonraw.CloseDocument(dst, start)
}

func (t *translator) element(dst []byte, e bsonraw.Element, n *node, depth int) []byte {
	at := len(dst)
	t.wrote++
	dst = bsonraw.AppendHeader(dst, e.Type, e.Name)
	var err error
	if v := e.View; v.IsDocument() {
		dst, err = t.w.document(dst, v.Value, n, depth+1)
	} else {
		dst, _, err = t.w.scattered(dst, v, n, depth)
	}
	if err != nil {
		return nil
	}
	t.changed = t.changed || string(dst[at:]) != string(e.Raw)
	return dst
}
