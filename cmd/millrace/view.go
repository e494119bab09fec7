package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/term"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/format"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/retry"
)

// view draws a job's status as lines for a terminal of so many columns and rows.
func view(s job.Status, now time.Time, columns, rows int) []string {
	v := viewer{s: s, columns: max(columns, 10)}
	v.head(now)
	if s.Structure != nil {
		v.structure()
		v.indexes()
	} else {
		v.copying()
		v.indexes()
		v.following()
	}
	tail := v.trouble()
	room := rows - len(v.lines) - len(tail)
	v.collections(min(room, 12))
	out := append(v.lines, tail...)
	return out[:min(len(out), max(rows, 1))]
}

type viewer struct {
	s       job.Status
	columns int
	lines   []string
}

func (v *viewer) add(parts ...string) {
	v.lines = append(v.lines, fit(v.columns, parts...))
}

func label(name string) string { return pad("  "+name, 12) }

func (v *viewer) head(now time.Time) {
	s := v.s
	var elapsed string
	if !s.StartedAt.IsZero() {
		elapsed = format.Clock(now.Sub(s.StartedAt))
	}
	v.add(cli.Plain(s.Job)+": "+phaseText(s.Phase, s.Paused), elapsed, fmt.Sprintf("cpu %.0f%%", s.Process.CPUPercent),
		format.Size(s.Process.Resident))
	if s.Source != "" {
		v.add(label("") + cli.Plain(s.Source) + " → " + cli.Plain(s.Target))
	}
	if s.Limits != (pace.Rates{}) {
		v.add(label("throttled") + limitsText(s.Limits))
	}
	if l := loadText(s.Load); l != "" {
		v.add(label("load") + l)
	}
	if c := compressionText(s.Compression); c != "" {
		v.add(label("compressed") + c)
	}
}

func (v *viewer) copying() {
	c := v.s.Copy
	if c.DocsTotal == 0 && c.Docs == 0 && len(c.Collections) == 0 {
		return
	}
	done := v.s.Phase.AfterCopy()
	p := c.Share(done)
	parts := []string{label("copy") + v.bar(p)}
	if !done {
		if c.ETASeconds >= 0 {
			parts = append(parts, "ETA "+format.Clock(time.Duration(c.ETASeconds*float64(time.Second))))
		}
		parts = append(parts, format.Count(c.DocsRate)+" docs/s", format.Size(c.BytesRate)+"/s")
	}
	v.add(append(parts, format.Count(c.Docs)+" docs", format.Size(c.Bytes))...)
}

// bar is a share as a figure, drawn over a fifth of the line if that is not narrow.
func (v *viewer) bar(p float64) string {
	percent := fmt.Sprintf("%3.0f%%", p*100)
	if v.columns < 40 {
		return percent
	}
	return bar(p, min(v.columns/5, 30)) + " " + percent
}

// item is a line for one of several things, with how far it is.
func (v *viewer) item(name string, p float64, more string) {
	v.add("    "+pad(cli.Plain(name), max(v.columns/3, 12))+" "+v.bar(p), more)
}

// collections adds the largest unfinished ones, as many as there is room for.
func (v *viewer) collections(room int) {
	if v.s.Phase.AfterCopy() || room < 2 {
		return
	}
	var open []progress.Collection
	finished := 0
	for _, c := range v.s.Copy.Collections {
		if c.Done {
			finished++
		} else {
			open = append(open, c)
		}
	}
	// Those under way first, then by size; the name settles ties, so that lines do not jump.
	slices.SortFunc(open, func(a, b progress.Collection) int {
		return cmp.Or(cmp.Compare(min(b.Docs, 1), min(a.Docs, 1)), cmp.Compare(b.BytesTotal, a.BytesTotal),
			strings.Compare(a.Source, b.Source))
	})
	listed := min(len(open), room-1)
	for _, c := range open[:listed] {
		v.item(c.Source, format.Share(c.Docs, c.DocsTotal, c.Done), format.Count(c.Docs)+" of "+format.Count(c.DocsTotal))
	}
	var rest []string
	if more := len(open) - listed; more > 0 {
		rest = append(rest, fmt.Sprintf("%d more", more))
	}
	if finished > 0 {
		rest = append(rest, fmt.Sprintf("%d done", finished))
	}
	if len(rest) > 0 {
		v.add("    " + strings.Join(rest, ", "))
	}
}

func (v *viewer) indexes() {
	if v.s.Phase != job.PhaseIndexing && v.s.Phase != job.PhaseFinalizing {
		return
	}
	for _, x := range v.s.Indexes[:min(len(v.s.Indexes), 6)] {
		v.item(x.NS, format.Share(x.Done, x.Total, false), "index")
	}
}

