package bench

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// WriteText writes a report as tables for a terminal.
func WriteText(w io.Writer, r *Report) error {
	var b strings.Builder
	fmt.Fprintf(&b, "millrace %s, scale %s, %d rounds\n%s\n", r.Version, r.Scale.Name, r.Rounds, r.Machine)
	for i := range r.Cases {
		writeCase(&b, &r.Cases[i])
	}
	for _, o := range r.overviews() {
		fmt.Fprintf(&b, "\n%s:\n", o.Title)
		writeTable(&b, func() ([]string, [][]string) { return o.Header, o.Rows })
		for _, n := range o.Notes {
			fmt.Fprintf(&b, "  note: %s\n", n)
		}
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
	writeTable(b, c.table)
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

func writeTable(b *strings.Builder, of func() ([]string, [][]string)) {
	header, rows := of()
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	h := table.Row{}
	for _, x := range header {
		h = append(h, x)
	}
	t.AppendHeader(h)
	var config []table.ColumnConfig
	for i := range header[1:] {
		config = append(config, table.ColumnConfig{Number: i + 2, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(config)
	for _, r := range rows {
		row := table.Row{}
		for _, x := range r {
			row = append(row, x)
		}
		t.AppendRow(row)
	}
	b.WriteString(t.Render() + "\n")
}

// table is a case's figures, medians over the rounds, for all forms of output.
func (c *Case) table() (header []string, rows [][]string) {
	header = []string{"", "time", "min-max", "of ceiling", "rate", "rates", "MB/s", "CPU tool", "source", "target", "us each", "peak", "sent", "received"}
	values := c.valueNames()
	header = append(header, values...)
	for i := range c.Contenders {
		x := &c.Contenders[i]
		of := func(f func(Round) float64) float64 {
			var v []float64
			for _, r := range x.Rounds {
				v = append(v, f(r))
			}
			return median(v)
		}
		mb := func(n float64) string { return figure(n/1e6) + " MB" }
		row := []string{
			x.Name, figure(x.Seconds.Median) + " s", figure(x.Seconds.Min) + "-" + figure(x.Seconds.Max),
			blank(x.OfCeiling.Median), blank(x.Rate.Median), figure(x.Rate.Min) + "-" + figure(x.Rate.Max),
			blank(per(float64(c.Bytes)/1e6, x.Seconds.Median)),
			figure(x.ToolCPU.Median) + " s",
			figure(of(func(r Round) float64 { return r.SourceCPU })) + " s",
			figure(of(func(r Round) float64 { return r.TargetCPU })) + " s",
			blank(x.CPUEach.Median), peakText(x),
			mb(of(func(r Round) float64 { return float64(r.SourceSent) })),
			mb(of(func(r Round) float64 { return float64(r.TargetReceived) })),
		}
		for _, v := range values {
			s, ok := x.Values[v]
			if !ok {
				row = append(row, "")
				continue
			}
			row = append(row, figure(s.Median))
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
	names := slices.SortedFunc(maps.Keys(parts), func(a, b string) int { return cmp.Compare(median(parts[b]), median(parts[a])) })
	var told []string
	for _, name := range names {
		told = append(told, name+" "+figure(median(parts[name]))+" s")
	}
	return strings.Join(told, ", ")
}

// valueNames are the scenario's own figures.
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

func peakText(x *Contender) string {
	if x.Peak.Median == 0 {
		return ""
	}
	return figure(x.Peak.Median/1e6) + " MB"
}

// blank is figure, but nothing for zero.
func blank(n float64) string {
	if n == 0 {
		return ""
	}
	return figure(n)
}
