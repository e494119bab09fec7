package verify

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/zeebo/xxh3"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/scan"
)

// Method is how documents are compared.
type Method string

// The methods.
const (
	// Auto is Digest for all but the small collections.
	Auto Method = "auto"
	// Ranges streams both sides in _id order and compares the bytes. On random
	// ids the servers fetch documents at random.
	Ranges Method = "ranges"
	// Digest reads both sides in the order of their storage, which is several
	// times as fast in memory and many times on disk, and compares sums of
	// 128-bit hashes (random seeds, drawn per collection and run) of groups of
	// documents; documents of groups that differ are then compared byte for
	// byte. Two documents that differ go unnoticed with a probability in the
	// order of 2^-100. Collections for which it does not work out (field order
	// ignored, no _id index, very much differs) are compared by Ranges.
	Digest Method = "digest"
)

// errTooDifferent says that ranges are the better way.
var errTooDifferent = errors.New("too much differs for digests")

// table holds the sums of one side: a document belongs to the group that the
// hash of its _id chooses. Sums do not depend on the order of documents, so
// any number of readers may add to it. It is read when all have.
type table struct {
	mu     sync.Mutex
	groups []group
	docs   int64
	bytes  int64
}

type group struct{ x, y, n uint64 }

// summand is what a document adds to its group.
type summand struct {
	group uint32
	x, y  uint64
}

// add takes a page's documents. One lock for all of them, not an atomic
// addition for each: those would wait for memory one after the other.
func (t *table) add(page []summand, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range page {
		s := &page[i]
		g := &t.groups[s.group]
		g.x += s.x
		g.y += s.y
		g.n++
	}
	t.docs += int64(len(page))
	t.bytes += bytes
}

// groupCost is a group's size in bytes.
const groupCost = 24

// digester is the comparison of one collection.
type digester struct {
	w        *worker
	c        *collection
	seed     uint64 // of all hashes
	src, dst table
	mask     uint64
	readers  int // of a side, at most
	room     int // bytes for each of the tables together and the suspects
}

// digest compares a collection by digests, or returns errTooDifferent.
func (w *worker) digest(ctx context.Context, c *collection, readers int) error {
	d := newDigester(w, c, readers)
	defer w.e.c.account(-2 * groupCost * len(d.src.groups))
	w.e.c.account(2 * groupCost * len(d.src.groups))
	parts, err := d.slices(ctx)
	if err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return d.sum(gctx, &c.src, &d.src, parts.src, &w.e.c.sourceDocs) })
	g.Go(func() error { return d.sum(gctx, &c.dst, &d.dst, parts.dst, &w.e.c.targetDocs) })
	if err := g.Wait(); err != nil {
		return err
	}
	differing, docs := d.compare()
	if differing > 0 {
		if int64(docs) > max(d.src.docs, d.dst.docs)/2+1000 {
			return errTooDifferent
		}
		if err := d.lookInto(ctx, parts); err != nil {
			return err
		}
	}
	c.sourceDocs.Add(d.src.docs)
	c.targetDocs.Add(d.dst.docs)
	c.sourceBytes.Add(d.src.bytes)
	c.targetBytes.Add(d.dst.bytes)
	return nil
}

// groupDocs is how many documents of a side share a group, where memory allows.
// Fewer would make tables that no processor's cache holds.
const groupDocs = 16

// newDigester makes the tables as fine as the memory of so many workers allows:
// half of what they may hold of documents without a partner, the suspects have
// the rest.
func newDigester(w *worker, c *collection, readers int) *digester {
	d := &digester{w: w, c: c, readers: readers, room: readers * w.e.limits.pending / 2, seed: rand.Uint64()}
	n := 256
	for n*2*groupCost*2 <= d.room && int64(n)*groupDocs < max(c.src.Count, c.dst.Count) {
		n *= 2
	}
	d.mask = uint64(n - 1)
	d.src.groups, d.dst.groups = make([]group, n), make([]group, n)
	return d
}

// sideSlices part each side for several readers.
type sideSlices struct{ src, dst []scan.Slice }

func (d *digester) slices(ctx context.Context) (c sideSlices, err error) {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		c.src, err = d.c.src.slices(ctx, min(d.readers, d.w.e.readersOf(&d.c.src)))
		return err
	})
	g.Go(func() (err error) {
		c.dst, err = d.c.dst.slices(ctx, min(d.readers, d.w.e.readersOf(&d.c.dst)))
		return err
	})
	return c, g.Wait()
}

// sum reads a whole side into its table.
func (d *digester) sum(ctx context.Context, s *side, t *table, parts []scan.Slice, progress *atomic.Int64) error {
	return eachSlice(ctx, parts, d.readers, func(ctx context.Context, sl scan.Slice) error {
		var page []summand
		var bytes int64
		return d.w.scanSlice(ctx, s, sl, reading{each: func(doc, key []byte) error {
			h := xxh3.Hash128Seed(doc, d.seed)
			page = append(page, summand{d.group(key), h.Hi, h.Lo})
			bytes += int64(len(doc))
			return nil
		}, end: func() {
			t.add(page, bytes)
			progress.Add(int64(len(page)))
			d.w.e.c.bytes.Add(bytes)
			page, bytes = page[:0], 0
		}})
	})
}

