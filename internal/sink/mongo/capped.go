package mongosink

import "github.com/millrace/millrace/internal/mongo"

// CappedStart says which events of a capped collection to skip: those up to Past and the next Then.
type CappedStart struct {
	Past mongo.OpTime
	Then int
}

// passes counts an event and reports whether the target has it.
func (s *CappedStart) passes(at mongo.OpTime) bool {
	if !s.Past.Before(at) {
		return true
	}
	s.Then--
	return s.Then >= 0
}

// cappedStarts are by target namespace, for the router only.
type cappedStarts map[string]*CappedStart

func newCappedStarts(given map[string]CappedStart) cappedStarts {
	c := cappedStarts{}
	for ns, s := range given {
		c[ns] = &s
	}
	return c
}

// renamed follows a rename at a position, or a drop (to is "").
func (c cappedStarts) renamed(from, to string, at mongo.OpTime) {
	start := c[from]
	delete(c, from)
	switch there := c[to]; {
	case to == "":
	case start != nil:
		c[to] = start
	case there != nil && there.Past.Before(at):
		// A restart may repeat a rename: keep what is already known of the collection after it.
		delete(c, to)
	}
}
