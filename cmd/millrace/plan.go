package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/millrace/millrace/internal/job"
)

// dryRun prints the plan; a failed check is the command's error.
func (a *app) dryRun(p *job.Plan, output string) error {
	var err error
	if output == "json" {
		err = writeJSON(a.stdout, p)
	} else {
		err = writePlan(a.stdout, p)
	}
	if err != nil {
		return err
	}
	return checksFailed(p.Checks)
}

func writePlan(w io.Writer, p *job.Plan) error {
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
	_, err := io.WriteString(w, b.String())
	return err
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