func (v *viewer) following() {
	f := v.s.Follow
	if !v.s.Phase.AfterCopy() || v.s.Phase == job.PhaseIndexing {
		return
	}
	v.add(label("changes")+format.Count(f.Operations)+" ops", format.Count(f.OperationsRate)+" ops/s",
		format.Size(f.BytesRate)+"/s", fmt.Sprintf("%d schema changes", f.SchemaChanges), format.Count(f.Folded)+" folded")
	if f.Located+f.Broadcast > 0 {
		v.add(label("broadcast")+format.Count(f.Located)+" documents looked for",
			format.Count(f.Broadcast)+" updates sent to all")
	}
	for _, c := range v.s.Filters[:min(len(v.s.Filters), 6)] {
		out := format.Count(c.LeftOut) + " left out"
		if c.Unread > 0 {
			out += " and about " + format.Count(c.Unread) + " by the source"
		}
		v.add(label("filter")+c.Rule, format.Count(c.Copied)+" copied", out, format.Count(c.Entered)+" entered",
			format.Count(c.Left)+" left")
	}
	for _, c := range v.s.Fields[:min(len(v.s.Fields), 6)] {
		v.add(label("fields")+cli.Plain(c.Rule), format.Count(c.Copied)+" copied", format.Count(c.Changed)+" of them changed",
			format.Count(c.Written+c.Translated+c.Read)+" changes mapped", format.Count(c.Failed)+" failed")
	}
	for _, c := range v.s.SoftDeletes[:min(len(v.s.SoftDeletes), 6)] {
		v.add(label("marked")+cli.Plain(c.Rule), format.Count(c.Marked)+" deleted on the source")
	}
	for _, c := range v.s.Skips[:min(len(v.s.Skips), 6)] {
		v.add(label("skipped")+cli.Plain(c.Rule), skippedText(c.Skipped))
	}
	if text := holdingText(f.Holding); text != "" {
		v.add(label("shards") + text)
	}
	v.add(label("behind")+format.Seconds(f.LagSeconds), "oplog window "+format.Seconds(f.WindowSeconds), "at "+f.Applied)
}

func holdingText(h *job.Holding) string {
	if h == nil || h.Seconds < 1 {
		return ""
	}
	text := fmt.Sprintf("the others wait for %s, %s at %s", cli.Plain(h.Shard), format.Seconds(h.Seconds), h.At)
	if h.Undecided {
		text += ", where a transaction is prepared and not decided"
	}
	return text
}

func skippedText(counts map[string]int64) string {
	var parts []string
	for _, op := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, format.Count(counts[op])+" "+op)
	}
	return cmp.Or(strings.Join(parts, ", "), "nothing yet")
}

// trouble is what the operator must see whatever the height.
func (v *viewer) trouble() (out []string) {
	s := v.s
	add := func(name, text, more string) {
		if text != "" {
			out = append(out, fit(v.columns, label(name)+text, more))
		}
	}
	add("waiting", cli.Plain(s.Waiting), "")
	add("conflicts", s.Conflicts.Stats.Text(), cli.Plain(s.Conflicts.Where))
	add("errors", format.Counts(s.Errors), "")
	add("failed", cli.Plain(s.Error), "")
	add("hint", cli.Plain(s.Hint), "")
	if n := len(s.Differences); n > 0 {
		add("differs", fmt.Sprintf("%d from the source", n), "")
	}
	return out
}

const redrawEvery = 250 * time.Millisecond

// screen keeps a block of lines at the bottom of a terminal, below log lines. Safe for concurrent use.
type screen struct {
	out  io.Writer
	size func() (columns, rows int)

	mu    sync.Mutex
	block []string
}

// newScreen returns the terminal behind f, nil if there is none that can move its cursor.
func newScreen(f *os.File) *screen {
	fd := int(f.Fd())
	if !term.IsTerminal(fd) || os.Getenv("TERM") == "dumb" {
		return nil
	}
	return &screen{out: f, size: func() (int, int) {
		columns, rows, err := term.GetSize(fd)
		if err != nil || columns <= 0 || rows <= 0 {
			return 80, 24
		}
		return columns, rows
	}}
}

// Write puts whole log lines above the block.
func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	columns, _ := s.size()
	_, err := io.WriteString(s.out, frame(s.block, columns, string(cli.Escape(nil, p, "\n\t")), s.block))
	return len(p), err
}

// draw replaces the block by what lines returns for the terminal's size.
func (s *screen) draw(lines func(columns, rows int) []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	columns, rows := s.size()
	// The last column and row stay free: a character there may make the terminal wrap or scroll.
	next := lines(max(columns-1, 1), max(rows-1, 1))
	for i := range next {
		next[i] = cli.Plain(next[i])
	}
	_, _ = io.WriteString(s.out, frame(s.block, columns, "", next))
	s.block = next
}

func (s *screen) clear() { s.draw(func(int, int) []string { return nil }) }

// frame replaces the lines of shown, above the cursor, by above and the lines of next. The terminal shows it
// at once, and nothing is erased first, so that nothing flickers.
func frame(shown []string, columns int, above string, next []string) string {
	var b strings.Builder
	b.WriteString("\x1b[?2026h\r")
	if up := rowsOf(shown, columns); up > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", up)
	}
	if above != "" {
		b.WriteString("\x1b[J")
		b.WriteString(strings.TrimRight(above, "\n"))
		b.WriteByte('\n')
	}
	for _, line := range next {
		b.WriteString(line)
		b.WriteString("\x1b[K\n")
	}
	b.WriteString("\x1b[J\x1b[?2026l")
	return b.String()
}

