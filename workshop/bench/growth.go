package bench

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/workshop/plot"
)

// growth are the cases of the seed scenario that have been measured, to show
// side by side how both ways grow.
type growth []*Case

// table compares the ways, medians over the rounds; ratios are those of rounds.
func (g growth) table() (header []string, rows [][]string) {
	header = []string{"collections", "indexes each", seedLogical, seedTwoPass, "times as fast", "of which the new mongod's start", "locked, one pass", "two passes", "of it", "source stalled, one pass", "two passes"}
	for _, c := range g {
		seed, logical, one := c.contender(seedTwoPass), c.contender(seedLogical), c.contender(seedOnePass)
		faster, _ := c.against(seedLogical, seedTwoPass)
		_, lock := c.against(seedTwoPass, seedOnePass)
		rows = append(rows, []string{
			itoa(c.Collections), itoa(c.Indexes), figure(logical.Seconds.Median) + " s", figure(seed.Seconds.Median) + " s", figure(faster.Median),
			figure(seed.part(partListen)+seed.part(partAnswer)) + " s", figure(one.Values[valueLocked].Median) + " s", figure(seed.Values[valueLocked].Median) + " s",
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
func (g growth) charts(s *plot.Sheet) {
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
		if len(names) > 1 {
			s.Lines(axis.title, lines, names...)
		}
	}
}

// seedTimes are what both ways took, published and here: minutes and seconds, of
// which only ratios are compared.
type seedTimes struct{ theirLogical, theirCopy, ourLogical, ourCopy float64 }

func (c *Case) seedTimes() seedTimes {
	return seedTimes{c.Published.LogicalMinutes, c.Published.CopyMinutes,
		c.contender(seedLogical).Seconds.Median, c.contender(seedTwoPass).Seconds.Median}
}

// test is the part of one published test, its largest cell last.
func (g growth) test(number int) (of growth) {
	for _, c := range g {
		if c.Published.Test == number {
			of = append(of, c)
		}
	}
	return of
}

// publishedTable sets each cell beside its published one. Shares are those of the
// largest cell of its test.
func (g growth) publishedTable() (header []string, rows [][]string) {
	header = []string{"test", "collections", "indexes", "document", "data (on disk), published", "here",
		"logical, published", "here", "min-max", "of the largest, published", "here",
		"files, published", "here", "min-max", "of the largest, published", "here",
		"logical / files, published", "here"}
	for _, c := range g {
		cells := g.test(c.Published.Test)
		last := cells[len(cells)-1].seedTimes()
		t, p := c.seedTimes(), c.Published
		logical, files := c.contender(seedLogical), c.contender(seedTwoPass)
		faster, _ := c.against(seedLogical, seedTwoPass)
		rows = append(rows, []string{
			itoa(p.Test), itoa(p.Collections), itoa(p.Indexes), grouped(int64(p.DocumentBytes)) + " B",
			fmt.Sprintf("%g (%g) GB", p.DataGB, p.DiskGB), fmt.Sprintf("%s (%s) MB", figure(float64(c.DataBytes)/1e6), figure(float64(c.DiskBytes)/1e6)),
			fmt.Sprintf("%g min", t.theirLogical), figure(t.ourLogical) + " s", between(logical.Seconds), figure(per(t.theirLogical, last.theirLogical)), figure(per(t.ourLogical, last.ourLogical)),
			fmt.Sprintf("%g min", t.theirCopy), figure(t.ourCopy) + " s", between(files.Seconds), figure(per(t.theirCopy, last.theirCopy)), figure(per(t.ourCopy, last.ourCopy)),
			figure(per(t.theirLogical, t.theirCopy)), figure(faster.Median),
		})
	}
	return header, rows
}

func between(s Stat) string { return figure(s.Min) + "-" + figure(s.Max) }

// publishedCharts draw each test in relative form: what differs between machines
// is divided away, what is left is the shape.
func (g growth) publishedCharts(s *plot.Sheet) {
	for number := range publishedTests {
		cells := g.test(number + 1)
		if len(cells) < 2 {
			continue
		}
		draw := cells.overIndexes
		if cells[0].Published.DataGB != cells[1].Published.DataGB {
			draw = cells.overData
		}
		draw(s, fmt.Sprintf("test %d: ", number+1))
	}
}

// overIndexes draws a test whose data are the same in all cells.
func (g growth) overIndexes(s *plot.Sheet, test string) {
	var names []string
	for _, c := range g {
		names = append(names, itoa(c.Indexes))
	}
	place := func(i int, _ *Case) float64 { return float64(i) }
	s.Lines(test+"time over indexes, of the time of most indexes", g.relative(place, func(*Case) float64 { return 1 }), names...)
}

// overData draws a test whose data grow with the collections: the time, and the
// time a gigabyte, a flat line for a way that grows as its data do.
func (g growth) overData(s *plot.Sheet, test string) {
	largest := g[len(g)-1].Published.DataGB
	share := func(_ int, c *Case) float64 { return c.Published.DataGB / largest * 100 }
	s.Lines(test+"time, of that of the largest cell, over its data in %", g.relative(share, func(*Case) float64 { return 1 }))
	s.Lines(test+"time a gigabyte, of that of the largest cell, over its data in %", g.relative(share, func(c *Case) float64 { return c.Published.DataGB / largest }))
}

// relative are the four lines of a test: times divided by that of the last cell and
// by what is given.
func (g growth) relative(x func(int, *Case) float64, by func(*Case) float64) []plot.Line {
	lines := []plot.Line{{Name: "files, published"}, {Name: "files, here"}, {Name: "logical, published"}, {Name: "logical, here"}}
	last := g[len(g)-1].seedTimes()
	for i, c := range g {
		t := c.seedTimes()
		for j, y := range []float64{per(t.theirCopy, last.theirCopy), per(t.ourCopy, last.ourCopy), per(t.theirLogical, last.theirLogical), per(t.ourLogical, last.ourLogical)} {
			lines[j].X, lines[j].Y = append(lines[j].X, x(i, c)), append(lines[j].Y, y/by(c))
		}
	}
	return lines
}

// publishedNotes name the cells in which files lose, and the straight lines through
// the cells whose data grow.
func (g growth) publishedNotes() []string {
	var theirs, ours []string
	for _, c := range g {
		t := c.seedTimes()
		name := fmt.Sprintf("%s (%g GB, %s)", c.Variant, c.Published.DataGB, "%s")
		if t.theirLogical < t.theirCopy {
			theirs = append(theirs, fmt.Sprintf(name, figure(per(t.theirLogical, t.theirCopy))))
		}
		if t.ourLogical < t.ourCopy {
			ours = append(ours, fmt.Sprintf(name, figure(per(t.ourLogical, t.ourCopy))))
		}
	}
	notes := []string{"cells where copying files takes longer than the logical way (logical / files); published: " + none(theirs) + "; here: " + none(ours)}
	cells := g.test(publishedTests)
	if len(cells) < 3 {
		return notes
	}
	var data []float64
	times := make([][]float64, 4)
	for _, c := range cells {
		data = append(data, c.Published.DataGB)
		t := c.seedTimes()
		for i, y := range []float64{t.theirCopy, t.theirLogical, t.ourCopy, t.ourLogical} {
			times[i] = append(times[i], y)
		}
	}
	line := func(i int, unit string) string {
		each := slope(data, times[i])
		return fmt.Sprintf("%s %s and %s %s for each 100 published GB", figure(mean(times[i])-each*mean(data)), unit, figure(each*100), unit)
	}
	return append(notes, fmt.Sprintf("straight lines through the cells of test %d (time without any data, and growth); published: files %s, logical %s; here: files %s, logical %s",
		publishedTests, line(0, "min"), line(1, "min"), line(2, "s"), line(3, "s")))
}

func none(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

func mean(v []float64) (m float64) {
	for _, x := range v {
		m += x / float64(len(v))
	}
	return m
}

// partsTable names what the seconds of each seed consist of, medians over the
// rounds.
func (g growth) partsTable() (header []string, rows [][]string) {
	// A way that locks nothing has no lock to be named.
	names := slices.DeleteFunc(seedPartNames(), func(name string) bool {
		return !slices.ContainsFunc(g, func(c *Case) bool { return c.contender(seedTwoPass).part(name) > 0 })
	})
	header = append([]string{"seed", "seconds"}, names...)
	for _, c := range g {
		x := c.contender(seedTwoPass)
		row := []string{c.Name(), figure(x.Seconds.Median)}
		for _, name := range names {
			row = append(row, figure(x.part(name)))
		}
		rows = append(rows, row)
	}
	return header, rows
}

// fixedNotes tell how much of the shortest seed is work that no amount of data
// makes longer: it begins and ends programs, asks servers and waits for them.
func (g growth) fixedNotes() []string {
	shortest := slices.MinFunc(g, func(a, b *Case) int {
		return cmp.Compare(a.contender(seedTwoPass).Seconds.Median, b.contender(seedTwoPass).Seconds.Median)
	})
	x := shortest.contender(seedTwoPass)
	var sum float64
	var told []string
	for _, name := range fixedParts() {
		if took := x.part(name); took > 0 {
			sum += took
			told = append(told, name+" "+figure(took)+" s")
		}
	}
	return []string{fmt.Sprintf("of the %s s of the shortest, %s, %s s are parts that do not depend on the data: %s",
		figure(x.Seconds.Median), shortest.Name(), figure(sum), strings.Join(told, "; "))}
}
