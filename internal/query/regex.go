package query

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
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

func (p *regexParser) class(f *regexFlags) (*rnode, error) {
	not := p.sees("^")
	var plain, fixed runeSet // option i folds only the plain ones
	for first := true; ; first = false {
		if !p.more() {
			return nil, errors.New("a [ has no ]")
		}
		if !first && p.sees("]") {
			break
		}
		if p.ahead("[:") || p.ahead("[.") || p.ahead("[=") {
			s, err := p.posix(f)
			if err != nil {
				return nil, err
			}
			fixed = append(fixed, s...)
			continue
		}
		if s, ok := p.classEscape(); ok {
			fixed = append(fixed, s...)
			if p.sees("-") { // which is no range then
				plain = append(plain, one('-'))
			}
			continue
		}
		r, err := p.classRange()
		if err != nil {
			return nil, err
		}
		plain = append(plain, r)
	}
	n, err := oneOf(plain, f.fold)
	if err != nil {
		return nil, err
	}
	if n.set = append(n.set, fixed...).normal(); not {
		n.set = n.set.inverse()
	}
	return n, nil
}

func (p *regexParser) classEscape() (runeSet, bool) {
	if !p.ahead("\\") || p.pos+1 >= len(p.src) {
		return nil, false
	}
	s, ok := escapeSet(p.src[p.pos+1])
	if ok {
		p.pos += 2
	}
	return s, ok
}

func (p *regexParser) classRange() (runeRange, error) {
	lo, err := p.classRune()
	if err != nil {
		return runeRange{}, err
	}
	if !p.ahead("-") || p.ahead("-]") {
		return one(lo), nil
	}
	p.pos++
	if p.ahead("[") || !p.more() {
		return runeRange{}, errors.New("a range in [] has an end that is not supported; write \\[ for the character")
	}
	hi, err := p.classRune()
	if err == nil && hi < lo {
		err = errors.New("a range in [] ends before it begins")
	}
	return span(lo, hi), err
}

func (p *regexParser) classRune() (rune, error) {
	c := p.next()
	switch {
	case c != '\\':
		return c, nil
	case !p.more():
		return 0, errors.New("it ends with a \\")
	case p.sees("b"):
		return '\b', nil
	}
	return p.escapedRune()
}

func (p *regexParser) posix(f *regexFlags) (runeSet, error) {
	bad := errors.New("a [ in [] begins a class such as [:alpha:]; write \\[ for the character")
	if !p.sees("[:") {
		return nil, bad
	}
	not := p.sees("^")
	start := p.pos
	for p.more() && p.src[p.pos] >= 'a' && p.src[p.pos] <= 'z' {
		p.pos++
	}
	s, ok := posixSet(string(p.src[start:p.pos]), f.fold)
	switch {
	case !ok || !p.sees(":]"):
		return nil, bad
	case p.ahead("-") && !p.ahead("-]"):
		return nil, errors.New("a - behind a class such as [:alpha:] is not supported; put it at the end")
	case not:
		s = s.inverse()
	}
	return s, nil
}

type runeSet []runeRange

type runeRange struct{ lo, hi rune }

func (s runeSet) single() (rune, bool) {
	if len(s) == 1 && s[0].lo == s[0].hi {
		return s[0].lo, true
	}
	return 0, false
}

func (s runeSet) normal() runeSet {
	s = slices.Clone(s)
	slices.SortFunc(s, func(a, b runeRange) int { return cmp.Compare(a.lo, b.lo) })
	out := s[:0]
	for _, r := range s {
		if last := len(out) - 1; last >= 0 && r.lo <= out[last].hi+1 {
			out[last].hi = max(out[last].hi, r.hi)
		} else {
			out = append(out, r)
		}
	}
	return out
}