// rowsOf counts the rows that lines take: more than one each after the terminal became narrower.
func rowsOf(lines []string, columns int) int {
	n := 0
	for _, l := range lines {
		n += max(1, (width(l)+columns-1)/columns)
	}
	return n
}

// during does something while others run beside it until it has ended.
func during(ctx context.Context, do func() error, beside ...func(context.Context)) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	for _, f := range beside {
		wg.Go(func() { f(ctx) })
	}
	err := do()
	stop()
	wg.Wait()
	return err
}

// watch shows progress until ctx ends: drawn on a terminal, else as a log line at each interval; 0 is never.
func (r *session) watch(ctx context.Context, interval time.Duration, log func(),
	lines func(columns, rows int) []string) {
	if r.screen == nil {
		if interval > 0 {
			every(ctx, interval, log)
		}
		return
	}
	defer r.screen.clear()
	every(ctx, redrawEvery, func() {
		r.screen.draw(func(columns, rows int) []string {
			all := lines(columns, rows)
			return all[:min(len(all), rows)]
		})
	})
}

func every(ctx context.Context, interval time.Duration, do func()) {
	_ = retry.Every(ctx, interval, func() error { do(); return nil }) // it fails when ctx has ended
}

// logProgress writes one line, with the names of the status in JSON.
func logProgress(log *slog.Logger, s job.Status) {
	out := []any{"job", s.Job, "phase", s.Phase}
	add := func(key string, value any, known bool) {
		if known {
			out = append(out, key, value)
		}
	}
	add("paused", true, s.Paused)
	switch {
	case s.Structure != nil:
		m := s.Structure
		out = append(out, "collections", m.Collections, "collectionsTotal", m.CollectionsTotal, "views", m.Views,
			"viewsTotal", m.ViewsTotal,
			"indexes", m.Indexes, "indexesTotal", m.IndexesTotal)
	case s.Phase == job.PhaseCopying:
		c := s.Copy
		out = append(out, "docs", c.Docs, "docsTotal", c.DocsTotal, "bytes", bytesOf(c.Bytes), "docsRate", rate(c.DocsRate),
			"bytesRate", bytesOf(c.BytesRate))
		add("etaSeconds", rounded(c.ETASeconds), c.ETASeconds >= 0)
	case s.Phase == job.PhaseIndexing:
		out = append(out, "building", len(s.Indexes))
	case s.Phase.AfterCopy():
		f := s.Follow
		out = append(out, "operations", f.Operations, "operationsRate", rate(f.OperationsRate), "bytesRate",
			bytesOf(f.BytesRate))
		add("lagSeconds", rounded(f.LagSeconds), f.LagSeconds >= 0)
		add("windowSeconds", rounded(f.WindowSeconds), f.WindowSeconds >= 0)
		add("applied", f.Applied, true)
	}
	add("waiting", s.Waiting, s.Waiting != "")
	c := s.Conflicts
	add("conflictsOpen", c.Open, c.Open > 0)
	add("conflictsUndecided", c.Undecided, c.Undecided > 0)
	add("conflictsSettled", c.Settled, c.Settled > 0)
	add("conflictsRemoved", c.Removed, c.Removed > 0)
	add("unmapped", c.Unmapped, c.Unmapped > 0)
	for _, class := range slices.Sorted(maps.Keys(s.Errors)) {
		add("errors"+strings.ToUpper(class[:1])+class[1:], s.Errors[class], s.Errors[class] > 0)
	}
	log.Info("progress", out...)
}

// figure is a number in a log: rounded and with its unit for people, the number itself in JSON.
type figure struct {
	n    float64
	text string
}

func (f figure) String() string               { return f.text }
func (f figure) MarshalJSON() ([]byte, error) { return json.Marshal(math.Round(f.n*10) / 10) }

func bytesOf[N int64 | float64](n N) figure { return figure{float64(n), format.Size(n)} }

func rate(n float64) figure { return figure{n, format.Count(n)} }

// rounded is a time as precise as a log needs it.
// rounded is without an exponent, which a log would have for large numbers of type float64.
func rounded(seconds float64) any {
	if seconds >= 1000 {
		return int64(math.Round(seconds))
	}
	return math.Round(seconds*10) / 10
}

func width(s string) int { return text.StringWidthWithoutEscSequences(s) }

func cut(s string, n int) string { return text.Snip(s, n, "…") }

func pad(s string, n int) string { return text.Pad(cut(s, n), n, ' ') }

func bar(share float64, n int) string {
	full := int(share * float64(n))
	return strings.Repeat("█", full) + strings.Repeat("░", n-full)
}

// fit joins as many parts as fit into n columns; the first is shortened if it does not fit alone.
func fit(n int, parts ...string) string {
	var line string
	for i, p := range parts {
		switch {
		case p == "":
		case i == 0 || line == "":
			line = cut(p, n)
		case width(line)+2+width(p) > n:
			return line
		default:
			line += "  " + p
		}
	}
	return line
}
