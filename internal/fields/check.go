package fields

import (
	"slices"
)

// check refuses rules that overlap. Claims are of the source, outputs of the result. A claim of a
// value that stays in place is an output, too.
func (m *Map) check() error {
	for _, c := range []func() error{m.checkKept, m.checkClaims, m.checkOutputs, m.checkReplaced} {
		if err := c(); err != nil {
			return err
		}
	}
	return nil
}

func (m *Map) checkKept() error {
	for i, p := range m.keep {
		for _, q := range m.keep[:i] {
			if p.overlaps(q) {
				return place("keep").refuse("%q and %q overlap; write the one that is meant", q.text, p.text)
			}
		}
	}
	if !m.keeps {
		return nil
	}
	for i := range m.claims {
		if c := &m.claims[i]; !m.kept(c.path) {
			return c.at.refuse("%q is not kept as a whole; add it to keep", c.path.text)
		}
	}
	return nil
}

func (m *Map) kept(p path) bool {
	return slices.ContainsFunc(m.keep, p.within)
}

func (m *Map) checkClaims() error {
	for i := range m.claims {
		for j := range m.claims[:i] {
			c, d := &m.claims[j], &m.claims[i]
			if !c.path.overlaps(d.path) {
				continue
			}
			pair := c.places() != d.places() && c.what != "drop" && d.what != "drop"
			if c.path.text != d.path.text || !pair {
				return overlap(c.at, d.at,
					"a path may have one rule of its value and one of its place, and no rule above or below it")
			}
		}
	}
	return nil
}

func overlap(a, b place, why string) error {
	return place("").refuse("%s and %s overlap: %s; leave one of them out", a, b, why)
}

type named struct {
	path path
	at   place
}

func (m *Map) names() []named {
	var out []named
	for i := range m.outputs {
		out = append(out, named{m.outputs[i].path, m.outputs[i].at})
	}
	for i := range m.claims {
		c := &m.claims[i]
		switch {
		case c.what == "rename":
			out = append(out, named{path{c.to, []string{c.to}}, c.at})
		case !c.places() && m.placed(c.path) == nil:
			out = append(out, named{c.path, c.at})
		}
	}
	return out
}

func (m *Map) placed(p path) *claim {
	for i := range m.claims {
		if c := &m.claims[i]; c.places() && c.path.text == p.text {
			return c
		}
	}
	return nil
}

func (m *Map) checkOutputs() error {
	all := m.names()
	for i := range all {
		for j := range all[:i] {
			if all[i].path.overlaps(all[j].path) {
				return overlap(all[j].at, all[i].at, "both write "+shorter(all[i].path, all[j].path))
			}
		}
	}
	return nil
}

func shorter(p, q path) string {
	if len(p.text) < len(q.text) {
		return `"` + p.text + `"`
	}
	return `"` + q.text + `"`
}

// checkReplaced refuses rules of what an output replaces: they would have no effect.
func (m *Map) checkReplaced() error {
	for _, o := range m.names() {
		for i := range m.claims {
			c := &m.claims[i]
			if c.what == "drop" && c.path.within(o.path) && c.path.text != o.path.text {
				return overlap(o.at, c.at, "the first replaces all of "+`"`+o.path.text+`"`)
			}
		}
		for _, k := range m.keep {
			if k.within(o.path) && m.placed(k) == nil && m.isOutput(o) {
				return overlap(o.at, place("keep").key(k.text), "the first replaces what is kept")
			}
		}
	}
	return nil
}

func (m *Map) isOutput(o named) bool {
	return !slices.ContainsFunc(m.claims, func(c claim) bool { return !c.places() && c.at == o.at })
}
