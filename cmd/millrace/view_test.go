package main

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/format"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/precheck"
	"github.com/millrace/millrace/internal/procstat"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/verify"
)

func now() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

// copying is a job with n collections, the second of them done.
func copying(n int) job.Status {
	s := job.Status{
		Job: "orders", Phase: job.PhaseCopying, Source: "mongodb://source:27017", Target: "mongodb://target:27017",
		StartedAt: now().Add(-83 * time.Second),
		Copy: progress.Copy{Docs: 1_200_000, DocsTotal: 2_000_000, Bytes: 1_400_000_000, BytesTotal: 2_300_000_000,
			DocsRate: 48100, BytesRate: 56.2e6, ETASeconds: 16.4},
		Follow:  job.FollowStatus{LagSeconds: -1, WindowSeconds: 86400},
		Process: procstat.Usage{PID: 123, CPUPercent: 180, Resident: 312 << 20},
		Errors:  map[string]int64{"retry": 2, "duplicate": 0},
	}
	for i := range n {
		s.Copy.Collections = append(s.Copy.Collections, progress.Collection{
			Source: fmt.Sprintf("shop.c%02d", i), Docs: int64(1000 * i), DocsTotal: 50_000, BytesTotal: int64(1000 - i),
			Done: i == 1})
	}
	return s
}

