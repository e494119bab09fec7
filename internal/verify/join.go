package verify

import (
	"bytes"
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/scan"
)

// worker compares one range after the other. It belongs to one goroutine.
type worker struct {
	e  *Engine
	f  *findings
	rc *rechecker
}

// do compares a task.
func (w *worker) do(ctx context.Context, t task) error {
	var err error
	if t.digest {
		err = w.digestTask(ctx, t.c)
	} else {
		err = w.rangeTask(ctx, t)
	}
	if err != nil {
		return err
	}
	w.e.c.rangesDone.Add(1)
	if t.c.open.Add(-1) == 0 {
		t.c.finish()
	}
	return nil
}

// rangeTask compares a range or a natural order, again if a failure passes by
// itself.
func (w *worker) rangeTask(ctx context.Context, t task) error {
	return w.slots(ctx, 1, func() error {
		return retry(ctx, w.e.o.Log, "compare a range of "+t.c.pair.SourceNS, func() error {
			if t.natural {
				return w.order(ctx, t.c)
			}
			return w.compare(ctx, t)
		})
	})
}

// slots runs fn as n of Options.Workers.
func (w *worker) slots(ctx context.Context, n int, fn func() error) error {
	if err := w.e.slots.Acquire(ctx, int64(n)); err != nil {
		return err
	}
	defer w.e.slots.Release(int64(n))
	return fn()
}

// compare streams both sides of a range and joins them.
func (w *worker) compare(ctx context.Context, t task) error {
	c := t.c
	j := &join{w: w, c: c}
	g, gctx := errgroup.WithContext(ctx)
	a, b := w.streams(gctx, g, c, t.slice)
	j.left.stream, j.right.stream = a, b
	g.Go(func() error {
		defer j.free()
		return j.run(gctx)
	})
	if err := g.Wait(); err != nil {
		return err
	}
	c.sourceDocs.Add(a.docs)
	c.targetDocs.Add(b.docs)
	c.sourceBytes.Add(a.bytes)
	c.targetBytes.Add(b.bytes)
	return nil
}

func (w *worker) streams(ctx context.Context, g *errgroup.Group, c *collection, sl scan.Slice) (a, b *stream) {
	open := func(s *side) *stream {
		st, sl := newStream(w.e), sl
		sl.Strategy = s.order
		want := scan.Want{Batch: max(w.e.limits.batch/s.averageSize(), 2)}
		g.Go(func() error { return st.fill(ctx, s, sl, want) })
		return st
	}
	return open(&c.src), open(&c.dst)
}

// join pairs the documents of two streams by _id. It relies on nothing about
// their order: what has no partner at the heads waits in its lane, and is
// looked up on the other side when the lanes hold too much, or at the end.
type join struct {
	w           *worker
	c           *collection
	left, right lane
	ka, kb      []byte // ids of the heads
}

// lane is one stream and its documents without a partner.
type lane struct {
	*stream
	wait  map[string][]byte // copies, by id
	bytes int
}

// entryCost is what a waiting document costs besides its bytes.
const entryCost = 96

func (j *join) run(ctx context.Context) error {
	for n := 0; ; n++ {
		a, err := j.left.peek(ctx)
		if err != nil {
			return err
		}
		b, err := j.right.peek(ctx)
		if err != nil {
			return err
		}
		j.progress(n, a == nil && b == nil)
		if a == nil && b == nil {
			break
		}
		if a != nil && b != nil && bytes.Equal(a, b) {
			j.left.advance()
			j.right.advance()
			continue
		}
		if err := j.unequal(ctx, a, b); err != nil {
			return err
		}
	}
	if err := j.lookUp(ctx, true); err != nil {
		return err
	}
	return j.lookUp(ctx, false)
}

