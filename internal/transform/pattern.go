package transform

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// pattern selects namespaces by database and collection.
type pattern struct{ db, coll glob }

// String is canonical.
func (p pattern) String() string { return p.db.text + "." + p.coll.text }

func (p pattern) matches(db, coll string) bool { return p.db.matches(db) && p.coll.matches(coll) }

// glob is a compiled wildcard expression.
type glob struct {
	text    string         // canonical: escapes only where they are needed
	literal string         // when there is no wildcard
	wild    *regexp.Regexp // else, unless it matches everything
	any     bool
}

func compileAll(kind string, texts []string) ([]pattern, error) {
	var out []pattern
	for _, t := range texts {
		p, err := compile(t)
		if err != nil {
			return nil, fmt.Errorf("%s pattern %q: %w; write db, db.coll or db.*, with * and ? as wildcards", kind, t, err)
		}
		out = append(out, p)
	}
	return out, nil
}

func compile(text string) (pattern, error) {
	db, coll, dotted := strings.Cut(text, ".")
	switch {
	case !utf8.ValidString(text) || strings.ContainsRune(text, 0):
		return pattern{}, errors.New("it is not valid text")
	case db == "":
		return pattern{}, errors.New("the database is missing")
	case dotted && coll == "":
		return pattern{}, errors.New("the collection after the dot is missing")
	case !dotted:
		coll = "*"
	}
	var p pattern
	var err error
	if p.db, err = compileGlob(db); err == nil {
		p.coll, err = compileGlob(coll)
	}
	return p, err
}

func compileGlob(text string) (g glob, err error) {
	var canonical, literal, expr strings.Builder
	wild, escaped, last := false, false, rune(0)
	for _, r := range text {
		switch {
		case !escaped && r == '\\':
			escaped = true
			continue
		case !escaped && r == '*' && last == '*': // ** is *
			continue
		case !escaped && (r == '*' || r == '?'):
			wild, last = true, r
			canonical.WriteRune(r)
			expr.WriteString(map[rune]string{'*': ".*", '?': "."}[r])
			continue
		}
		escaped, last = false, 0
		canonical.WriteString(escape(string(r)))
		literal.WriteRune(r)
		expr.WriteString(regexp.QuoteMeta(string(r)))
	}
	if escaped {
		return g, errors.New("a backslash at the end escapes nothing")
	}
	g.text = canonical.String()
	switch g.any = g.text == "*"; {
	case g.any:
	case wild:
		g.wild, err = regexp.Compile(`(?s)\A` + expr.String() + `\z`)
	default:
		g.literal = literal.String()
	}
	return g, err
}

// matches compares the whole of s.
func (g glob) matches(s string) bool {
	if g.wild != nil {
		return g.wild.MatchString(s)
	}
	return g.any || g.literal == s
}

// escape makes a name a pattern or a side of a rename that means just it.
func escape(name string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `=`, `\=`, `;`, `\;`).Replace(name)
}

func anyMatches(patterns []pattern, db, coll string) bool {
	return slices.ContainsFunc(patterns, func(p pattern) bool { return p.matches(db, coll) })
}

// Literal makes a name a pattern, or a side of a rename, that means just it.
func Literal(name string) string { return escape(name) }
