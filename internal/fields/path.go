package fields

import (
	"fmt"
	"strings"

	"github.com/millrace/millrace/internal/bsonraw"
)

type path struct {
	text  string
	names []string
}

func (p path) within(above path) bool {
	return strings.HasPrefix(p.text, above.text) && (len(p.text) == len(above.text) || p.text[len(above.text)] == '.')
}

func (p path) overlaps(q path) bool { return p.within(q) || q.within(p) }

type place string

func (at place) in(name string) place {
	if at != "" {
		name = string(at) + " → " + name
	}
	return place(name)
}

func (at place) key(name string) place { return at.in(fmt.Sprintf("%q", name)) }

func (at place) refuse(format string, args ...any) error {
	where := "fields"
	if at != "" {
		where += " at " + string(at)
	}
	return fmt.Errorf("%s: %s", where, fmt.Sprintf(format, args...))
}

const maxNames = 100 // of a path

// readPath reads a path of the source or of an output, which may be _id with id.
func readPath(text string, id bool, at place) (path, error) {
	p := path{text, strings.Split(text, ".")}
	switch {
	case text == "":
		return p, at.refuse("the path is empty; write the name of a field")
	case len(p.names) > maxNames:
		return p, at.refuse("the path has more than %d names", maxNames)
	case p.names[0] == "_id" && (!id || len(p.names) > 1):
		return p, at.refuse("_id is always kept as it is, and no rule can be about it; leave it out")
	}
	for _, name := range p.names {
		switch {
		case name == "":
			return p, at.refuse("a name on the path %q is empty; write names with one dot between them", text)
		case name[0] == '$':
			return p, at.refuse("the name %q begins with a dollar; no rule can be about such a field", name)
		case bsonraw.IsIndex(name):
			return p,
				at.refuse(
					"%q could be the index of an element or the name of a field; paths go into all elements of an array without an "+
						"index", name)
		case strings.IndexByte(name, 0) >= 0:
			return p, at.refuse("a name on the path has a zero byte, which no field has")
		}
	}
	return p, nil
}
