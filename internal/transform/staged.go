package transform

import (
	"maps"
	"slices"

	"github.com/millrace/millrace/internal/mongo"
)

// ByCommand is the rules of a job that has to keep documents of others on its target: it
// cannot have a collection take the place of another one there.
func (s *Set) ByCommand() *Set {
	out := Set{}
	if s != nil {
		out = *s
	}
	out.byCommand, out.routes = true, &routes{}
	return &out
}

// Commands reports whether the many steps of a server for one command of a user have to be
// handled as that command. That is so if the target's content matters for some collection.
func (s *Set) Commands() bool {
	return s != nil && (s.byCommand || len(s.filters)+len(s.skips)+len(s.mappings)+len(s.softDeletes)+len(s.histories) > 0)
}

// Others reports that the target has documents in the job's collections which are not
// the source's.
func (s *Set) Others() bool { return s != nil && s.byCommand }

// staged reports a collection that a server fills for a command. No rule is about it, for
// the rules are about what users name; it is kept where the command may concern what is.
func (s *Set) staged(ns string) bool {
	if !s.Commands() {
		return false
	}
	c, _ := mongo.Staged(ns)
	return c != 0
}

// matchStaged says whether one is kept.
func (s *Set) matchStaged(ns string) bool {
	switch c, of := mongo.Staged(ns); c {
	case mongo.CommandCapped:
		return s.Match(of)
	case mongo.CommandOut, mongo.CommandMove:
		db, _ := mongo.SplitNS(ns)
		return s.MatchDB(db)
	}
	return false
}

// targetStaged is its name on the target: in a database that rules lead to.
func (s *Set) targetStaged(ns string) string {
	db, coll := mongo.SplitNS(ns)
	if to, ok := s.dbs[db]; ok {
		return to + "." + coll
	}
	if s.MatchTargetDB(db) {
		return ns
	}
	for _, from := range slices.Sorted(maps.Keys(s.colls)) {
		if of, _ := mongo.SplitNS(from); of == db && s.Match(from) {
			to, _ := mongo.SplitNS(s.colls[from])
			return to + "." + coll
		}
	}
	return ns
}
