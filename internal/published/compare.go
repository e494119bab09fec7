package published

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/bench"
	"github.com/millrace/millrace/internal/plot"
)

// Comparison is how two runs of the tables differ.
type Comparison struct {
	// Compared is how many figures both runs have with several rounds.
	Compared int `json:"compared"`
	// Differing are those whose medians are further apart than the spreads of
	// both runs together.
	Differing []Difference `json:"differing"`
	// Unjudged are figures that only one run has, or that have one round, so that
	// their spread is not known.
	Unjudged []string `json:"unjudged"`
	// Skipped says which tables cannot be compared, and why.
	Skipped []string `json:"skipped"`
	// Notes say what else was not the same: the kernel, the compiler.
	Notes []string `json:"notes"`
}

// Difference is one figure that differs by more than noise.
type Difference struct {
	Table int        `json:"table"`
	Key   string     `json:"key"`
	Old   bench.Stat `json:"old"`
	New   bench.Stat `json:"new"`
}

// Compare says which figures of two runs differ by more than the spread of both.
// Tables of another machine, scale or sizes are not compared; those of another kernel or
// compiler are, and a note says so.
func Compare(was, is *Results) *Comparison {
	c := &Comparison{Differing: []Difference{}, Unjudged: []string{}, Skipped: []string{}, Notes: []string{}}
	for _, t := range Tables() {
		a, b := was.Of(t.Number), is.Of(t.Number)
		switch {
		case a == nil && b == nil:
		case a == nil || b == nil:
			c.skip(t.Number, "only one of the runs has it")
		case !sameMachine(a.Machine, b.Machine):
			c.skip(t.Number, "the machines differ: "+a.Machine.String()+"; "+b.Machine.String())
		case a.Scale != b.Scale || a.Sizes != b.Sizes:
			c.skip(t.Number, "the scales differ: "+a.Scale+", "+b.Scale)
		default:
			if was, is := a.Machine.System, b.Machine.System; was != is {
				c.Notes = append(c.Notes, fmt.Sprintf("table %d: %s, then %s", t.Number, was, is))
			}
			c.table(t.Number, a, b)
		}
	}
	return c
}

func sameMachine(a, b bench.Machine) bool {
	a.System, b.System = "", ""
	return a == b
}

func (c *Comparison) skip(table int, why string) {
	c.Skipped = append(c.Skipped, fmt.Sprintf("table %d: %s", table, why))
}

func (c *Comparison) table(number int, was, is *Measured) {
	keys := slices.Collect(maps.Keys(was.Figures))
	for key := range is.Figures {
		if _, ok := was.Figures[key]; !ok {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		a, b := was.Figures[key], is.Figures[key]
		if len(a) < 2 || len(b) < 2 {
			c.Unjudged = append(c.Unjudged, fmt.Sprintf("table %d, %s: %d and %d rounds", number, key, len(a), len(b)))
			continue
		}
		c.Compared++
		x, y := bench.StatOf(a), bench.StatOf(b)
		if math.Abs(x.Median-y.Median) > (x.Max-x.Min)+(y.Max-y.Min) {
			c.Differing = append(c.Differing, Difference{number, key, x, y})
		}
	}
}

// Text tells the comparison to people.
func (c *Comparison) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d figures compared, %d differ by more than the spread of both runs\n", c.Compared, len(c.Differing))
	for _, d := range c.Differing {
		fmt.Fprintf(&b, "  table %d, %s: %s, then %s\n", d.Table, d.Key, spread(d.Old, plot.Figure), spread(d.New, plot.Figure))
	}
	for _, of := range []struct {
		title string
		lines []string
	}{{"not judged", c.Unjudged}, {"not compared", c.Skipped}, {"not the same", c.Notes}} {
		for _, line := range of.lines {
			fmt.Fprintf(&b, "  %s: %s\n", of.title, line)
		}
	}
	return b.String()
}

// spread is a median with its extremes where they differ.
func spread(s bench.Stat, of func(float64) string) string {
	low, mid, high := of(s.Min), of(s.Median), of(s.Max)
	if low == high {
		return mid
	}
	return mid + " (" + low + "–" + high + ")"
}
