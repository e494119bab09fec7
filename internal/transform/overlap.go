package transform

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/mongo"
)

// Parse reads the text of String. Anything else is an error.
func Parse(text string) (*Set, error) {
	c := ParseConfig(text)
	c.Secret = func(string) (string, error) { return "unknown", nil } // it is not in the text
	s, err := New(c)
	if err == nil && s.String() != text {
		return nil, fmt.Errorf("this version does not know the rules %q", text)
	}
	return s, err
}

// ParseConfig returns the rules whose String is the text, if there are any.
func ParseConfig(text string) (c Config) {
	into := map[string]*[]string{"include": &c.Include, "exclude": &c.Exclude, "rename": &c.Rename, "filter": &c.Filter,
		"skip": &c.Skip, "fields": &c.Fields, "soft-delete": &c.SoftDelete, "history": &c.History}
	for text != "" && text != (*Set)(nil).String() {
		var rule string
		rule, text, _ = cutUnescaped(text, ';')
		kind, item, _ := strings.Cut(rule, " ")
		if list, ok := into[kind]; ok {
			*list = append(*list, item)
		}
		text = strings.TrimPrefix(text, " ")
	}
	return c
}

// area is a set of names on the target that rules may lead to, with holes.
type area struct {
	pattern
	holes []pattern
}

// Overlap finds names, as a pattern, that both rules may lead to on one target. It looks at the
// rules alone. Where only two holes together leave nothing over, it reports a false overlap.
func Overlap(a, b *Set) (names string, found bool) {
	for _, x := range a.areas() {
		for _, y := range b.areas() {
			hidden := func(h pattern) bool {
				return (h.db.covers(x.db) || h.db.covers(y.db)) && (h.coll.covers(x.coll) || h.coll.covers(y.coll))
			}
			if !x.db.meets(y.db) || !x.coll.meets(y.coll) || slices.ContainsFunc(x.holes, hidden) ||
				slices.ContainsFunc(y.holes, hidden) {
				continue
			}
			return narrower(x.db, y.db).text + "." + narrower(x.coll, y.coll).text, true
		}
	}
	return "", false
}

func narrower(a, b glob) glob {
	if a.covers(b) || !b.covers(a) && b.text < a.text {
		return b
	}
	return a
}

func (s *Set) areas() []area {
	if s == nil {
		s = &Set{}
	}
	include, out := s.include, []area(nil)
	if len(include) == 0 {
		include = []pattern{{all(), all()}}
	}
	kept := slices.Clone(s.exclude) // the holes of names that stay as they are
	for from := range s.dbs {
		kept = append(kept, pattern{exactly(from), all()})
	}
	for from, to := range s.colls {
		db, coll := mongo.SplitNS(from)
		kept = append(kept, pattern{exactly(db), exactly(coll)})
		if db, coll = mongo.SplitNS(to); s.Match(from) {
			out = append(out, area{pattern: pattern{exactly(db), exactly(coll)}})
		}
	}
	for _, p := range include {
		out = append(out, area{p, kept})
		for from, to := range s.dbs {
			if p.db.matches(from) {
				out = append(out, area{pattern{exactly(to), p.coll}, s.movedHoles(from, to)})
			}
		}
	}
	slices.SortFunc(out, func(a, b area) int { return strings.Compare(a.String(), b.String()) })
	return out
}

func (s *Set) movedHoles(from, to string) (holes []pattern) {
	for _, e := range s.exclude {
		if e.db.matches(from) {
			holes = append(holes, pattern{exactly(to), e.coll})
		}
	}
	for ns := range s.colls {
		if db, coll := mongo.SplitNS(ns); db == from {
			holes = append(holes, pattern{exactly(to), exactly(coll)})
		}
	}
	return holes
}

func all() glob { return glob{text: "*", any: true} }

func exactly(name string) glob { return glob{text: Literal(name), literal: name} }

// The wildcards among the runes of a glob.
const (
	star rune = -1 - iota
	one
)

func (g glob) runes() (out []rune) {
	escaped := false
	for _, r := range g.text {
		switch {
		case escaped:
			escaped = false
		case r == '\\':
			escaped = true
			continue
		case r == '*':
			r = star
		case r == '?':
			r = one
		}
		out = append(out, r)
	}
	return out
}

func (g glob) meets(other glob) bool { return align(g.runes(), other.runes(), true) }

// covers reports that every name that matches the other matches g.
func (g glob) covers(other glob) bool { return align(g.runes(), other.runes(), false) }

// align fits two globs onto each other. Unless both, wildcards of q are characters that only
// wildcards match.
func align(p, q []rune, both bool) bool {
	next := make([]bool, len(q)+1) // the row of p[i+1:]
	for i := len(p); i >= 0; i-- {
		row := make([]bool, len(q)+1)
		for j := len(q); j >= 0; j-- {
			inP, inQ := i < len(p), j < len(q)
			switch {
			case !inP && !inQ:
				row[j] = true
			case inP && p[i] == star:
				row[j] = next[j] || inQ && row[j+1]
			case both && inQ && q[j] == star:
				row[j] = row[j+1] || inP && next[j]
			case inP && inQ:
				same := p[i] == q[j] || p[i] == one && q[j] != star || both && q[j] == one
				row[j] = same && next[j+1]
			}
		}
		next = row
	}
	return next[0]
}
