package job

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/assign"
	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/copy"
	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/follow"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/schema"
	mongosink "github.com/millrace/millrace/internal/sink/mongo"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/internal/wire"
)

type copier struct {
	*session
	lease       *lease
	ttlDeferred bool                       // by deferTTL of this run
	assistants  map[string]*assign.Figures // workers that have copied a part in this run; the assigner's
	early       sync.Map                   // by target: how many indexes were built before the documents came
}

// copyAll copies the documents. Missing collections are created while reading begins.
func (c *copier) copyAll(ctx context.Context, job state.Job, colls []state.Mapped) error {
	o := copy.Options{AfterClusterTime: job.Start}
	if job.Phase == state.PhaseCreating {
		o.Ready = func(ctx context.Context) error {
			if err := c.create(ctx, colls); err != nil {
				return err
			}
			return c.deferTTL(ctx)
		}
	} else if err := c.deferTTL(ctx); err != nil {
		return err
	}
	var tasks []copy.Task
	indexes := false
	for _, m := range colls {
		if m.Type != schema.TypeView {
			tasks = append(tasks, c.task(m.Collection, m.Target))
			indexes = indexes || len(m.Indexes) > 0
		}
	}
	if c.source.shards != nil {
		if err := c.source.shards.Begin(job.ResumeAt(), c.source.Names.All()); err != nil {
			return err
		}
	}
	if err := c.run(ctx, tasks, job.Chunks, o, true); err != nil {
		return err
	}
	if c.source.cluster.Info.Kind == mongo.KindStandalone {
		return c.SavePhase(ctx, PhaseIndexing)
	}
	newest, err := c.source.Newest(ctx)
	if err != nil {
		return err
	}
	c.log.Info("documents copied", "consistentAt", newest)
	next := PhaseIndexing
	if !indexes {
		next = PhaseOverlap
	}
	return c.SavePhase(ctx, next, bson.E{Key: "consistent", Value: newest}, bson.E{Key: "copied", Value: newest})
}

// deferTTL defers expiry and limits once a run, unless this run creates all collections. It also
// defers what a failed attempt to finalize has restored.
func (c *copier) deferTTL(ctx context.Context) error {
	due := !c.ttlDeferred && (c.lease.resumed != nil || c.spec.Mode == ModeIncremental)
	if !due && c.stored.Phase != PhaseFinalizing {
		return nil
	}
	if err := c.cat.Expiries.Defer(ctx, c.source.Names.Targets()); err != nil {
		return err
	}
	c.ttlDeferred = true
	return nil
}

func (c *copier) task(coll schema.Collection, target string) copy.Task {
	return copy.Task{Source: coll, Route: c.rules.Route(coll.NS).To(target)}
}

// run copies tasks. If assigned is set, others may help: no changes are applied meanwhile.
func (c *copier) run(ctx context.Context, tasks []copy.Task, chunks bson.Raw, o copy.Options, assigned bool) error {
	o = c.options(o)
	o.Recreate, o.Refused = c.recreate, c.refused(o.AfterClusterTime, assigned)
	o.SourceGate, o.Counters = c.srcGate, c.counters
	o.Inserted, o.Others = c.source.insertions(), c.spec.OnExisting == ExistingMerge
	o.LeftOut = follow.Leaves(c.letters, c.spec.OnConflict, c.log)
	o.OnCollection = func(s copy.CollectionStats) { c.progress.Collection(s, "") }
	if c.source.shards != nil {
		return c.fromShards(ctx, tasks, chunks, o, assigned)
	}
	if c.source.cluster.Info.Kind == mongo.KindSharded { // read through its routers
		o.Replacing = oneEach(c.source.Deployment, true)
	}
	eng := copy.New(c.source.cluster, c.dst, sliceStore{c.store}, o)
	c.progress.Copying(eng)
	run := func(ctx context.Context) error { return eng.Run(ctx, tasks) }
	if assigned && c.assigns() {
		return c.assigning(ctx, engines{{Engine: eng}}, o.AfterClusterTime, run)
	}
	return run(ctx)
}

func (c *copier) CopyAnew(ctx context.Context, coll schema.Collection, target string, after mongo.OpTime) error {
	id := hex.EncodeToString(coll.UUID.Data)
	for _, prefix := range []string{slicePrefix(id), copy.SlicesOf(id, "") + "@"} {
		if err := c.store.DropSlices(ctx, prefix); err != nil {
			return err
		}
	}
	chunks, err := c.chunksNow(ctx, schema.Snapshot{At: after, Collections: []schema.Collection{coll}})
	if err != nil {
		return err
	}
	return c.run(ctx, []copy.Task{c.task(coll, target)}, chunks, copy.Options{AfterClusterTime: after}, false)
}

