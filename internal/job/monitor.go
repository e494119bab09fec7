package job

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/retry"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/oplog"
)

// monitor watches a job, also while it is paused.
type monitor struct {
	progress   *progress.Progress
	source     *source
	spooler    *oplog.Spooler
	builds     *schema.Builds
	log        *slog.Logger
	warnWindow time.Duration // see Spec.WarnWindow
	follows    bool          // the job reads changes

	ticks  int
	warned time.Time // of the oplog window
	writes oplog.Meter
}

func (m *monitor) run(ctx context.Context) error {
	look := func() error {
		m.progress.Sample()
		if m.follows {
			if err := m.watchSource(ctx); err != nil {
				return err
			}
		}
		m.watchIndexes(ctx)
		m.ticks++
		return nil
	}
	if err := look(); err != nil {
		return err
	}
	return retry.Every(ctx, time.Second, look)
}

// watchSource takes a silent source for no failure: the phases notice it, too.
func (m *monitor) watchSource(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	pos, err := m.source.Recent(ctx)
	if err != nil {
		m.progress.SourceSilent(err)
		return nil
	}
	m.progress.SourceAt(pos)
	if m.ticks%5 != 0 {
		return nil
	}
	w, err := m.source.Window(ctx)
	if err != nil {
		return nil
	}
	if w.Newest.IsZero() { // a source by change streams tells nothing
		return nil
	}
	m.writes.Add(&w)
	m.progress.SourceWindow(&w)
	return m.checkOplog(&w)
}

// checkOplog fails as soon as the oplog has lost what the job still needs. Before, it has the spool keep it
// during a copy, or warns.
func (m *monitor) checkOplog(window *oplog.Window) error {
	need, phase := m.progress.ReadFrom(), m.progress.Phase()
	if need.IsZero() || phase == PhaseFinalized {
		return nil
	}
	need = m.spooler.NeedsFrom(need)
	if need.Before(window.Oldest) {
		return mongo.WithHint(fmt.Errorf("the source's oplog now begins at %s and no longer holds position %s, where "+
			"this job continues", window.Oldest, need),
			"make the oplog larger (replSetResizeOplog) or the copy shorter, then start again with --restart and --on-existing "+
				"drop")
	}
	left := window.Left(need)
	short := left < m.warnWindow
	spooled := m.spooler.Covers(short && (phase == PhaseCopying || phase == PhaseIndexing))
	m.progress.WindowHeld(spooled)
	if !short || spooled || time.Since(m.warned) < time.Minute {
		return nil
	}
	m.warned = time.Now()
	shard, of := window.First(need)
	m.log.Warn("at its write rate the source's oplog will overwrite changes that the job has not read", "position", need,
		"in", left, "warnWindow", m.warnWindow, "shard", shard, "oplogBytes", of.Bytes, "oplogMaxBytes", of.MaxBytes,
		"bytesPerSecond", int64(of.Rate()), "hint", oplog.ShortHint)
	return nil
}

// watchIndexes shows the index builds on the target: while the job builds what it has
// copied, and where a schema change waits for one.
func (m *monitor) watchIndexes(ctx context.Context) {
	phase := m.progress.Phase()
	if phase != PhaseIndexing && phase != PhaseOverlap && phase != PhaseFinalizing && !m.builds.UnderWay() {
		m.progress.SetIndexes(nil)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	builds, err := m.builds.Progress(ctx)
	stalled := m.builds.Stalled()
	if err != nil && len(stalled) == 0 {
		return
	}
	out := make([]progress.Index, 0, len(builds)+len(stalled))
	for _, b := range builds {
		out = append(out, progress.Index{NS: b.NS, Done: b.Done, Total: b.Total})
	}
	for _, s := range stalled {
		at := slices.IndexFunc(out, func(x progress.Index) bool { return x.NS == s.NS })
		if at < 0 {
			at, out = len(out), append(out, progress.Index{NS: s.NS})
		}
		out[at].Stalled, out[at].StalledSince = s.Why, &s.Since
	}
	m.progress.SetIndexes(out)
}
