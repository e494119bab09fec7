package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/millrace/millrace/internal/job"
)

const (
	redrawEvery = 250 * time.Millisecond
	logEvery    = 5 * time.Second
)

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
	_, err := io.WriteString(s.out, frame(s.block, columns, string(escape(nil, p, "\n\t")), s.block))
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
		next[i] = plain(next[i])
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
// as a log line every few seconds elsewhere.
func (r *session) watch(ctx context.Context, log func(), lines func(columns, rows int) []string) {
	if r.screen == nil {
		every(ctx, logEvery, log)
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

// logProgress is one line about how the job stands.
func logProgress(log *slog.Logger, s job.Status) {
	out := []any{"job", s.Job, "phase", s.Phase}
	if s.Paused {
		out = append(out, "paused", true)
	}
	switch {
	case s.Phase == job.PhaseCopying:
		out = append(out, "docs", s.Copy.Docs, "docsTotal", s.Copy.DocsTotal, "size", size(float64(s.Copy.Bytes)),
			"docsRate", count(s.Copy.DocsRate)+"/s", "bytesRate", size(s.Copy.BytesRate)+"/s", "eta", seconds(s.Copy.ETASeconds))
	case s.Phase == job.PhaseIndexing:
		out = append(out, "building", len(s.Indexes))
	case afterCopy(s.Phase):
		out = append(out, "ops", s.Follow.Operations, "opsRate", count(s.Follow.OperationsRate)+"/s",
			"bytesRate", size(s.Follow.BytesRate)+"/s", "behind", seconds(s.Follow.LagSeconds),
			"window", seconds(s.Follow.WindowSeconds), "applied", s.Follow.Applied)
	}
	for _, a := range [][2]string{{"waiting", s.Waiting}, {"conflicts", conflictText(s.Conflicts)}, {"errors", errorCounts(s.Errors)}} {
		if a[1] != "" {
			out = append(out, a[0], a[1])
		}
	}
	log.Info("progress", out...)
}
