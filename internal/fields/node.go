package fields

// node is what becomes of a field of the source, and of those in it.
type node struct {
	name     string // on the source
	as       string // in the result
	path     string // on the source
	gone     bool   // it does not stand in place
	only     bool   // of the fields in it those alone pass that are named
	root     bool
	vanish   bool // a field in it may vanish
	rule     *valueRule
	children []*node
	index    map[string]*node // of many children
	outs     []*outNode       // outputs that stand first in it
}

// outNode is a field of the result that does not stand in place, or one around such.
type outNode struct {
	name  string
	home  bool // it stands in the source's field of that name, where there is one
	made  *output
	inner []*outNode
}

const fewChildren = 8

// find is the child of a name; nil for none.
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

// plain says that a value passes as it is.
func (n *node) plain() bool {
	return n.rule == nil && len(n.children) == 0 && len(n.outs) == 0 && !n.only
}

// mayVanish says that a value of the source may have none in the result.
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

// build makes the tree of rules that were checked.
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

// plant puts a claim into the tree.
func (c *claim) plant(m *Map) {
	n := m.root.at(c.path.names)
	switch {
	case c.rule != nil:
		n.rule = c.rule
		for i := range m.outputs { // what is moved is moved as the rule makes it
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

// taken is the child whose name an output has; nil where it does not pass anyway.
func (n *node) taken(name string) *node {
	if n.only && n.find([]byte(name)) == nil {
		return nil
	}
	return n.child(name)
}

// plantOutput puts an output into the tree, at each level into the source's field of
// the name, if that stays in place.
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

// inner is the outNode of a name in a list that has outputs in it.
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
