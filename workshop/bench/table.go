package bench

import (
	"cmp"
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
	load "github.com/millrace/millrace/workshop/ycsb"
)

// WriteText writes a report as tables for a terminal.
func WriteText(w io.Writer, r *Report) error {
	var b strings.Builder
	fmt.Fprintf(&b, "millrace %s, scale %s, %d rounds\n%s\n", r.Version, r.Scale.Name, r.Rounds, r.Machine)
	for i := range r.Cases {
		writeCase(&b, &r.Cases[i])
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// String describes the machine in a line.
func (m Machine) String() string {
	return fmt.Sprintf("%s, %d cores, %d MB of memory, %s", m.Processor, m.Cores, m.MemoryMB, m.System)
}

func writeCase(b *strings.Builder, c *Case) {
	fmt.Fprintf(b, "\n%s: %s\nceiling: %s\nservers: %s\n", c.Name(), c.Work, c.Ceiling, c.Servers)
	header, rows := c.table()
	b.WriteString(plot.Table(header, rows, 1) + "\n")
	for _, x := range c.Contenders {
		fmt.Fprintf(b, "  %s: %s\n", x.Name, x.How)
		if parts := x.Parts(); parts != "" {
			fmt.Fprintf(b, "    of which: %s\n", parts)
		}
		if x.Error != "" {
			fmt.Fprintf(b, "    failed: %s\n", x.Error)
		}
		r := x.medianRound()
		for _, line := range r.treePicture() {
			fmt.Fprintf(b, "    %s\n", line)
		}
	}
	for _, n := range c.Notes {
		fmt.Fprintf(b, "  note: %s\n", n)
	}
}

// table is a case's figures, medians over the rounds, for all forms of output.
func (c *Case) table() (header []string, rows [][]string) {
	header = []string{"", "time", "min-max", "of ceiling", "rate", "rates", "MB/s", "CPU tool", "source", "target",
		"us each", "peak", "sent", "received"}
	values := c.valueNames()
	header = append(header, values...)
	for i := range c.Contenders {
		x := &c.Contenders[i]
		of := func(f func(Round) float64) float64 { return median(x.Each(f)) }
		mb := func(n float64) string { return figure(n/1e6) + " MB" }
		row := []string{
			x.Name, figure(x.Seconds.Median) + " s", figure(x.Seconds.Min) + "-" + figure(x.Seconds.Max),
			blank(x.OfCeiling.Median, ""), blank(x.Rate.Median, ""), figure(x.Rate.Min) + "-" + figure(x.Rate.Max),
			blank(per(float64(c.Bytes)/1e6, x.Seconds.Median), ""), figure(x.ToolCPU.Median) + " s",
			figure(of(func(r Round) float64 { return r.SourceCPU })) + " s",
			figure(of(func(r Round) float64 { return r.TargetCPU })) + " s",
			blank(x.CPUEach.Median, ""), blank(x.Peak.Median/1e6, " MB"),
			mb(of(func(r Round) float64 { return float64(r.SourceSent) })),
			mb(of(func(r Round) float64 { return float64(r.TargetReceived) })),
		}
		for _, v := range values {
			value := ""
			if s, ok := x.Values[v]; ok {
				value = figure(s.Median)
			}
			row = append(row, value)
		}
		if len(x.Rounds) == 0 {
			row = append([]string{x.Name, "failed"}, make([]string, len(header)-2)...)
		}
		rows = append(rows, row)
	}
	return c.chosen(header, rows)
}

// chosen leaves those columns that the case wants.
func (c *Case) chosen(header []string, rows [][]string) ([]string, [][]string) {
	columns := c.Columns
	if len(columns) == 0 {
		columns = slices.DeleteFunc(slices.Clone(header[1:]), func(h string) bool { return h == "rates" })
	}
	out := make([][]string, len(rows))
	head := header[:1:1]
	for i := range rows {
		out[i] = rows[i][:1:1]
	}
	for _, name := range columns {
		at := slices.Index(header, name)
		if at < 0 {
			continue
		}
		head = append(head, name)
		for i := range rows {
			out[i] = append(out[i], rows[i][at])
		}
	}
	return head, out
}

// Parts are the medians of the durations within the rounds, the longest first.
func (x *Contender) Parts() string {
	parts := map[string][]float64{}
	for _, r := range x.Rounds {
		for name, s := range r.Parts {
			parts[name] = append(parts[name], s)
		}
	}
	names := slices.SortedFunc(maps.Keys(parts),
		func(a, b string) int { return cmp.Compare(median(parts[b]), median(parts[a])) })
	var texts []string
	for _, name := range names {
		texts = append(texts, name+" "+figure(median(parts[name]))+" s")
	}
	return strings.Join(texts, ", ")
}

func (c *Case) valueNames() []string {
	var names []string
	for _, x := range c.Contenders {
		for n := range x.Values {
			if !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
	}
	slices.Sort(names)
	return names
}

// blank is a figure with its unit, but nothing for zero.
func blank(n float64, unit string) string {
	if n == 0 {
		return ""
	}
	return figure(n) + unit
}

//go:embed page.html
var page string

// WriteHTML writes a report as one page with charts that needs nothing else.
func WriteHTML(w io.Writer, r *Report) error {
	t, err := template.New("page").Parse(page)
	if err != nil {
		return fmt.Errorf("read the page's template: %w", err)
	}
	type view struct {
		*Case
		Header []string
		Rows   [][]string
		Charts []plot.Chart
	}
	var cases []view
	for i := range r.Cases {
		c := &r.Cases[i]
		v, s := view{Case: c}, &plot.Sheet{}
		v.Header, v.Rows = c.table()
		if c.charts(s); s.Err != nil {
			return fmt.Errorf("case %s: %w", c.Name(), s.Err)
		}
		v.Charts = s.Charts
		cases = append(cases, v)
	}
	return t.Execute(w, map[string]any{"Report": r, "Cases": cases, "Ended": r.Ended.UTC().Format("2006-01-02 15:04 UTC")})
}

func itoa(n int) string { return strconv.Itoa(n) }

func percent(share float64) string { return strconv.FormatFloat(share*100, 'f', 0, 64) + " %" }

// figure writes a number with three digits, or as a whole number.
func figure(n float64) string { return plot.Figure(n) }

func grouped(n int64) string { return humanize.Comma(n) }

// mix is a bijection of 64-bit numbers that looks random.
func mix(x uint64) uint64 { return load.Scatter(x) }

// newNoise is the block of random bytes that contents are cut out of.
func newNoise() []byte { return load.NewNoise() }
