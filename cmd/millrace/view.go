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
	v.copying()
	v.indexes()
	v.following()
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
	phase := string(s.Phase)
	if s.Paused {
		phase += ", paused"
	}
	var elapsed string
	if !s.StartedAt.IsZero() {
		elapsed = clock(now.Sub(s.StartedAt))
	}
	v.add(plain(s.Job)+": "+phase, elapsed, fmt.Sprintf("cpu %.0f%%", s.Process.CPUPercent), size(float64(s.Process.Resident)))
	if s.Source != "" {
		v.add(label("") + plain(s.Source) + " → " + plain(s.Target))
	}
	if s.Limits != (pace.Rates{}) {
		v.add(label("throttled") + limitsText(s.Limits))
	}
	if l := loadText(s.Load); l != "" {
		v.add(label("load") + l)
	}
}

func (v *viewer) copying() {
	c := v.s.Copy
	if c.DocsTotal == 0 && c.Docs == 0 && len(c.Collections) == 0 {
		return
	}
	done := afterCopy(v.s.Phase)
	p := copyShare(c, done)
	parts := []string{label("copy") + v.bar(p) + fmt.Sprintf("%3.0f%%", p*100)}
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
	switch p {
	case job.PhaseIndexing, job.PhaseOverlap, job.PhaseFollowing, job.PhaseFinalizing, job.PhaseFinalized:
		return true
	}
	return false
}

// bar takes a fifth of the line, nothing of a narrow one.
func (v *viewer) bar(p float64) string {
	n := min(v.columns/5, 30)
	if v.columns < 40 {
		return ""
	}
	return bar(p, n) + " "
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
		return cmp.Or(cmp.Compare(under(b), under(a)), cmp.Compare(b.BytesTotal, a.BytesTotal), strings.Compare(a.Source, b.Source))
	})
	more := len(open) - (room - 1)
	for _, c := range open[:min(len(open), room-1)] {
		v.collection(c)
	}
	var rest []string
	if more > 0 {
		rest = append(rest, fmt.Sprintf("%d more", more))
	}
	if finished > 0 {
		rest = append(rest, fmt.Sprintf("%d done", finished))
	}
	if len(rest) > 0 {
		v.add("    " + strings.Join(rest, ", "))
	}
}

func under(c job.CollectionStatus) int {
	if c.Docs > 0 {
		return 1
	}
	return 0
}

func (v *viewer) collection(c job.CollectionStatus) {
	p := share(c.Docs, c.DocsTotal, c.Done)
	name := max(v.columns/3, 12)
	v.add("    "+pad(plain(c.Source), name)+" "+v.bar(p)+fmt.Sprintf("%3.0f%%", p*100),
		count(float64(c.Docs))+" of "+count(float64(c.DocsTotal)))
}

func (v *viewer) indexes() {
	if v.s.Phase != job.PhaseIndexing && v.s.Phase != job.PhaseFinalizing {
		return
	}
	for _, x := range v.s.Indexes[:min(len(v.s.Indexes), 6)] {
		p := share(x.Done, x.Total, false)
		v.add("    "+pad(plain(x.NS), max(v.columns/3, 12))+" "+v.bar(p)+fmt.Sprintf("%3.0f%%", p*100), "index")
	}
}

func (v *viewer) following() {
	f := v.s.Follow
	switch v.s.Phase {
	case job.PhaseOverlap, job.PhaseFollowing, job.PhaseFinalizing, job.PhaseFinalized:
	default:
		return
	}
	v.add(label("changes")+count(float64(f.Operations))+" ops", count(f.OperationsRate)+" ops/s", size(f.BytesRate)+"/s",
		fmt.Sprintf("%d schema changes", f.SchemaChanges), count(float64(f.Folded))+" folded")
	v.add(label("behind")+seconds(f.LagSeconds), "oplog window "+seconds(f.WindowSeconds), "at "+f.Applied)
}

// trouble is what the operator must see whatever the height.
func (v *viewer) trouble() []string {
	s := v.s
	var out []string
	for _, line := range []struct {
		name, text, more string
	}{
		{"waiting", plain(s.Waiting), ""}, {"conflicts", conflictText(s.Conflicts), plain(s.Conflicts.Where)}, {"errors", errorCounts(s.Errors), ""},
		{"failed", plain(s.Error), ""}, {"hint", plain(s.Hint), ""}, {"differs", differing(s.Differences), ""},
	} {
		if line.text != "" {
			out = append(out, fit(v.columns, label(line.name)+line.text, line.more))
		}
	}
	return out
}

func differing(differences []string) string {
	if len(differences) == 0 {
		return ""
	}
	return fmt.Sprintf("%d from the source", len(differences))
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
