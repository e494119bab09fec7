package changestream

import (
	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
)

// namespace is what an event's ns says, and whether its documents are wanted.
type namespace struct {
	doc      string // of the event
	name     string // one string for all events of the namespace
	db, coll string
	internal bool // nothing of it concerns users
	keep     bool
}

// maxNamespaces bounds the cache, which is cleared when it is full.
const maxNamespaces = 1 << 16

// namespaces caches the answers of Keep by the ns documents of events. It is not safe for concurrent use.
type namespaces struct {
	keep  func(string) bool
	known map[string]*namespace
	last  *namespace // events of one namespace come in runs
}

// lookup does not allocate for a known namespace.
func (n *namespaces) lookup(doc []byte) *namespace {
	if n.last != nil && n.last.doc == string(doc) {
		return n.last
	}
	ns, ok := n.known[string(doc)]
	if !ok {
		if len(n.known) >= maxNamespaces {
			clear(n.known)
		}
		ns = n.classify(doc)
		n.known[ns.doc] = ns
	}
	n.last = ns
	return ns
}

func (n *namespaces) classify(doc []byte) *namespace {
	ns := &namespace{doc: string(doc), name: namespaceOf(doc)}
	ns.db, ns.coll = mongo.SplitNS(ns.name)
	ns.internal = mongo.IsInternal(ns.db)
	ns.keep = !ns.internal && ns.coll != "" && ns.coll != "system.views" && n.keep(ns.name)
	return ns
}

// namespaceOf returns "db.coll", or "db" of a document without coll.
func namespaceOf(doc []byte) string {
	var db, coll string
	for f, ok := range bsonraw.Fields(doc) {
		if !ok {
			return ""
		}
		value, _ := f.Str()
		switch string(f.Name) {
		case "db":
			db = string(value)
		case "coll":
			coll = string(value)
		}
	}
	if coll == "" {
		return db
	}
	return db + "." + coll
}
