package ycsb

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/millrace/millrace/workshop/plot"
)

// Comparison is what was measured of several servers, or by several clients.
type Comparison struct {
	Sides       []*Matrix    `json:"sides"` // Sides are the servers in their order, each by millrace and then by the peer.
	Differences []Difference `json:"differences,omitempty"`
}

// Difference is how one side differs from another, its base.
type Difference struct {
	Base  string     `json:"base"`
	Other string     `json:"other"`
	Cells []CellDiff `json:"cells"`
}

// CellDiff is the difference of a cell in percent of the base's figure; without a figure of both, nil.
type CellDiff struct {
	Mix        Mix      `json:"mix"` // 0:0 is the load
	Threads    int      `json:"threads"`
	Throughput *float64 `json:"operationsPerSecondPercent,omitempty"`
	RAL        *float64 `json:"readAveragePercent,omitempty"`
	WAL        *float64 `json:"writeAveragePercent,omitempty"`
	ClientCPU  *float64 `json:"clientCpuPercent,omitempty"`
}

// compare compares servers with the first, by the same client, and the peer with millrace.
func (c *Comparison) compare() {
	for i, other := range c.Sides {
		for _, base := range c.Sides[:i] {
			sameServer, sameClient := base.Name == other.Name, base.Client == other.Client
			if sameServer || sameClient && base.Name == c.Sides[0].Name {
				c.Differences = append(c.Differences, differenceOf(base, other))
			}
		}
	}
}

func differenceOf(base, other *Matrix) Difference {
	d := Difference{Base: base.label(), Other: other.label()}
	for _, b := range base.measured() {
		for _, o := range other.measured() {
			if o.Mix == b.Mix && o.Threads == b.Threads {
				d.Cells = append(d.Cells, CellDiff{b.Mix, b.Threads, percent(b.Throughput, o.Throughput), percent(b.RAL, o.RAL),
					percent(b.WAL, o.WAL), percent(b.ClientCPU, o.ClientCPU)})
			}
		}
	}
	return d
}

// percent is how much more the second is, nil when one of both is missing.
func percent(base, other float64) *float64 {
	if base == 0 || other == 0 {
		return nil
	}
	p := 100 * (other - base) / base
	return &p
}

func percentText(p *float64) string {
	if p == nil {
		return ""
	}
	return fmt.Sprintf("%+.1f %%", *p)
}

func (x CellDiff) row() []string {
	one := Cell{Mix: x.Mix}
	return []string{strconv.Itoa(x.Threads), one.name(), percentText(x.Throughput), percentText(x.RAL), percentText(x.WAL)}
}

type sheetTable struct {
	Title  string
	Header []string
	Rows   [][]string
}

// tables are the figures, side by side for each mix, and the differences.
func (c *Comparison) tables() []sheetTable {
	all := []sheetTable{c.figures()}
	for _, d := range c.Differences {
		t := sheetTable{Title: d.Other + " against " + d.Base,
			Header: []string{"threads", "read:write", "throughput", "RAL", "WAL", "client CPU an operation"}}
		for _, x := range d.Cells {
			t.Rows = append(t.Rows, append(x.row(), percentText(x.ClientCPU)))
		}
		all = append(all, t)
	}
	return all
}

// figures have the published columns when cells are of so many operations.
func (c *Comparison) figures() sheetTable {
	var t sheetTable
	counted := c.Sides[0].Operations > 0
	if len(c.Sides) > 1 {
		t.Header = append(t.Header, "side")
	}
	if counted {
		t.Header = append(t.Header, "read:write", "recordcount", "operationcount", "threads", "throughput (OPS)", "RAL",
			"WAL", "read p99", "write p99", "client CPU s", "client CPU µs", "failed")
	} else {
		t.Header = append(t.Header, "threads", "read:write", "operations/s", "RAL µs", "WAL µs", "read p99", "write p99",
			"client CPU µs", "failed")
	}
	var cells [][]Cell // of each side, the load's first where any has one
	for _, m := range c.Sides {
		all := m.measured()
		if m.Load == nil && slices.ContainsFunc(c.Sides, func(m *Matrix) bool { return m.Load != nil }) {
			all = append([]Cell{{}}, all...)
		}
		cells = append(cells, all)
	}
	for i := range cells[0] {
		for side, m := range c.Sides {
			if x := cells[side][i]; x.Operations > 0 {
				t.Rows = append(t.Rows, c.row(m, &x, counted))
			}
		}
	}
	return t
}

