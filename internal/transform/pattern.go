package transform

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/query"
	"github.com/millrace/millrace/internal/stream"
)

type pattern struct{ db, coll glob }

func (p pattern) String() string { return p.db.text + "." + p.coll.text }

func (p pattern) matches(db, coll string) bool { return p.db.matches(db) && p.coll.matches(coll) }

type rule[T any] struct {
	pattern
	is   T
	text string // canonical
}

func (r *rule[T]) String() string { return r.pattern.String() + "=" + r.text }

// rules are of one kind. The first that matches a namespace counts.
type rules[T any] []rule[T]

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

type explained struct{ error }

// compileRules reads rules "pattern=value". parse returns the value and its canonical text. Errors
// show the example, unless they are explained.
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

// CutRule cuts a rule at the first = without a backslash before it.
func CutRule(text string) (before, after string, found bool) { return cutUnescaped(text, '=') }

// cutUnescaped cuts at the first separator without a backslash before it.
func cutUnescaped(text string, separator byte) (before, after string, found bool) {
	escaped := false
	for i := range len(text) {
		if text[i] == separator && !escaped {
			return text[:i], text[i+1:], true
		}
		escaped = text[i] == '\\' && !escaped
	}
	return text, "", false
}

func shorten(text string) string {
	const most = 80
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

type glob struct {
	text    string         // canonical: escapes only where they are needed
	literal string         // when there is no wildcard
	before  string         // what comes before the first wildcard, all of it if there is none
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
			if !wild {
				g.before = literal.String()
			}
			wild, last = true, r
			canonical.WriteRune(r)
			expr.WriteString(map[rune]string{'*': ".*", '?': "."}[r])
			continue
		}
		escaped, last = false, 0
		canonical.WriteString(Literal(string(r)))
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
		g.before = g.literal
	}
	return g, err
}

func (g glob) matches(s string) bool {
	if g.wild != nil {
		return g.wild.MatchString(s)
	}
	return g.any || g.literal == s
}

func all() glob { return glob{text: "*", any: true} }

func exactly(name string) glob { return glob{text: Literal(name), literal: name} }

// Literal returns a pattern, or a side of a rename, for exactly this name.
func Literal(name string) string {
	if !strings.ContainsAny(name, `\*?=;`) {
		return name // the replacer is costly to make, and patterns call this for each character
	}
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `=`, `\=`, `;`, `\;`).Replace(name)
}

func anyMatches(patterns []pattern, db, coll string) bool {
	return slices.ContainsFunc(patterns, func(p pattern) bool { return p.matches(db, coll) })
}

// boundedFilters returns parseFilter that bounds the regexes of all filters together.
func boundedFilters() func(text string) (*query.Query, string, error) {
	states := 0
	return func(text string) (*query.Query, string, error) {
		q, canonical, err := parseFilter(text)
		if err != nil {
			return nil, "", err
		}
		if states += q.States(); states > query.MaxStates {
			return nil, "", errors.New("the regexes of all filters are too large together; use fewer or shorter repetitions")
		}
		return q, canonical, nil
	}
}

func parseFilter(text string) (q *query.Query, canonical string, err error) {
	var raw bson.Raw
	if err := bson.UnmarshalExtJSON([]byte(text), false, &raw); err != nil {
		return nil, "", fmt.Errorf("the filter is no JSON: %w", err)
	}
	if q, err = query.Parse(raw); err != nil {
		return nil, "", err
	}
	json, err := bson.MarshalExtJSON(raw, true, false)
	// a semicolon can only be in a string, and would end the rule in Set.String
	return q, strings.ReplaceAll(string(json), ";", `\u003b`), err
}

// SkipsAny reports that some rule skips one of the operations.
func (s *Set) SkipsAny(ops stream.Ops) bool {
	return s != nil && slices.ContainsFunc(s.skips, func(r rule[stream.Ops]) bool { return r.is.Has(ops) })
}

// leaves are the operations whose skipping leaves documents that the source no longer has: what it
// inserts may be there.
const leaves = stream.OpDelete | stream.OpTTL | stream.OpDrop | stream.OpRename

func parseSkip(text string) (stream.Ops, string, error) {
	ops, err := stream.ParseOps(text)
	return ops, ops.String(), err
}

func parseSoftDelete(field string) (string, string, error) {
	switch {
	case field == "":
		return "", "", errors.New("the field after the = is missing")
	case field == "_id" || strings.ContainsAny(field, ".$;\x00"):
		return "", "",
			fmt.Errorf("%q cannot be the field, which stands at the top level, is not _id, and has no dot, dollar or semicolon",
				field)
	}
	return field, field, nil
}
