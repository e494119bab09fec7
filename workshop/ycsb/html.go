package ycsb

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/millrace/millrace/workshop/plot"
)

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

// WriteHTML writes the result as one page with charts over time that needs
// nothing else.
func WriteHTML(w io.Writer, r *Report) error {
	s := &sheet{Title: "millrace-bench ycsb " + string(r.Phase)}
	t := sheetTable{Header: []string{"", "operations", "average µs", "min", "p50", "p95", "p99", "p99.9", "max", "returned"}}
	s.Facts = []string{
		fmt.Sprintf("%s operations in %s s: %s a second, %d threads%s", humanize.Comma(r.Operations), plot.Figure(r.Seconds), plot.Figure(r.Throughput), r.Threads, r.targetText()),
		fmt.Sprintf("%s, %s.%s, %s", r.Address, r.Database, r.Collection, r.concernText()),
		fmt.Sprintf("client: %s µs of processor time an operation; begun %s", plot.Figure(r.Client.CPUEach), r.Started.UTC().Format("2006-01-02 15:04:05 UTC")),
	}
	n := humanize.Comma
	for _, one := range r.Series {
		var returned []string
		for _, name := range slices.Sorted(maps.Keys(one.Returns)) {
			returned = append(returned, name+" "+n(one.Returns[name]))
		}
		t.Rows = append(t.Rows, []string{one.Name, n(one.Operations), plot.Figure(one.Average), n(one.Min), n(one.P50), n(one.P95), n(one.P99), n(one.P999), n(one.Max), strings.Join(returned, ", ")})
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

// latencies are a figure of each series over time.
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
