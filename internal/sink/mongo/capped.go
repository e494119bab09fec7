package mongosink

import "github.com/millrace/millrace/internal/mongo"

// CappedStart is where the events of a capped collection go on: after those up
// to Past and a number of further ones.
type CappedStart struct {
	Past mongo.OpTime
	Then int
}

// passes takes an event and reports that the target has it.
func (s *CappedStart) passes(at mongo.OpTime) bool {
	if !s.Past.Before(at) {
		return true
	}
	s.Then--
	return s.Then >= 0
}

// cappedStarts are those of collections by target namespace; router only.
type cappedStarts map[string]*CappedStart

func newCappedStarts(given map[string]CappedStart) cappedStarts {
	c := cappedStarts{}
	for ns, s := range given {
		c[ns] = &s
	}
	return c
}

// renamed follows a rename at a position, or the end of a collection (to is "").
func (c cappedStarts) renamed(from, to string, at mongo.OpTime) {
	start := c[from]
	delete(c, from)
	switch there := c[to]; {
	case to == "":
	case start != nil:
		c[to] = start
	case there != nil && there.Past.Before(at):
		// A restart may repeat a rename; what is known already of the collection
		// as it is since then stays.
		delete(c, to)
	}
}
