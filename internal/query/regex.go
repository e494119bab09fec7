package query

import (
	"bytes"
	"regexp"
	"strings"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// regexLeaf finds text by a regular expression, and stored expressions that are equal.
type regexLeaf struct {
	pattern, options string
	// Most patterns are plain text, which is searched without re.
	literal  []byte
	anchored bool // at the start of the text
	re       *regexp.Regexp
	states   int // the size of re
}

func (l *regexLeaf) test(v value) bool {
	switch {
	case isText(v):
		// Servers find nothing in text that is no UTF-8.
		return l.find(v.Text()) && utf8.Valid(v.Text())
	case v.Type == bson.TypeRegex:
		pattern, options := regexOf(v)
		return string(pattern) == l.pattern && string(options) == l.options
	}
	return false
}

func (l *regexLeaf) find(text []byte) bool {
	switch {
	case l.re != nil:
		return l.re.Match(text)
	case l.anchored:
		return bytes.HasPrefix(text, l.literal)
	}
	return bytes.Contains(text, l.literal)
}

func (p *parser) regexValue(v value, at place) (*regexLeaf, error) {
	p.regs = true
	pattern, options := regexOf(v)
	return p.newRegex(string(pattern), string(options), at)
}

func (p *parser) regexOperator(ops []byte, v value, at place) (*regexLeaf, error) {
	p.regs = true
	options, beside, err := optionsBeside(ops, at)
	if err != nil {
		return nil, err
	}
	switch v.Type {
	case bson.TypeString:
		return p.newRegex(string(v.Text()), options, at)
	case bson.TypeRegex:
		pattern, own := regexOf(v)
		if len(own) > 0 && beside {
			return nil, at.refuse("options stand in the regex and in $options; write them once")
		}
		return p.newRegex(string(pattern), options+string(own), at)
	}
	return nil, at.refuse("it needs a string or a regex, not %s", describe(v))
}

// optionsBeside returns $options, if any. Of two $regex or $options, servers take one alone.
func optionsBeside(ops []byte, at place) (options string, is bool, err error) {
	regexes := 0
	for e := range bsonraw.Fields(ops) {
		switch {
		case string(e.Name) == "$regex":
			regexes++
		case string(e.Name) != "$options":
		case is:
			return "", is, at.refuse("$options stands there twice; write it once")
		case e.Type != bson.TypeString:
			return "", is, at.refuse("$options needs a string, not %s", describe(e.View))
		default:
			options, is = string(e.Text()), true
		}
	}
	if regexes > 1 {
		return "", is, at.refuse("it stands there twice; use $and")
	}
	return options, is, nil
}

func (p *parser) newRegex(pattern, options string, at place) (*regexLeaf, error) {
	l, err := newRegex(pattern, options, at)
	if err != nil {
		return nil, err
	}
	if p.states += l.states; p.states > MaxStates {
		return nil, at.refuse("the regexes of the filter are too large together; use fewer or shorter repetitions")
	}
	return l, nil
}

func newRegex(pattern, options string, at place) (*regexLeaf, error) {
	flags, err := flagsOf(options, at)
	if err != nil {
		return nil, err
	}
	tree, err := parseRegex(pattern, flags)
	if err != nil {
		return nil, at.refuse("regex /%s/: %s", pattern, err)
	}
	l := &regexLeaf{pattern: pattern, options: options}
	if l.literal, l.anchored, err = literalOf(tree); err == nil {
		return l, nil
	}
	if l.states = tree.states(); l.states > MaxStates {
		return nil, at.refuse("regex /%s/ is too large; use fewer or shorter repetitions", pattern)
	}
	var out strings.Builder
	tree.write(&out)
	if l.re, err = regexp.Compile(out.String()); err != nil {
		return nil, at.refuse("regex /%s/ is too large: %v", pattern, err)
	}
	return l, nil
}

func flagsOf(options string, at place) (f regexFlags, err error) {
	for _, c := range options {
		if !f.set(c, true) {
			return f, at.refuse("regex option %q is not one of i, m, s, x", c)
		}
	}
	return f, nil
}
