package fields

import (
	"bytes"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
)

// Verdict is what becomes of an update.
type Verdict uint8

// The verdicts on an update.
const (
	// State: the update alone does not say what it makes of the mapped document. Read
	// the document, Apply, and write it whole.
	State Verdict = iota
	// Unchanged: the update makes of the mapped document what it is to be.
	Unchanged
	// Translated: another update of the same form does, and was appended.
	Translated
	// Nothing: the mapped document stays as it is.
	Nothing
)

// String names the verdict for logs.
func (v Verdict) String() string {
	return [...]string{"state", "unchanged", "translated", "nothing"}[v]
}

// Update says what an update of a source document does to the mapped one. Where it is
// Translated, the update is appended to dst as the o of an oplog entry; otherwise
// nothing is.
//
// Whenever it is not State, applying what it says to the mapped document gives, byte
// for byte, the mapping of the updated document, if both can be mapped at all. Not
// so for a document with a name twice, of which a rule leaves out one: where otherwise is
// drop, and under keep what is no document.
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

// passes reports that an update is of no field that a rule is about.
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

// ruleless reports that no rule is about the fields that a section names.
func (m *Map) ruleless(section []byte) bool {
	for e, ok := range bsonraw.Fields(section) {
		if name, _, _ := bytes.Cut(e.Name, []byte(".")); !ok || m.root.find(name) != nil || m.root.find(e.Name) != nil {
			return false
		}
	}
	return true
}

// translator makes one update of another. What it writes is nil where the document's
// state is needed.
type translator struct {
	m       *Map
	w       writer
	changed bool // it is not the update that it was
	wrote   int  // changes
}

// diff translates $v:2.
func (t *translator) diff(dst, o []byte) []byte {
	dst, start := openDocument(dst)
	for e, ok := range bsonraw.Fields(o) {
		if !ok {
			return nil
		}
		if string(e.Name) != "diff" {
			dst = append(dst, e.Raw...)
			continue
		}
		dst = appendHeader(dst, e.Type, e.Name)
		if dst = t.object(dst, e.Value, t.m.root, 0); dst == nil {
			return nil
		}
	}
	return closeDocument(dst, start)
}

// object translates the diff of an object for which a node has rules.
func (t *translator) object(dst, diff []byte, n *node, depth int) []byte {
	if len(n.outs) > 0 && !n.root || depth > bsonraw.MaxDepth {
		return nil
	}
	dst, start := openDocument(dst)
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
	return closeDocument(dst, start)
}

// section writes d, u or i: what is in it, and in d what now is left out.
func (t *translator) section(dst, diff []byte, name byte, n *node, depth int) []byte {
	at := len(dst)
	dst, start := openDocument(append(dst, byte(bson.TypeEmbeddedDocument), name, 0))
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
	return closeDocument(dst, start)
}

// entryOf is in which section an entry stands, and which is written.
type entryOf struct{ from, to byte }

// entry writes what an entry becomes in the section that is written.
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

// named writes an element under the name that it has in the result.
func (t *translator) named(dst []byte, e bsonraw.Element, c *node) []byte {
	t.wrote++
	if c == nil || c.as == c.name {
		return append(dst, e.Raw...)
	}
	t.changed = true
	return append(appendHeader(dst, e.Type, c.as), e.Value...)
}

// set writes what u or i becomes: the value that it has in the result, or in d that it
// has none. Where a field has a value again, only i says where it stands.
func (t *translator) set(dst []byte, e bsonraw.Element, of entryOf, c *node, depth int) []byte {
	if of.to == 'd' && !c.mayVanish() {
		return dst
	}
	at := len(dst)
	dst, err := t.w.field(dst, valueOf(e), c, depth)
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
	return append(appendHeader(dst, bson.TypeBoolean, c.as), 0)
}

// volatile writes the fields that change with each write.
func (t *translator) volatile(dst []byte) []byte {
	for i := range t.m.volatile {
		o := &t.m.volatile[i]
		dst, _ = t.w.make(dst, o.path.text, o)
		t.changed = true
		t.wrote++
	}
	return dst
}

// sub writes what the diff of a field becomes.
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
	empty := len(dst) + len(emptyDocument)
	if dst = t.change(dst, e.Value, c, depth); len(dst) == empty {
		return dst[:at]
	}
	return dst
}

// change writes what the diff of a value on the way to rules becomes, {} for nothing.
func (t *translator) change(dst, diff []byte, n *node, depth int) []byte {
	switch {
	case n.plain():
		t.wrote++
		return append(dst, diff...)
	case !isArrayDiff(diff):
		return t.object(dst, diff, n, depth+1)
	case n.only || len(n.outs) > 0:
		return nil // elements have other indexes
	}
	return t.array(dst, diff, n, depth+1)
}

func isArrayDiff(diff []byte) bool {
	e, ok := bsonraw.Field(diff, "a")
	return ok && e.Type == bson.TypeBoolean
}

// array writes what the diff of an array becomes.
func (t *translator) array(dst, diff []byte, n *node, depth int) []byte {
	if depth > bsonraw.MaxDepth {
		return nil
	}
	before := t.wrote
	dst, start := openDocument(dst)
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
			dst = appendHeader(dst, e.Type, e.Name)
			empty := len(dst) + len(emptyDocument)
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
	return closeDocument(dst, start)
}

// element writes an element that is set as a whole. Here nothing vanishes.
func (t *translator) element(dst []byte, e bsonraw.Element, n *node, depth int) []byte {
	at := len(dst)
	t.wrote++
	dst = appendHeader(dst, e.Type, e.Name)
	var err error
	if v := valueOf(e); v.isDocument() {
		dst, err = t.w.document(dst, v.data, n, depth+1)
	} else {
		dst, _, err = t.w.scattered(dst, v, n, depth)
	}
	if err != nil {
		return nil
	}
	t.changed = t.changed || string(dst[at:]) != string(e.Raw)
	return dst
}
