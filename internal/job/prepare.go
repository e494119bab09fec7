package job

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/follow"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/precheck"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
)

// preparer makes sure that a job may begin, and takes what it begins with.
type preparer struct {
	*session
	looked bool            // in this attempt
	snap   schema.Snapshot // of the source, as look took it
	from   stream.Position // to follow from after snap
}

// prepare takes the snapshot of the catalog that the job starts from, or, in incremental mode,
// sets the position that was asked for.
func (p *preparer) prepare(ctx context.Context, job state.Job) error {
	if job.Restarted {
		if err := p.clear(ctx, job); err != nil {
			return err
		}
	}
	if p.spec.Mode == ModeIncremental {
		return p.prepareIncremental(ctx)
	}
	snap := p.snap
	mapped := make([]state.Mapped, 0, len(snap.Collections))
	for _, one := range snap.Collections {
		if schema.OfVersions(one, p.rules) {
			p.log.Warn("left out on the target, for it reads a collection of versions", "view", one.NS)
			continue
		}
		one, left, err := schema.Mapped(one, p.rules)
		if err != nil {
			return err
		}
		for _, what := range left {
			p.log.Warn("left out on the target, which has other documents", "ns", one.NS, "what", what)
		}
		mapped = append(mapped, state.Mapped{Collection: one, Target: p.rules.Target(one.NS)})
	}
	// In the phase that it is in, the job may have a catalog that it cannot use.
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.noneExists(gctx, mapped) })
	g.Go(func() error { return p.store.SaveCatalog(gctx, mapped) })
	chunks := bson.Raw{}
	g.Go(func() (err error) {
		chunks, err = p.chunksNow(gctx, snap)
		return err
	})
	if err := g.Wait(); err != nil {
		return err
	}
	p.catalog = mapped
	if p.spec.Mode == ModeStructure {
		p.log.Info("catalog listed", "collections", len(mapped))
	} else {
		p.log.Info("snapshot taken", "position", snap.At, "collections", len(mapped))
	}
	return p.SavePhase(ctx, state.PhaseCreating, append(state.PositionFields(p.from), bson.E{Key: "start", Value: snap.At},
		bson.E{Key: "chunks", Value: chunks})...)
}

// look checks that the job may have the names that its rules lead to. It takes the snapshot
// that a new job needs, if there is to be one.
func (p *preparer) look(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.alone(gctx) })
	scope := schema.Scope{NS: p.rules.Match, DB: p.rules.MatchDB}
	switch p.spec.Mode {
	case ModeIncremental:
	case ModeStructure:
		g.Go(func() error {
			return p.untilBuilt(gctx, func() error {
				return p.source.cluster.Seen(gctx, func() (err error) { // what a majority has
					p.snap.Collections, err = schema.List(gctx, p.source.cluster, scope)
					return err
				})
			})
		})
	default:
		take := func() (err error) {
			p.snap, p.from, err = p.source.Snapshot(gctx, scope)
			return err
		}
		g.Go(func() error {
			if p.source.cluster.Info.Kind == mongo.KindStandalone {
				return p.untilBuilt(gctx, take)
			}
			return take()
		})
	}
	return g.Wait()
}

// alone makes sure that no other job has a right to the same names on the target.
// The precheck looked before this job could be seen; now it can, and of two that
// begin at once one at least sees the other.
func (s *session) alone(ctx context.Context, but ...Phase) error {
	rivals, err := precheck.Rivals(ctx, s.store, s.rules, true)
	if err != nil {
		return err
	}
	rivals = slices.DeleteFunc(rivals, func(r precheck.Rival) bool { return slices.Contains(but, r.Phase) })
	return precheck.Refusal(rivals, s.spec.OnExisting, s.spec.AllowOverlap)
}

// clear removes what an earlier life of the job left in the target's database
// of millrace and, with leave to drop, what it has made. Done again after a crash it
// does no harm.
func (p *preparer) clear(ctx context.Context, job state.Job) error {
	if p.spec.OnExisting == ExistingDrop && !job.Shared && p.spec.Mode != ModeIncremental {
		earlier, err := precheck.Leftovers(ctx, p.store, p.rules)
		if err != nil {
			return err
		}
		for _, ns := range earlier { // the source may have it no more
			if err := p.cat.Collections.Drop(ctx, ns); err != nil {
				return err
			}
		}
	}
	if p.placer != nil {
		if err := p.placer.ForgetAll(ctx); err != nil {
			return err
		}
	}
	for _, remove := range []func(context.Context) error{p.cat.Deferred.Forget, p.letters.Reset, p.store.Clear} {
		if err := remove(ctx); err != nil {
			return err
		}
	}
	if err := p.letters.Load(ctx, false); err != nil {
		return err
	}
	return p.store.Save(ctx, bson.D{{Key: "restarted", Value: false}})
}

// noneExists makes sure that what exists on the target from now on is the job's
// own, where it is not to touch what does. The precheck did not know all names.
func (p *preparer) noneExists(ctx context.Context, mapped []state.Mapped) error {
	if p.spec.OnExisting == ExistingMerge || p.spec.OnExisting == ExistingDrop {
		return nil
	}
	var targets []string
	for _, m := range mapped {
		targets = append(targets, m.Target)
	}
	have, err := p.cat.ListExisting(ctx, targets)
	if err != nil {
		return err
	}
	for ns := range have {
		return mongo.WithHint(fmt.Errorf("%s exists on the target", ns),
			"drop it, or choose --on-existing merge or --on-existing drop")
	}
	return nil
}

func (p *preparer) prepareIncremental(ctx context.Context) error {
	if name, back := state.StartAtJob(p.spec.StartAt); back {
		return p.prepareBack(ctx, name)
	}
	at, err := mongo.ParseOpTime(p.spec.StartAt)
	if err != nil {
		return fmt.Errorf("--start-at: %w", err)
	}
	return p.beginAt(ctx, oplog.Position(at, at), nil)
}

// untilBuilt takes the source's catalog once no index of it is being built: where the job
// reads no oplog, nothing would bring the index later. It waits no longer than IndexWait.
func (p *preparer) untilBuilt(ctx context.Context, take func() error) error {
	began, waiting := time.Now(), false
	for {
		if err := take(); err != nil {
			return err
		}
		building, err := schema.BuildingNames(p.snap.Collections, p.rules)
		if err != nil {
			return err
		}
		if len(building) == 0 {
			return nil
		}
		if p.spec.IndexWait > 0 && time.Since(began) >= p.spec.IndexWait {
			return follow.StillBuilding("begin", p.spec.IndexWait, building)
		}
		if !waiting {
			waiting = true
			defer p.progress.Wait("")
		}
		p.progress.Wait("index builds of the source to end: " + schema.NameAll(building))
		if err := pace.Pause(ctx, time.Second); err != nil {
			return err
		}
	}
}
