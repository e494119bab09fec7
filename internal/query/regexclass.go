package query

import (
	"errors"
)

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