func (c *Comparison) row(m *Matrix, x *Cell, counted bool) (row []string) {
	zero := ""
	if len(c.Sides) > 1 {
		row = append(row, m.label())
	}
	if counted {
		zero = "0" // as published
		row = append(row, x.name(), humanize.Comma(m.Records), humanize.Comma(x.Operations), strconv.Itoa(x.Threads))
	} else {
		row = append(row, strconv.Itoa(x.Threads), x.name())
	}
	row = append(row, plot.Figure(x.Throughput), figureOr(x.RAL, zero), figureOr(x.WAL, zero),
		figureOr(float64(x.ReadP99), zero), figureOr(float64(x.WriteP99), zero))
	if counted {
		row = append(row, plot.Figure(x.ClientSeconds))
	}
	return append(row, plot.Figure(x.ClientCPU), figureOr(float64(x.Failed), zero))
}

func (c *Comparison) facts() (facts []string) {
	for i, m := range c.Sides {
		if i > 0 && m.Name == c.Sides[i-1].Name {
			continue // another client on the same server
		}
		r := Report{WriteConcern: m.WriteConcern, ReadPreference: m.ReadPreference}
		facts = append(facts, fmt.Sprintf("%s%s, %s.%s, %s records, %s requests, %s", prefix(m.Name), m.Address, m.Database,
			m.Collection, humanize.Comma(m.Records), m.Distribution, r.concernText()))
	}
	m := c.Sides[0]
	each := plot.Figure(m.EachSeconds) + " s"
	if m.Operations > 0 {
		each = humanize.Comma(m.Operations) + " operations"
	}
	return append(facts, fmt.Sprintf("%s a cell, medians of %s; RAL and WAL: average latency of reads and of writes "+
		"(updates), µs", each, plot.Several(int64(m.Rounds), "round")))
}

// WriteText writes the tables for a terminal.
func (c *Comparison) WriteText(w io.Writer) error {
	return writeTables(w, c.facts(), c.tables())
}

