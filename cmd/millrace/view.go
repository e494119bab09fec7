package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/shown"
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
		elapsed = shown.Clock(now.Sub(s.StartedAt))
	}
	v.add(cli.Plain(s.Job)+": "+phaseText(s.Phase, s.Paused), elapsed, fmt.Sprintf("cpu %.0f%%", s.Process.CPUPercent), shown.Size(float64(s.Process.Resident)))
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
			parts = append(parts, "ETA "+shown.Clock(time.Duration(c.ETASeconds*float64(time.Second))))
		}
		parts = append(parts, shown.Count(c.DocsRate)+" docs/s", shown.Size(c.BytesRate)+"/s")
	}
	v.add(append(parts, shown.Count(float64(c.Docs))+" docs", shown.Size(float64(c.Bytes)))...)
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
	listed := min(len(open), room-1)
	for _, c := range open[:listed] {
		v.item(c.Source, shown.Share(c.Docs, c.DocsTotal, c.Done), shown.Count(float64(c.Docs))+" of "+shown.Count(float64(c.DocsTotal)))
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
		v.item(x.NS, shown.Share(x.Done, x.Total, false), "index")
	}
}

func (v *viewer) following() {
	f := v.s.Follow
	if !v.s.Phase.AfterCopy() || v.s.Phase == job.PhaseIndexing {
		return
	}
	v.add(label("changes")+shown.Count(float64(f.Operations))+" ops", shown.Count(f.OperationsRate)+" ops/s", shown.Size(f.BytesRate)+"/s",
		fmt.Sprintf("%d schema changes", f.SchemaChanges), shown.Count(float64(f.Folded))+" folded")
	if f.Located+f.Broadcast > 0 {
		v.add(label("broadcast")+shown.Count(float64(f.Located))+" documents looked for", shown.Count(float64(f.Broadcast))+" updates sent to all")
	}
	for _, c := range v.s.Filters[:min(len(v.s.Filters), 6)] {
		out := shown.Count(float64(c.LeftOut)) + " left out"
		if c.Unread > 0 {
			out += " and about " + shown.Count(float64(c.Unread)) + " by the source"
		}
		v.add(label("filter")+c.Rule, shown.Count(float64(c.Copied))+" copied", out, shown.Count(float64(c.Entered))+" entered", shown.Count(float64(c.Left))+" left")
	}
	for _, c := range v.s.Fields[:min(len(v.s.Fields), 6)] {
		v.add(label("fields")+cli.Plain(c.Rule), shown.Count(float64(c.Copied))+" copied", shown.Count(float64(c.Changed))+" of them changed",
			shown.Count(float64(c.Written+c.Translated+c.Read))+" changes mapped", shown.Count(float64(c.Failed))+" failed")
	}
	for _, c := range v.s.SoftDeletes[:min(len(v.s.SoftDeletes), 6)] {
		v.add(label("marked")+cli.Plain(c.Rule), shown.Count(float64(c.Marked))+" deleted on the source")
	}
	for _, c := range v.s.Skips[:min(len(v.s.Skips), 6)] {
		v.add(label("skipped")+cli.Plain(c.Rule), skippedText(c.Skipped))
	}
	if text := holdingText(f.Holding); text != "" {
		v.add(label("shards") + text)
	}
	v.add(label("behind")+shown.Seconds(f.LagSeconds), "oplog window "+shown.Seconds(f.WindowSeconds), "at "+f.Applied)
}

// holdingText says which shard the others wait for, where that takes longer than it
// does again and again.
func holdingText(h *job.Holding) string {
	if h == nil || h.Seconds < 1 {
		return ""
	}
	text := fmt.Sprintf("the others wait for %s, %s at %s", cli.Plain(h.Shard), shown.Seconds(h.Seconds), h.At)
	if h.Undecided {
		text += ", where a transaction is prepared and not decided"
	}
	return text
}

// skippedText says how many operations were left out, by name.
func skippedText(counts map[string]int64) string {
	var parts []string
	for _, op := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, shown.Count(float64(counts[op]))+" "+op)
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
	add("errors", shown.Counts(s.Errors), "")
	add("failed", cli.Plain(s.Error), "")
	add("hint", cli.Plain(s.Hint), "")
	if n := len(s.Differences); n > 0 {
		add("differs", fmt.Sprintf("%d from the source", n), "")
	}
	return out
}
