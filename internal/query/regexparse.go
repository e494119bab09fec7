package query

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Servers use PCRE with UTF-8 and without Unicode properties, Go has RE2. The parser reads what both
// can do, with PCRE's meaning, and refuses the rest.

type regexFlags struct{ fold, lines, dotAll, spaced bool }

func (f *regexFlags) set(c rune, on bool) bool {
	switch c {
	case 'i':
		f.fold = on
	case 'm':
		f.lines = on
	case 's':
		f.dotAll = on
	case 'x':
		f.spaced = on
	default:
		return false
	}
	return true
}

type regexParser struct {
	src   []rune
	pos   int
	depth int
	names []string // of groups
}

// maxRepeat is the most that Go repeats, maxGroups the nesting of groups.
const (
	maxRepeat = 1000
	maxGroups = 50
	// maxFrames is half of what servers' engine takes.
	maxFrames = 2000
)

func parseRegex(pattern string, f regexFlags) (*rnode, error) {
	switch {
	case !utf8.ValidString(pattern):
		return nil, errors.New("it is no UTF-8")
	case strings.Contains(pattern, "\x00"):
		return nil, errors.New("servers take no NUL in a pattern; write \\x00")
	}
	p := &regexParser{src: []rune(pattern)}
	n, err := p.alternatives(&f)
	switch {
	case err != nil:
		return nil, err
	case p.more():
		return nil, errors.New("a ) has no ( before it")
	}
	if n.frames() > maxFrames {
		return nil,
			errors.New(
				"so many repetitions of a group are not supported: servers give up on long texts; give it a bound such as {0,100}")
	}
	return n, n.check(rest{ends: true})
}

func (p *regexParser) more() bool { return p.pos < len(p.src) }

func (p *regexParser) sees(text string) bool {
	if !p.ahead(text) {
		return false
	}
	p.pos += len(text)
	return true
}

func (p *regexParser) ahead(text string) bool {
	next := []rune(text)
	return p.pos+len(next) <= len(p.src) && slices.Equal(p.src[p.pos:p.pos+len(next)], next)
}

func (p *regexParser) next() rune {
	p.pos++
	return p.src[p.pos-1]
}

// alternatives reads a|b|c up to the end of the group. An option that one of them sets holds for
// those behind it, too.
func (p *regexParser) alternatives(f *regexFlags) (*rnode, error) {
	n := &rnode{op: rAlt}
	for {
		branch, err := p.branch(f)
		if err != nil {
			return nil, err
		}
		n.kids = append(n.kids, branch)
		if !p.sees("|") {
			break
		}
	}
	if len(n.kids) == 1 {
		return n.kids[0], nil
	}
	return n, nil
}

func (p *regexParser) branch(f *regexFlags) (*rnode, error) {
	n := &rnode{op: rCat}
	for {
		if err := p.space(f); err != nil {
			return nil, err
		}
		if !p.more() || p.ahead("|") || p.ahead(")") {
			return n, nil
		}
		if p.sees(`\Q`) {
			if err := p.quoted(n, f); err != nil {
				return nil, err
			}
			continue
		}
		k, err := p.atom(f)
		if err != nil {
			return nil, err
		}
		if k, err = p.repeated(k, f); err != nil {
			return nil, err
		}
		n.kids = append(n.kids, k)
	}
}

func (p *regexParser) space(f *regexFlags) error {
	for f.spaced && p.more() {
		switch c := p.src[p.pos]; {
		case strings.ContainsRune(" \t\n\f\r", c):
			p.pos++
		case c == '#':
			for p.more() && p.src[p.pos] != '\n' {
				p.pos++
			}
			if !p.more() { // servers put a ) behind the pattern, which is then in the comment
				return errors.New("a comment without a newline behind it is refused by servers too")
			}
		case c == '\v', c == 0x85, c >= 0x200E && c <= 0x2029, unicode.IsSpace(c):
			return fmt.Errorf("the space %U is not the same to all servers with option x; write \\x{%X}", c, c)
		default:
			return nil
		}
	}
	return nil
}