func writeTables(w io.Writer, facts []string, tables []sheetTable) error {
	if _, err := fmt.Fprintln(w, strings.Join(facts, "\n")); err != nil {
		return err
	}
	for _, one := range tables {
		if one.Title != "" {
			if _, err := fmt.Fprintf(w, "\n%s\n", one.Title); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintln(w, plot.Table(one.Header, one.Rows, 0)); err != nil {
			return err
		}
	}
	return nil
}

// WriteHTML writes the tables and their charts as one page.
func (c *Comparison) WriteHTML(w io.Writer) error {
	s := &sheet{Title: "millrace-bench ycsb matrix", Facts: c.facts(), Tables: c.tables()}
	c.charts(s)
	return s.write(w)
}

// charts are the figures over the mixes by side and threads, and servers in percent of the first.
func (c *Comparison) charts(s *sheet) {
	names := c.mixes()
	for _, of := range []struct {
		title string
		value func(Cell) float64
	}{
		{"operations a second, by reads:writes", func(c Cell) float64 { return c.Throughput }},
		{"average latency of reads (RAL), µs", func(c Cell) float64 { return c.RAL }},
		{"average latency of writes (WAL), µs", func(c Cell) float64 { return c.WAL }},
	} {
		var all []plot.Line
		for _, m := range c.Sides {
			all = append(all, m.lines(len(c.Sides) > 1, names, of.value)...)
		}
		s.drawMixes(of.title, all, names)
	}
	if lines := againstLines(c.Differences, names); len(lines) > 0 {
		base := plot.Line{Name: "the base"}
		for i := range names {
			base.X, base.Y = append(base.X, float64(i)), append(base.Y, 100)
		}
		s.drawMixes("operations a second, in % of the base", append([]plot.Line{base}, lines...), names)
	}
}

func (c *Comparison) mixes() (names []string) {
	for _, x := range c.Sides[0].Cells {
		if name := x.Mix.String(); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// lines are a figure by mix, a line for each number of threads.
func (m *Matrix) lines(named bool, names []string, of func(Cell) float64) (all []plot.Line) {
	at := map[int]int{}
	for _, c := range m.Cells {
		i, ok := at[c.Threads]
		if !ok {
			i = len(all)
			at[c.Threads] = i
			name := plot.Several(int64(c.Threads), "thread")
			if named {
				name = m.label() + ", " + name
			}
			all = append(all, plot.Line{Name: name})
		}
		if v := of(c); v > 0 {
			all[i].X, all[i].Y = append(all[i].X, place(names, c.Mix)), append(all[i].Y, v)
		}
	}
	return all
}

func place(names []string, m Mix) float64 { return float64(slices.Index(names, m.String())) }

// againstLines are throughputs in percent of the base, by mix; 100 is the base.
func againstLines(all []Difference, names []string) (lines []plot.Line) {
	for _, d := range all {
		byThreads := map[int]int{}
		for _, c := range d.Cells {
			if c.Throughput == nil || c.Mix == (Mix{}) {
				continue
			}
			i, ok := byThreads[c.Threads]
			if !ok {
				i = len(lines)
				byThreads[c.Threads] = i
				lines = append(lines,
					plot.Line{Name: fmt.Sprintf("%s against %s, %s", d.Other, d.Base, plot.Several(int64(c.Threads), "thread"))})
			}
			lines[i].X, lines[i].Y = append(lines[i].X, place(names, c.Mix)), append(lines[i].Y, 100+*c.Throughput)
		}
	}
	return lines
}

//go:embed page.html
var page string

// sheet is what a page shows.
type sheet struct {
	Title  string
	Facts  []string
	Tables []sheetTable
	plot.Sheet
}

// drawMixes adds a chart of lines over mixes: of bars when there is only one.
func (s *sheet) drawMixes(title string, lines []plot.Line, mixes []string) {
	if len(mixes) > 1 {
		s.Lines(title, lines, mixes...)
		return
	}
	var bars []plot.Bar
	for _, l := range lines {
		for _, y := range l.Y {
			bars = append(bars, plot.Bar{Name: l.Name, Value: y})
		}
	}
	s.Bars(title, bars)
}

func (s *sheet) write(w io.Writer) error {
	if s.Err != nil {
		return s.Err
	}
	t, err := template.New("page").Parse(page)
	if err != nil {
		return fmt.Errorf("read the page's template: %w", err)
	}
	return t.Execute(w, s)
}

// WriteHTML writes the result as one page with charts over time that needs nothing else.
func WriteHTML(w io.Writer, r *Report) error {
	s := &sheet{Title: "millrace-bench ycsb " + string(r.Phase)}
	t := sheetTable{Header: []string{"", "operations", "average µs", "min", "p50", "p95", "p99", "p99.9", "max",
		"returned"}}
	s.Facts = []string{
		fmt.Sprintf("%s operations in %s s: %s a second, %d threads%s", humanize.Comma(r.Operations), plot.Figure(r.Seconds),
			plot.Figure(r.Throughput), r.Threads, r.targetText()),
		fmt.Sprintf("%s, %s.%s, %s", r.Address, r.Database, r.Collection, r.concernText()),
		fmt.Sprintf("client: %s µs of processor time an operation; begun %s", plot.Figure(r.Client.CPUEach),
			r.Started.UTC().Format("2006-01-02 15:04:05 UTC")),
	}
	n := humanize.Comma
	for _, one := range r.Series {
		var returned []string
		for _, name := range slices.Sorted(maps.Keys(one.Returns)) {
			returned = append(returned, name+" "+n(one.Returns[name]))
		}
		t.Rows = append(t.Rows, []string{one.Name, n(one.Operations), plot.Figure(one.Average), n(one.Min), n(one.P50),
			n(one.P95), n(one.P99), n(one.P999), n(one.Max), strings.Join(returned, ", ")})
	}
	s.Tables = []sheetTable{t}
	throughput := plot.Line{Name: "all operations"}
	for _, p := range r.Course {
		throughput.X, throughput.Y = append(throughput.X, p.Seconds), append(throughput.Y, p.Throughput)
	}
	if len(r.Course) < 2 {
		return s.write(w) // a point makes no line
	}
	s.Lines("operations a second, over seconds", []plot.Line{throughput})
	for _, of := range []struct {
		title string
		value func(PointLatency) float64
	}{
		{"average latency, µs, over seconds", func(l PointLatency) float64 { return l.Average }},
		{"99th percentile of latency, µs, over seconds", func(l PointLatency) float64 { return float64(l.P99) }},
	} {
		s.Lines(of.title, r.latencies(of.value))
	}
	return s.write(w)
}

func (r *Report) latencies(of func(PointLatency) float64) []plot.Line {
	var all []plot.Line
	for _, one := range r.Series {
		line := plot.Line{Name: one.Name}
		for _, p := range r.Course {
			if l, ok := p.Latency[one.Name]; ok {
				line.X, line.Y = append(line.X, p.Seconds), append(line.Y, of(l))
			}
		}
		if len(line.X) > 1 && one.Name != opCleanup.String() {
			all = append(all, line)
		}
	}
	return all
}

func (r *Report) targetText() string {
	if r.Target == 0 {
		return ""
	}
	return ", target " + plot.Figure(r.Target) + " a second"
}

func (r *Report) concernText() string {
	if r.WriteConcern == "" {
		return "write concern of the server, reads from " + r.ReadPreference
	}
	return "w:" + r.WriteConcern + ", reads from " + r.ReadPreference
}
