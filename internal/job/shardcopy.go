package job

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/copy"
	"github.com/millrace/millrace/internal/follow"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/origin"
	"github.com/millrace/millrace/internal/ownership"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/lookup"
	"github.com/millrace/millrace/internal/source/shards"
)

// shardCopy copies from the shards of a cluster while chunks move. A shard returns what it owns
// when a cursor is opened. So a document whose chunk moves meanwhile may be read twice, or never:
// one shard did not have it yet, the other not any more. Documents that changed their shard since
// before anything was read are read again, from the primary of their shard. As long as it is
// primary, it keeps what it owned when a cursor was opened. (A secondary deletes under a cursor
// what its primary deletes.)
//
// All that is read is as of some time after that position. The changes since are applied to it.
type shardCopy struct {
	shards *origin.Sharded
	of     *shards.Cluster // of the attempt
	dst    *mongo.Cluster
	store  sliceStore
	log    *slog.Logger
	stands map[string]ownership.Stand // of the tables, before anything was read
	opts   copy.Options
}

// fromShards reads moved documents again once all others have arrived, from assistants, too.
func (c *copier) fromShards(ctx context.Context, tasks []copy.Task, chunks bson.Raw, o copy.Options,
	assigned bool) error {
	s := &shardCopy{shards: c.source.shards, of: c.source.shards.Cluster(), dst: c.dst, store: sliceStore{c.store},
		log: c.log, opts: o}
	s.opts.Replacing = oneEach(c.source.shards, false)
	if err := bson.Unmarshal(chunks, &s.stands); err != nil {
		return fmt.Errorf("read what was noted of the source's chunks: %w", err)
	}
	byShard, err := s.split(ctx, tasks)
	if err != nil {
		return err
	}
	if ready := o.Ready; ready != nil {
		once := sync.OnceValue(func() error { return ready(ctx) })
		s.opts.Ready = func(context.Context) error { return once() }
	}
	share(&s.opts, len(s.of.Shards))
	of := make(engines, len(s.of.Shards))
	for i, one := range s.of.Shards {
		own := s.opts
		own.OnCollection = func(st copy.CollectionStats) { c.progress.Collection(st, one.Name) }
		of[i] = engine{one.Name, copy.New(one.Cluster, s.dst, s.store, own)}
	}
	c.progress.Copying(of)
	run := func(ctx context.Context) error {
		return s.each(ctx, byShard, func(ctx context.Context, i int, tasks []copy.Task) error {
			return of[i].Run(ctx, tasks)
		})
	}
	if assigned && c.assigns() {
		err = c.assigning(ctx, of, o.AfterClusterTime, run)
	} else {
		err = run(ctx)
	}
	if err != nil {
		return err
	}
	if tasks, err = s.movedDatabases(ctx, tasks); err != nil {
		return err
	}
	for _, t := range tasks {
		if err := s.movedChunks(ctx, t); err != nil {
			return err
		}
	}
	return nil
}

func share(o *copy.Options, n int) {
	const defaultMemory = 64 << 20
	o.MaxBufferedBytes = max(cmp.Or(o.MaxBufferedBytes, defaultMemory)/int64(n), 1)
	for _, workers := range []*int{&o.Readers, &o.Writers} {
		if *workers > 0 {
			*workers = max(*workers/n, 1)
		}
	}
}

