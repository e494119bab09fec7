package published

import (
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/workshop/plot"
)

// lookup gives a figure by its key, published or measured here.
type lookup func(key string) (float64, bool)

// here looks up medians of what was measured.
func (m *Measured) here(key string) (float64, bool) {
	s, ok := m.figure(key)
	return s.Median, ok
}

// point is a place on a line: where it lies, and the key of its figure.
type point struct {
	x   float64
	key string
}

// trace is a line of the figures that there are; one place is no line.
func trace(name string, of lookup, points []point) plot.Line {
	l := plot.Line{Name: name}
	for _, p := range points {
		if y, ok := of(p.key); ok {
			l.X, l.Y = append(l.X, p.x), append(l.Y, y)
		}
	}
	return drawable(l)
}

// drawable is a line, without its points when they are all in one place.
func drawable(l plot.Line) plot.Line {
	if len(l.X) == 0 || slices.Min(l.X) == slices.Max(l.X) {
		return plot.Line{Name: l.Name}
	}
	return l
}

// charts are those of a table under way, each with the end of its file's name.
type charts struct {
	plot.Sheet
	names []string
}

// name names the chart that was added last, if it was.
func (c *charts) name(name string) {
	if len(c.Charts) > len(c.names) {
		c.names = append(c.names, name)
	}
}

// drawn makes charts of one form twice: as published, and here.
func drawn(t *Table, m *Measured, draw func(where string, of lookup)) {
	draw("published", t.published)
	draw("here", m.here)
}

// curves draws what was seen over time, a chart for each name.
func (m *Measured) curves(all *charts) {
	var names []string
	for _, c := range m.Curves {
		if !slices.Contains(names, c.Chart) {
			names = append(names, c.Chart)
		}
	}
	for _, name := range names {
		var lines []plot.Line
		title := ""
		for _, c := range m.Curves {
			if c.Chart == name {
				lines = append(lines, drawable(plot.Line{Name: c.Name, X: c.X, Y: c.Y}))
				title = c.Title
			}
		}
		all.Lines(title, lines)
		all.name(name)
	}
}

// dtsCharts draws how much faster than MongoShake the others are.
func dtsCharts(all *charts, t *Table, m *Measured) {
	var bars []plot.Bar
	for _, work := range []struct{ key, name string }{{fullOne, "one table"}, {fullMany, "five tables"},
		{backlog, "incremental"}} {
		to := []string{key(work.key, "mongoshake")}
		there, _ := t.ratio(Ratio{Of: key(work.key, "dts"), To: to})
		here, _ := m.ratio(Ratio{Of: key(work.key, "millrace"), To: to})
		bars = append(bars, plot.Bar{Name: work.name + ": DTS, published", Value: there},
			plot.Bar{Name: work.name + ": millrace, here", Value: here.Median})
	}
	all.Bars("rate, of MongoShake's with the published settings", bars)
	all.name("ratios")
}

// ycsbCharts draws throughput and latencies by mix, and the kinds of instance.
func ycsbCharts(all *charts, _ *Table, m *Measured) {
	mixes := ycsbMixes()
	for _, c := range []struct{ name, title string }{
		{"rate", "operations a second, by reads:writes"},
		{"ral", "RAL, µs, by reads:writes"}, {"wal", "WAL, µs, by reads:writes"},
	} {
		var points []point
		for i, mix := range mixes {
			points = append(points, point{float64(i), key(key("mix", mix), c.name)})
		}
		all.Lines(c.title, []plot.Line{trace("8 threads", m.here, points)}, mixes...)
		all.name(c.name)
	}
	for _, mix := range ycsbMixes() {
		var bars []plot.Bar
		for _, c := range ycsbClassList() {
			bars = append(bars, plot.Bar{Name: c.name + ", 4.2, local disk", Value: m.median(key(c.key(mix), "local"))},
				plot.Bar{Name: c.name + ", 4.4, network disk", Value: m.median(key(c.key(mix), "network"))})
		}
		all.Bars("operations a second at "+mix+", by processors:memory", bars)
		all.name("classes-" + strings.ReplaceAll(mix, ":", "-"))
	}
	all.Lines("rate of 4.2 with the local disk, % of 4.4 with the network disk, by reads:writes", classDifferences(m),
		ycsbMixes()...)
	all.name("classes-difference")
}

