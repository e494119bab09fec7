package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/replicate"
)

// dryRun prints the plan; a failed check is the command's error.
func (a *app) dryRun(p *replicate.Plan, output string) error {
	var err error
	if output == "json" {
		err = writeJSON(a.stdout, p)
	} else {
		err = writePlan(a.stdout, p)
	}
	if err != nil {
		return err
	}
	if n := failedChecks(p); n > 0 {
		return withCode(exitUsage, fmt.Errorf("%s failed; nothing was written", plural(n, "check")))
	}
	return nil
}

// precheckError names every failed check with what can be done.
func precheckError(p *replicate.Plan) error {
	var failed []replicate.Check
	for _, c := range p.Checks {
		if c.Level == replicate.LevelFail {
			failed = append(failed, c)
		}
	}
	if len(failed) == 1 {
		return withCode(exitUsage, mongo.WithHint(fmt.Errorf("precheck %s: %s; nothing was written", failed[0].Name, failed[0].Message), failed[0].Hint))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d checks failed; nothing was written", len(failed))
	for _, c := range failed {
		fmt.Fprintf(&b, "\n  %s: %s", c.Name, c.Message)
		if c.Hint != "" {
			fmt.Fprintf(&b, "\n    hint: %s", c.Hint)
		}
	}
	return withCode(exitUsage, errors.New(b.String()))
}

func failedChecks(p *replicate.Plan) int {
	n := 0
	for _, c := range p.Checks {
		if c.Level == replicate.LevelFail {
			n++
		}
	}
	return n
}

func writePlan(w io.Writer, p *replicate.Plan) error {
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
	fmt.Fprintf(&b, "%s\n\n%s\n", t.Render(), checksTable(p).Render())
	_, err := io.WriteString(w, b.String())
	return err
}

func resumes(p *replicate.Plan) string {
	if !p.Resumes {
		return ""
	}
	if p.ResumePhase == "" {
		return ", resumes"
	}
	return ", resumes in phase " + string(p.ResumePhase)
}

func checksTable(p *replicate.Plan) table.Writer {
	t := newTable("check", "result", "what", "hint")
	for _, c := range p.Checks {
		t.AppendRow(table.Row{c.Name, c.Level, plain(c.Message), plain(c.Hint)})
	}
	t.SetColumnConfigs([]table.ColumnConfig{
		{Number: 3, WidthMax: 60, WidthMaxEnforcer: text.WrapSoft},
		{Number: 4, WidthMax: 50, WidthMaxEnforcer: text.WrapSoft},
	})
	return t
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
