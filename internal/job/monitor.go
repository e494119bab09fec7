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
	full   bool      // the oplog was, when it was asked last
	asked  time.Time
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
	pos, err := m.source.Positions(ctx)
	if err != nil {
		m.progress.SourceSilent(err)
		return nil
	}
	var oldest mongo.OpTime
	if m.ticks%5 == 0 {
		if oldest, _, err = m.source.Window(ctx); err != nil {
			oldest = mongo.OpTime{}
		}
	}
	m.progress.SourceAt(pos, oldest)
	if m.source.shards != nil {
		m.progress.ShardsFrom(m.source.shards.Oldest())
	}
	if oldest.IsZero() {
		return nil
	}
	return m.checkOplog(ctx, oldest)
}

// checkOplog fails once the oplog has lost what the job needs, and warns before.
func (m *monitor) checkOplog(ctx context.Context, oldest mongo.OpTime) error {
	need, phase := m.progress.ReadFrom(), m.progress.Phase()
	if need.IsZero() || phase == PhaseFinalized {
		return nil
	}
	need = m.spooler.NeedsFrom(need)
	if need.Before(oldest) {
		return mongo.WithHint(fmt.Errorf("the source's oplog now begins at %s and no longer holds position %s, from which "+
			"this job reads on", oldest, need),
			"make the oplog larger (replSetResizeOplog) or the copy shorter, then begin anew with --restart and --on-existing "+
				"drop")
	}
	left := time.Duration(int64(need.TS.T)-int64(oldest.TS.T)) * time.Second
	held := m.spooler.Covers(phase == PhaseCopying || phase == PhaseIndexing) || !m.forgets(ctx)
	m.progress.WindowHeld(held)
	w := m.warnWindow
	if w <= 0 || left >= w || time.Since(m.warned) < time.Minute || held {
		return nil
	}
	m.warned = time.Now()
	m.log.Warn("the oplog window is getting short", "remaining", left, "warnBelow", w,
		"hint", "make the source's oplog larger (replSetResizeOplog) or ease the load")
	return nil
}

const fullFor = 30 * time.Second

func (m *monitor) forgets(ctx context.Context) bool {
	if m.asked.IsZero() || time.Since(m.asked) >= fullFor {
		m.full, m.asked = m.source.Full(ctx), time.Now()
	}
	return m.full
}

// watchIndexes shows index builds of the phase, and those that schema changes wait for.
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
	out := make([]IndexStatus, 0, len(builds)+len(stalled))
	for _, b := range builds {
		out = append(out, IndexStatus{NS: b.NS, Done: b.Done, Total: b.Total})
	}
	for _, s := range stalled {
		at := slices.IndexFunc(out, func(x IndexStatus) bool { return x.NS == s.NS })
		if at < 0 {
			at, out = len(out), append(out, IndexStatus{NS: s.NS})
		}
		out[at].Stalled, out[at].StalledSince = s.Why, &s.Since
	}
	m.progress.SetIndexes(out)
}
