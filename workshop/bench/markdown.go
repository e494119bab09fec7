package bench

import (
	"fmt"
	"io"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
)

// WriteMarkdown writes a line for each case: what a page of documentation has
// room for.
func WriteMarkdown(w io.Writer, r *Report) error {
	t := table.NewWriter()
	t.AppendHeader(table.Row{"scenario", "ceiling", "millrace", "of ceiling", "CPU each", "peak", "others"})
	for i := range r.Cases {
		if row := summary(&r.Cases[i]); row != nil {
			t.AppendRow(row)
		}
	}
	_, err := fmt.Fprintf(w, "%s, %s.\n`%s`, medians of %d rounds; %s.\n\n%s\n", r.Machine, r.Version, r.Command, r.Rounds,
		r.Started.Format("2006-01-02"), t.RenderMarkdown())
	return err
}

// summary is the line of a case, nil where millrace did not take part.
func summary(c *Case) table.Row {
	top, others := c.ceiling(), []string(nil)
	var ours *Contender
	for i := range c.Contenders {
		x := &c.Contenders[i]
		switch {
		case x.Kind == KindMillrace && ours == nil:
			ours = x
		case x.Kind == KindCeiling:
		default:
			others = append(others, x.Name+" "+achieved(c, x))
		}
	}
	if ours == nil {
		return nil
	}
	row := table.Row{c.Name(), "", achieved(c, ours), "", "", "", strings.Join(others, ", ")}
	if top != nil {
		row[1] = achieved(c, top)
	}
	if ours.OfCeiling.Median > 0 {
		row[3] = figure(ours.OfCeiling.Median)
	}
	if ours.CPUEach.Median > 0 {
		row[4] = figure(ours.CPUEach.Median) + " µs"
	}
	if ours.Peak.Median > 0 {
		row[5] = figure(ours.Peak.Median/1e6) + " MB"
	}
	return row
}

// achieved is what a contender is judged by: the value that the case compares,
// its rate where work was done for a time, else its time.
func achieved(c *Case, x *Contender) string {
	switch {
	case x.Error != "":
		return "failed"
	case len(x.Rounds) == 0:
		return ""
	case c.RatioOf != "":
		return figure(x.Values[c.RatioOf].Median) + " (" + c.RatioOf + ")"
	case x.Rounds[0].Done > 0:
		return grouped(int64(x.Rate.Median)) + "/s"
	}
	return fmt.Sprintf("%s s (%s/s)", figure(x.Seconds.Median), grouped(int64(x.Rate.Median)))
}
