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
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/retry"
)

// view draws a job's status as lines for a terminal of so many columns and rows. The last ones are what the operator
// must see whatever the height.
func view(s job.Status, now time.Time, columns, rows int) []string {
	v := struct {
		viewer
		job.Status

		Now            time.Time
		Open           []progress.Collection
		More, Finished int
	}{viewer: viewer(columns), Status: s, Now: now}
	lines, trouble := v.lines("view", v), v.lines("trouble", v)
	if room := min(rows-len(lines)-len(trouble), 12); room > 1 && !s.Phase.AfterCopy() {
		v.Open, v.Finished = unfinished(s.Copy.Collections)
		v.More = more(room-1, v.Open)
		v.Open = v.Open[:len(v.Open)-v.More]
		lines = append(lines, v.lines("open collections", v)...)
	}
	lines = append(lines, trouble...)
	return lines[:min(len(lines), max(rows, 1))]
}

// unfinished returns the collections that are not finished, the largest first, and the number of those that are.
func unfinished(all []progress.Collection) ([]progress.Collection, int) {
	open := slices.DeleteFunc(slices.Clone(all), func(c progress.Collection) bool { return c.Done })
	// Those under way first, then by size; the name settles ties, so that lines do not jump.
	slices.SortFunc(open, func(a, b progress.Collection) int {
		return cmp.Or(cmp.Compare(min(b.Docs, 1), min(a.Docs, 1)), cmp.Compare(b.BytesTotal, a.BytesTotal),
			strings.Compare(a.Source, b.Source))
	})
	return open, len(all) - len(open)
}

// viewer draws what moves on a terminal of so many columns.
type viewer int

// lines are those of a template, whose tabs separate what a line shows as far as there is room.
func (v viewer) lines(name string, data any) (lines []string) {
	for line := range strings.Lines(textOf(name, data)) {
		lines = append(lines, fit(max(int(v), 10), strings.Split(strings.TrimSuffix(line, "\n"), "\t")...))
	}
	return lines
}

// Bar is a share as a figure, drawn over a fifth of the line if that is not narrow.
func (v viewer) Bar(p float64) string {
	percent := fmt.Sprintf("%3.0f%%", p*100)
	if v < 40 {
		return percent
	}
	return bar(p, min(int(v)/5, 30)) + " " + percent
}

// Item is how far one of several things is.
func (v viewer) Item(name string, p float64) string {
	return "    " + pad(cli.Plain(name), max(int(v)/3, 12)) + " " + v.Bar(p)
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
		add("docs", c.Docs, !c.ByFiles())
		add("docsTotal", c.DocsTotal, !c.ByFiles())
		add("bytes", bytesOf(c.Bytes), true)
		add("bytesTotal", bytesOf(c.BytesTotal), c.ByFiles())
		add("docsRate", rate(c.DocsRate), !c.ByFiles())
		add("bytesRate", bytesOf(c.BytesRate), true)
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
