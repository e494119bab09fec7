package bench

import (
	"strconv"

	"github.com/millrace/millrace/internal/plot"
)

// growth are the cases of the seed scenario that have been measured, to show
// side by side how both ways grow.
type growth []*Case

func (r *Report) growth() growth {
	var g growth
	for i := range r.Cases {
		c := &r.Cases[i]
		if c.Indexes > 0 && len(c.contender(seedTwoPass).Rounds) > 0 && len(c.contender(seedLogical).Rounds) > 0 {
			g = append(g, c)
		}
	}
	return g
}

// table compares the ways, medians over the rounds; ratios are those of rounds.
func (g growth) table() (header []string, rows [][]string) {
	header = []string{"collections", "indexes each", seedLogical, seedTwoPass, "times as fast", "of which the new mongod's start", "locked, one pass", "two passes", "of it", "source stalled, one pass", "two passes"}
	for _, c := range g {
		seed, logical, one := c.contender(seedTwoPass), c.contender(seedLogical), c.contender(seedOnePass)
		faster, _ := c.against(seedLogical, seedTwoPass)
		_, lock := c.against(seedTwoPass, seedOnePass)
		rows = append(rows, []string{
			itoa(c.Collections), itoa(c.Indexes), figure(logical.Seconds.Median) + " s", figure(seed.Seconds.Median) + " s", figure(faster.Median),
			figure(seed.part("start")) + " s", figure(one.Values[valueLocked].Median) + " s", figure(seed.Values[valueLocked].Median) + " s",
			strconv.FormatFloat(lock.Median*100, 'f', 1, 64) + " %",
			figure(one.Values[valueStall].Median) + " s", figure(seed.Values[valueStall].Median) + " s",
		})
	}
	return header, rows
}

// part is the median of a duration within the rounds.
func (x *Contender) part(name string) float64 {
	var v []float64
	for _, r := range x.Rounds {
		v = append(v, r.Parts[name])
	}
	return median(v)
}

// charts draw seconds over the number of indexes and of collections.
func (g growth) charts() ([]drawing, error) {
	var all []drawing
	for _, axis := range []struct {
		title string
		name  func(*Case) string
		on    func(*Case) bool
	}{
		{"seconds until the new member has caught up, over indexes of one collection",
			func(c *Case) string { return itoa(c.Indexes) }, func(c *Case) bool { return c.Collections == 1 }},
		{"the same, over collections of five indexes each",
			func(c *Case) string { return itoa(c.Collections) }, func(c *Case) bool { return c.Indexes == 5 }},
	} {
		var names []string
		lines := []plot.Line{{Name: seedOnePass}, {Name: seedTwoPass}, {Name: seedLogical}} // their order in the cases' charts
		for _, c := range g {
			if !axis.on(c) {
				continue
			}
			for i := range lines {
				l := &lines[i]
				l.X, l.Y = append(l.X, float64(len(names))), append(l.Y, c.contender(l.Name).Seconds.Median)
			}
			names = append(names, axis.name(c))
		}
		if len(names) < 2 {
			continue
		}
		svg, err := plot.Lines(lines, names...)
		if err != nil {
			return nil, err
		}
		all = append(all, drawing{axis.title, svg})
	}
	return all, nil
}