func TestViewOfACopy(t *testing.T) {
	got := view(copying(4), now(), 100, 24)
	want := []string{
		"orders: copying  0:01:23  cpu 180%  327 MB",
		"            mongodb://source:27017 → mongodb://target:27017",
		"  copy      ████████████░░░░░░░░  61%  ETA 0:00:16  48.1k docs/s  56.2 " +
			"MB/s  1.20M docs  1.40 GB",
		"    shop.c02                          ░░░░░░░░░░░░░░░░░░░░   4%  2.00k of " +
			"50.0k",
		"    shop.c03                          █░░░░░░░░░░░░░░░░░░░   6%  3.00k of " +
			"50.0k",
		"    shop.c00                          ░░░░░░░░░░░░░░░░░░░░   0%  0 of 50.0k",
		"    1 done",
		"  errors    retry 2",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestCopyOfFilesCountsNoDocuments: the status, the view, the log and the summary of a copy by files have bytes alone.
func TestCopyOfFilesCountsNoDocuments(t *testing.T) {
	s := copying(0)
	s.Copy.Docs, s.Copy.DocsTotal, s.Copy.DocsRate = 0, 0, 0
	s.Copy.Collections = []progress.Collection{{Source: "files", Target: "https://one:7118", Bytes: 1e9, BytesTotal: 1e9,
		Done: true}, {Source: "files", Target: "https://two:7118", Bytes: 4e8, BytesTotal: 1.3e9}}
	got := view(s, now(), 100, 24)
	want := []string{
		"orders: copying  0:01:23  cpu 180%  327 MB",
		"            mongodb://source:27017 → mongodb://target:27017",
		"  copy      ████████████░░░░░░░░  61%  ETA 0:00:16  56.2 MB/s  1.40 GB",
		"    https://two:7118                  ██████░░░░░░░░░░░░░░  31%  400 MB of 1.30 GB",
		"    1 done",
		"  errors    retry 2",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	var log strings.Builder
	logProgress(slog.New(slog.NewTextHandler(&log, nil)), s)
	text := textOf("status", s)
	if !strings.Contains(text, "1.40 GB of 2.30 GB") || !strings.Contains(text, "https://two:7118") {
		t.Errorf("status:\n%s", text)
	}
	for _, text := range append(got, text, log.String(), textOf("summary", summary{Status: s})) {
		if strings.Contains(text, "doc") || strings.Contains(text, "collection") {
			t.Errorf("it counts documents:\n%s", text)
		}
	}
}

func TestViewOfFollowing(t *testing.T) {
	s := copying(3)
	s.Phase, s.Paused, s.Waiting = job.PhaseFollowing, true, "the operator to resume"
	s.Follow = job.FollowStatus{Operations: 12_345_678, OperationsRate: 1234, BytesRate: 1.1e6, Applied: "1700000000:1",
		LagSeconds: 0.4, WindowSeconds: 23 * 3600, SchemaChanges: 4, Folded: 900, Located: 5, Broadcast: 2,
		Holding: &job.Holding{Shard: "shard1", Seconds: 12, At: "1700000000:2", Undecided: true}}
	got := view(s, now(), 120, 24)
	want := []string{
		"orders: following, paused  0:01:23  cpu 180%  327 MB",
		"            mongodb://source:27017 → mongodb://target:27017",
		"  copy      ████████████████████████ 100%  1.20M docs  1.40 GB",
		"  changes   12.3M ops  1.23k ops/s  1.10 MB/s  4 schema changes  900 folded",
		"  broadcast 5 documents looked for  2 updates sent to all",
		"  shards    the others wait for shard1, 12 s at 1700000000:2, where a transaction is prepared and not decided",
		"  behind    0.4 s  oplog window 23.0 h  at 1700000000:1",
		"  waiting   the operator to resume",
		"  errors    retry 2",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Whatever the status and the terminal, no line is wider and no block higher
// than the terminal, and what went wrong is among what is shown.
func TestViewFitsEveryTerminal(t *testing.T) {
	failed := copying(300)
	failed.Phase, failed.Error, failed.Hint = job.PhaseFailed, "insert into shop.c00: "+strings.Repeat("long ", 50),
		"do something"
	odd := copying(3)
	odd.Copy.Collections[0].Source = "生命生命.生命\x1b[2Jevil\nname" + strings.Repeat("ä", 100)
	odd.Copy.DocsTotal, odd.Copy.Docs = 10, 1_000_000
	indexing := copying(2)
	indexing.Phase = job.PhaseIndexing
	for range 40 {
		indexing.Indexes = append(indexing.Indexes, progress.Index{NS: "shop.c00", Done: 1, Total: 3})
	}
	for name, s := range map[string]job.Status{
		"copying": copying(300), "failed": failed, "odd": odd, "indexing": indexing, "zero": {},
		"starting": {Phase: job.PhaseStarting},
	} {
		for columns := 10; columns < 200; columns += 3 {
			for _, rows := range []int{1, 2, 5, 10, 24, 60} {
				lines := view(s, now(), columns, rows)
				if len(lines) > rows {
					t.Fatalf("%s at %dx%d: %d lines", name, columns, rows, len(lines))
				}
				for _, l := range lines {
					if width(l) > columns || strings.ContainsAny(l, "\n\r\x1b") {
						t.Fatalf("%s at %dx%d: line %q of %d columns", name, columns, rows, l, width(l))
					}
				}
				if text := strings.Join(lines, "\n"); name == "failed" && rows >= 10 && columns > 30 &&
					!strings.Contains(text, "failed    ins") {
					t.Fatalf("%s at %dx%d hides the error:\n%s", name, columns, rows, text)
				}
			}
		}
	}
}

func TestVerifyView(t *testing.T) {
	st := verify.Stats{Collections: 5, CollectionsDone: 2, Docs: 1000, Bytes: 2e6, EstimatedDocs: 4000, Waiting: 3,
		Settled: 7, Differences: 1}
	got := verifyView(st, 10*time.Second, 80)
	want := []string{
		"comparing 2 of 5 collections  0:00:10",
		"  documents ████░░░░░░░░░░░░  25%  1.00k  100/s  200 kB/s",
		"  differ    1  rechecking 3  settled 7",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for columns := 1; columns < 100; columns++ {
		for _, l := range verifyView(st, 0, columns) {
			if width(l) > max(columns, 10) {
				t.Fatalf("%d columns: %q", columns, l)
			}
		}
	}
}

func TestFigures(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{format.Count(0), "0"}, {format.Count(950), "950"}, {format.Count(48100), "48.1k"}, {format.Count(1.2e6), "1.20M"},
		{format.Count(3.5e9), "3.50G"},
		{format.Size(0), "0 B"}, {format.Size(999), "999 B"}, {format.Size(1500), "1.50 kB"},
		{format.Size(56.2e6), "56.2 MB"},
		{format.Size(2e12), "2.00 TB"},
		{format.Seconds(-1), "unknown"}, {format.Seconds(0.44), "0.4 s"}, {format.Seconds(45), "45 s"},
		{format.Seconds(600), "10 min"}, {format.Seconds(3 * 3600), "3.0 h"}, {format.Seconds(5 * 86400), "5.0 d"},
		{format.Clock(83 * time.Second), "0:01:23"}, {format.Clock(25*time.Hour + time.Second), "1d 01:00:01"},
		{cut("abcdef", 4), "abc…"}, {cut("生命生命", 5), "生命…"}, {pad("ab", 4), "ab  "},
		{cli.Plain("a\x1b[2J\nb"), `a\u001b[2J\nb`},
		{bar(0.5, 4), "██░░"}, {fit(10, "abc", "def", "ghi"), "abc  def"}, {fit(2, "abc"), "a…"},
		{fit(10, "", "x"), "x"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
	if format.Share(5, 0, false) != 0 || format.Share(5, 2, false) != 1 || format.Share(0, 0, true) != 1 {
		t.Error("share leaves 0 to 1")
	}
}

// TestUnreadPlan: a plan whose checks failed before collections were read shows none, rather than a count of 0.
func TestUnreadPlan(t *testing.T) {
	var p job.Plan
	if text := textOf("plan", &p); !strings.Contains(text, "0 collections") {
		t.Errorf("an empty source: %s", text)
	}
	p.Checks.Add(precheck.Fail, "target privileges", "not authorized", "")
	if text := textOf("plan", &p); strings.Contains(text, "collections") || !strings.Contains(text, "not authorized") {
		t.Errorf("refused: %s", text)
	}
}

// TestWayBackOfStopped: a sync that was stopped while it finalized offers no way back yet.
func TestWayBackOfStopped(t *testing.T) {
	sum := summary{Status: job.Status{Job: "orders", Phase: job.PhaseFinalizing, TargetPosition: "7:1"}}
	if text := textOf("summary", sum); strings.Contains(text, "fall back") {
		t.Error(text)
	}
	if sum.Finalized = true; !strings.Contains(textOf("summary", sum), "stands at 7:1: to fall back") {
		t.Error(textOf("summary", sum))
	}
}