func (p *regexParser) quoted(n *rnode, f *regexFlags) error {
	for !p.sees(`\E`) {
		if !p.more() { // servers put a ) behind the pattern, which is then quoted
			return errors.New("a \\Q without \\E is refused by servers too")
		}
		k, err := literal(p.next(), f)
		if err != nil {
			return err
		}
		n.kids = append(n.kids, k)
	}
	if p.more() && strings.ContainsRune("*+?{", p.src[p.pos]) {
		return errors.New("a quantifier behind \\E is not supported; put it behind a group")
	}
	return nil
}

func literal(c rune, f *regexFlags) (*rnode, error) {
	return oneOf(runeSet{one(c)}, f.fold)
}

func oneOf(s runeSet, fold bool) (*rnode, error) {
	if fold {
		with, ok := s.folded()
		if !ok {
			return nil, errors.New("option i with so many characters is not supported; write both cases as [Xx]")
		}
		s = with
	}
	return &rnode{op: rSet, set: s}, nil
}

func (p *regexParser) atom(f *regexFlags) (*rnode, error) {
	if _, _, ok := p.count(); ok {
		return nil, errors.New("a quantifier has nothing to repeat")
	}
	switch c := p.next(); c {
	case '(':
		return p.group(*f, f)
	case '[':
		return p.class(f)
	case '\\':
		return p.escape(f)
	case '.':
		if f.dotAll {
			return &rnode{op: rSet, set: runeSet{}.inverse()}, nil
		}
		return &rnode{op: rSet, set: runeSet{one('\n')}.inverse()}, nil
	case '^':
		if f.lines {
			return &rnode{op: rBeginLine}, nil
		}
		return &rnode{op: rBegin}, nil
	case '$':
		if f.lines {
			return &rnode{op: rEndLine}, nil
		}
		return &rnode{op: rEnd}, nil
	case '{':
		if f.spaced {
			return nil, errors.New("a { that begins no quantifier is not supported with option x; write \\{")
		}
		return literal(c, f)
	default:
		return literal(c, f)
	}
}

func (p *regexParser) repeated(k *rnode, f *regexFlags) (*rnode, error) {
	if err := p.space(f); err != nil {
		return nil, err
	}
	from, to, ok := p.count()
	if !ok {
		return k, nil
	}
	switch {
	case k.op >= rBegin:
		return nil, errors.New("a quantifier behind an assertion is not supported")
	case from > maxRepeat || to > maxRepeat || to >= 0 && from > to:
		return nil, fmt.Errorf("a quantifier counts up to %d, and upward", maxRepeat)
	case p.ahead("+"):
		return nil, errors.New("possessive quantifiers are not supported: Go's engine has none")
	}
	p.sees("?") // lazy: which text is found makes no difference here
	if err := p.space(f); err != nil {
		return nil, err
	}
	if _, _, again := p.count(); again {
		return nil, errors.New("a quantifier behind a quantifier is not supported; put a group between them")
	}
	return &rnode{op: rRepeat, min: from, max: to, kids: []*rnode{k}}, nil
}

// count takes a quantifier: *, +, ?, {2}, {2,} or {2,5}; to is -1 without a bound.
func (p *regexParser) count() (from, to int, ok bool) {
	switch {
	case p.sees("*"):
		return 0, -1, true
	case p.sees("+"):
		return 1, -1, true
	case p.sees("?"):
		return 0, 1, true
	case !p.ahead("{"):
		return 0, 0, false
	}
	start := p.pos
	p.pos++
	from, ok = p.number()
	if to = from; ok && p.sees(",") {
		if to = -1; !p.ahead("}") {
			to, ok = p.number()
		}
	}
	if !ok || !p.sees("}") {
		p.pos = start
		return 0, 0, false
	}
	return from, to, true
}

func (p *regexParser) number() (int, bool) {
	start := p.pos
	for p.more() && p.src[p.pos] >= '0' && p.src[p.pos] <= '9' {
		p.pos++
	}
	if p.pos-start > 6 { // more than any engine takes
		return maxRepeat + 1, true
	}
	n, err := strconv.Atoi(string(p.src[start:p.pos]))
	return n, err == nil
}

