package transform

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// pattern selects namespaces by database and collection.
type pattern struct {
	text     string // canonical
	db, coll glob
	all      bool // every collection of the database
}

// glob is a compiled wildcard expression.
type glob struct {
	literal string // when there is no wildcard
	tokens  []token
	any     bool // matches everything
}

// token is a literal character or a wildcard.
type token struct {
	r    rune
	kind tokenKind
}

type tokenKind uint8

const (
	char tokenKind = iota
	one            // ?
	many           // *
)

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
	if p.db, err = compileGlob(db); err != nil {
		return p, err
	}
	if p.coll, err = compileGlob(coll); err != nil {
		return p, err
	}
	p.all = p.coll.any
	p.text = p.db.String() + "." + p.coll.String()
	return p, nil
}

func compileGlob(text string) (glob, error) {
	var g glob
	wild := false
	for rest := text; rest != ""; {
		r, n := utf8.DecodeRuneInString(rest)
		rest = rest[n:]
		t := token{r: r}
		switch r {
		case '*':
			t.kind, wild = many, true
		case '?':
			t.kind, wild = one, true
		case '\\':
			if rest == "" {
				return g, errors.New("a backslash at the end escapes nothing")
			}
			t.r, n = utf8.DecodeRuneInString(rest)
			rest = rest[n:]
		}
		if t.kind == many && len(g.tokens) > 0 && g.tokens[len(g.tokens)-1].kind == many {
			continue // ** is *
		}
		g.tokens = append(g.tokens, t)
	}
	if !wild {
		var b strings.Builder
		for _, t := range g.tokens {
			b.WriteRune(t.r)
		}
		g.literal, g.tokens = b.String(), nil
	}
	g.any = len(g.tokens) == 1 && g.tokens[0].kind == many
	return g, nil
}

// matches compares the whole of s.
func (g glob) matches(s string) bool {
	switch {
	case g.any:
		return true
	case g.tokens == nil:
		return g.literal == s
	}
	// On a mismatch the latest * takes one character more and we try again
	// from there; earlier ones never need to grow.
	ti, star, retry := 0, -1, ""
	for rest := s; ; {
		if ti < len(g.tokens) && g.tokens[ti].kind == many {
			star, retry = ti, rest
			ti++
			continue
		}
		if rest == "" && ti == len(g.tokens) {
			return true
		}
		if rest != "" && ti < len(g.tokens) {
			r, n := utf8.DecodeRuneInString(rest)
			if t := g.tokens[ti]; t.kind == one || t.r == r {
				rest, ti = rest[n:], ti+1
				continue
			}
		}
		if star < 0 || retry == "" {
			return false
		}
		_, n := utf8.DecodeRuneInString(retry)
		retry = retry[n:]
		rest, ti = retry, star+1
	}
}

// String is the expression with escapes only where they are needed.
func (g glob) String() string {
	if g.tokens == nil {
		return escape(g.literal)
	}
	var b strings.Builder
	for _, t := range g.tokens {
		switch t.kind {
		case many:
			b.WriteByte('*')
		case one:
			b.WriteByte('?')
		default:
			b.WriteString(escape(string(t.r)))
		}
	}
	return b.String()
}

// escape makes a name a pattern or a side of a rename that means just it.
func escape(name string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `=`, `\=`, `;`, `\;`).Replace(name)
}

func anyMatches(patterns []pattern, db, coll string) bool {
	for i := range patterns {
		if patterns[i].db.matches(db) && patterns[i].coll.matches(coll) {
			return true
		}
	}
	return false
}

func texts(patterns []pattern) []string {
	var out []string
	for _, p := range patterns {
		out = append(out, p.text)
	}
	return out
}
