package verify

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/internal/scan"
)

var errTooDifferent = errors.New("too much differs for digests")

// table holds the sums of one side. The hash of a document's _id chooses its group. Sums do not
// depend on the order, so any number of readers may add to them.
type table struct {
	mu     sync.Mutex
	groups []group
	docs   int64
	bytes  int64
}

// group has two sums of hashes and the number of documents.
type group [3]uint64

type summand struct {
	group uint32
	x, y  uint64
}

// add adds a page's documents under one lock: atomic additions for each would wait for memory one
// after the other.
func (t *table) add(page []summand, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range page {
		s := &page[i]
		g := &t.groups[s.group]
		g[0] += s.x
		g[1] += s.y
		g[2]++
	}
	t.docs += int64(len(page))
	t.bytes += bytes
}

const groupCost = 24

type digester struct {
	*collection
	sums
	tables  [2]table
	layouts [2]layout
	readers int // of a side, at most
	room    int // bytes for each of the tables together and the suspects

	mu        sync.Mutex
	suspects  map[string]bool // ids of documents that may differ
	suspected int             // bytes of those
}

func (c *collection) digest(ctx context.Context, readers int) error {
	d := newDigester(c, readers)
	cost := 2 * groupCost * len(d.tables[source].groups)
	defer c.e.c.account(-cost)
	c.e.c.account(cost)
	err := both(ctx, func(ctx context.Context, i int) (err error) {
		d.layouts[i], err = c.sides[i].layout(ctx, readers)
		return err
	})
	if err == nil {
		err = both(ctx, d.sum)
	}
	if err != nil {
		return err
	}
	if docs := d.differing(); docs > max(d.tables[source].docs, d.tables[target].docs)/2+1000 {
		return errTooDifferent
	} else if docs > 0 {
		if err := d.lookInto(ctx); err != nil {
			return err
		}
	}
	for i := range d.tables {
		c.docs[i].Add(d.tables[i].docs)
		c.bytes[i].Add(d.tables[i].bytes)
	}
	return nil
}

// groupDocs is per side. Fewer would make tables larger than any processor's cache.
const groupDocs = 16

// newDigester gives half of the memory for documents without a partner to the tables.
func newDigester(c *collection, readers int) *digester {
	d := &digester{collection: c, readers: readers, room: readers * c.e.limits.pending / 2,
		sums: sums{seed: rand.Uint64()}, suspects: map[string]bool{}}
	n := 256
	for n*2*groupCost*2 <= d.room && int64(n)*groupDocs < max(c.sides[source].Count, c.sides[target].Count) {
		n *= 2
	}
	d.mask = uint64(n - 1)
	d.tables[source].groups, d.tables[target].groups = make([]group, n), make([]group, n)
	return d
}

type sums struct {
	seed uint64 // of all hashes
	mask uint64 // groups - 1
}

func (s sums) into(t *table, c *counters) reading {
	var page []summand
	var bytes int64
	return reading{each: func(doc, key []byte) error {
		h := xxh3.Hash128Seed(doc, s.seed)
		page = append(page, summand{s.group(key), h.Hi, h.Lo})
		bytes += int64(len(doc))
		return nil
	}, end: func() {
		t.add(page, bytes)
		c.read(len(page), bytes)
		page, bytes = page[:0], 0
	}}
}

func (s sums) group(key []byte) uint32 { return uint32(xxh3.HashSeed(key, s.seed) & s.mask) }

func (d *digester) sum(ctx context.Context, i int) error {
	begin := func() reading { return d.into(&d.tables[i], &d.e.c) }
	assigns := d.e.assigner != nil && d.sides[source].exists // rules do not pair what only the target has
	if of, ok := d.layouts[i].(*slicing); ok && len(of.parts) > 1 && assigns && !of.routed() {
		return d.e.assigner.read(ctx, &share{of: of, digester: d, i: i, wait: slices.Clone(of.parts)}, begin)
	}
	return d.layouts[i].scan(ctx, d.readers, begin)
}

func (d *digester) differing() (docs int64) {
	for i := range d.tables[source].groups {
		if d.differs(i) {
			docs += int64(d.tables[source].groups[i][2] + d.tables[target].groups[i][2])
		}
	}
	return docs
}

func (d *digester) differs(i int) bool {
	return d.tables[source].groups[i] != d.tables[target].groups[i]
}

// lookInto reads the _ids of both sides in differing groups and compares those documents. A
// document that still differs is there on one side at least.
func (d *digester) lookInto(ctx context.Context) error {
	err := both(ctx, func(ctx context.Context, i int) error {
		ids := func() reading { return reading{idsOnly: true, each: d.suspect} }
		return d.layouts[i].scan(ctx, d.readers, ids)
	})
	if err != nil {
		return err
	}
	d.e.c.account(d.suspected)
	defer d.e.c.account(-d.suspected)
	keys := slices.Collect(maps.Keys(d.suspects))
	size := max(d.sides[source].averageSize(), d.sides[target].averageSize())
	for len(keys) > 0 {
		n := chunk(len(keys), d.e.limits.batch, func(i int) int { return size + len(keys[i]) })
		err := d.pairs(ctx, keys[:n], func(_ int, a, b []byte) error { return d.found(ctx, a, b) })
		if err != nil {
			return err
		}
		keys = keys[n:]
	}
	return nil
}

// suspect notes the _id of a document whose group differs, for several readers.
func (d *digester) suspect(_, key []byte) error {
	if !d.differs(int(d.group(key))) {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.suspects[string(key)] {
		return nil
	}
	d.suspects[string(key)] = true
	if d.suspected += len(key) + entryCost; d.suspected > d.room {
		return errTooDifferent
	}
	return nil
}

// digestLeast is in bytes. A worker can compare what it reads of smaller collections.
const digestLeast = 1 << 20

func (c *collection) digestible() bool {
	o, src, dst := &c.e.o, &c.sides[source], &c.sides[target]
	if c.pair.History || o.sampled() || o.Method == Ranges || o.Method == Auto && max(src.Bytes, dst.Bytes) < digestLeast {
		return false
	}
	return !o.IgnoreFieldOrder && src.order != scan.Sorted && dst.order != scan.Sorted
}
