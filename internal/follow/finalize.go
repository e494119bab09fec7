package follow

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/state"
)

// wantFinal sets the position to finalize at, once that is asked for.
func (f *follower) wantFinal(ctx context.Context) error {
	if !f.finalAt.IsZero() {
		return nil
	}
	if !f.Wanted() {
		f.endBuilds()
		return nil
	}
	waited := !f.builds.since.IsZero()
	if wait, err := f.awaitBuilds(ctx); wait || err != nil || !f.Final() {
		return err
	}
	until := f.job.Consistent
	g, gctx := errgroup.WithContext(ctx)
	if f.Mode != state.ModeFull || waited {
		g.Go(func() (err error) {
			failpoint.Hit("final.before")
			defer failpoint.Hit("final.after")
			until, err = f.Ask.Newest(gctx)
			return err
		})
	}
	g.Go(func() error { return f.enter(gctx, state.PhaseFinalizing) })
	if err := g.Wait(); err != nil {
		return err
	}
	f.finalAt = mongo.MaxOpTime(until, f.overlapEnd)
	f.phase = state.PhaseFinalizing
	f.Log.Info("finalizing", "drainTo", f.finalAt)
	return nil
}

// finalize drains, restores what was deferred and says what differs.
func (f *follower) finalize(ctx context.Context) error {
	failpoint.Hit("finalize.before")
	defer failpoint.Hit("finalize.after")
	f.Letters.RetryAll()
	var diffs []schema.Difference
	compare := func(ctx context.Context) (err error) {
		diffs, err = f.Compare(ctx)
		return err
	}
	var waiting schema.Waiting
	err := f.finalStep("drain and build deferred indexes", func() (err error) {
		waiting, err = f.settle(ctx, compare)
		return err
	})
	if err != nil {
		return err
	}
	if waiting == (schema.Waiting{}) {
		return f.end(ctx, diffs)
	}
	if waiting.Expires {
		// The target may lose documents from now on that the source keeps: a restart must
		// not follow changes of them. Limits alone the next attempt lifts again.
		err = f.noteWith(ctx, func(set bson.D) error {
			return f.Store.SaveDurably(ctx, append(set, bson.E{Key: "expiring", Value: true}))
		})
		if err != nil {
			return err
		}
	}
	return f.expire(ctx)
}

// goOnExpiring ends a job whose target has begun to expire documents. What it drained to is
// applied.
func (f *follower) goOnExpiring(ctx context.Context) error {
	f.Log.Info("finalize has drained already; changes that the source has made since are not applied", "position", f.saved.At)
	f.Progress.NeedsNothing()
	return f.expire(ctx)
}

// expire has the target expire documents and limit capped collections as the source does, and ends
// the job.
func (f *follower) expire(ctx context.Context) error {
	failpoint.Hit("expire.before")
	err := f.finalStep("restore expiries", func() (err error) {
		if err = f.Schema.Expiries.Restore(ctx); err == nil {
			f.proven, err = f.Store.Prove(ctx, true)
		}
		return err
	})
	if err != nil {
		return err
	}
	failpoint.Hit("expire.after")
	var diffs []schema.Difference
	err = f.finalStep("compare catalogs", func() (err error) {
		diffs, err = f.Compare(ctx)
		return err
	})
	if err != nil {
		return err
	}
	return f.end(ctx, diffs)
}

func (f *follower) end(ctx context.Context, diffs []schema.Difference) error {
	err := f.finalStep("end the job", func() error {
		return f.noteWith(ctx, func(set bson.D) error { return f.Finish(ctx, Final{Differences: diffs, At: f.proven, Set: set}) })
	})
	if err != nil {
		return err
	}
	f.Log.Info("finalized", "position", f.applied().At)
	return ErrFinished
}

// finalStep does a step of finalize, and reports it.
func (f *follower) finalStep(name string, do func() error) error {
	end := f.Progress.Begin(progress.StepFinalize, name, "")
	err := do()
	end(err)
	return err
}