// group is the one that a document belongs to, by the key of its _id.
func (d *digester) group(key []byte) uint32 { return uint32(xxh3.HashSeed(key, d.seed) & d.mask) }

// compare counts the groups that differ, and their documents on both sides.
func (d *digester) compare() (differing int, docs uint64) {
	for i := range d.src.groups {
		if d.differs(i) {
			differing++
			docs += d.src.groups[i].n + d.dst.groups[i].n
		}
	}
	return differing, docs
}

func (d *digester) differs(i int) bool {
	return d.src.groups[i] != d.dst.groups[i]
}

// lookInto finds the ids of both sides that belong to differing groups, by
// reading ids alone, and compares those documents. A document that differed
// and still does is there on one side at least.
func (d *digester) lookInto(ctx context.Context, parts sideSlices) error {
	ids := suspects{limit: d.room, ids: map[string]bool{}}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return d.collect(gctx, &d.c.src, parts.src, &ids) })
	g.Go(func() error { return d.collect(gctx, &d.c.dst, parts.dst, &ids) })
	if err := g.Wait(); err != nil {
		return err
	}
	d.w.e.c.account(ids.bytes)
	defer d.w.e.c.account(-ids.bytes)
	keys := make([]string, 0, len(ids.ids))
	for k := range ids.ids {
		keys = append(keys, k)
	}
	return d.compareKeys(ctx, keys)
}

// suspects are the ids of documents that may differ. Safe for concurrent use.
type suspects struct {
	mu    sync.Mutex
	ids   map[string]bool
	bytes int
	limit int
}

func (s *suspects) add(key []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ids[string(key)] {
		return nil
	}
	s.ids[string(key)] = true
	if s.bytes += len(key) + entryCost; s.bytes > s.limit {
		return errTooDifferent
	}
	return nil
}

func (d *digester) collect(ctx context.Context, s *side, parts []scan.Slice, ids *suspects) error {
	return eachSlice(ctx, parts, d.readers, func(ctx context.Context, sl scan.Slice) error {
		return d.w.scanSlice(ctx, s, sl, reading{idsOnly: true, each: func(_, key []byte) error {
			if !d.differs(int(d.group(key))) {
				return nil
			}
			return ids.add(key)
		}})
	})
}

func (d *digester) compareKeys(ctx context.Context, keys []string) error {
	src, dst := newProbe(d.w.e, &d.c.src), newProbe(d.w.e, &d.c.dst)
	defer src.free()
	defer dst.free()
	size := max(d.c.src.averageSize(), d.c.dst.averageSize())
	for len(keys) > 0 {
		n := chunk(len(keys), d.w.e.limits.probe, func(i int) int { return size + len(keys[i]) })
		if err := src.fetch(ctx, keys[:n]); err != nil {
			return err
		}
		if err := dst.fetch(ctx, keys[:n]); err != nil {
			return err
		}
		for _, k := range keys[:n] {
			if err := d.w.pair(ctx, d.c, src.get(k), dst.get(k)); err != nil {
				return err
			}
		}
		keys = keys[n:]
	}
	return nil
}

// pair hands two documents of one _id on if they are not the same; nil stands for
// none. Nothing keeps them.
func (w *worker) pair(ctx context.Context, c *collection, a, b []byte) error {
	if w.e.o.agree(a, b) {
		return nil
	}
	return w.mismatch(ctx, c, a, b)
}

// digestLeast is the size in bytes from which on Auto takes digests: what a
// worker reads of a smaller collection it can as well compare.
const digestLeast = 1 << 20

// digestible reports whether the collection can be compared by digests.
func (c *collection) digestible() bool {
	o := &c.e.o
	if o.Method == Ranges || o.Method == Auto && max(c.src.Bytes, c.dst.Bytes) < digestLeast {
		return false
	}
	return !o.IgnoreFieldOrder && c.src.order != scan.Sorted && c.dst.order != scan.Sorted
}

// digestTask compares by digests, with as many readers a side as the larger one
// takes, and falls back to ranges, which then share the workers' slots.
func (w *worker) digestTask(ctx context.Context, c *collection) error {
	readers := max(w.e.readersOf(&c.src), w.e.readersOf(&c.dst))
	err := w.slots(ctx, readers, func() error {
		return retry(ctx, w.e.o.Log, "compare "+c.pair.SourceNS, func() error { return w.digest(ctx, c, readers) })
	})
	if err == nil || ctx.Err() != nil {
		return err
	}
	if !errors.Is(err, errTooDifferent) && mongo.Classify(err) != mongo.ClassFatal {
		return err
	}
	w.e.o.Log.Info("compare by ranges of _id", "ns", c.pair.SourceNS, "why", err)
	tasks, err := c.rangeTasks(ctx)
	if err != nil {
		return err
	}
	w.e.c.ranges.Add(int64(len(tasks)))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(w.e.o.Workers)
	for _, t := range tasks {
		g.Go(func() error {
			defer w.e.c.rangesDone.Add(1)
			return w.rangeTask(gctx, t)
		})
	}
	return g.Wait()
}
