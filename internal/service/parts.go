package service

import (
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/job"
)

const (
	// Others is the name of the shards, or routers, beyond MaxParts.
	Others = job.OtherParts
	// MaxParts bounds the shards, and the routers, of a point.
	MaxParts = job.MaxParts
)

func (p *Point) beside(b *Point) {
	p.Seconds = max(p.Seconds, b.Seconds)
	p.combine(b, Amount.beside,
		func(x, y Range) Range { return x.beside(y, func(x, y float64) float64 { return max(x, y) }) },
		func(x, y Range) Range { return x.beside(y, func(x, y float64) float64 { return min(x, y) }) })
}

// beside is what two did at the same time. Their rates together are within Least and Most.
func (a Amount) beside(b Amount) Amount {
	return Amount{a.Sum + b.Sum, a.Least + b.Least, a.Most + b.Most}
}

// beside is the worse of two figures.
func (r Range) beside(b Range, worse func(x, y float64) float64) Range {
	switch {
	case !b.Known():
		return r
	case !r.Known():
		return b
	}
	return Range{worse(r.Mean, b.Mean), worse(r.Least, b.Least), worse(r.Most, b.Most), max(r.Seconds, b.Seconds)}
}

func mergeParts(list, later []Point) []Point {
	for i := range later {
		l := &later[i]
		if at := slices.IndexFunc(list, func(p Point) bool { return p.Name == l.Name }); at >= 0 {
			list[at].Seconds += l.Seconds
			list[at].combine(l, Amount.merge, Range.merge, Range.merge)
		} else {
			list = append(list, *l)
		}
	}
	return FoldParts(list, nil)
}

// FoldParts merges the parts that keep does not want, or that are too many, into Others. It sorts them by name.
func FoldParts(list []Point, keep func(name string) bool) []Point {
	rest := Point{}
	out := list[:0:0]
	for i := range list {
		if p := &list[i]; p.Name != Others && len(out) < MaxParts && (keep == nil || keep(p.Name)) {
			out = append(out, *p)
		} else {
			rest.Name = Others
			rest.beside(p)
		}
	}
	slices.SortFunc(out, func(a, b Point) int { return strings.Compare(a.Name, b.Name) })
	if rest.Name != "" {
		out = append(out, rest)
	}
	return out
}
