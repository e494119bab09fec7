package query

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

type rnode struct {
	op       rop
	kids     []*rnode
	set      runeSet // rSet
	min, max int     // rRepeat; max -1 is no bound
}

type rop uint8

const (
	rEmpty rop = iota
	rSet       // one character of a set
	rCat
	rAlt
	rRepeat
	// What follows takes no character.
	rBegin     // the start of the text
	rBeginLine // after a newline too, but not after one that ends the text
	rEnd       // the end, or before a newline that ends the text
	rEndLine   // before any newline too
	rEndText   // the end
	rWord      // \b
	rNotWord   // \B
)

func (n *rnode) least() int {
	total := 0
	switch n.op {
	case rSet:
		return 1
	case rCat:
		for _, k := range n.kids {
			total += k.least()
		}
	case rAlt:
		total = n.kids[0].least()
		for _, k := range n.kids[1:] {
			total = min(total, k.least())
		}
	case rRepeat:
		total = n.min * n.kids[0].least()
	}
	return min(total, 1)
}

// frames returns how deep the server's engine recurses for a node, at most maxFrames+1. It recurses for
// each pass through a group, up to the end of the text. Beyond 4000, servers find nothing.
func (n *rnode) frames() int {
	total := 0
	for _, k := range n.kids {
		if f := k.frames(); n.op == rAlt {
			total = max(total, f)
		} else {
			total = min(total+f, maxFrames+1)
		}
	}
	switch {
	case n.op == rCat || n.op == rAlt:
		total++
	case n.op == rRepeat && n.kids[0].op == rSet:
		total++
	case n.op == rRepeat && n.max < 0:
		return maxFrames + 1
	case n.op == rRepeat:
		total = (total + 2) * n.max
	}
	return min(total, maxFrames+1)
}

// states returns about how many states Go's engine makes of a node, at most MaxStates+1. It writes repetitions out.
func (n *rnode) states() int {
	total := 0
	for _, k := range n.kids {
		total = min(total+k.states(), MaxStates+1)
	}
	if n.op == rRepeat {
		total *= max(n.min, n.max, 1)
	}
	return min(total+1, MaxStates+1)
}

func (n *rnode) onlyEnds() bool {
	switch n.op {
	case rEmpty, rEnd:
		return true
	case rCat, rAlt, rRepeat:
		return !slices.ContainsFunc(n.kids, func(k *rnode) bool { return !k.onlyEnds() })
	}
	return false
}

type rest struct {
	takes bool // at least one character
	ends  bool // nothing but rEnd
}

var errEnd = errors.New(
	"$ (or \\Z) that is not at the end of the expression is not supported; use \\z, or \\n with \\z")

var errBegin = errors.New("^ with option m, with nothing behind it that takes a character, is not supported")

// check refuses assertions that Go's engine lacks. $ is \n?\z only where nothing follows. Go's ^ of
// lines also holds after a last newline, which matters where the rest may take no character.
func (n *rnode) check(after rest) error {
	switch n.op {
	case rEnd:
		if !after.ends {
			return errEnd
		}
	case rBeginLine:
		if !after.takes {
			return errBegin
		}
	case rCat:
		for i := len(n.kids) - 1; i >= 0; i-- {
			k := n.kids[i]
			if err := k.check(after); err != nil {
				return err
			}
			after = rest{after.takes || k.least() > 0, after.ends && k.onlyEnds()}
		}
	case rAlt:
		for _, k := range n.kids {
			if err := k.check(after); err != nil {
				return err
			}
		}
	case rRepeat:
		if n.max != 0 && n.max != 1 {
			after.ends = after.ends && n.kids[0].onlyEnds()
		}
		return n.kids[0].check(after)
	}
	return nil
}

func (n *rnode) write(out *strings.Builder) {
	switch n.op {
	case rSet:
		n.set.write(out)
	case rCat:
		for _, k := range n.kids {
			k.write(out)
		}
	case rAlt:
		for i, k := range n.kids {
			out.WriteString([]string{"(?:", "|"}[min(i, 1)])
			k.write(out)
		}
		out.WriteString(")")
	case rRepeat:
		out.WriteString("(?:")
		n.kids[0].write(out)
		out.WriteString(")" + n.count())
	default:
		out.WriteString(map[rop]string{
			rEmpty: "(?:)", rBegin: `\A`, rBeginLine: "(?m:^)", rEnd: `(?:\n?\z)`, rEndLine: "(?m:$)", rEndText: `\z`,
			rWord: `\b`, rNotWord: `\B`,
		}[n.op])
	}
}

func (n *rnode) count() string {
	switch {
	case n.max < 0 && n.min == 0:
		return "*"
	case n.max < 0 && n.min == 1:
		return "+"
	case n.max < 0:
		return fmt.Sprintf("{%d,}", n.min)
	}
	return fmt.Sprintf("{%d,%d}", n.min, n.max)
}

var errNoLiteral = errors.New("not literal text")

func literalOf(n *rnode) (text []byte, anchored bool, err error) {
	kids := []*rnode{n}
	if n.op == rCat {
		kids = n.kids
	}
	if len(kids) > 0 && kids[0].op == rBegin {
		anchored, kids = true, kids[1:]
	}
	for _, k := range kids {
		r, ok := k.set.single()
		switch {
		case k.op == rEmpty:
		case k.op != rSet || !ok:
			return nil, false, errNoLiteral
		default:
			text = utf8.AppendRune(text, r)
		}
	}
	return text, anchored, nil
}
