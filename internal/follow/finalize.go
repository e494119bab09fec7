package follow

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/state"
)

func (f *follower) wantFinal(ctx context.Context) error {
	if !f.finalAt.IsZero() {
		return nil
	}
	if !f.Finalize.due(false) {
		f.endBuilds()
		return nil
	}
	waited := !f.builds.since.IsZero()
	if wait, err := f.awaitBuilds(ctx); wait || err != nil || !f.Finalize.due(true) {
		return err
	}
	until := f.job.Consistent
	g, gctx := errgroup.WithContext(ctx)
	if f.Mode != state.ModeFull || waited {
		g.Go(func() (err error) {
			failpoint.Hit("final.before")
			defer failpoint.Hit("final.after")
			until, err = f.Source.Newest(gctx)
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

func (f *follower) finalize(ctx context.Context) error {
	failpoint.Hit("finalize.before")
	defer failpoint.Hit("finalize.after")
	f.Letters.RetryAll()
	if err := f.endRetained(ctx); err != nil {
		return err
	}
	var waiting schema.Waiting
	err := f.step(progress.StepFinalize, "drain and build deferred indexes", "", func() (err error) {
		waiting, err = f.settle(ctx, f.compare)
		return err
	})
	if err != nil {
		return err
	}
	if waiting == (schema.Waiting{}) {
		return f.end(ctx)
	}
	if waiting.Expires {
		// From now on the target may expire documents that the source keeps: a restart must
		// not follow their changes.
		err = f.noteWith(ctx, func(set bson.D) error {
			return f.Store.SaveDurably(ctx, append(set, bson.E{Key: "expiring", Value: true}))
		})
		if err != nil {
			return err
		}
	}
	return f.expire(ctx)
}

func (f *follower) expire(ctx context.Context) error {
	failpoint.Hit("expire.before")
	err := f.step(progress.StepFinalize, "restore expiries", "", func() (err error) {
		if err = f.Schema.Expiries.Restore(ctx); err == nil {
			f.proven, err = f.Store.Prove(ctx, true)
		}
		return err
	})
	if err != nil {
		return err
	}
	failpoint.Hit("expire.after")
	err = f.step(progress.StepFinalize, "compare catalogs", "", func() error { return f.compare(ctx) })
	if err != nil {
		return err
	}
	return f.end(ctx)
}

func (f *follower) compare(ctx context.Context) (err error) {
	f.differ, err = f.Job.Compare(ctx)
	return err
}

func (f *follower) end(ctx context.Context) error {
	err := f.step(progress.StepFinalize, "end the job", "", func() error {
		return f.noteWith(ctx, func(set bson.D) error {
			return f.Job.Finish(ctx, Final{Differences: f.differ, At: f.proven, Set: set})
		})
	})
	if err != nil {
		return err
	}
	f.Log.Info("finalized", "position", f.applied().At)
	return ErrFinished
}

// sourceBuilds tracks index builds of the source before finalize: the oplog contains them only when
// they end.
type sourceBuilds struct {
	looked time.Time // last
	since  time.Time // of the first find; zero: none found
}

const looksApart = time.Second

// awaitBuilds reports that finalize must wait for index builds of the source. It rejects the finalize
// if they last longer than IndexWait.
func (f *follower) awaitBuilds(ctx context.Context) (wait bool, err error) {
	b := &f.builds
	if time.Since(b.looked) < looksApart {
		return !b.since.IsZero(), nil
	}
	colls, err := f.Source.Building(ctx, f.Rules)
	if err != nil {
		return true, err
	}
	found, err := schema.BuildingNames(colls, f.Rules)
	if err != nil {
		return true, err
	}
	b.looked = time.Now()
	if len(found) == 0 {
		f.endBuilds()
		return false, nil
	}
	names := schema.NameAll(found)
	if b.since.IsZero() {
		b.since = b.looked
		f.Log.Info("finalize waits for index builds of the source", "indexes", names)
		if f.phase == state.PhaseFollowing {
			if err := f.enter(ctx, state.PhaseFollowing); err != nil {
				return true, err
			}
		}
	}
	if lasted := b.looked.Sub(b.since); f.IndexWait > 0 && lasted >= f.IndexWait {
		f.endBuilds()
		err := StillBuilding("finalize", f.IndexWait, found)
		f.Log.Warn("finalize is rejected", "reason", err)
		return true, f.Finalize.reject(err)
	}
	f.Progress.Wait("index builds of the source to end: " + names)
	return true, nil
}

func (f *follower) endBuilds() {
	if !f.builds.since.IsZero() {
		f.Progress.Wait("")
	}
	f.builds = sourceBuilds{}
}
