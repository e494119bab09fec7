package fields

import (
	"bytes"
	"errors"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// Meta is what a document's event tells beside the document.
type Meta struct {
	Namespace   string         // on the source
	Operation   string         // as $operation is to read, such as "insert"
	ClusterTime bson.Timestamp // when it happened; servers put their own time for a zero
}

// Map is a set of rules that was read once.
type Map struct {
	text     string
	root     *node
	claims   []claim
	outputs  []output
	keep     []path
	keeps    bool // there is a keep
	reads    []read
	volatile []output
}

// Misfit says that a value has no place in what the rules ask for. It holds nothing
// of the value.
type Misfit struct {
	Path string // of the rule
	Why  string
}

// Error is for people.
func (e *Misfit) Error() string { return "the value of field " + e.Path + ": " + e.Why }

var errBadDocument = errors.New("the document is no valid BSON")

// String is the canonical text of the rules, which a job is known by. Of secrets it
// has the references alone.
func (m *Map) String() string { return m.text }

// Volatile are the fields of the result that a later look at the source cannot tell:
// when and by what the document was written. They stand at the top level.
func (m *Map) Volatile() []string {
	var out []string
	for i := range m.volatile {
		out = append(out, m.volatile[i].path.text)
	}
	return out
}

// Strip appends a document of the target, or a mapped one, without the Volatile fields.
func (m *Map) Strip(dst []byte, doc bson.Raw) ([]byte, error) {
	if len(m.volatile) == 0 {
		return append(dst, doc...), nil
	}
	dst, start := openDocument(dst)
	for e, ok := range bsonraw.Fields(doc) {
		if !ok {
			return nil, errBadDocument
		}
		if !m.isVolatile(e.Name) {
			dst = append(dst, e.Raw...)
		}
	}
	return closeDocument(dst, start), nil
}

func (m *Map) isVolatile(name []byte) bool {
	return slices.ContainsFunc(m.volatile, func(o output) bool { return o.path.text == string(name) })
}

// Parse reads rules. secrets gives what a reference of hmac names. An error says what
// is wrong, where in the rules, and how to write it.
func Parse(rules bson.Raw, secrets func(ref string) (string, error)) (*Map, error) {
	if !bsonraw.Valid(rules, bsonraw.MaxDepth) {
		return nil, place("").refuse("the rules are no valid BSON document")
	}
	p := parser{secrets: secrets, m: &Map{}}
	if err := p.document(bytes.Clone(rules)); err != nil {
		return nil, err
	}
	if err := p.m.check(); err != nil {
		return nil, err
	}
	text, err := bson.MarshalExtJSON(rules, true, false)
	if err != nil {
		return nil, place("").refuse("the rules cannot be written as JSON: %v", err)
	}
	p.m.text = string(text)
	p.m.build()
	return p.m, nil
}

// NamesNamespace reports that documents depend on the namespace that they are in.
func (m *Map) NamesNamespace() bool {
	return slices.ContainsFunc(m.outputs, func(o output) bool { return o.make.kind == makeNamespace })
}
