package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/millrace/millrace/internal/job"
)

const (
	redrawEvery = 250 * time.Millisecond
	logEvery    = 5 * time.Second
)

// watch shows how the job stands until ctx ends.
func watch(ctx context.Context, s *screen, log *slog.Logger, status func() job.Status) {
	watchLines(ctx, s, func() { logProgress(log, status()) }, func(columns, rows int) []string {
		return view(status(), time.Now(), columns, rows)
	})
}

// watchLines shows progress until ctx ends: drawn again and again on a terminal,
// as a log line every few seconds elsewhere.
func watchLines(ctx context.Context, s *screen, log func(), lines func(columns, rows int) []string) {
	if s == nil {
		every(ctx, logEvery, log)
		return
	}
	defer s.clear()
	every(ctx, redrawEvery, func() {
		s.draw(func(columns, rows int) []string {
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
	log.LogAttrs(context.Background(), slog.LevelInfo, "progress", progress(s)...)
}

func progress(s job.Status) []slog.Attr {
	out := []slog.Attr{slog.String("job", s.Job), slog.String("phase", string(s.Phase))}
	if s.Paused {
		out = append(out, slog.Bool("paused", true))
	}
	switch s.Phase {
	case job.PhaseCopying:
		out = append(out, slog.Int64("docs", s.Copy.Docs), slog.Int64("docsTotal", s.Copy.DocsTotal),
			slog.String("size", size(float64(s.Copy.Bytes))), slog.String("docsRate", count(s.Copy.DocsRate)+"/s"),
			slog.String("bytesRate", size(s.Copy.BytesRate)+"/s"), slog.String("eta", seconds(s.Copy.ETASeconds)))
	case job.PhaseIndexing:
		out = append(out, slog.Int("building", len(s.Indexes)))
	case job.PhaseOverlap, job.PhaseFollowing, job.PhaseFinalizing, job.PhaseFinalized:
		out = append(out, slog.Int64("ops", s.Follow.Operations), slog.String("opsRate", count(s.Follow.OperationsRate)+"/s"),
			slog.String("bytesRate", size(s.Follow.BytesRate)+"/s"), slog.String("behind", seconds(s.Follow.LagSeconds)),
			slog.String("window", seconds(s.Follow.WindowSeconds)), slog.String("applied", s.Follow.Applied))
	}
	if s.Waiting != "" {
		out = append(out, slog.String("waiting", s.Waiting))
	}
	if c := conflictText(s.Conflicts); c != "" {
		out = append(out, slog.String("conflicts", c))
	}
	if e := errorCounts(s.Errors); e != "" {
		out = append(out, slog.String("errors", e))
	}
	return out
}