// group reads what follows a (. f are the options inside, around those outside, which (?i) changes.
func (p *regexParser) group(f regexFlags, around *regexFlags) (*rnode, error) {
	if p.depth++; p.depth > maxGroups {
		return nil, fmt.Errorf("groups are nested deeper than %d", maxGroups)
	}
	defer func() { p.depth-- }()
	switch {
	case p.ahead("*"):
		return nil, errors.New("verbs such as (*UCP) are not supported")
	case p.sees("?"):
		ends, err := p.groupKind(&f)
		if err != nil {
			return nil, err
		}
		if ends {
			*around = f
			return &rnode{op: rEmpty}, p.noQuantifier()
		}
	}
	n, err := p.alternatives(&f)
	if err != nil {
		return nil, err
	}
	if !p.sees(")") {
		return nil, errors.New("a ( has no )")
	}
	// A node of its own: what a quantifier behind it repeats is the whole.
	return &rnode{op: rCat, kids: []*rnode{n}}, nil
}

func (p *regexParser) noQuantifier() error {
	if _, _, ok := p.count(); ok {
		return errors.New("a quantifier behind options is not supported")
	}
	return nil
}

// groupKind reads what follows (?: a name, or options, which may end the group.
func (p *regexParser) groupKind(f *regexFlags) (ends bool, err error) {
	if p.sees("<") || p.sees("P<") {
		return false, p.groupName()
	}
	on := true
	for p.more() {
		switch c := p.next(); {
		case c == ':':
			return false, nil
		case c == ')':
			return true, nil
		case c == '-' && on:
			on = false
		case !f.set(c, on):
			return false,
				fmt.Errorf(
					"(?%c… is not supported: lookaround, atomic groups, conditions, recursion and the like are nothing that Go's "+
						"engine has", c)
		}
	}
	return false, errors.New("a (? has no )")
}

// groupName reads the name of a group: no effect, but servers refuse a name twice.
func (p *regexParser) groupName() error {
	start := p.pos
	for p.more() {
		c := p.next()
		if c == '>' && p.pos-start > 1 && p.pos-start <= 30 {
			name := string(p.src[start : p.pos-1])
			if slices.Contains(p.names, name) {
				return fmt.Errorf("two groups have the name %s", name)
			}
			p.names = append(p.names, name)
			return nil
		}
		if c != '_' && !(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !(c >= '0' && c <= '9' && p.pos-start > 1) {
			break
		}
	}
	return errors.New(
		"(?<… is a group's name only if letters, digits and > follow; looking behind is not supported: Go's engine cannot")
}

func (p *regexParser) escape(f *regexFlags) (*rnode, error) {
	if !p.more() {
		return nil, errors.New("it ends with a \\")
	}
	assertions := map[rune]rop{'A': rBegin, 'z': rEndText, 'Z': rEnd, 'b': rWord, 'B': rNotWord}
	if op, ok := assertions[p.src[p.pos]]; ok {
		p.pos++
		return &rnode{op: op}, nil
	}
	if s, ok := escapeSet(p.src[p.pos]); ok {
		p.pos++
		return &rnode{op: rSet, set: s}, nil
	}
	c, err := p.escapedRune()
	if err != nil {
		return nil, err
	}
	return literal(c, f)
}

func (p *regexParser) escapedRune() (rune, error) {
	c := p.next()
	if r, ok := map[rune]rune{'t': '\t', 'n': '\n', 'r': '\r', 'f': '\f', 'a': 7, 'e': 27}[c]; ok {
		return r, nil
	}
	switch {
	case c == 'x':
		return p.hex()
	case c >= '0' && c <= '9':
		return 0, fmt.Errorf("\\%c is not supported: Go's engine has no backreferences; write characters as \\x{41}", c)
	case c >= ' ' && c < 127 && !isLetter(c):
		return c, nil
	}
	return 0, fmt.Errorf("\\%c is not supported", c)
}

func isLetter(c rune) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

func (p *regexParser) hex() (rune, error) {
	braces := p.sees("{")
	start := p.pos
	for p.more() && p.pos-start < 6 && unicode.Is(unicode.ASCII_Hex_Digit, p.src[p.pos]) && (braces || p.pos-start < 2) {
		p.pos++
	}
	digits := string(p.src[start:p.pos])
	n, err := strconv.ParseUint(digits, 16, 32)
	switch {
	case err != nil || braces && !p.sees("}") || !braces && len(digits) != 2:
		return 0, errors.New("\\x needs two hexadecimal digits, or up to six in braces")
	case !utf8.ValidRune(rune(n)):
		return 0, fmt.Errorf("\\x{%s} is not a character", digits)
	}
	return rune(n), nil
}