// CopyWithin copies within the target, and replaces documents with the same _ids.
func (c *copier) CopyWithin(ctx context.Context, coll schema.Collection, target string) error {
	at, err := c.store.Prove(ctx, true)
	if err != nil {
		return err
	}
	id := hex.EncodeToString(coll.UUID.Data)
	if err := c.store.DropSlices(ctx, slicePrefix(id)); err != nil {
		return err
	}
	task := copy.Task{Source: coll, Route: transform.Unruled(coll.NS, target)}
	o := c.options(copy.Options{AfterClusterTime: at, Others: true})
	if err := copy.New(c.dst, c.dst, sliceStore{c.store}, o).Run(ctx, []copy.Task{task}); err != nil {
		return err
	}
	return c.store.DropSlices(ctx, slicePrefix(id))
}

func (c *copier) options(o copy.Options) copy.Options {
	o.Readers, o.Writers, o.MaxBufferedBytes = c.spec.Readers, c.spec.Writers, c.spec.Memory
	o.Log, o.Limit, o.TargetGate = c.log, c.limit, c.dstGate
	if c.dst.Info.Kind == mongo.KindSharded {
		o.Keys = func(ctx context.Context) (map[string]bson.Raw, error) { return schema.ShardKeys(ctx, c.dst, nil) }
	}
	return o
}

func (c *copier) recreate(ctx context.Context, t copy.Task) error {
	// The source's name may be another one by now.
	ns := mongo.SeriesNS(t.Route.Target)
	c.early.Delete(ns)
	if err := c.cat.Collections.Drop(ctx, ns); err != nil {
		return err
	}
	return c.cat.Collections.CreateOurs(ctx, t.Source, ns, c.rules)
}

// mostUndecided bounds the documents set aside before a conflict counts as real.
const mostUndecided = 1000

// refused decides about a refused document. Changes made during the copy may free a duplicate key. early says that
// the collections have only what was built before the copy.
func (c *copier) refused(at mongo.OpTime, early bool) func(context.Context, copy.Refusal) (copy.Answer, error) {
	return func(ctx context.Context, r copy.Refusal) (copy.Answer, error) {
		if early && mongo.Unindexable(r.WriteError) && !r.Again && c.spec.OnExisting != ExistingMerge {
			return copy.Again, c.unindex(ctx, r)
		}
		l := deadletter.Letter{Origin: stream.Origin{NS: r.Target}, State: deadletter.Undecided, Cause: deadletter.CauseKey,
			DocID: r.ID, Doc: r.Doc, At: at, Reason: r.Message, Code: r.Code}
		stop := c.spec.OnConflict != ConflictSkip && c.spec.OnConflict != ConflictOverwrite
		if r.Code != mongo.CodeDuplicateKey {
			if stop {
				return copy.Ends, nil
			}
			l.State, l.Cause = deadletter.Open, deadletter.CauseRefused
		} else {
			l.Index = docwrite.ParseDuplicate(r.Raw).Index()
			if stop && c.letters.Stats().Undecided >= mostUndecided {
				return copy.Ends, nil
			}
		}
		isNew := !c.letters.Disputed(l.NS, l.DocID)
		if err := c.letters.Write(ctx, l); err != nil {
			return copy.Ends, err
		}
		if isNew {
			c.log.Warn("the target refuses a document; it is set aside", "ns", l.NS, "documentId", bsonraw.IDText(r.ID),
				"index", l.Index, "reason", r.Message, "in", mongo.StateDB+"."+deadletter.Collection)
		}
		return copy.Aside, nil
	}
}

// unindex removes what was built early, before a document that it does not take: the source has dropped such an
// index meanwhile. What the source still has is built when all documents are there.
func (c *copier) unindex(ctx context.Context, r copy.Refusal) error {
	c.early.Delete(r.Target)
	return c.cat.Indexes.Remove(ctx, r.Target, r.Source.Indexes)
}

type sliceStore struct{ s state.Store }

func (s sliceStore) SameTerm(term int64) error { return s.s.SameTerm(term) }

