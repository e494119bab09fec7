package fields

import (
	"encoding/binary"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

type node struct {
	name     string // on the source
	as       string // in the result
	path     string // on the source
	gone     bool   // it does not stand in place
	only     bool   // only named fields in it pass
	root     bool
	vanish   bool // a field in it may vanish
	rule     *valueRule
	children []*node
	index    map[string]*node // of many children
	outs     []*outNode       // outputs that stand first in it
}

type outNode struct {
	name  string
	home  bool // it stands in the source's field of that name, where there is one
	made  *output
	inner []*outNode
}

const fewChildren = 8

func (n *node) find(name []byte) *node {
	if n.index != nil {
		return n.index[string(name)]
	}
	last := len(name) - 1
	if last < 0 {
		return nil
	}
	for _, c := range n.children { // names of one document differ at their ends
		if len(c.name) == len(name) && c.name[last] == name[last] && c.name == string(name) {
			return c
		}
	}
	return nil
}

func (n *node) plain() bool {
	return n.rule == nil && len(n.children) == 0 && len(n.outs) == 0 && !n.only
}

func (n *node) mayVanish() bool {
	return n.only || n.rule != nil && n.rule.otherwise == otherwiseDrop
}

func (n *node) child(name string) *node {
	if c := n.find([]byte(name)); c != nil {
		return c
	}
	c := &node{name: name, as: name, path: name}
	if !n.root {
		c.path = n.path + "." + name
	}
	n.children = append(n.children, c)
	return c
}

func (n *node) at(names []string) *node {
	for _, name := range names {
		n = n.child(name)
	}
	return n
}

func (m *Map) build() {
	m.root = &node{root: true, only: m.keeps}
	for _, p := range m.keep {
		m.root.at(p.names)
		n := m.root
		for _, name := range p.names[:len(p.names)-1] {
			n = n.child(name)
			n.only = true
		}
	}
	if m.keeps {
		m.root.child("_id")
	}
	for i := range m.claims {
		m.claims[i].plant(m)
	}
	for i := range m.outputs {
		m.plantOutput(&m.outputs[i])
	}
	m.root.finish()
	m.readsOf()
}

func (c *claim) plant(m *Map) {
	n := m.root.at(c.path.names)
	switch {
	case c.rule != nil:
		n.rule = c.rule
		for i := range m.outputs { // a moved value is ruled first
			if o := &m.outputs[i]; o.make.kind == makeMoved && o.make.from.text == c.path.text {
				o.make.rule = c.rule
			}
		}
	case c.what == "rename":
		n.as = c.to
		if taken := m.root.taken(c.to); taken != nil && m.placed(path{c.to, []string{c.to}}) == nil {
			taken.gone = true
		}
	default:
		n.gone = true
	}
}

// taken returns the child whose name an output takes; nil where it is left out anyway.
func (n *node) taken(name string) *node {
	if n.only && n.find([]byte(name)) == nil {
		return nil
	}
	return n.child(name)
}

// plantOutput puts an output into the tree, at each level into the source's field of the name, if
// that stays in place.
func (m *Map) plantOutput(o *output) {
	n := m.root
	list := &n.outs
	for i, name := range o.path.names {
		var c *node
		if n != nil {
			c = n.taken(name)
		}
		if i == len(o.path.names)-1 {
			if c != nil && c.as == c.name {
				c.gone = true
			}
			*list = append(*list, &outNode{name: name, made: o})
			return
		}
		if c != nil && (c.gone || c.as != c.name) {
			c = nil
		}
		out := inner(list, name)
		n, list = c, &out.inner
		out.home = c != nil
	}
}

func inner(list *[]*outNode, name string) *outNode {
	for _, o := range *list {
		if o.name == name {
			return o
		}
	}
	o := &outNode{name: name}
	*list = append(*list, o)
	return o
}

// finish gives each node the outputs that stand in it, and its index.
func (n *node) finish() {
	for _, o := range n.outs {
		if o.home {
			n.find([]byte(o.name)).outs = o.inner
		}
	}
	if len(n.children) > fewChildren {
		n.index = map[string]*node{}
		for _, c := range n.children {
			n.index[c.name] = c
		}
	}
	for _, c := range n.children {
		n.vanish = n.vanish || c.mayVanish()
		c.finish()
	}
}

type makeKind uint8

const (
	makeConstant makeKind = iota
	makeNamespace
	makeOperation
	makeClusterTime
	makeCopied // of another field
	makeMoved
	makeComputed
)

type maker struct {
	kind     makeKind
	constant value
	from     path
	rule     *valueRule // of what is moved
	expr     *expression
}

// volatile reports a value that a later read of the source cannot reproduce.
func (mk *maker) volatile() bool { return mk.kind == makeOperation || mk.kind == makeClusterTime }

func (mk *maker) mayFail() bool {
	switch mk.kind {
	case makeComputed:
		return mk.expr.otherwise == otherwiseFail
	case makeCopied, makeMoved:
		return len(mk.from.names) > 1 // an array may be on the way
	}
	return false
}

func (w *writer) make(dst []byte, name string, o *output) ([]byte, error) {
	switch mk := &o.make; mk.kind {
	case makeConstant:
		return append(bsonraw.AppendHeader(dst, mk.constant.Type, name), mk.constant.Value...), nil
	case makeNamespace:
		return appendText(bsonraw.AppendHeader(dst, bson.TypeString, name), w.meta.Namespace), nil
	case makeOperation:
		return appendText(bsonraw.AppendHeader(dst, bson.TypeString, name), w.meta.Operation), nil
	case makeClusterTime:
		dst = bsonraw.AppendHeader(dst, bson.TypeTimestamp, name)
		return binary.LittleEndian.AppendUint64(dst, uint64(w.meta.ClusterTime.T)<<32|uint64(w.meta.ClusterTime.I)), nil
	case makeComputed:
		return mk.expr.make(dst, name, w.doc, o.path.text)
	default:
		return w.copied(dst, name, mk)
	}
}

func (w *writer) copied(dst []byte, name string, mk *maker) ([]byte, error) {
	v, err := lookup(w.doc, mk.from)
	if err != nil || v.Type == none {
		return dst, err
	}
	at := len(dst)
	dst = bsonraw.AppendHeader(dst, v.Type, name)
	if mk.rule == nil {
		return append(dst, v.Value...), nil
	}
	dst, typ, err := mk.rule.append(dst, v, mk.from.text)
	if err != nil {
		return nil, err
	}
	if typ == none {
		return dst[:at], nil
	}
	dst[at] = byte(typ)
	return dst, nil
}

func lookup(doc []byte, p path) (value, error) {
	for i, name := range p.names {
		e, ok := bsonraw.Field(doc, name)
		switch {
		case !ok:
			return value{}, nil
		case i == len(p.names)-1:
			return e.View, nil
		case e.Type == bson.TypeArray:
			return value{}, &Misfit{p.text, "the path goes through an array, which has many values or none"}
		case e.Type != bson.TypeEmbeddedDocument:
			return value{}, nil
		}
		doc = e.Value
	}
	return value{}, nil
}

type value = bsonraw.View

func textOf(v value) string { return string(v.Text()) }

func appendText[T string | []byte](dst []byte, text T) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(text)+1))
	dst = append(dst, text...)
	return append(dst, 0)
}

func appendBool(dst []byte, yes bool) []byte {
	if yes {
		return append(dst, 1)
	}
	return append(dst, 0)
}

func appendInt64(dst []byte, n int64) []byte {
	return binary.LittleEndian.AppendUint64(dst, uint64(n))
}
