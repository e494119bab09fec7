package query

// node is a condition on a document. $elemMatch asks it of arrays too, whose fields
// are named by index.
type node interface {
	match(doc []byte) bool
}

type (
	allOf   []node
	anyOf   []node
	negated struct{ of node }
	// always is {}.
	always struct{}
	// onField holds when the leaf holds for a value that the path leads to.
	onField struct{ search search }
	// onName is onField for a path of one name.
	onName struct {
		name  string
		leaf  leaf
		whole bool
	}
)

func (n allOf) match(doc []byte) bool {
	for _, of := range n {
		if !of.match(doc) {
			return false
		}
	}
	return true
}

func (n anyOf) match(doc []byte) bool {
	for _, of := range n {
		if of.match(doc) {
			return true
		}
	}
	return false
}

func (n negated) match(doc []byte) bool { return !n.of.match(doc) }

func (always) match([]byte) bool { return true }

func (n *onField) match(doc []byte) bool { return n.search.document(doc, 0) }

func (n *onName) match(doc []byte) bool {
	v := field(doc, n.name)
	if v.isArray() {
		s := search{leaf: n.leaf, whole: n.whole}
		return s.end(v)
	}
	return n.leaf.test(v)
}

// all is the conjunction of nodes, in its shortest form.
func all(nodes []node) node {
	switch len(nodes) {
	case 0:
		return always{}
	case 1:
		return nodes[0]
	}
	return allOf(nodes)
}

// bind makes a leaf a condition on what a path leads to. Negations and conjunctions
// are of the whole: {a: {$gt: 1, $lt: 3}} holds for {a: [0, 4]}.
func bind(p path, l leaf) node {
	switch l := l.(type) {
	case notLeaf:
		return negated{bind(p, l.of)}
	case allLeaves:
		var nodes []node
		for _, of := range l {
			nodes = append(nodes, bind(p, of))
		}
		return all(nodes)
	}
	if len(p.steps) == 1 {
		return &onName{p.text, l, wantsArray(l)}
	}
	return &onField{search{p.steps, l, wantsArray(l)}}
}
