package main

import (
	"fmt"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/precheck"
)

// planText shows what a job would do.
func planText(p *job.Plan) string {
	var b strings.Builder
	fmt.Fprintf(&b, "job     %s (mode %s%s)\n", p.Job, p.Mode, resumes(p))
	fmt.Fprintf(&b, "source  %s, %s\ntarget  %s, %s\n\n", plain(p.Source), plain(p.SourceInfo), plain(p.Target), plain(p.TargetInfo))
	t := newTable("collection", "on the target as", "type", "documents", "size", "indexes")
	var docs, bytes int64
	for _, c := range p.Collections {
		target := plain(c.Target)
		if c.Target == c.Source {
			target = ""
		}
		t.AppendRow(table.Row{plain(c.Source), target, c.Type, c.Docs, size(float64(c.Bytes)), c.Indexes})
		docs, bytes = docs+c.Docs, bytes+c.Bytes
	}
	t.AppendFooter(table.Row{plural(len(p.Collections), "collection"), "", "", docs, size(float64(bytes)), ""})
	alignRight(t, 4, 5, 6)
	fmt.Fprintf(&b, "%s\n\n%s\n", t.Render(), checksTable(p.Checks))
	return b.String()
}

func resumes(p *job.Plan) string {
	if !p.Resumes {
		return ""
	}
	if p.ResumePhase == "" {
		return ", resumes"
	}
	return ", resumes in phase " + string(p.ResumePhase)
}

// newTable is a table in the style of all output.
func newTable(columns ...any) table.Writer {
	t := table.NewWriter()
	style := table.StyleLight
	style.Format.Header, style.Format.Footer = text.FormatDefault, text.FormatDefault
	t.SetStyle(style)
	t.AppendHeader(table.Row(columns))
	return t
}

// alignRight sets the columns with figures, counted from 1.
func alignRight(t table.Writer, columns ...int) {
	var cs []table.ColumnConfig
	for _, n := range columns {
		cs = append(cs, table.ColumnConfig{Number: n, Align: text.AlignRight, AlignFooter: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(cs)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// checksTable shows the checks of a plan.
func checksTable(l precheck.List) string {
	t := newTable("check", "result", "what", "hint")
	for _, c := range l {
		t.AppendRow(table.Row{c.Name, c.Level, plain(c.Message), plain(c.Hint)})
	}
	t.SetColumnConfigs([]table.ColumnConfig{
		{Number: 3, WidthMax: 60, WidthMaxEnforcer: text.WrapSoft},
		{Number: 4, WidthMax: 50, WidthMaxEnforcer: text.WrapSoft},
	})
	return t.Render()
}

// checksFailed is the error of a dry run, which has shown the checks.
func checksFailed(l precheck.List) error {
	if n := len(l.Of(precheck.Fail)); n > 0 {
		return withCode(exitUsage, fmt.Errorf("%s failed; nothing was written", plural(n, "check")))
	}
	return nil
}

// precheckError is the error of a command that does not begin.
func precheckError(l precheck.List) error {
	return withCode(exitUsage, fmt.Errorf("nothing was written: %w", l.Err()))
}
