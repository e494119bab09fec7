package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/transform"
)

type collection struct {
	e     *Engine
	pair  Pair
	sides [2]side
	began time.Time
	open  atomic.Int64 // tasks not finished

	docs, bytes [2]atomic.Int64
	row         Collection      // of the report, but for these
	seen        map[string]bool // ids that differ, as row.Differences with the lock of the findings held
}

type task struct {
	what  string // it does, in words
	slots int64  // of Options.Workers
	run   func(ctx context.Context) error
	// instead, if not nil, returns what does it after run has failed, or an error.
	instead func(ctx context.Context, err error) ([]task, error)
}

func newCollection(e *Engine, p Pair) *collection {
	return &collection{e: e, pair: p, row: Collection{NS: p.Source, TargetNS: p.Target}, seen: map[string]bool{}}
}

const maxRanges = 2048

func (c *collection) tasks(ctx context.Context) ([]task, error) {
	c.began = time.Now()
	err := again(ctx, c.e.o.Log, "describe "+c.pair.Source, func() (err error) {
		for i := range c.sides {
			if err == nil && !c.sides[i].exists {
				c.sides[i], err = c.e.side(ctx, i, c.pair.name(i))
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	src, dst := &c.sides[source], &c.sides[target]
	src.choose(&c.pair)
	dst.choose(&c.pair)
	if c.e.o.Documents != nil {
		return c.documents(), nil
	}
	var tasks []task
	if c.unsized() {
		c.row.Method, c.row.Ranges = Ranges, 1
		tasks = []task{{what: "compare " + c.pair.Source, slots: 1, run: c.small, instead: c.larger}}
	} else if tasks, err = c.sized(ctx); err != nil {
		return nil, err
	}
	if src.Capped() && dst.Capped() && !c.e.o.sampled() {
		tasks = append(tasks, task{what: "compare the order of " + c.pair.Source, slots: 1, run: c.order})
	}
	return tasks, nil
}

// sized plans by sizes.
func (c *collection) sized(ctx context.Context) ([]task, error) {
	for i := range c.sides {
		if s := &c.sides[i]; s.unsized {
			if err := again(ctx, c.e.o.Log, "size of "+s.NS, func() error { return s.measure(ctx) }); err != nil {
				return nil, err
			}
		}
	}
	src, dst := &c.sides[source], &c.sides[target]
	c.e.c.estDocs.Add(src.Count + dst.Count)
	if !c.digestible() {
		return c.rangeTasks(ctx)
	}
	readers := max(src.readers(), dst.readers())
	c.row.Method, c.row.Ranges = Digest, 1
	run := func(ctx context.Context) error { return c.digest(ctx, readers) }
	return []task{{what: "compare " + c.pair.Source, slots: int64(readers), run: run, instead: c.byRanges}}, nil
}

// larger plans a collection that was not small.
func (c *collection) larger(ctx context.Context, err error) ([]task, error) {
	if !errors.Is(err, errLarge) {
		return nil, err
	}
	return c.sized(ctx)
}

// byRanges compares by ranges what digests cannot.
func (c *collection) byRanges(ctx context.Context, err error) ([]task, error) {
	if mongo.Classify(err) != mongo.ClassFatal {
		return nil, err
	}
	c.e.o.Log.Info("compare by ranges of _id", "ns", c.pair.Source, "why", err)
	return c.rangeTasks(ctx)
}

func (c *collection) start(ctx context.Context, g *errgroup.Group, tasks []task) error {
	c.open.Add(int64(len(tasks)))
	c.e.c.ranges.Add(int64(len(tasks)))
	for _, t := range tasks {
		if err := c.e.slots.Acquire(ctx, t.slots); err != nil {
			return err
		}
		g.Go(func() error {
			err := again(ctx, c.e.o.Log, t.what, func() error { return t.run(ctx) })
			c.e.slots.Release(t.slots)
			if err != nil && t.instead != nil && ctx.Err() == nil {
				var others []task
				if others, err = t.instead(ctx, err); err == nil {
					err = c.start(ctx, g, others)
				}
			}
			if err != nil {
				return err
			}
			if c.open.Add(-1) == 0 {
				c.finish()
			}
			return nil
		})
	}
	return nil
}

func (c *collection) rangeTasks(ctx context.Context) ([]task, error) {
	bounds, err := c.bounds(ctx)
	if err != nil {
		return nil, err
	}
	var tasks []task
	for _, sl := range c.e.o.sample(scan.Slices(scan.Slice{}, bounds)) {
		run := func(ctx context.Context) error { return c.compare(ctx, request{Slice: sl}) }
		tasks = append(tasks, task{what: "compare a range of " + c.pair.Source, slots: 1, run: run})
	}
	c.row.Method, c.row.Ranges = Ranges, len(tasks)
	return tasks, nil
}

// bounds returns the bounds between ranges, in the server's order, from the larger side, or from
// the one that takes bounds of one type only. Sides of different orders have one range.
func (c *collection) bounds(ctx context.Context) (bounds []scan.Bound, err error) {
	from, other := &c.sides[source], &c.sides[target]
	if !c.pair.History && from.order != scan.ByKey && (other.order == scan.ByKey || other.Bytes > from.Bytes) {
		from, other = other, from
	}
	n := from.Bytes/c.e.o.RangeBytes + 1
	if c.e.o.sampled() { // a share of them is to be close to the desired one
		n = max(n, int64(math.Ceil(2/c.e.o.Share)))
	}
	n = min(n, maxRanges, from.Count/2)
	collation := func(s *side) []byte { return s.Options.Lookup("collation").Value }
	if n < 2 || other.order == scan.Sorted ||
		from.exists && other.exists && !bytes.Equal(collation(from), collation(other)) {
		return nil, nil
	}
	err = again(ctx, c.e.o.Log, "sample "+from.NS, func() error {
		return from.read(ctx, scan.Member{}, func(r *scan.Reader) (err error) {
			bounds, _, err = r.Cut(ctx, &from.Collection, from.order, int(n))
			return err
		})
	})
	return bounds, err
}

func (o *Options) sampled() bool { return o.Share > 0 && o.Share < 1 }

// sample draws the share of ranges that are compared, at least one.
func (o *Options) sample(all []scan.Slice) []scan.Slice {
	if !o.sampled() {
		return all
	}
	n := max(int(math.Round(o.Share*float64(len(all)))), min(1, len(all)))
	some := make([]scan.Slice, 0, n)
	for _, i := range rand.Perm(len(all))[:n] {
		some = append(some, all[i])
	}
	return some
}

const documentsAtOnce = 16

// Documents are single documents of one collection.
type Documents struct {
	// UUID is that of the source's collection when the documents were found; empty if there was
	// none. Under any other UUID nothing is compared.
	UUID bson.Binary
	IDs  []bson.RawValue
}

// identities fails if a name of Options.Documents now means another collection of the source than
// when its documents were found.
func (e *Engine) identities(now map[string]bson.Binary) error {
	for _, ns := range slices.Sorted(maps.Keys(e.o.Documents)) {
		was, is := e.o.Documents[ns].UUID, now[ns]
		var why string
		switch {
		case bytes.Equal(was.Data, is.Data):
			continue
		case len(is.Data) == 0:
			why = fmt.Sprintf("the source has no collection of that name any more (UUID %x)", was.Data)
		case len(was.Data) == 0:
			why = fmt.Sprintf("on the source the name means a collection (UUID %x) that is not the one in which they were"+
				" found, or an older release found them", is.Data)
		default:
			why = fmt.Sprintf("on the source the name means another collection now (UUID %x) than when they were found"+
				" (UUID %x)", is.Data, was.Data)
		}
		return mongo.WithHint(fmt.Errorf("cannot compare documents of %s: %s", ns, why),
			"verify again, and repair what that finds")
	}
	return nil
}

// stillThose lists the source again: a name may have changed its meaning meanwhile.
func (e *Engine) stillThose(ctx context.Context, rules *transform.Set) error {
	return e.clusters[source].Seen(ctx, func() error {
		list, err := schema.List(ctx, e.clusters[source], schema.Scope{NS: rules.Match, DB: rules.MatchDB})
		if err != nil {
			return err
		}
		now := map[string]bson.Binary{}
		for _, c := range list {
			now[c.DataNS()] = c.UUID
		}
		return e.identities(now)
	})
}

func (c *collection) documents() []task {
	ids := c.e.o.Documents[c.pair.Source].IDs
	c.e.c.estDocs.Add(2 * int64(len(ids)))
	c.row.Method, c.row.Ranges = Single, 1
	run := func(ctx context.Context) error {
		for _, id := range ids {
			key := string(bsonraw.AppendID(nil, bsonraw.FromRaw(id)))
			cand := candidate{suspect: suspect{c, key}, size: c.e.limits.batch / documentsAtOnce}
			if err := c.e.recheck.add(ctx, cand); err != nil {
				return err
			}
		}
		return nil
	}
	return []task{{what: "look at documents of " + c.pair.Source, slots: 1, run: run}}
}

const mostMarked = 1000

// marked checks that the source has none of the documents that the target has marked as deleted.
// Such a document would be there twice, which shards allow, or be hidden by its mark.
func (e *Engine) marked(ctx context.Context, cols []*collection) error {
	for _, c := range cols {
		if c.pair.SoftDelete == "" || e.o.StructureOnly || e.o.sampled() {
			continue
		}
		err := again(ctx, e.o.Log, "look for marked documents of "+c.pair.Target, func() error { return c.marked(ctx) })
		if err != nil {
			return fmt.Errorf("compare the documents of %s that are marked by %s: %w", c.pair.Target, c.pair.SoftDelete, err)
		}
	}
	return nil
}

func (c *collection) marked(ctx context.Context) error {
	cur, err := c.ids(ctx, target, c.isMarked())
	if err != nil {
		return err
	}
	defer func() { _ = cur.Close(context.WithoutCancel(ctx)) }()
	var ids []bson.RawValue
	for more := true; more; {
		if more = cur.Next(ctx); more {
			ids = append(ids, bsonraw.RawValue(bsonraw.Clone(bsonraw.IDOf(cur.Current))))
		}
		if len(ids) == mostMarked || !more {
			if err := c.hidden(ctx, ids); err != nil {
				return err
			}
			ids = ids[:0]
		}
	}
	return cur.Err()
}

// hidden reports marked documents that the source has. While writes go on, one may have come back
// that the target lacks: they are looked at again.
func (c *collection) hidden(ctx context.Context, ids []bson.RawValue) error {
	looks := 1
	if c.e.o.Online {
		looks = int(c.e.o.Recheck.For/c.e.o.Recheck.Every) + 1
	}
	for n := 0; len(ids) > 0 && n < looks; n++ {
		if n > 0 {
			if err := pace.Pause(ctx, c.e.o.Recheck.Every); err != nil {
				return err
			}
			if err := c.e.advance(ctx); err != nil {
				return err
			}
		}
		there, err := c.which(ctx, source, ids, nil)
		if err != nil {
			return err
		}
		if ids, err = c.which(ctx, target, there, c.isMarked()); err != nil {
			return err
		}
	}
	for _, id := range ids {
		doc, err := bson.Marshal(bson.D{{Key: "_id", Value: id}})
		if err != nil {
			return err
		}
		c.add(Extra, keyOf(nil, doc), [2][]byte{nil, doc}, func() bool { return false }, func() string {
			return "marked as deleted, though the source has a document of this _id"
		})
	}
	return nil
}

func (c *collection) ids(ctx context.Context, i int, filter bson.D) (*driver.Cursor, error) {
	db, name := mongo.SplitNS(c.pair.name(i))
	byID := bson.D{{Key: "_id", Value: 1}} // also where servers refuse queries without an index (notablescan)
	of := options.Database().SetReadConcern(readconcern.Majority()).SetReadPreference(readpref.Primary())
	return c.e.clusters[i].Client.Database(db, of).Collection(name).Find(ctx, filter,
		options.Find().SetProjection(byID).SetHint(byID))
}

func (c *collection) isMarked() bson.D {
	return bson.D{{Key: c.pair.SoftDelete, Value: bson.D{{Key: "$exists", Value: true}}}}
}

func (c *collection) which(ctx context.Context, i int, ids []bson.RawValue, and bson.D) ([]bson.RawValue, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	docs, err := mongo.ReadAll[bson.Raw](ctx, "read _ids")(
		c.ids(ctx, i, append(bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}, and...)))
	has := map[string]bool{}
	for _, doc := range docs {
		has[delta.KeyOf(bsonraw.IDOf(doc))] = true
	}
	return slices.DeleteFunc(slices.Clone(ids),
		func(id bson.RawValue) bool { return !has[delta.KeyOf(bsonraw.FromRaw(id))] }), err
}
