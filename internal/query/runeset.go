package query

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"
)

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
