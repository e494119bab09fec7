package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"text/template"
	"text/template/parse"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/format"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/precheck"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/topology"
	"github.com/millrace/millrace/internal/verify"
)

// textTemplates have the results of commands as text.
//
//go:embed texts.txt
var textTemplates string

// textOf returns a result as text, by the template of a name. What a template prints is plain (see cli.Plain).
func textOf(name string, data any) string {
	var b strings.Builder
	if err := texts().ExecuteTemplate(&b, name, data); err != nil {
		return fmt.Sprintf("cannot write the result: %s\n", cli.Plain(err.Error()))
	}
	return tabulated(b.String())
}

var texts = sync.OnceValue(func() *template.Template { //nolint:gochecknoglobals // parsed once
	t := template.New("").Funcs(format.Funcs()).Funcs(textFuncs())
	t.Funcs(template.FuncMap{"text": func(name string, data any) (string, error) {
		var b strings.Builder
		err := t.ExecuteTemplate(&b, name, data)
		return b.String(), err
	}})
	template.Must(t.Parse(textTemplates))
	for _, one := range t.Templates() {
		plainly(one.Root)
	}
	return t
})

func textFuncs() template.FuncMap {
	return template.FuncMap{
		"plain": plain, "cut": func(n int, s string) string { return cut(s, n) }, "join": strings.Join,
		"json": func(raw json.RawMessage) string { return string(raw) }, "document": document,

		"comma": humanize.Comma, "bytes": func(n int64) string { return humanize.Bytes(uint64(n)) }, "lower": strings.ToLower,
		"percent": func(share float64) string { return fmt.Sprintf("%.0f", 100*share) },
		"plural":  func(n any, what string) string { return plural(int(reflect.ValueOf(n).Int()), what) },
		"ofAll":   ofAll, "sum": sum,
		"first": first, "more": more, "listed": listed,
		"unlisted": func(n int64, list any) int64 { return max(0, n-int64(min(size(list), maxListed))) },

		"ago": agoText, "date": date,
		"rfc3339": func(t time.Time) string { return t.Format(time.RFC3339) },
		"took":    func(from, to time.Time) string { return to.Sub(from).Round(time.Millisecond).String() },
		"runsFor": runsFor, "copyRate": copyRate,

		"errorOf": errorOf,

		"unreadable": func(j jobInfo) bool { return j.err != nil }, "labels": service.LabelTexts, "same": sameText,
		"slice": numberOf, "bound": bound, "session": sessionOf, "relaxed": func(doc bson.Raw) string { return relaxed(doc) },

		"lines": topology.Lines, "onOff": onOff, "memberLag": lagText,
		"chains": func(m *topology.Member) bool { return m.Override != nil && *m.Override },
		"knows":  func(tree map[string]string, host string) bool { _, is := tree[host]; return is }, "ping": pingText,
		"since": ago, "opsRate": rateText, "percentage": percent, "tidy": tidy,
		"change": func(v float64) string { return fmt.Sprintf("%+.1f %%", 100*v) },
		"predicted": func(p topology.Prediction, concern string) []float64 {
			rate, cpu := p.For(concern)
			return []float64{rate, cpu}
		},
	}
}

// plainly appends plain to all that a template prints, but for what it quotes, and marks its tables with what is never
// plain.
func plainly(n parse.Node) {
	branch := func(b *parse.BranchNode) { plainly(b.List); plainly(b.ElseList) }
	switch n := n.(type) {
	case *parse.ListNode:
		if n != nil {
			for _, one := range n.Nodes {
				plainly(one)
			}
		}
	case *parse.IfNode:
		branch(&n.BranchNode)
	case *parse.RangeNode:
		branch(&n.BranchNode)
	case *parse.WithNode:
		branch(&n.BranchNode)
	case *parse.TextNode:
		n.Text = bytes.ReplaceAll(n.Text, []byte("|"), []byte(tableMark))
	case *parse.ActionNode:
		if first := n.Pipe.Cmds[0].Args[0]; len(n.Pipe.Decl) == 0 && first.Type() != parse.NodeString {
			n.Pipe.Cmds = append(n.Pipe.Cmds,
				&parse.CommandNode{NodeType: parse.NodeCommand, Args: []parse.Node{parse.NewIdentifier("plain")}})
		}
	}
}

const tableMark = "\x1d"

func plain(v any) any {
	if r := reflect.ValueOf(v); r.Kind() == reflect.String {
		return cli.Plain(r.String())
	}
	return v
}

