package oplog

import "github.com/millrace/millrace/internal/mongo"

// nsKind says how entries of a namespace are handled.
type nsKind uint8

const (
	nsSkip    nsKind = iota // internal (but for transactions), or not wanted
	nsKeep                  // documents of a wanted collection
	nsCommand               // db.$cmd of a user's database
	nsServers               // db.$cmd of another database
	nsViews                 // db.system.views of a user's database
)

type nsInfo struct {
	name string // one string for all events of the namespace
	db   string
	kind nsKind

	skipped int64 // bytes of its entries, while a filter's share is measured
}

// maxNamespaces bounds the cache, which is cleared when it is full.
const maxNamespaces = 1 << 16

// namespaces caches the answers of Keep. It is not safe for concurrent use.
type namespaces struct {
	keep  func(string) bool
	known map[string]*nsInfo
	last  *nsInfo // entries of one namespace come in runs
}

func newNamespaces(keep func(string) bool) *namespaces {
	if keep == nil {
		keep = func(string) bool { return true }
	}
	return &namespaces{keep: keep, known: map[string]*nsInfo{}}
}

// lookup does not allocate for a known namespace.
func (n *namespaces) lookup(ns []byte) *nsInfo {
	if n.last != nil && n.last.name == string(ns) {
		return n.last
	}
	if info, ok := n.known[string(ns)]; ok {
		n.last = info
		return info
	}
	if len(n.known) >= maxNamespaces {
		clear(n.known)
	}
	info := n.classify(string(ns))
	n.known[info.name] = info
	return info
}

func (n *namespaces) classify(ns string) *nsInfo {
	db, coll := mongo.SplitNS(ns)
	info := &nsInfo{name: ns, db: db}
	internal := mongo.IsInternal(db)
	switch {
	case internal && coll == "$cmd":
		info.kind = nsServers
	case internal || coll == "":
	case coll == "$cmd":
		info.kind = nsCommand
	case coll == "system.views":
		info.kind = nsViews
	case n.keep(ns):
		info.kind = nsKeep
	}
	return info
}
