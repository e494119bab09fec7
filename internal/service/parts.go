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

// ShardPoint is what was read of one shard in a span, and how it stood.
type ShardPoint struct {
	Shard string
	// Seconds are those of the span in which the shard was known.
	Seconds float64
	// Docs and Bytes were copied; Changes and ChangeBytes were read in its oplog.
	Docs, Bytes, Changes, ChangeBytes Amount
	// Lag and Window are seconds.
	Lag, Window Range
}

// RouterPoint is what one router was sent in a span.
type RouterPoint struct {
	Router          string
	Seconds         float64
	Commands, Bytes Amount
}

// part is one of several.
type part[T any] interface {
	name() string
	// then is both, one after the other; beside is both at the same time, under a name.
	then(T) T
	beside(T, string) T
}

func (s ShardPoint) name() string  { return s.Shard }
func (r RouterPoint) name() string { return r.Router }

func (s ShardPoint) then(b ShardPoint) ShardPoint {
	return ShardPoint{s.Shard, s.Seconds + b.Seconds, s.Docs.merge(b.Docs), s.Bytes.merge(b.Bytes),
		s.Changes.merge(b.Changes), s.ChangeBytes.merge(b.ChangeBytes),
		s.Lag.merge(b.Lag), s.Window.merge(b.Window)}
}

func (r RouterPoint) then(b RouterPoint) RouterPoint {
	return RouterPoint{r.Router, r.Seconds + b.Seconds, r.Commands.merge(b.Commands), r.Bytes.merge(b.Bytes)}
}

func (s ShardPoint) beside(b ShardPoint, name string) ShardPoint {
	return ShardPoint{name, max(s.Seconds, b.Seconds), s.Docs.beside(b.Docs), s.Bytes.beside(b.Bytes),
		s.Changes.beside(b.Changes), s.ChangeBytes.beside(b.ChangeBytes),
		s.Lag.beside(b.Lag, func(x, y float64) float64 { return max(x, y) }),
		s.Window.beside(b.Window, func(x, y float64) float64 { return min(x, y) })}
}

func (r RouterPoint) beside(b RouterPoint, name string) RouterPoint {
	return RouterPoint{name, max(r.Seconds, b.Seconds), r.Commands.beside(b.Commands), r.Bytes.beside(b.Bytes)}
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

// mergeParts takes the parts of a later span into those of an earlier one.
func mergeParts[T part[T]](list, later []T) []T {
	for _, l := range later {
		if i := slices.IndexFunc(list, func(one T) bool { return one.name() == l.name() }); i >= 0 {
			list[i] = list[i].then(l)
		} else {
			list = append(list, l)
		}
	}
	return FoldParts(list, nil)
}

// FoldParts has a list of parts keep those that keep wants, up to MaxParts, and makes the
// others one. They are by name then, the others at the end.
func FoldParts[T part[T]](list []T, keep func(name string) bool) []T {
	var rest T
	folded, kept := false, 0
	out := list[:0:0]
	for _, one := range list {
		if one.name() != Others && kept < MaxParts && (keep == nil || keep(one.name())) {
			out, kept = append(out, one), kept+1
			continue
		}
		rest, folded = rest.beside(one, Others), true
	}
	slices.SortFunc(out, func(a, b T) int { return strings.Compare(a.name(), b.name()) })
	if folded {
		out = append(out, rest)
	}
	return out
}
