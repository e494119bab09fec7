package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/pace"
)

// view draws a job's status as lines of at most columns columns, at most rows
// lines: the block that a terminal shows while a sync runs.
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

// label starts a line of figures.
func label(name string) string { return pad("  "+name, 12) }

func (v *viewer) head(now time.Time) {
	s := v.s
	var elapsed string
	if !s.StartedAt.IsZero() {
		elapsed = clock(now.Sub(s.StartedAt))
	}
	v.add(plain(s.Job)+": "+phaseText(s.Phase, s.Paused), elapsed, fmt.Sprintf("cpu %.0f%%", s.Process.CPUPercent), size(float64(s.Process.Resident)))
	if s.Source != "" {
		v.add(label("") + plain(s.Source) + " → " + plain(s.Target))
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
	done := afterCopy(v.s.Phase)
	p := copyShare(c, done)
	parts := []string{label("copy") + v.bar(p)}
	if !done {
		if c.ETASeconds >= 0 {
			parts = append(parts, "ETA "+clock(time.Duration(c.ETASeconds*float64(time.Second))))
		}
		parts = append(parts, count(c.DocsRate)+" docs/s", size(c.BytesRate)+"/s")
	}
	v.add(append(parts, count(float64(c.Docs))+" docs", size(float64(c.Bytes)))...)
}

// copyShare goes by bytes, which cost the time, where they are known.
func copyShare(c job.CopyStatus, done bool) float64 {
	if c.BytesTotal > 0 {
		return share(c.Bytes, c.BytesTotal, done)
	}
	return share(c.Docs, c.DocsTotal, done)
}

// afterCopy reports phases in which the copy is complete.
func afterCopy(p job.Phase) bool {
	return slices.Contains([]job.Phase{job.PhaseIndexing, job.PhaseOverlap, job.PhaseFollowing, job.PhaseFinalizing, job.PhaseFinalized}, p)
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
	v.add("    "+pad(plain(name), max(v.columns/3, 12))+" "+v.bar(p), more)
}

// collections adds the largest unfinished ones, as many as there is room for.
func (v *viewer) collections(room int) {
	if afterCopy(v.s.Phase) || room < 2 {
		return
	}
	var open []job.CollectionStatus
	finished := 0
	for _, c := range v.s.Copy.Collections {
		if c.Done {
			finished++
		} else {
			open = append(open, c)
		}
	}
	// Those under way first, then by size; the name settles ties, so that
	// lines do not jump.
	slices.SortFunc(open, func(a, b job.CollectionStatus) int {
		return cmp.Or(cmp.Compare(min(b.Docs, 1), min(a.Docs, 1)), cmp.Compare(b.BytesTotal, a.BytesTotal), strings.Compare(a.Source, b.Source))
	})
	shown := min(len(open), room-1)
	for _, c := range open[:shown] {
		v.item(c.Source, share(c.Docs, c.DocsTotal, c.Done), count(float64(c.Docs))+" of "+count(float64(c.DocsTotal)))
	}
	var rest []string
	if more := len(open) - shown; more > 0 {
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
		v.item(x.NS, share(x.Done, x.Total, false), "index")
	}
}

func (v *viewer) following() {
	f := v.s.Follow
	if !afterCopy(v.s.Phase) || v.s.Phase == job.PhaseIndexing {
		return
	}
	v.add(label("changes")+count(float64(f.Operations))+" ops", count(f.OperationsRate)+" ops/s", size(f.BytesRate)+"/s",
		fmt.Sprintf("%d schema changes", f.SchemaChanges), count(float64(f.Folded))+" folded")
	if f.Located+f.Broadcast > 0 {
		v.add(label("broadcast")+count(float64(f.Located))+" documents looked for", count(float64(f.Broadcast))+" updates sent to all")
	}
	for _, c := range v.s.Filters[:min(len(v.s.Filters), 6)] {
		out := count(float64(c.LeftOut)) + " left out"
		if c.Unread > 0 {
			out += " and about " + count(float64(c.Unread)) + " by the source"
		}
		v.add(label("filter")+c.Rule, count(float64(c.Copied))+" copied", out, count(float64(c.Entered))+" entered", count(float64(c.Left))+" left")
	}
	for _, c := range v.s.Fields[:min(len(v.s.Fields), 6)] {
		v.add(label("fields")+plain(c.Rule), count(float64(c.Copied))+" copied", count(float64(c.Changed))+" of them changed",
			count(float64(c.Written+c.Translated+c.Read))+" changes mapped", count(float64(c.Failed))+" failed")
	}
	for _, c := range v.s.SoftDeletes[:min(len(v.s.SoftDeletes), 6)] {
		v.add(label("marked")+plain(c.Rule), count(float64(c.Marked))+" deleted on the source")
	}
	for _, c := range v.s.Skips[:min(len(v.s.Skips), 6)] {
		v.add(label("skipped")+plain(c.Rule), skippedText(c.Skipped))
	}
	if text := holdingText(f.Holding); text != "" {
		v.add(label("shards") + text)
	}
	v.add(label("behind")+seconds(f.LagSeconds), "oplog window "+seconds(f.WindowSeconds), "at "+f.Applied)
}

// holdingText says which shard the others wait for, where that takes longer than it
// does again and again.
func holdingText(h *job.Holding) string {
	if h == nil || h.Seconds < 1 {
		return ""
	}
	text := fmt.Sprintf("the others wait for %s, %s at %s", plain(h.Shard), seconds(h.Seconds), h.At)
	if h.Undecided {
		text += ", where a transaction is prepared and not decided"
	}
	return text
}

// skippedText says how many operations were left out, by name.
func skippedText(counts map[string]int64) string {
	var parts []string
	for _, op := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, count(float64(counts[op]))+" "+op)
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
	add("waiting", plain(s.Waiting), "")
	add("conflicts", conflictText(s.Conflicts.Stats), plain(s.Conflicts.Where))
	add("errors", errorCounts(s.Errors), "")
	add("failed", plain(s.Error), "")
	add("hint", plain(s.Hint), "")
	if n := len(s.Differences); n > 0 {
		add("differs", fmt.Sprintf("%d from the source", n), "")
	}
	return out
}

func errorCounts(errors map[string]int64) string {
	var parts []string
	for _, class := range slices.Sorted(maps.Keys(errors)) {
		if n := errors[class]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", class, n))
		}
	}
	return strings.Join(parts, ", ")
}
