package fields

import (
	"bytes"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

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