// tabulated draws the tables in a text.
func tabulated(text string) string {
	var b strings.Builder
	var t *textTable
	for line := range strings.Lines(text) {
		row, is := strings.CutPrefix(line, tableMark)
		head, begins := strings.CutPrefix(row, tableMark)
		if t != nil && (!is || begins) {
			b.WriteString(t.Render() + "\n")
			t = nil
		}
		switch {
		case begins:
			t = newTextTable(cells(head))
		case is:
			t.row(cells(row))
		default:
			b.WriteString(line)
		}
	}
	if t != nil {
		b.WriteString(t.Render() + "\n")
	}
	return b.String()
}

func cells(line string) table.Row {
	var row table.Row
	for cell := range strings.SplitSeq(strings.TrimSuffix(line, "\n"), "\t") {
		row = append(row, cell)
	}
	return row
}

type textTable struct{ table.Writer }

func newTextTable(head table.Row) *textTable {
	widths := regexp.MustCompile(`([<~])(\d+)$`)
	var columns []table.ColumnConfig
	name, suppress := strings.CutPrefix(head[0].(string), "?")
	head[0] = name
	for i := range head {
		name, c := head[i].(string), table.ColumnConfig{Number: i + 1}
		if right, is := strings.CutPrefix(name, ">"); is {
			name, c.Align, c.AlignFooter, c.AlignHeader = right, text.AlignRight, text.AlignRight, text.AlignRight
		}
		if m := widths.FindStringSubmatch(name); m != nil {
			name = strings.TrimSuffix(name, m[0])
			if c.WidthMax, _ = strconv.Atoi(m[2]); m[1] == "~" {
				c.WidthMaxEnforcer = text.WrapSoft
			}
		}
		head[i], columns = name, append(columns, c)
	}
	style := table.StyleLight
	style.Format.Header, style.Format.Footer = text.FormatDefault, text.FormatDefault
	t := table.NewWriter()
	t.SetStyle(style)
	t.AppendHeader(head)
	t.SetColumnConfigs(columns)
	if suppress {
		t.SuppressEmptyColumns()
	}
	return &textTable{t}
}

func (t *textTable) row(row table.Row) {
	name, _ := row[0].(string)
	foot, isFooter := strings.CutPrefix(name, "=")
	name, maybe := strings.CutPrefix(name, "?")
	switch {
	case isFooter:
		row[0] = foot
		t.AppendFooter(row)
	case !maybe || row[1] != "":
		row[0] = name
		t.AppendRow(row)
	}
}

// storedError is an error that was stored as text, with a line for each of several.
type storedError struct{ Name, Text string }

func errorOf(name, text string) storedError { return storedError{name, text} }

func (e storedError) Error() string { return e.Text }

// Lines implements what errors of several lines have.
func (e storedError) Lines() []string { return strings.Split(e.Text, "\n") }

func sum(field string, list any) (n int64) {
	for i := range size(list) {
		n += reflect.ValueOf(list).Index(i).FieldByName(field).Int()
	}
	return n
}

func size(list any) int { return reflect.ValueOf(list).Len() }

func first(n int, list any) any {
	return reflect.ValueOf(list).Slice(0, min(n, size(list))).Interface()
}

func more(n int, list any) int { return max(0, size(list)-n) }

func date(at *time.Time) string {
	if at == nil {
		return ""
	}
	return at.UTC().Format(time.RFC3339)
}

func runsFor(s job.Status) string {
	if s.StartedAt.IsZero() || s.Phase == job.PhaseFinalized || s.Phase == job.PhaseFailed {
		return ""
	}
	return format.Clock(time.Since(s.StartedAt))
}

// copyRate is what was copied a second, 0 if that is not known.
func copyRate(n int64, s job.Status) float64 {
	copying := s.PhaseSeconds[job.PhaseCopying]
	if n == 0 || copying < 0.001 {
		return 0
	}
	return float64(n) / copying
}

func document(raw json.RawMessage) string {
	if len(raw) == 0 || string(raw) == "null" {
		return ""
	}
	return readable(raw)
}

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

// listed returns lines for the first maxListed items, and one with the number of others.
func listed(what string, items []string) (lines []string) {
	for _, one := range first(maxListed, items).([]string) {
		lines = append(lines, what+one)
	}
	if n := more(maxListed, items); n > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", n))
	}
	return lines
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// checksFailed is the error of a dry run, which has shown the checks.
func checksFailed(l precheck.List) error {
	if n := len(l.Of(precheck.Fail)); n > 0 {
		return cli.WithCode(cli.ExitUsage, fmt.Errorf("%s failed; nothing was written", plural(n, "check")))
	}
	return nil
}

func precheckError(l precheck.List) error { return mongo.Wrap(l.Err(), "nothing was written") }

func ofAll(n, all int) string {
	if n == all {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d of %d", n, all)
}
