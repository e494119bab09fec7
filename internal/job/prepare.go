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
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
)

type preparer struct {
	*session
	looked bool            // in this attempt
	snap   schema.Snapshot // of the source, as look took it
	from   stream.Position // to follow from after snap
}

// prepare takes the snapshot, or, in incremental mode, sets the position that was asked for.
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

// look checks that the job may have the names of its rules, and takes the snapshot of a new job.
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

// alone checks that no other job has a right to the same target names. The precheck ran before
// others could see this job. Of two jobs that begin at once, at least one sees the other here.
func (s *session) alone(ctx context.Context, but ...Phase) error {
	rivals, err := precheck.Rivals(ctx, s.store, s.rules, true)
	if err != nil {
		return err
	}
	rivals = slices.DeleteFunc(rivals, func(r precheck.Rival) bool { return slices.Contains(but, r.Phase) })
	return precheck.Refusal(rivals, s.spec.OnExisting, s.spec.AllowOverlap)
}

// clear may be repeated after a crash. With leave to drop, it drops what the earlier life created.
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

// noneExists checks the target collections again: the precheck did not know all names.
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
	if !p.spec.FilesAt.IsZero() {
		return p.prepareFromFiles(ctx)
	}
	if name, back := state.StartAtJob(p.spec.StartAt); back {
		return p.prepareBack(ctx, name)
	}
	at, err := mongo.ParseOpTime(p.spec.StartAt)
	if err != nil {
		return fmt.Errorf("--start-at: %w", err)
	}
	return p.beginAt(ctx, p.source.StartAt(at), nil)
}

// prepareFromFiles begins on a copy of the source's files: it has the source's UUIDs, names and users of a position,
// and nothing after it.
func (p *preparer) prepareFromFiles(ctx context.Context) error {
	at := p.spec.FilesAt
	colls, err := schema.List(ctx, p.dst, schema.Scope{NS: p.rules.Match, DB: p.rules.MatchDB, NamesOnly: true})
	if err != nil {
		return err
	}
	names := make([]schema.Name, len(colls))
	for i, c := range colls {
		names[i] = schema.Name{NS: c.NS, Target: c.NS, Type: c.Type, UUID: c.UUID}
	}
	if err := p.accounts.adopt(ctx); err != nil {
		return err
	}
	return p.begin(ctx, p.source.StartAt(at), names, at)
}

// untilBuilt waits for index builds of the source, which a job without an oplog would miss.
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
