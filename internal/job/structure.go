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

// structure runs one phase of a job that creates collections, views and indexes, and copies no
// documents. It reads no oplog: the comparison at the end finds changes made meanwhile.
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

// make creates one collection or view. Unless the target's own are kept, what exists must be this
// job's.
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

func (c *copier) create(ctx context.Context, colls []state.Mapped) error {
	if err := c.makeAll(ctx, colls); err != nil {
		return err
	}
	var empty []schema.Collection
	for _, m := range colls {
		if m.Type != schema.TypeView {
			one := m.Collection
			one.NS = m.Target
			empty = append(empty, one)
		}
	}
	if err := c.cat.Indexes.BuildEarly(ctx, empty); err != nil {
		return err
	}
	return c.made(ctx, PhaseCopying)
}

// makeAll creates the collections and views. It may be repeated after a crash: there are no
// documents yet.
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

// made goes on to the next phase once a majority has all collections. An election must not leave
// one to be created implicitly, without its options. SavePhase waits for a majority, unless the
// write concern is lower.
func (c *copier) made(ctx context.Context, next Phase) error {
	if wc := c.spec.WriteConcern; wc != "" && wc != "majority" {
		if err := c.cat.WaitMajority(ctx); err != nil {
			return err
		}
	}
	return c.SavePhase(ctx, next)
}

// buildIndexes builds indexes that need no consistency, then lets the overlap begin.
func (c *copier) buildIndexes(ctx context.Context, colls []state.Mapped) error {
	phase, alone := schema.BeforeConsistent, c.source.cluster.Info.Kind == mongo.KindStandalone
	if alone {
		phase = schema.Consistent
	}
	var builds []schema.Build
	for _, m := range colls {
		if len(m.Indexes) > 0 && m.Type != schema.TypeView {
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

func (c *copier) buildsAtOnce() int {
	if load, _ := c.dstGate.Load(); load == pace.Low {
		return 1
	}
	return schema.DefaultBuilds
}
