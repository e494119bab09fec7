package transform

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/mongo"
)

// pattern selects namespaces by database and collection.
type pattern struct{ db, coll glob }

// String is canonical.
func (p pattern) String() string { return p.db.text + "." + p.coll.text }

func (p pattern) matches(db, coll string) bool { return p.db.matches(db) && p.coll.matches(coll) }

// rule is one for what a pattern matches.
type rule[T any] struct {
	pattern
	is   T
	text string // canonical
}

// String is canonical.
func (r *rule[T]) String() string { return r.pattern.String() + "=" + r.text }

// rules are of one kind. Of those that match a namespace the first counts.
type rules[T any] []rule[T]

// of is the index of the rule of a namespace, below 0 for none.
func (l rules[T]) of(ns string) int {
	if len(l) == 0 {
		return -1
	}
	db, coll := mongo.SplitNS(ns)
	return slices.IndexFunc(l, func(r rule[T]) bool { return r.matches(db, coll) })
}

func (l rules[T]) patterns() (out []pattern) {
	for _, r := range l {
		out = append(out, r.pattern)
	}
	return out
}

func (l rules[T]) appendTexts(to []string, kind string) []string {
	for i := range l {
		to = append(to, kind+" "+l[i].String())
	}
	return to
}

func texts(patterns []pattern) (out []string) {
	for _, p := range patterns {
		out = append(out, p.String())
	}
	return out
}

// explained is an error that says what to write.
type explained struct{ error }

// compileRules reads rules "pattern=value". parse reads the value, and gives its canonical text.
// Errors show the example, but for those that are explained.
func compileRules[T any](kind, example string, texts []string,
	parse func(value string) (T, string, error)) (out rules[T], err error) {
	for _, text := range texts {
		name, value, found := CutRule(text)
		var r rule[T]
		if !found {
			err = errors.New("the = after the pattern is missing")
		} else if r.pattern, err = compile(name); err != nil {
			err = fmt.Errorf("the pattern: %w", err)
		} else {
			r.is, r.text, err = parse(value)
		}
		if err != nil {
			if own, says := errors.AsType[explained](err); says {
				err = own.error
			} else {
				err = fmt.Errorf("%w; write '%s'", err, example)
			}
			return nil, fmt.Errorf("%s %q: %w", kind, shorten(text), err)
		}
		out = append(out, r)
	}
	return out, nil
}

// CutRule cuts a rule at the first = that no backslash is before.
func CutRule(text string) (before, after string, found bool) {
	escaped := false
	for i := range len(text) {
		switch {
		case escaped:
			escaped = false
		case text[i] == '\\':
			escaped = true
		case text[i] == '=':
			return text[:i], text[i+1:], true
		}
	}
	return text, "", false
}

// shorten keeps an error readable.
func shorten(text string) string {
	const most = 80
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

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
