package job

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/precheck"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/state"
)

// prepare takes the snapshot of the catalog that the job starts from, or, in incremental mode,
// sets the position that was asked for.
func (c *copier) prepare(ctx context.Context, job state.Job) error {
	if job.Restarted {
		if err := c.clear(ctx, job); err != nil {
			return err
		}
	}
	if c.spec.Mode == ModeIncremental {
		return c.prepareIncremental(ctx)
	}
	snap := c.snap
	mapped := make([]state.Mapped, 0, len(snap.Collections))
	for _, one := range snap.Collections {
		if schema.OfVersions(one, c.rules) {
			c.log.Warn("left out on the target, for it reads a collection of versions", "view", one.NS)
			continue
		}
		one, left, err := schema.Mapped(one, c.rules)
		if err != nil {
			return err
		}
		for _, what := range left {
			c.log.Warn("left out on the target, which has other documents", "ns", one.NS, "what", what)
		}
		mapped = append(mapped, state.Mapped{Collection: one, Target: c.rules.Target(one.NS)})
	}
	// In the phase that it is in, the job may have a catalog that it cannot use.
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.noneExists(gctx, mapped) })
	g.Go(func() error { return c.store.SaveCatalog(gctx, mapped) })
	chunks := bson.Raw{}
	g.Go(func() (err error) {
		chunks, err = c.chunksNow(gctx, snap)
		return err
	})
	if err := g.Wait(); err != nil {
		return err
	}
	c.catalog = mapped
	if c.spec.Mode == ModeStructure {
		c.log.Info("catalog listed", "collections", len(mapped))
	} else {
		c.log.Info("snapshot taken", "position", snap.At, "collections", len(mapped))
	}
	return c.savePhase(ctx, state.PhaseCreating, append(state.PositionFields(c.from), bson.E{Key: "start", Value: snap.At}, bson.E{Key: "chunks", Value: chunks})...)
}

// look makes sure that the job may have the names that its rules lead to, and
// takes the snapshot, if there is to be one: what a new job needs to know.
func (c *copier) look(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.alone(gctx) })
	scope := schema.Scope{NS: c.rules.Match, DB: c.rules.MatchDB}
	switch c.spec.Mode {
	case ModeIncremental:
	case ModeStructure:
		g.Go(func() error {
			return c.untilBuilt(gctx, func() (err error) {
				c.snap.Collections, err = c.listed(gctx, scope)
				return err
			})
		})
	default:
		take := func() (err error) {
			c.snap, c.from, err = c.origin.Snapshot(gctx, scope)
			return err
		}
		g.Go(func() error {
			if c.src.Info.Kind == mongo.KindStandalone {
				return c.untilBuilt(gctx, take)
			}
			return take()
		})
	}
	return g.Wait()
}

// alone makes sure that no other job has a right to the same names on the target.
// The precheck looked before this job could be seen; now it can, and of two that
// begin at once one at least sees the other.
func (c *copier) alone(ctx context.Context, but ...Phase) error {
	rivals, err := precheck.Rivals(ctx, c.store, c.rules, true)
	if err != nil {
		return err
	}
	rivals = slices.DeleteFunc(rivals, func(r precheck.Rival) bool { return slices.Contains(but, r.Phase) })
	return precheck.Refusal(rivals, c.spec.OnExisting, c.spec.AllowOverlap)
}

// clear removes what an earlier life of the job left in the target's database
// of millrace and, with leave to drop, what it has made. Done again after a crash it
// does no harm.
func (c *copier) clear(ctx context.Context, job state.Job) error {
	if c.spec.OnExisting == ExistingDrop && !job.Shared && c.spec.Mode != ModeIncremental {
		earlier, err := precheck.Leftovers(ctx, c.store, c.rules)
		if err != nil {
			return err
		}
		for _, ns := range earlier { // the source may have it no more
			if err := c.cat.Collections.Drop(ctx, ns); err != nil {
				return err
			}
		}
	}
	if c.placer != nil {
		if err := c.placer.ForgetAll(ctx); err != nil {
			return err
		}
	}
	for _, remove := range []func(context.Context) error{c.cat.Deferred.Forget, c.letters.Reset, c.store.Clear} {
		if err := remove(ctx); err != nil {
			return err
		}
	}
	if err := c.letters.Load(ctx, false); err != nil {
		return err
	}
	return c.store.Save(ctx, bson.D{{Key: "restarted", Value: false}})
}

// noneExists makes sure that what exists on the target from now on is the job's
// own, where it is not to touch what does. The precheck did not know all names.
func (c *copier) noneExists(ctx context.Context, mapped []state.Mapped) error {
	if c.spec.OnExisting == ExistingMerge || c.spec.OnExisting == ExistingDrop {
		return nil
	}
	var targets []string
	for _, m := range mapped {
		targets = append(targets, m.Target)
	}
	have, err := c.cat.ListExisting(ctx, targets)
	if err != nil {
		return err
	}
	for ns := range have {
		return mongo.WithHint(fmt.Errorf("%s exists on the target", ns), "drop it, or choose --on-existing merge or --on-existing drop")
	}
	return nil
}

func (c *copier) prepareIncremental(ctx context.Context) error {
	at, err := mongo.ParseOpTime(c.spec.StartAt)
	if err != nil {
		return fmt.Errorf("--start-at: %w", err)
	}
	newest, err := c.ask.Newest(ctx)
	if err != nil {
		return err
	}
	names, err := schema.FindNames(ctx, c.src, c.dst, c.rules)
	if err != nil {
		return err
	}
	mapped := make([]state.Mapped, len(names))
	for i, n := range names {
		mapped[i] = state.Mapped{Collection: schema.Collection{NS: n.NS, Type: n.Type, UUID: n.UUID, Options: bson.Raw{5, 0, 0, 0, 0}}, Target: n.Target}
	}
	if err := c.store.SaveCatalog(ctx, mapped); err != nil {
		return err
	}
	c.catalog = mapped
	// What the target holds at that position is not known exactly, so up to
	// now it may be ahead.
	return c.savePhase(ctx, PhaseOverlap, append(state.PositionFields(oplog.Position(at, at)),
		bson.E{Key: "start", Value: at}, bson.E{Key: "consistent", Value: newest}, bson.E{Key: "copied", Value: newest})...)
}

// listed is the source's catalog of now, all of which a majority has.
func (c *copier) listed(ctx context.Context, scope schema.Scope) (colls []schema.Collection, err error) {
	err = c.src.Seen(ctx, func() error {
		colls, err = schema.List(ctx, c.src, scope)
		return err
	})
	return colls, err
}

// untilBuilt takes the source's catalog once no index of it is being built: where the job
// reads no oplog, nothing would bring the index later. It waits no longer than IndexWait.
func (c *copier) untilBuilt(ctx context.Context, take func() error) error {
	began, waiting := time.Now(), false
	for {
		if err := take(); err != nil {
			return err
		}
		building, err := schema.BuildingNames(c.snap.Collections, c.rules)
		if err != nil {
			return err
		}
		if len(building) == 0 {
			return nil
		}
		if c.spec.IndexWait > 0 && time.Since(began) >= c.spec.IndexWait {
			return stillBuilding("begin", c.spec.IndexWait, building)
		}
		if !waiting {
			waiting = true
			defer c.progress.Wait("")
		}
		c.progress.Wait("index builds of the source to end: " + schema.NameAll(building))
		if err := pace.Pause(ctx, time.Second); err != nil {
			return err
		}
	}
}