func (s sliceStore) LoadSlices(ctx context.Context) ([]scan.Slice, error) {
	raws, err := s.s.LoadSlices(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]scan.Slice, len(raws))
	for i, r := range raws {
		if err := bson.Unmarshal(r, &out[i]); err != nil {
			return nil, fmt.Errorf("decode slice: %w", err)
		}
	}
	return out, nil
}

func (s sliceStore) SaveSlices(ctx context.Context, changed []scan.Slice) error {
	out := make([]state.Slice, len(changed))
	for i, one := range changed {
		raw, err := bson.Marshal(one)
		if err != nil {
			return fmt.Errorf("encode slice: %w", err)
		}
		out[i] = state.Slice{ID: slicePrefix(one.Collection) + strconv.Itoa(one.N), State: raw}
	}
	return s.s.SaveSlices(ctx, out)
}

func slicePrefix(uuidHex string) string { return uuidHex + "/" }

// structure runs one phase of a job that creates collections, views and indexes, and copies no
// documents. It reads no oplog: the comparison at the end finds changes made meanwhile.
func (c *copier) structure(ctx context.Context, phase Phase, colls []state.Mapped) error {
	c.showStructure(phase, colls)
	switch phase {
	case state.PhaseCreating:
		if err := c.makeAll(ctx, colls, c.make); err != nil {
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
	var all []progress.Made
	for _, m := range colls {
		n := len(m.Indexes)
		all = append(all, progress.Made{Source: m.NS, Target: m.Target, Type: m.Type, Indexes: n, Made: made,
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

// make creates one collection. Unless the target's own are kept, what exists must be the job's.
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
	if err := c.makeAll(ctx, colls, c.makeIndexed); err != nil {
		return err
	}
	var large []schema.Collection
	for _, m := range colls {
		if _, small := c.early.Load(m.Target); !small && m.Type != schema.TypeView {
			one := m.Collection
			one.NS = m.Target
			large = append(large, one)
		}
	}
	if err := c.cat.Indexes.BuildEarly(ctx, large); err != nil {
		return err
	}
	return c.made(ctx, PhaseCopying)
}

// makeIndexed creates a collection and, if it is small, what indexes it can have before its documents.
func (c *copier) makeIndexed(ctx context.Context, m state.Mapped) error {
	if err := c.make(ctx, m); err != nil || c.spec.OnExisting == ExistingMerge {
		return err
	}
	early := schema.SmallIndexes(m.Collection)
	if len(early) == 0 {
		return nil
	}
	one := []schema.Build{{NS: m.Target, Indexes: early, Plain: true}}
	err := c.cat.Indexes.BuildAll(ctx, one, schema.BeforeConsistent, 1)
	if err == nil {
		c.early.Store(m.Target, len(early))
	}
	return err
}

// makeAll creates collections by one, several at once, then views. It may be repeated after a crash:
// there are no documents yet.
func (c *copier) makeAll(ctx context.Context, colls []state.Mapped,
	one func(context.Context, state.Mapped) error) error {
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
	g.SetLimit(c.createsAtOnce())
	var views []state.Mapped
	for _, m := range colls {
		if m.Type == schema.TypeView {
			views = append(views, m)
			continue
		}
		g.Go(func() error { return one(gctx, m) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, m := range views { // in dependency order
		if err := one(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// made goes on once a majority has all collections. An election must not leave one to be created
// implicitly, without its options.
func (c *copier) made(ctx context.Context, next Phase) error {
	if wc := c.spec.WriteConcern; wc != "" && wc != "majority" {
		if err := c.cat.WaitMajority(ctx); err != nil {
			return err
		}
	}
	return c.SavePhase(ctx, next)
}

// buildIndexes builds what needs no consistency.
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

// createsAtOnce is how many collections are made at once. A server changes its catalog for one at a
// time, and others that wait use its processors. 2,000 collections took 28.7 s with eight at once,
// and 22.5 s with three (6.0.5, two processors). Far away, and through routers, which wait for a
// majority each time, commands mostly wait for something else.
func (c *copier) createsAtOnce() int {
	const near = 3
	most := 2 * c.buildsAtOnce() // builds on empty collections scan nothing
	if c.dst.Info.Kind == mongo.KindSharded || c.dst.Pool.RoundTripTime() >= wire.FarAway {
		return most
	}
	return min(most, near)
}

func (c *copier) buildsAtOnce() int {
	if load, _ := c.dstGate.Load(); load == pace.Low {
		return 1
	}
	return schema.DefaultBuilds
}
