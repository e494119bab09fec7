package main

import (
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

	"golang.org/x/term"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/shown"
)

const redrawEvery = 250 * time.Millisecond

// screen keeps a block of lines at the bottom of a terminal, and lets log
// lines pass above it. Safe for concurrent use.
type screen struct {
	out  io.Writer
	size func() (columns, rows int)

	mu    sync.Mutex
	block []string
}

// newScreen returns the terminal behind f, or nil if there is none that can
// move its cursor.
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
	// The last column and the last row stay free: a character there may make
	// the terminal wrap or scroll.
	next := lines(max(columns-1, 1), max(rows-1, 1))
	for i := range next {
		next[i] = cli.Plain(next[i])
	}
	_, _ = io.WriteString(s.out, frame(s.block, columns, "", next))
	s.block = next
}

// clear removes the block.
func (s *screen) clear() { s.draw(func(int, int) []string { return nil }) }

// frame is what to write to a terminal whose cursor stands below the lines of
// shown, so that above appears in their place and below it the lines of next.
// It is one piece of text, written over the old one without erasing it first,
// and the terminal is asked to show it at once: so nothing flickers.
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

// rowsOf counts the terminal's rows that lines take: more than one each after
// the terminal became narrower.
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

// watch shows progress until ctx ends: drawn again and again on a terminal,
// as a log line at each interval elsewhere, or not at all if that is 0.
func (r *session) watch(ctx context.Context, interval time.Duration, log func(), lines func(columns, rows int) []string) {
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

// every calls do at each interval until ctx ends.
func every(ctx context.Context, interval time.Duration, do func()) {
	t := time.NewTicker(interval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			do()
		}
	}
}

// logProgress is one line about how the job stands. Its names are those of the
// status in JSON.
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
		out = append(out, "collections", m.Collections, "collectionsTotal", m.CollectionsTotal, "views", m.Views, "viewsTotal", m.ViewsTotal,
			"indexes", m.Indexes, "indexesTotal", m.IndexesTotal)
	case s.Phase == job.PhaseCopying:
		c := s.Copy
		out = append(out, "docs", c.Docs, "docsTotal", c.DocsTotal, "bytes", bytesOf(c.Bytes), "docsRate", rate(c.DocsRate), "bytesRate", bytesOf(c.BytesRate))
		add("etaSeconds", rounded(c.ETASeconds), c.ETASeconds >= 0)
	case s.Phase == job.PhaseIndexing:
		out = append(out, "building", len(s.Indexes))
	case s.Phase.AfterCopy():
		f := s.Follow
		out = append(out, "operations", f.Operations, "operationsRate", rate(f.OperationsRate), "bytesRate", bytesOf(f.BytesRate))
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

// figure is a number in a log: rounded and with its unit for people, the number
// itself in JSON.
type figure struct {
	n    float64
	text string
}

func (f figure) String() string               { return f.text }
func (f figure) MarshalJSON() ([]byte, error) { return json.Marshal(math.Round(f.n*10) / 10) }

// bytesOf is an amount of bytes, or of bytes a second.
func bytesOf[N int64 | float64](n N) figure { return figure{float64(n), shown.Size(float64(n))} }

// rate is how many things happen in a second.
func rate(n float64) figure { return figure{n, shown.Count(n)} }

// rounded is a time as precise as a log needs it.
func rounded(seconds float64) float64 { return math.Round(seconds*10) / 10 }
