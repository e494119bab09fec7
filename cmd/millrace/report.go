package main

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/format"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/precheck"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/internal/verify"
)

// summary is the result of a sync, for --output json and --report.
type summary struct {
	Version   string         `json:"version"`
	Finalized bool           `json:"finalized"`
	Already   bool           `json:"alreadyFinalized,omitempty"` // before this command, which did nothing
	Started   time.Time      `json:"started"`
	Ended     time.Time      `json:"ended"`
	Seconds   float64        `json:"seconds"`
	Stopped   string         `json:"stopped,omitempty"` // by which signal
	Status    job.Status     `json:"status"`
	Plan      *job.Plan      `json:"plan,omitempty"`
	Verify    *verify.Report `json:"verify,omitempty"`
}

// maxListed limits lists in text output; JSON has all items.
const maxListed = 20

func summaryText(sum summary) string {
	s := sum.Status
	if sum.Already {
		text := fmt.Sprintf("%s: already %s, nothing done\n", cli.Plain(s.Job), finalizedText(s.FinalizedAt)) +
			wayBack(s.Job, s.TargetPosition)
		if sum.Verify != nil {
			text += verifiedText(sum.Verify)
		}
		return text
	}
	t := facts{newTable(s.Job, ended(sum))}
	t.add("duration", format.Clock(time.Duration(sum.Seconds*float64(time.Second))))
	if s.Structure != nil {
		t.structure(s.Structure)
	} else {
		t.replicated(s)
	}
	t.add("errors met", format.Counts(s.Errors))
	t.add("millrace itself",
		fmt.Sprintf("%.1f s of CPU, at most %s of memory", s.Process.CPUSeconds, format.Size(s.Process.Peak)))
	if sum.Finalized {
		t.add("differences", len(s.Differences))
	}
	var b strings.Builder
	fmt.Fprintln(&b, t.Render())
	if sum.Finalized {
		b.WriteString(wayBack(s.Job, s.TargetPosition))
	}
	writeEnd(&b, s)
	if sum.Verify != nil {
		b.WriteString(verifiedText(sum.Verify))
	}
	return b.String()
}

func (t facts) replicated(s job.Status) {
	copying := s.PhaseSeconds[job.PhaseCopying]
	t.add("collections", len(s.Copy.Collections))
	t.add("documents copied", fmt.Sprintf("%d%s", s.Copy.Docs, average(float64(s.Copy.Docs), copying, format.Count)))
	t.add("size copied", format.Size(s.Copy.Bytes)+average(float64(s.Copy.Bytes), copying, format.Size))
	t.add("changes applied", s.Follow.Operations)
	t.add("schema changes", s.Follow.SchemaChanges)
	t.add("durable up to", s.Follow.Applied)
	t.conflicts(s.Conflicts)
}

func ended(sum summary) string {
	if sum.Finalized {
		return "finalized"
	}
	return "ended in phase " + string(sum.Status.Phase)
}

func average(n, seconds float64, unit func(float64) string) string {
	if n == 0 || seconds < 0.001 {
		return ""
	}
	return " (" + unit(n/seconds) + "/s on average)"
}

func writeListed(b *strings.Builder, what string, items []string) {
	for _, line := range listed(items, func(one string) string { return what + one }) {
		fmt.Fprintf(b, "  %s\n", cli.Plain(line))
	}
}

func writeEnd(b *strings.Builder, s job.Status) {
	writeListed(b, "differs: ", s.Differences)
	writeListed(b, "left out: ", s.LeftOut)
}

// writeRefused names documents that the target lacks although the job is finalized.
func writeRefused(b *strings.Builder, job string, s deadletter.Stats) {
	if s.Open+s.Unmapped > 0 {
		fmt.Fprintf(b, "  dead letters: %s; see millrace deadletters list --job %s\n", s.Text(), cli.Plain(job))
	}
}

// listed returns lines for the first maxListed items, and one with the number of others.
func listed[T any](all []T, line func(T) string) (lines []string) {
	for i, one := range all {
		if i == maxListed {
			return append(lines, fmt.Sprintf("and %d more", len(all)-i))
		}
		lines = append(lines, line(one))
	}
	return lines
}

func planText(p *job.Plan) string {
	var b strings.Builder
	fmt.Fprintf(&b, "job     %s (mode %s%s)\n", p.Job, p.Mode, resumes(p))
	fmt.Fprintf(&b, "source  %s, %s\ntarget  %s, %s\n\n", cli.Plain(p.Source), cli.Plain(p.SourceInfo),
		cli.Plain(p.Target), cli.Plain(p.TargetInfo))
	if len(p.Collections) > 0 || !p.Checks.Failed() { // else they were perhaps not read
		fmt.Fprintf(&b, "%s\n\n", plannedTable(p.Collections))
	}
	if len(p.Rules) > 0 {
		fmt.Fprintf(&b, "%s\n\n", rulesTable(p.Rules))
	}
	fmt.Fprintf(&b, "%s\n", checksTable(p.Checks))
	return b.String()
}

