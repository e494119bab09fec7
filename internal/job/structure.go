package job

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/follow"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/placing"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/state"
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
		return c.savePhase(ctx, PhaseFinalizing)
	case PhaseFinalizing:
		return c.finishStructure(ctx, colls)
	}
	return fmt.Errorf("job %s is in phase %q, which mode %s does not have", c.id, phase, ModeStructure)
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
			return c.stillBuilding("begin", building)
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

// showStructure has the status tell what is to be made, and what is there in a phase.
func (c *copier) showStructure(phase Phase, colls []state.Mapped) {
	made, indexed := phase != state.PhaseCreating, phase == PhaseFinalizing
	var all []MadeStatus
	for _, m := range colls {
		n := len(m.Indexes)
		all = append(all, MadeStatus{Source: m.NS, Target: m.Target, Type: m.Type, Indexes: n, Made: made, Done: made && (indexed || n == 0)})
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
		return mongo.WithHint(conflict, "documents that the target had before have the key in common that the error names, which the source's unique index does not allow: "+
			"change or remove one of them, or drop the collection on the target, then start the job again")
	}
	return err
}

// finishStructure gives the target its expiries, compares it and ends the job.
func (c *copier) finishStructure(ctx context.Context, colls []state.Mapped) error {
	if err := c.cat.Expiries.Restore(ctx); err != nil {
		return err
	}
	diffs, err := c.compare(ctx)
	if err != nil {
		return err
	}
	keys, err := c.compareKeys(ctx, colls)
	if err != nil {
		return err
	}
	if _, err := c.store.Prove(ctx, true); err != nil {
		return err
	}
	if err := c.finish(ctx, follow.Final{Differences: append(diffs, keys...)}); err != nil {
		return err
	}
	return follow.ErrFinished
}

// compareKeys finds collections of a sharded target that have another shard key than
// their rule, or else the source, wants.
func (c *copier) compareKeys(ctx context.Context, colls []state.Mapped) (diffs []schema.Difference, err error) {
	if c.placer == nil {
		return nil, nil
	}
	var targets []string
	for _, m := range colls {
		targets = append(targets, m.Target)
	}
	have, err := placing.Entries(ctx, c.dst, targets)
	if err != nil {
		return nil, err
	}
	for _, m := range colls {
		wish, err := c.wishes.Wish(ctx, m.Collection)
		if err != nil {
			return nil, err
		}
		want, got := "", ""
		if wish.Key != nil {
			want = placing.KeyText(wish.Key)
		}
		if e, sharded := have[m.Target]; sharded {
			got = placing.KeyText(e.Key)
			c.progress.Sharded(m.Target, got)
		}
		if want != got {
			diffs = append(diffs, schema.Difference{NS: m.NS, What: "shard key", Source: want, Target: got})
		}
	}
	return diffs, nil
}
