package job

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/schema"
	mongosink "github.com/millrace/millrace/internal/sink/mongo"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
)

// structure runs one phase of a job that makes collections, views and indexes, and
// copies no documents. It reads no oplog: the comparison at the end finds what the
// source has changed meanwhile.
func (c *copier) structure(ctx context.Context, phase Phase, colls []state.Mapped) error {
	c.showStructure(phase, colls)
	switch phase {
	case state.PhaseCreating:
		if err := c.makeAll(ctx, colls); err != nil {
			return err
		}
		return c.made(ctx, PhaseIndexing)
	case PhaseIndexing:
		if err := c.indexAll(ctx, colls); err != nil {
			return err
		}
		return c.SavePhase(ctx, PhaseFinalizing)
	case PhaseFinalizing:
		return c.finishNow(ctx, colls)
	}
	return fmt.Errorf("job %s is in phase %q, which mode %s does not have", c.id, phase, ModeStructure)
}

// showStructure has the status tell what is to be made, and what is there in a phase.
func (c *copier) showStructure(phase Phase, colls []state.Mapped) {
	made, indexed := phase != state.PhaseCreating, phase == PhaseFinalizing
	var all []MadeStatus
	for _, m := range colls {
		n := len(m.Indexes)
		all = append(all, MadeStatus{Source: m.NS, Target: m.Target, Type: m.Type, Indexes: n, Made: made,
			Done: made && (indexed || n == 0)})
	}
	c.progress.Structure(all)
}

// indexAll builds all indexes, unique ones, too.
func (c *copier) indexAll(ctx context.Context, colls []state.Mapped) error {
	var builds []schema.Build
	for _, m := range colls {
		if len(m.Indexes) == 0 || m.Type == schema.TypeView {
			continue
		}
		b := schema.Build{NS: m.Target, Indexes: m.Indexes, Bytes: 1, Built: func() {
			c.progress.Indexed(m.Target)
			failpoint.Hit("indexes.after")
		}}
		if c.spec.OnExisting == ExistingMerge {
			b.Bytes = 0 // the target knows
		}
		builds = append(builds, b)
	}
	err := c.cat.Indexes.BuildAll(ctx, builds, schema.Consistent, c.buildsAtOnce())
	if conflict, ok := errors.AsType[*schema.IndexConflict](err); ok && mongo.Classify(err) == mongo.ClassDuplicate {
		return mongo.WithHint(conflict, "documents that the target had before have the key in common that the error names, "+
			"which the source's unique index does not allow: "+
			"change or remove one of them, or drop the collection on the target, then start the job again")
	}
	return err
}

// make creates one collection or view. Unless the target's own are kept, only
// this job can have made what is there.
func (c *copier) make(ctx context.Context, m state.Mapped) error {
	create := c.cat.Collections.CreateOurs
	if c.spec.OnExisting == ExistingMerge {
		create = c.cat.Collections.Create
	}
	err := create(ctx, m.Collection, m.Target, c.rules)
	if err == nil {
		c.progress.Made(m.Target)
		failpoint.Hit("make.after")
	}
	return err
}

// create makes what documents are copied into.
func (c *copier) create(ctx context.Context, colls []state.Mapped) error {
	if err := c.makeAll(ctx, colls); err != nil {
		return err
	}
	var large []schema.Collection
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(2 * c.buildsAtOnce()) // on empty collections they take no scan
	for _, m := range colls {
		if m.Type == schema.TypeView {
			continue
		}
		early := schema.SmallIndexes(m.Collection)
		if len(early) == 0 || c.spec.OnExisting == ExistingMerge {
			one := m.Collection
			one.NS = m.Target
			large = append(large, one)
			continue
		}
		g.Go(func() error {
			err := c.cat.Indexes.Build(gctx, m.Target, early, schema.BeforeConsistent)
			if err == nil {
				c.early.Store(m.Target, len(early))
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := c.cat.Indexes.BuildEarly(ctx, large); err != nil {
		return err
	}
	return c.made(ctx, PhaseCopying)
}

// makeAll makes the collections and views on the target. There are no documents of the
// job yet, so it may begin again after a crash.
func (c *copier) makeAll(ctx context.Context, colls []state.Mapped) error {
	if c.spec.OnExisting == ExistingDrop {
		if err := c.alone(ctx, PhaseCatalog); err != nil { // those have to look for this one still
			return err
		}
		for _, m := range colls {
			if err := c.cat.Collections.Drop(ctx, m.Target); err != nil {
				return err
			}
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	var views []state.Mapped
	for _, m := range colls {
		if m.Type == schema.TypeView {
			views = append(views, m)
			continue
		}
		g.Go(func() error { return c.make(gctx, m) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, m := range views { // in dependency order
		if err := c.make(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// made goes on to the next phase when all collections are made. There is one wait for all: an
// election must not leave a collection to be created implicitly, without its options. The phase
// waits for a majority by itself, unless it is set to wait for less.
func (c *copier) made(ctx context.Context, next Phase) error {
	if wc := c.spec.WriteConcern; wc != "" && wc != "majority" {
		if err := c.cat.WaitMajority(ctx); err != nil {
			return err
		}
	}
	return c.SavePhase(ctx, next)
}

// buildIndexes builds what need not wait for consistency, collections side by
// side, then lets the overlap begin.
func (c *copier) buildIndexes(ctx context.Context, colls []state.Mapped) error {
	phase, alone := schema.BeforeConsistent, c.source.cluster.Info.Kind == mongo.KindStandalone
	if alone {
		phase = schema.Consistent
	}
	var builds []schema.Build
	for _, m := range colls {
		n, _ := c.early.Load(m.Target)
		if len(m.Indexes) > 0 && m.Type != schema.TypeView && n != len(m.Indexes) {
			builds = append(builds, schema.Build{NS: m.Target, Indexes: m.Indexes, Bytes: m.Bytes})
		}
	}
	if err := c.cat.Indexes.BuildAll(ctx, builds, phase, c.buildsAtOnce()); err != nil {
		return err
	}
	if alone { // what the copy has set aside is judged: no changes follow that could decide it
		if err := c.sink(stream.Position{}, mongosink.Options{}).Conclude(ctx); err != nil {
			return err
		}
		return c.finishNow(ctx, nil)
	}
	return c.SavePhase(ctx, PhaseOverlap)
}

// buildsAtOnce is how many commands build indexes side by side.
func (c *copier) buildsAtOnce() int {
	if load, _ := c.dstGate.Load(); load == pace.Low {
		return 1
	}
	return schema.DefaultBuilds
}
