package published

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/workshop/bench"
	"github.com/millrace/millrace/workshop/plot"
)

// Comparison is how two runs of the tables differ.
type Comparison struct {
	Ratios Shift `json:"ratios"` // Ratios are what compares: one figure divided by another of the same round.
	// Figures are as measured. They move with the machine, which is not equally fast on all days.
	Figures Shift `json:"figures"`
	// Unjudged are figures that only one run has, or that have one round, so that their spread is not known.
	Unjudged []string `json:"unjudged"`
	Skipped  []string `json:"skipped"` // Skipped says which tables cannot be compared, and why.
	Notes    []string `json:"notes"`   // Notes say what else was not the same: the kernel, the compiler.
}

// Shift is by how much something has moved between two runs.
type Shift struct {
	Compared int          `json:"compared"` // Compared is how many both runs have with several rounds.
	Apart    []Difference `json:"apart"`    // Apart are those where all rounds of one run are above the other.
	// Chance is how many would be apart if nothing but chance were at work: of two times three rounds one in ten.
	Chance float64 `json:"chance"`
	// Middle and Most are by how much the medians moved, as a part of the earlier one:
	// that in the middle, and the largest.
	Middle float64 `json:"middle"`
	Most   float64 `json:"most"`

	moved []float64
}

// Difference is something that is apart in two runs.
type Difference struct {
	Table int        `json:"table"`
	Key   string     `json:"key"`
	Old   bench.Stat `json:"old"`
	New   bench.Stat `json:"new"`
}

// Compare says what differs between two runs, and how much chance explains. Tables of another machine, scale or
// size are skipped; another kernel or compiler is noted.
func Compare(was, is *Results) *Comparison {
	c := &Comparison{Ratios: Shift{Apart: []Difference{}}, Figures: Shift{Apart: []Difference{}}, Unjudged: []string{},
		Skipped: []string{}, Notes: []string{}}
	for _, t := range Tables() {
		a, b := was.Of(t.Number), is.Of(t.Number)
		switch {
		case a == nil && b == nil:
		case a == nil || b == nil:
			c.skip(t.Number, "only one of the runs has it")
		case !sameMachine(a.Machine, b.Machine):
			c.skip(t.Number, "the machines differ: "+a.Machine.String()+"; "+b.Machine.String())
		case !b.repeats(a):
			c.skip(t.Number, "the scales differ: "+a.Scale+", "+b.Scale)
		default:
			if was, is := a.Machine.System, b.Machine.System; was != is {
				c.Notes = append(c.Notes, fmt.Sprintf("table %d: %s, then %s", t.Number, was, is))
			}
			c.table(&t, a.Figures, b.Figures)
		}
	}
	return c
}

// repeats reports that a run measured the same work on the same machine as another.
func (m *Measured) repeats(was *Measured) bool {
	return sameMachine(m.Machine, was.Machine) && m.Scale == was.Scale && m.Sizes == was.Sizes
}

func sameMachine(a, b bench.Machine) bool {
	a.System, b.System = "", ""
	return a == b
}

func (c *Comparison) skip(table int, why string) {
	c.Skipped = append(c.Skipped, fmt.Sprintf("table %d: %s", table, why))
}

func (c *Comparison) table(t *Table, was, is map[string][]float64) {
	all := maps.Clone(was)
	maps.Copy(all, is)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		a, b := was[key], is[key]
		if len(a) < 2 || len(b) < 2 {
			c.Unjudged = append(c.Unjudged, fmt.Sprintf("table %d, %s: %d and %d rounds", t.Number, key, len(a), len(b)))
			continue
		}
		c.Figures.add(t.Number, key, a, b)
	}
	for _, g := range t.Groups {
		for _, r := range g.Rows {
			a, b := ratios(was, r.Ratio), ratios(is, r.Ratio)
			if len(a) > 1 && len(b) > 1 {
				c.Ratios.add(t.Number, r.Ratio.String(), a, b)
			}
		}
	}
	for _, s := range []*Shift{&c.Ratios, &c.Figures} {
		of := bench.StatOf(s.moved)
		s.Middle, s.Most = of.Median, of.Max
	}
}

// add compares the rounds of one figure. What was 0 in all of them says nothing.
func (s *Shift) add(table int, key string, was, is []float64) {
	x, y := bench.StatOf(was), bench.StatOf(is)
	if x.Max == 0 && y.Max == 0 {
		return
	}
	s.Compared++
	s.Chance += 2 / chosen(len(was)+len(is), len(was))
	if x.Median != 0 {
		s.moved = append(s.moved, math.Abs(y.Median-x.Median)/math.Abs(x.Median))
	}
	if x.Max < y.Min || y.Max < x.Min {
		s.Apart = append(s.Apart, Difference{table, key, x, y})
	}
}

// chosen is in how many ways k of n can be chosen.
func chosen(n, k int) float64 {
	ways := 1.
	for i := range k {
		ways *= float64(n-i) / float64(i+1)
	}
	return ways
}

// Differs reports more apart than chance explains in 19 of 20 repetitions (Poisson).
func (s *Shift) Differs() bool {
	if len(s.Apart) == 0 {
		return false
	}
	term := math.Exp(-s.Chance)
	fewer := 0.
	for n := range len(s.Apart) {
		fewer += term
		term *= s.Chance / float64(n+1)
	}
	return 1-fewer < 0.05
}

// Text tells the comparison to people.
func (c *Comparison) Text() string {
	var b strings.Builder
	for _, of := range []struct {
		what string
		*Shift
	}{{"ratio", &c.Ratios}, {"figure", &c.Figures}} {
		fmt.Fprintln(&b, of.Shift.describe(of.what))
		for _, d := range of.Apart {
			fmt.Fprintf(&b, "  table %d, %s: %s, then %s\n", d.Table, d.Key, spread(d.Old, plot.Figure),
				spread(d.New, plot.Figure))
		}
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

// describe states in a sentence how far two runs are apart.
func (s *Shift) describe(what string) string {
	return fmt.Sprintf("%d of %s changed in all rounds (by chance %.1f). Medians moved by %.0f %% (the middle one), "+
		"%.0f %% at most",
		len(s.Apart), plot.Several(int64(s.Compared), what), s.Chance, 100*s.Middle, 100*s.Most)
}

// Earlier is the run before one: of the same work on the same machine.
type Earlier struct {
	Version string               `json:"version"` // of millrace
	Started time.Time            `json:"started"`
	Figures map[string][]float64 `json:"figures"`
}

// against compares a run with the one before it; nil where there is none.
func (m *Measured) against(t *Table) []string {
	if m.Before == nil {
		return nil
	}
	var c Comparison
	c.table(t, m.Before.Figures, m.Figures)
	shifts := []string{c.Figures.describe("figure")}
	if c.Ratios.Compared > 0 {
		shifts = append(shifts, c.Ratios.describe("ratio"))
	}
	for i, s := range shifts {
		shifts[i] = "Compared with the run of " + m.Before.Started.UTC().Format(time.DateTime) + ", " + s + "."
	}
	return shifts
}

// spread is a median with its extremes where they differ.
func spread(s bench.Stat, of func(float64) string) string {
	low, mid, high := of(s.Min), of(s.Median), of(s.Max)
	if low == high {
		return mid
	}
	return mid + " (" + low + "–" + high + ")"
}