func (s runeSet) inverse() runeSet {
	var out runeSet
	next := rune(0)
	for _, r := range s.normal() {
		if r.lo > next {
			out = append(out, runeRange{next, r.lo - 1})
		}
		next = r.hi + 1
	}
	if next <= unicode.MaxRune {
		out = append(out, runeRange{next, unicode.MaxRune})
	}
	return out
}

func (s runeSet) write(out *strings.Builder) {
	s = s.normal()
	if len(s) == 0 {
		out.WriteString(`[^\x00-\x{10FFFF}]`)
		return
	}
	out.WriteString("[")
	for _, r := range s {
		fmt.Fprintf(out, `\x{%X}-\x{%X}`, r.lo, r.hi)
	}
	out.WriteString("]")
}

// maxFold bounds the characters whose other cases are looked up one by one.
const maxFold = 1 << 13

// folded adds the other cases of all characters; false for too many.
func (s runeSet) folded() (runeSet, bool) {
	out := slices.Clone(s)
	count := 0
	for _, r := range s.normal() {
		for c := r.lo; c <= r.hi; c++ {
			if count++; count > maxFold {
				return nil, false
			}
			for f := unicode.SimpleFold(c); f != c; f = unicode.SimpleFold(f) {
				if hasCases(c) && hasCases(f) {
					out = append(out, one(f))
				}
			}
		}
	}
	return out.normal(), true
}

// hasCases is false for letters whose cases Go knows and the older Unicode of servers does not.
func hasCases(c rune) bool {
	for _, r := range [...]runeRange{
		{0x26a, 0x26a}, {0x282, 0x282}, {0x29d, 0x29d}, {0x10d0, 0x10ff}, {0x13a0, 0x13fd}, {0x1c80, 0x1cbf},
		{0x1d8e, 0x1d8e},
		{0x2c2f, 0x2c2f}, {0x2c5f, 0x2c5f}, {0xa794, 0xa794}, {0xa7ae, 0xa7ae}, {0xa7b2, 0xa7f6}, {0xab53, 0xab53},
		{0xab70, 0xabbf},
		{0x104b0, 0x105bc}, {0x10c80, 0x10cf2}, {0x16e40, 0x16e7f}, {0x1e900, 0x1e943},
	} {
		if c >= r.lo && c <= r.hi {
			return false
		}
	}
	return true
}

func span(lo, hi rune) runeRange { return runeRange{lo, hi} }

func one(r rune) runeRange { return runeRange{r, r} }

// Digits, words and spaces are ASCII in servers' expressions.
func digitSet() runeSet { return runeSet{span('0', '9')} }

func wordSet() runeSet { return runeSet{span('0', '9'), span('A', 'Z'), one('_'), span('a', 'z')} }

func spaceSet() runeSet { return runeSet{span('\t', '\r'), one(' ')} }

func escapeSet(c rune) (runeSet, bool) {
	var s runeSet
	switch c {
	case 'd', 'D':
		s = digitSet()
	case 'w', 'W':
		s = wordSet()
	case 's', 'S':
		s = spaceSet()
	default:
		return nil, false
	}
	if c < 'a' {
		s = s.inverse()
	}
	return s, true
}

func posixSet(name string, fold bool) (runeSet, bool) {
	lower, upper, digit := span('a', 'z'), span('A', 'Z'), span('0', '9')
	if fold && (name == "lower" || name == "upper") {
		name = "alpha"
	}
	sets := map[string]runeSet{
		"lower": {lower}, "upper": {upper}, "alpha": {lower, upper}, "digit": {digit}, "alnum": {lower, upper, digit},
		"ascii": {span(0, 127)}, "blank": {one(' '), one('\t')}, "cntrl": {span(0, 31), one(127)},
		"graph": {span(33, 126)}, "print": {span(32, 126)},
		"punct": {span(33, 47), span(58, 64), span(91, 96), span(123, 126)},
		"space": spaceSet(), "word": wordSet(), "xdigit": {digit, span('a', 'f'), span('A', 'F')},
	}
	s, ok := sets[name]
	return s, ok
}
