package verify

import (
	"context"
	"errors"
	"hash/maphash"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
)

// Method is how documents are compared.
type Method string

// The methods.
const (
	// Ranges streams both sides in _id order and compares the bytes. On random
	// ids the servers fetch documents at random.
	Ranges Method = "ranges"
	// Digest reads both sides in the order of their storage, which is about
	// twice as fast in memory and many times on disk, and compares sums of
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
// any number of readers may add concurrently.
type table struct {
	groups []group
	docs   atomic.Int64
	bytes  atomic.Int64
}

type group struct{ x, y, n atomic.Uint64 }

// groupCost is a group's size in bytes.
const groupCost = 24

// digester is the comparison of one collection.
type digester struct {
	w        *worker
	c        *collection
	seeds    [3]maphash.Seed // of the group, and of the two halves of the digest
	src, dst table
	mask     uint64
}

// digest compares a collection by digests, or returns errTooDifferent.
func (w *worker) digest(ctx context.Context, c *collection) error {
	d := newDigester(w, c)
	defer w.e.c.hold(-2 * groupCost * len(d.src.groups))
	w.e.c.hold(2 * groupCost * len(d.src.groups))
	cuts, err := d.slices(ctx)
	if err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return d.sum(gctx, &c.src, &d.src, cuts.src, &w.e.c.sourceDocs) })
	g.Go(func() error { return d.sum(gctx, &c.dst, &d.dst, cuts.dst, &w.e.c.targetDocs) })
	if err := g.Wait(); err != nil {
		return err
	}
	differing, docs := d.compare()
	if differing > 0 {
		if int64(docs) > max(d.src.docs.Load(), d.dst.docs.Load())/2+1000 {
			return errTooDifferent
		}
		if err := d.lookInto(ctx, cuts); err != nil {
			return err
		}
	}
	c.sourceDocs.Add(d.src.docs.Load())
	c.targetDocs.Add(d.dst.docs.Load())
	c.sourceBytes.Add(d.src.bytes.Load())
	c.targetBytes.Add(d.dst.bytes.Load())
	return nil
}

func newDigester(w *worker, c *collection) *digester {
	n := 256
	for n*2*groupCost*2 <= w.e.limits.pending && int64(n)*2 < max(c.src.docs, c.dst.docs) {
		n *= 2
	}
	d := &digester{w: w, c: c, mask: uint64(n - 1)}
	for i := range d.seeds {
		d.seeds[i] = maphash.MakeSeed()
	}
	d.src.groups, d.dst.groups = make([]group, n), make([]group, n)
	return d
}

// sideCuts are the record ids that part each side for several readers.
type sideCuts struct{ src, dst []int64 }

// slicesPerSide is how many readers share a side of a large collection.
const slicesPerSide = 2

func (d *digester) slices(ctx context.Context) (c sideCuts, err error) {
	if c.src, err = recordCuts(ctx, &d.c.src, d.w.e.o.RangeBytes); err != nil {
		return c, err
	}
	c.dst, err = recordCuts(ctx, &d.c.dst, d.w.e.o.RangeBytes)
	return c, err
}

// sum reads a whole side into its table.
func (d *digester) sum(ctx context.Context, s *side, t *table, cuts []int64, progress *atomic.Int64) error {
	return eachSlice(ctx, cuts, func(ctx context.Context, sl slice) error {
		return d.w.scanSlice(ctx, s, sl, false, func(docs []sliced) error {
			bytes := int64(0)
			var key []byte
			for _, doc := range docs {
				var ok bool
				if key, ok = appendID(key[:0], doc.doc); !ok {
					return errMalformed(s.ns)
				}
				g := &t.groups[maphash.Bytes(d.seeds[0], key)&d.mask]
				g.x.Add(maphash.Bytes(d.seeds[1], doc.content))
				g.y.Add(maphash.Bytes(d.seeds[2], doc.content))
				g.n.Add(1)
				bytes += int64(len(doc.content) + 5)
			}
			t.docs.Add(int64(len(docs)))
			t.bytes.Add(bytes)
			progress.Add(int64(len(docs)))
			d.w.e.c.bytes.Add(bytes)
			return nil
		})
	})
}

// compare counts the groups that differ, and their documents on both sides.
func (d *digester) compare() (differing int, docs uint64) {
	for i := range d.src.groups {
		if d.differs(i) {
			differing++
			docs += d.src.groups[i].n.Load() + d.dst.groups[i].n.Load()
		}
	}
	return differing, docs
}

func (d *digester) differs(i int) bool {
	a, b := &d.src.groups[i], &d.dst.groups[i]
	return a.x.Load() != b.x.Load() || a.y.Load() != b.y.Load() || a.n.Load() != b.n.Load()
}

// lookInto finds the ids of both sides that belong to differing groups, by
// reading ids alone, and compares those documents. A document that differed
// and still does is there on one side at least.
func (d *digester) lookInto(ctx context.Context, cuts sideCuts) error {
	ids := suspects{limit: d.w.e.limits.pending, ids: map[string]bool{}}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return d.collect(gctx, &d.c.src, cuts.src, &ids) })
	g.Go(func() error { return d.collect(gctx, &d.c.dst, cuts.dst, &ids) })
	if err := g.Wait(); err != nil {
		return err
	}
	d.w.e.c.hold(ids.bytes)
	defer d.w.e.c.hold(-ids.bytes)
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

func (d *digester) collect(ctx context.Context, s *side, cuts []int64, ids *suspects) error {
	return eachSlice(ctx, cuts, func(ctx context.Context, sl slice) error {
		return d.w.scanSlice(ctx, s, sl, true, func(docs []sliced) error {
			var key []byte
			for _, doc := range docs {
				var ok bool
				if key, ok = appendID(key[:0], doc.doc); !ok {
					return errMalformed(s.ns)
				}
				if !d.differs(int(maphash.Bytes(d.seeds[0], key) & d.mask)) {
					continue
				}
				if err := ids.add(key); err != nil {
					return err
				}
			}
			return nil
		})
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
			if err := d.w.settlePair(ctx, d.c, src.get(k), dst.get(k)); err != nil {
				return err
			}
		}
		keys = keys[n:]
	}
	return nil
}

// settlePair hands two documents on if they are not the same.
func (w *worker) settlePair(ctx context.Context, c *collection, a, b []byte) error {
	if a == nil && b == nil || a != nil && b != nil && w.e.o.same(a, b) {
		return nil
	}
	return w.mismatch(ctx, c, a, b)
}

// digestible reports whether the collection can be compared by digests.
func (c *collection) digestible() bool {
	return c.e.o.Method == Digest && !c.e.o.IgnoreFieldOrder && c.src.access != bySort && c.dst.access != bySort
}

// digestTask compares by digests and falls back to ranges, which then share
// the workers' slots.
func (w *worker) digestTask(ctx context.Context, c *collection) error {
	err := w.slot(ctx, func() error {
		return retry(ctx, w.e.o.Log, "compare "+c.pair.SourceNS, func() error { return w.digest(ctx, c) })
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