// unequal handles heads that differ; one of them may be nil.
func (j *join) unequal(ctx context.Context, a, b []byte) error {
	var ok bool
	if j.ka, ok = appendID(j.ka[:0], a); a != nil && !ok {
		return errMalformed(j.c.src.NS)
	}
	if j.kb, ok = appendID(j.kb[:0], b); b != nil && !ok {
		return errMalformed(j.c.dst.NS)
	}
	switch {
	case a != nil && b != nil && bytes.Equal(j.ka, j.kb):
		j.left.advance()
		j.right.advance()
		return j.w.pair(ctx, j.c, a, b)
	case a != nil && j.right.has(j.ka):
		j.left.advance()
		return j.w.pair(ctx, j.c, a, j.take(&j.right, j.ka))
	case b != nil && j.left.has(j.kb):
		j.right.advance()
		return j.w.pair(ctx, j.c, j.take(&j.left, j.kb), b)
	}
	// Whoever is behind in _id order waits alone, so that a long run of
	// documents on one side does not drag the other side along.
	behind := likelyOrder(j.ka, j.kb)
	if a != nil && (b == nil || behind <= 0) {
		j.put(&j.left, j.ka, a)
		j.left.advance()
	}
	if b != nil && (a == nil || behind >= 0) {
		j.put(&j.right, j.kb, b)
		j.right.advance()
	}
	if j.left.bytes+j.right.bytes > j.w.e.limits.pending {
		return j.lookUp(ctx, j.left.bytes >= j.right.bytes)
	}
	return nil
}

func (l *lane) has(key []byte) bool {
	_, ok := l.wait[string(key)]
	return ok
}

func (j *join) put(l *lane, key, doc []byte) {
	if l.wait == nil {
		l.wait = map[string][]byte{}
	}
	if old, ok := l.wait[string(key)]; ok { // only without an _id index
		j.account(l, -len(old)-len(key)-entryCost)
	}
	l.wait[string(key)] = bytes.Clone(doc)
	j.account(l, len(doc)+len(key)+entryCost)
}

func (j *join) take(l *lane, key []byte) []byte {
	doc := l.wait[string(key)]
	delete(l.wait, string(key))
	j.account(l, -len(doc)-len(key)-entryCost)
	return doc
}

func (j *join) account(l *lane, n int) {
	l.bytes += n
	j.w.e.c.account(n)
}

// lookUp looks the waiting documents of one lane up on the other side.
func (j *join) lookUp(ctx context.Context, left bool) error {
	l, other := &j.left, &j.c.dst
	if !left {
		l, other = &j.right, &j.c.src
	}
	if len(l.wait) == 0 {
		return nil
	}
	p := newProbe(j.w.e, other)
	defer p.free()
	keys := make([]string, 0, len(l.wait))
	for k := range l.wait {
		keys = append(keys, k)
	}
	for len(keys) > 0 {
		n := chunk(len(keys), j.w.e.limits.probe, func(i int) int { return len(l.wait[keys[i]]) + len(keys[i]) })
		if err := p.fetch(ctx, keys[:n]); err != nil {
			return err
		}
		for _, k := range keys[:n] {
			mine, theirs := l.wait[k], p.get(k)
			if !left {
				mine, theirs = theirs, mine
			}
			if err := j.w.pair(ctx, j.c, mine, theirs); err != nil {
				return err
			}
		}
		keys = keys[n:]
	}
	clear(l.wait)
	j.account(l, -l.bytes)
	return nil
}

// chunk is how many of n items, at least one, fit into limit bytes (and a
// thousand, for the server's sake).
func chunk(n, limit int, size func(int) int) int {
	total := 0
	for i := range min(n, 1000) {
		if total += size(i); total > limit && i > 0 {
			return i
		}
	}
	return min(n, 1000)
}

// free lets go of everything still held.
func (j *join) free() {
	for _, l := range []*lane{&j.left, &j.right} {
		l.drop()
		j.account(l, -l.bytes)
		l.wait = nil
	}
}

// progress publishes what was walked, every now and then.
func (j *join) progress(n int, last bool) {
	if n%4096 != 0 && !last {
		return
	}
	c := &j.w.e.c
	c.sourceDocs.Add(j.left.docs - j.left.told)
	c.targetDocs.Add(j.right.docs - j.right.told)
	c.bytes.Add(j.left.stream.bytes - j.left.toldBytes + j.right.stream.bytes - j.right.toldBytes)
	for _, s := range []*stream{j.left.stream, j.right.stream} {
		s.told, s.toldBytes = s.docs, s.bytes
	}
}

// mismatch takes a pair of documents that are not the same; nil stands for
// none. Offline this is final, online it is looked at again.
func (w *worker) mismatch(ctx context.Context, c *collection, a, b []byte) error {
	w.e.c.mismatches.Add(1)
	if !w.e.o.Online {
		w.f.add(w.e, c, a, b, "")
		return nil
	}
	doc := a
	if a == nil {
		doc = b
	}
	key, _ := appendID(nil, doc)
	return w.rc.add(ctx, candidate{c: c, key: string(key), size: max(len(a), len(b))})
}
