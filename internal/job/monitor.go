package job

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/oplog"
)

// monitor samples progress once a second and watches the source's position
// and oplog window, also while the job is paused.
func (j *Job) monitor(ctx context.Context) error {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	warned := time.Time{}
	for n := 0; ; n++ {
		j.sample()
		if j.src.Info.Kind == mongo.KindReplicaSet {
			if err := j.watchSource(ctx, n, &warned); err != nil {
				return err
			}
		}
		j.watchIndexes(ctx)
		select {
		case <-t.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (j *Job) sample() {
	st := j.Status()
	s := &j.progress
	s.mu.Lock()
	defer s.mu.Unlock()
	x := sample{at: time.Now(), docs: st.Copy.Docs, copied: st.Copy.Bytes, operations: st.Follow.Operations, cpu: st.Process.CPUSeconds}
	if s.applyEng != nil {
		x.opBytes = s.applyEng.Stats().Bytes
	}
	s.samples.add(x)
}

// watchSource reads the source's position each second and the ends of its
// oplog each fifth. A source that does not answer now is no failure here: the
// phases meet it too.
func (j *Job) watchSource(ctx context.Context, n int, warned *time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	pos, err := j.src.Positions(ctx)
	if err != nil {
		j.progress.sourceSilent(err)
		return nil
	}
	var oldest mongo.OpTime
	if n%5 == 0 {
		if oldest, _, err = oplog.Window(ctx, j.src); err != nil {
			oldest = mongo.OpTime{}
		}
	}
	j.progress.setSource(pos, oldest)
	if oldest.IsZero() {
		return nil
	}
	return j.checkWindow(ctx, oldest, warned)
}

// checkWindow fails as soon as the oplog has lost what the job still needs,
// and warns before.
func (j *Job) checkWindow(ctx context.Context, oldest mongo.OpTime, warned *time.Time) error {
	s := &j.progress
	s.mu.Lock()
	need, phase := s.readFrom, s.phase
	s.mu.Unlock()
	if need.IsZero() || phase == PhaseFinalized {
		return nil
	}
	need = j.spooler.NeedsFrom(need)
	if need.Before(oldest) {
		return mongo.WithHint(fmt.Errorf("the source's oplog now begins at %s and no longer holds position %s, from which this job reads on", oldest, need),
			"make the oplog larger (replSetResizeOplog) or the copy shorter, then begin anew with --restart and --on-existing drop")
	}
	left := time.Duration(int64(need.TS.T)-int64(oldest.TS.T)) * time.Second
	w := j.spec.WarnWindow
	if w <= 0 || left >= w || time.Since(*warned) < time.Minute || !oplog.Full(ctx, j.src) {
		return nil
	}
	if j.spooler.Covers(phase == PhaseCopying || phase == PhaseIndexing) {
		return nil
	}
	*warned = time.Now()
	j.log.Warn("the oplog window is getting short", "remaining", left, "warnBelow", w,
		"hint", "make the source's oplog larger (replSetResizeOplog) or ease the load")
	return nil
}

func (j *Job) watchIndexes(ctx context.Context) {
	j.progress.mu.Lock()
	phase := j.progress.phase
	j.progress.mu.Unlock()
	if phase != PhaseIndexing && phase != PhaseOverlap && phase != PhaseFinalizing {
		j.progress.setIndexes(nil)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	progress, err := j.cat.Progress(ctx)
	if err != nil {
		return
	}
	out := make([]IndexStatus, 0, len(progress))
	for _, p := range progress {
		out = append(out, IndexStatus{NS: p.NS, Done: p.Done, Total: p.Total})
	}
	j.progress.setIndexes(out)
}