func plannedTable(all []precheck.Collection) string {
	t := newTable("collection", "on the target as", "type", "documents", "size", "indexes")
	var docs, bytes int64
	for _, c := range all {
		target := c.Target
		if c.Target == c.Source {
			target = ""
		}
		t.AppendRow(table.Row{c.Source, target, c.Type, c.Docs, format.Size(c.Bytes), c.Indexes})
		docs, bytes = docs+c.Docs, bytes+c.Bytes
	}
	t.AppendFooter(table.Row{plural(len(all), "collection"), "", "", docs, format.Size(bytes), ""})
	alignRight(t, 4, 5, 6)
	return t.Render()
}

func rulesTable(rules []transform.Effect) string {
	t := newTable("rule", "collections", "documents tried", "kept", "changed", "failed", "")
	figure := func(is bool, n int64) string {
		if !is {
			return ""
		}
		return humanize.Comma(n)
	}
	for _, e := range rules {
		filter, mapped := e.Kind == "filter", e.Kind == "fields"
		note := ""
		switch {
		case e.Kind == "skip":
			note = "left out: " + strings.Join(e.Skipped, ", ")
		case e.Marked > 0:
			note = humanize.Comma(e.Marked) + " have the field already"
		case len(e.Why) > 0:
			note = cli.Plain(cut(e.Why[0].Text, 100))
		}
		t.AppendRow(table.Row{"--" + e.Kind + " " + cli.Plain(cut(e.Rule, 60)), e.Collections,
			figure(e.Kind != "skip", e.Docs), figure(filter, e.Kept), figure(mapped, e.Changed), figure(mapped, e.Failed), note})
		for _, part := range e.Parts {
			t.AppendRow(table.Row{"  " + cli.Plain(cut(part.Rule, 58)), "", "", "", humanize.Comma(part.Changed),
				humanize.Comma(part.Failed), ""})
		}
	}
	alignRight(t, 2, 3, 4, 5, 6)
	return t.Render()
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

func newTable(columns ...any) table.Writer {
	t := grid{table.NewWriter()}
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
		cs = append(cs,
			table.ColumnConfig{Number: n, Align: text.AlignRight, AlignFooter: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(cs)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func checksTable(l precheck.List) string {
	t := newTable("check", "result", "what", "hint")
	for _, c := range l {
		t.AppendRow(table.Row{c.Name, c.Level, c.Message, c.Hint})
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
		return cli.WithCode(cli.ExitUsage, fmt.Errorf("%s failed; nothing was written", plural(n, "check")))
	}
	return nil
}

func precheckError(l precheck.List) error { return mongo.Wrap(l.Err(), "nothing was written") }

// grid is a table whose cells are plain.
type grid struct{ table.Writer }

func (g grid) AppendRow(row table.Row, config ...table.RowConfig) {
	g.Writer.AppendRow(plainRow(row), config...)
}

func (g grid) AppendHeader(row table.Row, config ...table.RowConfig) {
	g.Writer.AppendHeader(plainRow(row), config...)
}

func (g grid) AppendRows(rows []table.Row, config ...table.RowConfig) {
	for _, row := range rows {
		g.AppendRow(row, config...)
	}
}

func plainRow(row table.Row) table.Row {
	out := make(table.Row, len(row))
	for i, cell := range row {
		out[i] = cell
		if v := reflect.ValueOf(cell); v.Kind() == reflect.String {
			out[i] = cli.Plain(v.String())
		}
	}
	return out
}

func (t facts) structure(s *progress.Structure) {
	t.add("collections made", ofAll(s.Collections, s.CollectionsTotal))
	t.add("views made", ofAll(s.Views, s.ViewsTotal))
	t.add("indexes built", ofAll(s.Indexes, s.IndexesTotal))
	if s.Sharded > 0 {
		t.add("collections sharded", s.Sharded)
	}
}

func ofAll(n, all int) string {
	if n == all {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d of %d", n, all)
}

func (v *viewer) structure() {
	s := v.s.Structure
	all, done := s.CollectionsTotal+s.ViewsTotal+s.IndexesTotal, s.Collections+s.Views+s.Indexes
	v.add(label("made")+v.bar(format.Share(int64(done), int64(all), v.s.Phase == job.PhaseFinalized)),
		ofAll(s.Collections, s.CollectionsTotal)+" collections", ofAll(s.Views, s.ViewsTotal)+" views",
		ofAll(s.Indexes, s.IndexesTotal)+" indexes")
}