// classDifferences draws one kind of instance in per cent of the other, a line for each size.
func classDifferences(m *Measured) (lines []plot.Line) {
	for _, c := range ycsbClassList() {
		l := plot.Line{Name: c.name}
		for i, mix := range ycsbMixes() {
			if r, ok := m.ratio(over(c.key(mix), "local", "network")); ok {
				l.X, l.Y = append(l.X, float64(i)), append(l.Y, 100*r.Median)
			}
		}
		lines = append(lines, drawable(l))
	}
	return lines
}

// fileCharts draws the growth with the data, published and here.
func fileCharts(all *charts, t *Table, m *Measured) {
	drawn(t, m, func(where string, of lookup) {
		var logical, files []point
		for _, c := range testCells(growthTest) {
			k := fileKey(c)
			logical, files = append(logical, point{c.dataGB, key(k, "logical")}), append(files, point{c.dataGB, key(k, "files")})
		}
		title, right := "published: minutes over gigabytes of data", "file copy"
		if where == "here" {
			title, right = "here: seconds over gigabytes of data of the published set", "millrace seed"
		}
		all.Lines(title, []plot.Line{trace("logical", of, logical), trace(right, of, files)})
		all.name("growth-" + where)
	})
}

// ddtCharts draws processor time and memory against the rate, as published, with the threads beside the points.
func ddtCharts(all *charts, t *Table, m *Measured) {
	drawn(t, m, func(where string, of lookup) {
		for _, c := range []struct{ key, title string }{{"cpu", "processors, %"}, {"memory", "memory, MB"}} {
			all.Scatter(where+": "+c.title+", over operations a second", ddtClouds(of, c.key), "operations a second", c.title)
			all.name(c.key + "-" + where)
		}
	})
}

// ddtClouds are the rows by their rate and another figure, a cloud for each cache.
func ddtClouds(of lookup, column string) []plot.Cloud {
	clouds := []plot.Cloud{{Name: "cache 16 x 16"}, {Name: "cache 32 x 32"}}
	for _, cell := range ddtCells() {
		x, rated := of(key(cell.key(), "rate"))
		y, ok := of(key(cell.key(), column))
		if !rated || !ok {
			continue
		}
		c := &clouds[cell.cache/32]
		c.X, c.Y, c.Labels = append(c.X, x), append(c.Y, y), append(c.Labels, strconv.Itoa(cell.writers))
	}
	return clouds
}

// chainCharts draws writes and the primary's processors by members.
func chainCharts(all *charts, t *Table, m *Measured) {
	members := chainSizes()
	var names []string
	for _, n := range members {
		names = append(names, strconv.Itoa(n))
	}
	drawn(t, m, func(where string, of lookup) {
		for _, c := range []struct{ name, title, on, off string }{
			{"writes", "writes a second, by members", "on", "off"},
			{"cpu", "processors of the primary, %, by members", "on-cpu", "off-cpu"},
		} {
			var lines []plot.Line
			for _, concern := range chainConcerns() {
				for _, way := range []struct{ name, key string }{{"on", c.on}, {"off", c.off}} {
					var points []point
					for i, n := range members {
						points = append(points, point{float64(i), key(chainKey(n, concern), way.key)})
					}
					lines = append(lines, trace("w:"+concern+", "+way.name, of, points))
				}
			}
			all.Lines(where+": "+c.title, lines, names...)
			all.name(c.name + "-" + where)
		}
	})
}
