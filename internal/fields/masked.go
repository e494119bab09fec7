package fields

import "strings"

// Masked are the fields of the result that hold masked values, by their paths there.
func (m *Map) Masked() []string {
	var out []string
	for i := range m.claims {
		if c := &m.claims[i]; c.rule.masks() {
			out = append(out, m.inPlace(c.path))
		}
	}
	for i := range m.outputs {
		if o := &m.outputs[i]; o.make.rule.masks() {
			out = append(out, o.path.text)
		}
	}
	return out
}

// inPlace is where a field of the source stands in the result, if it stays in place.
func (m *Map) inPlace(p path) string {
	names := make([]string, 0, len(p.names))
	n := m.root
	for _, name := range p.names {
		if n = n.find([]byte(name)); n == nil {
			return p.text
		} else if n.as != "" {
			name = n.as
		}
		names = append(names, name)
	}
	return strings.Join(names, ".")
}

func (r *valueRule) masks() bool { return r != nil && r.kind != convertTo }