// each runs do for each shard, side by side. A shard may have joined since the attempt began.
func (s *shardCopy) each(ctx context.Context, byShard map[string][]copy.Task,
	do func(ctx context.Context, i int, tasks []copy.Task) error) error {
	for name := range byShard {
		if !slices.ContainsFunc(s.of.Shards, func(one shards.Shard) bool { return one.Name == name }) {
			return mongo.Retry("shard "+name+" has joined", nil, "")
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	for i, one := range s.of.Shards {
		g.Go(func() error {
			if err := do(ctx, i, byShard[one.Name]); err != nil {
				return fmt.Errorf("shard %s: %w", one.Name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

func (s *shardCopy) split(ctx context.Context, tasks []copy.Task) (map[string][]copy.Task, error) {
	places, err := s.shards.Places(ctx)
	if err != nil {
		return nil, err
	}
	byShard := map[string][]copy.Task{}
	for _, t := range tasks {
		t.Source.Indexes = nil // the engine needs none
		if !places.Sharded(t.Source.UUID) {
			db, _ := mongo.SplitNS(t.Source.NS)
			shard, ok := places.Primary(db)
			if !ok { // dropped since; any shard says so
				shard = s.of.Shards[0].Name
			}
			byShard[shard] = append(byShard[shard], t)
			continue
		}
		table, err := s.shards.Table(ctx, t.Source.UUID)
		if mongo.IsCode(err, mongo.CodeNamespaceNotFound) {
			continue // dropped since; the changes tell
		}
		if err != nil {
			return nil, err
		}
		owners := table.Owners()
		for _, shard := range owners {
			part := t
			part.Part, part.Owned = shard, s.shards.Owned(shard, t.Source.UUID)
			part.Source.Count /= int64(len(owners))
			part.Source.Bytes /= int64(len(owners))
			byShard[shard] = append(byShard[shard], part)
		}
	}
	return byShard, nil
}

func (s *session) chunksNow(ctx context.Context, snap schema.Snapshot) (bson.Raw, error) {
	if s.source.shards == nil || s.spec.Mode == ModeStructure {
		return bson.Marshal(bson.D{})
	}
	var all []bson.Binary
	for _, one := range snap.Collections {
		all = append(all, one.UUID)
	}
	stands, err := s.source.shards.Stands(ctx, snap.At, all)
	if err != nil {
		return nil, err
	}
	return bson.Marshal(stands)
}

// owed is what has to be read again of a collection: what changed its shard between the note of its
// table and the end of reading. A chunk counts as read when a shard that owned it returned all of
// it.
type owed struct {
	since ownership.Stand
	moved []ownership.Part // while the collection was read
	known bool             // moved is
	read  map[string]bool
}

func chunkKey(c ownership.Chunk) string { return string(c.Min) + string(c.Max) }

// of returns the parts still owed. The first table is as of the end of reading.
func (o *owed) of(table *ownership.Table) []ownership.Part {
	parts := table.Moved(o.since, func(c ownership.Chunk) bool { return o.read[chunkKey(c)] || o.known && !o.meets(c) })
	if !o.known {
		o.moved, o.known = parts, true
	}
	return parts
}

func (o *owed) meets(c ownership.Chunk) bool {
	return slices.ContainsFunc(o.moved, func(p ownership.Part) bool { return p.Meets(c) })
}

func (o *owed) done(p ownership.Part) {
	for _, c := range p.Chunks {
		o.read[chunkKey(c)] = true
	}
}

func (s *shardCopy) movedChunks(ctx context.Context, t copy.Task) error {
	o := &owed{since: s.stands[hex.EncodeToString(t.Source.UUID.Data)], read: map[string]bool{}}
	for {
		table, err := s.shards.Table(ctx, t.Source.UUID)
		if mongo.IsCode(err, mongo.CodeNamespaceNotFound) {
			return nil // not sharded, or dropped
		}
		if err != nil {
			return err
		}
		parts := o.of(table)
		if len(parts) == 0 {
			return nil
		}
		s.log.Info("ranges that moved are read again", "ns", t.Source.NS, "ranges", len(parts))
		left, err := s.readAgain(ctx, t, table, parts)
		if err != nil {
			return err
		}
		for _, p := range parts {
			if !left[string(p.Min)] {
				o.done(p)
			}
		}
	}
}

// readAgain copies parts of a collection from their shards, by the version of the table: a shard
// that owns anything else refuses. left has the lower bounds of refused parts, and of those whose
// shard elected another primary meanwhile.
func (s *shardCopy) readAgain(ctx context.Context, t copy.Task, table *ownership.Table,
	parts []ownership.Part) (map[string]bool, error) {
	byShard := map[string][]copy.Task{}
	lower := map[*ownership.Range]string{}
	index, err := s.keyIndex(ctx, t, table)
	if err != nil {
		return nil, err
	}
	for _, p := range parts {
		one := t
		one.Source.Indexes = nil
		one.Again = true
		one.Part = fmt.Sprintf("%s/%x", p.Shard, []byte(p.Min))
		one.Owned = table.Filter(p.Shard)
		if one.Range, err = p.Range(index); err != nil {
			return nil, err
		}
		lower[one.Range] = string(p.Min)
		byShard[p.Shard] = append(byShard[p.Shard], one)
	}
	left := map[string]bool{}
	var mu sync.Mutex
	err = s.each(ctx, byShard, func(ctx context.Context, i int, tasks []copy.Task) error {
		if len(tasks) == 0 {
			return nil
		}
		shard := s.of.Shards[i].Cluster
		before, err := shard.Committed(ctx)
		if err != nil {
			return err
		}
		eng := s.anew(shard)
		if err := eng.Run(ctx, tasks); err != nil {
			return err
		}
		after, err := shard.Committed(ctx)
		if err != nil {
			return err
		}
		refused := eng.Left()
		if after.Term != before.Term {
			refused = tasks
		}
		mu.Lock()
		defer mu.Unlock()
		for _, t := range refused {
			left[lower[t.Range]] = true
		}
		return nil
	})
	return left, err
}

func (s *shardCopy) anew(shard *mongo.Cluster) *copy.Engine {
	o := s.opts
	o.Ready, o.OnCollection = nil, nil
	return copy.New(shard, s.dst, unstored{s.store}, o)
}

// keyIndex holds all documents by their shard keys. It may be newer than the copy.
func (s *shardCopy) keyIndex(ctx context.Context, t copy.Task, table *ownership.Table) (*ownership.Index, error) {
	if index := table.KeyIndex(indexSpecs(t.Source)); index != nil {
		return index, nil
	}
	db, _ := mongo.SplitNS(t.Source.NS)
	now, _, err := s.shards.ListOne(ctx, db, t.Source.UUID)
	if err != nil {
		return nil, err
	}
	if index := table.KeyIndex(indexSpecs(now)); index != nil {
		return index, nil
	}
	return nil, mongo.WithHint(
		fmt.Errorf("%s has no index that begins with its shard key and holds all documents", t.Source.NS),
		"make one, or stop the balancer for the time of the copy")
}

func indexSpecs(of schema.Collection) []bson.Raw {
	id, err := bson.Marshal(bson.D{{Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}})
	if err != nil {
		panic(err) // constant
	}
	specs := []bson.Raw{id}
	for _, ix := range of.Indexes {
		specs = append(specs, ix.Spec)
	}
	return specs
}

// oneEach checks that documents that replace others are the same ones, read again. Shards may have
// different documents of one _id, under different shard keys. Those of a part of a collection are
// checked, or all.
func oneEach(of follow.Deployment, all bool) func(ctx context.Context, t copy.Task, docs [][]byte) error {
	return func(ctx context.Context, t copy.Task, docs [][]byte) error {
		if t.Owned == nil && !all {
			return nil
		}
		const atOnce = 1000
		db, _ := mongo.SplitNS(t.Source.NS)
		for part := range slices.Chunk(docs, atOnce) {
			var ids []bson.RawValue
			for _, doc := range part {
				ids = append(ids, bsonraw.RawValue(bsonraw.IDOf(doc)))
			}
			_, err := of.Find(ctx, lookup.Collection{DB: db, UUID: t.Source.UUID}, lookup.Question{IDs: ids, OnlyIDs: true})
			if err != nil && !mongo.IsCode(err, mongo.CodeNamespaceNotFound) {
				return err
			}
		}
		return nil
	}
}

// movedDatabases copies collections that movePrimary has moved, and dropped where they were read,
// perhaps before the end. Nothing writes to them while they move. It returns the tasks with the new
// UUIDs.
func (s *shardCopy) movedDatabases(ctx context.Context, tasks []copy.Task) ([]copy.Task, error) {
	tasks = slices.Clone(tasks)
	for {
		var colls []schema.Collection
		for _, t := range tasks {
			colls = append(colls, t.Source)
		}
		missing, err := s.shards.Missing(ctx, colls)
		if err != nil {
			return nil, err
		}
		byShard := map[string][]copy.Task{}
		for _, i := range missing {
			t := tasks[i]
			now, shard, there, err := s.shards.Present(ctx, t.Source)
			if err != nil {
				return nil, err
			}
			if !there || now.Equal(t.Source.UUID) {
				continue
			}
			tasks[i].Source.UUID = now
			if shard == "" {
				continue // all of its chunks are read
			}
			s.log.Info("a collection that moved is read again", "ns", t.Source.NS, "shard", shard)
			if t.Source.Capped() {
				if err := s.opts.Recreate(ctx, t); err != nil {
					return nil, err
				}
			}
			byShard[shard] = append(byShard[shard], tasks[i])
		}
		if len(byShard) == 0 {
			return tasks, nil
		}
		err = s.each(ctx, byShard, func(ctx context.Context, i int, tasks []copy.Task) error {
			if len(tasks) == 0 {
				return nil
			}
			return s.anew(s.of.Shards[i].Cluster).Run(ctx, tasks)
		})
		if err != nil {
			return nil, err
		}
	}
}

type unstored struct{ sliceStore }

func (unstored) LoadSlices(context.Context) ([]scan.Slice, error) { return nil, nil }

// SaveSlices makes what was written durable.
func (u unstored) SaveSlices(ctx context.Context, _ []scan.Slice) error {
	_, err := u.s.Prove(ctx, true)
	return err
}

type engine struct {
	shard string
	*copy.Engine
}

type engines []engine

func (all engines) ByShard() []progress.ShardDone {
	list := make([]progress.ShardDone, len(all))
	for i, e := range all {
		list[i].Shard = e.shard
		list[i].Docs, list[i].Bytes = e.Done()
	}
	return list
}

// Stats returns the sums. The parts of a collection count as one.
func (all engines) Stats() (sum copy.Stats) {
	at := map[string]int{}
	for _, e := range all {
		st := e.Stats()
		sum.Docs, sum.Bytes = sum.Docs+st.Docs, sum.Bytes+st.Bytes
		sum.Slices, sum.SlicesDone = sum.Slices+st.Slices, sum.SlicesDone+st.SlicesDone
		sum.Refused, sum.Replaced = sum.Refused+st.Refused, sum.Replaced+st.Replaced
		sum.Same, sum.Exact = sum.Same+st.Same, sum.Exact+st.Exact
		sum.Buffered += st.Buffered
		for _, c := range st.Collections {
			i, ok := at[c.Target]
			if !ok {
				at[c.Target] = len(sum.Collections)
				sum.Collections = append(sum.Collections, c)
				continue
			}
			one := &sum.Collections[i]
			one.Docs, one.Bytes = one.Docs+c.Docs, one.Bytes+c.Bytes
			one.TotalDocs, one.TotalBytes = one.TotalDocs+c.TotalDocs, one.TotalBytes+c.TotalBytes
			one.Slices, one.SlicesDone = one.Slices+c.Slices, one.SlicesDone+c.SlicesDone
			if c.State != copy.StateDone {
				one.State = c.State
			}
		}
	}
	return sum
}

func (all engines) Done() (docs, bytes int64) { return all.sum(engine.Done) }

func (all engines) Copied() (docs, bytes int64) { return all.sum(engine.Copied) }

func (all engines) sum(of func(engine) (docs, bytes int64)) (docs, bytes int64) {
	for _, e := range all {
		d, b := of(e)
		docs, bytes = docs+d, bytes+b
	}
	return docs, bytes
}
