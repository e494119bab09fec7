package verify

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"maps"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
)

func (c *collection) compare(ctx context.Context, rq request) error {
	j := &join{collection: c}
	err := c.stream(ctx, rq, func(ctx context.Context, left, right *stream) error {
		j.left.stream, j.right.stream = left, right
		defer j.free()
		return j.run(ctx)
	})
	if err != nil {
		return err
	}
	for i, st := range []*stream{j.left.stream, j.right.stream} {
		c.docs[i].Add(st.docs)
		c.bytes[i].Add(st.bytes)
	}
	return nil
}

// join pairs the documents of two streams by _id, in any order. A document without a partner at the
// heads waits in its lane. It is looked up on the other side when the lanes hold too much, or at
// the end.
type join struct {
	*collection
	left, right lane
	ka, kb      []byte // ids of the heads
	// doubts are _ids of documents that do not match as they came, doubted bounds their bytes: a
	// stream may have paired one of several with another.
	doubts  []string
	doubted int
}

type lane struct {
	*stream
	wait     map[string][]byte // copies, by id
	buffered int               // bytes of those
}

const entryCost = 96

func (j *join) run(ctx context.Context) error {
	for {
		a, err := j.left.peek(ctx)
		if err != nil {
			return err
		}
		b, err := j.right.peek(ctx)
		if err != nil {
			return err
		}
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
	if err := j.lookUp(ctx, false); err != nil {
		return err
	}
	return j.settle(ctx)
}

// unequal handles heads that differ; one may be nil.
func (j *join) unequal(ctx context.Context, a, b []byte) error {
	var ok bool
	if j.ka, ok = appendID(j.ka[:0], a); a != nil && !ok {
		return errMalformed(j.pair.Source)
	}
	if j.kb, ok = appendID(j.kb[:0], b); b != nil && !ok {
		return errMalformed(j.pair.Target)
	}
	switch {
	case a != nil && b != nil && bytes.Equal(j.ka, j.kb):
		j.left.advance()
		j.right.advance()
		return j.match(ctx, a, b)
	case a != nil && j.right.has(j.ka):
		j.left.advance()
		return j.match(ctx, a, j.right.take(j.ka))
	case b != nil && j.left.has(j.kb):
		j.right.advance()
		return j.match(ctx, j.left.take(j.kb), b)
	}
	// Whoever is behind in _id order waits alone: a long run of documents on one side does not drag
	// the other along.
	behind := likelyOrder(j.ka, j.kb)
	if a != nil && (b == nil || behind <= 0) {
		if err := j.put(ctx, &j.left, j.ka, a); err != nil {
			return err
		}
	}
	if b != nil && (a == nil || behind >= 0) {
		if err := j.put(ctx, &j.right, j.kb, b); err != nil {
			return err
		}
	}
	if j.left.buffered+j.right.buffered > j.e.limits.pending {
		return j.lookUp(ctx, j.left.buffered >= j.right.buffered)
	}
	return nil
}

func (l *lane) has(key []byte) bool {
	_, ok := l.wait[string(key)]
	return ok
}

// put makes a head wait. A second document of its _id, from another shard, is a doubt.
func (j *join) put(ctx context.Context, l *lane, key, doc []byte) error {
	defer l.advance()
	if !l.has(key) || !j.e.several() {
		l.put(key, doc)
		return nil
	}
	return j.doubt(ctx, string(key), max(len(doc), len(l.wait[string(key)])))
}

func (l *lane) put(key, doc []byte) {
	if l.wait == nil {
		l.wait = map[string][]byte{}
	}
	if l.has(key) { // only without an _id index
		l.take(key)
	}
	l.wait[string(key)] = bytes.Clone(doc)
	l.account(len(doc) + len(key) + entryCost)
}

func (l *lane) take(key []byte) []byte {
	doc := l.wait[string(key)]
	delete(l.wait, string(key))
	l.account(-len(doc) - len(key) - entryCost)
	return doc
}

func (l *lane) account(n int) {
	l.buffered += n
	l.e.c.account(n)
}

func (l *lane) free() {
	clear(l.wait)
	l.account(-l.buffered)
}

func (j *join) lookUp(ctx context.Context, left bool) error {
	l, other := &j.left, &j.sides[target]
	if !left {
		l, other = &j.right, &j.sides[source]
	}
	if len(l.wait) == 0 {
		return nil
	}
	p := newProbe(other)
	defer p.free()
	keys := slices.Collect(maps.Keys(l.wait))
	for len(keys) > 0 {
		n := chunk(len(keys), j.e.limits.batch, func(i int) int { return len(l.wait[keys[i]]) + len(keys[i]) })
		if err := p.fetch(ctx, keys[:n]); err != nil {
			return err
		}
		for _, k := range keys[:n] {
			mine, theirs := l.wait[k], p.found[k]
			if !left {
				mine, theirs = theirs, mine
			}
			if err := j.match(ctx, mine, theirs); err != nil {
				return err
			}
		}
		keys = keys[n:]
	}
	l.free()
	return nil
}

func (j *join) free() {
	for _, l := range []*lane{&j.left, &j.right} {
		l.drop()
		l.free()
	}
}

// match compares two documents of one _id as they came; nil stands for none. It keeps neither.
func (j *join) match(ctx context.Context, a, b []byte) error {
	if j.e.o.agree(a, b) {
		return nil
	}
	if j.e.several() {
		return j.doubt(ctx, keyOf(a, b), max(len(a), len(b)))
	}
	return j.found(ctx, a, b)
}

// found handles two documents of one _id, all that there are; nil stands for none. It keeps
// neither. Offline a mismatch is final, online it is looked at again.
func (c *collection) found(ctx context.Context, a, b []byte) error {
	if c.e.o.agree(a, b) {
		return nil
	}
	if c.e.o.Online {
		return c.mismatch(ctx, keyOf(a, b), max(len(a), len(b)))
	}
	c.e.c.mismatches.Add(1)
	c.differ(a, b, "")
	return nil
}

// mismatch queues a document of at most so many bytes for another look.
func (c *collection) mismatch(ctx context.Context, key string, size int) error {
	c.e.c.mismatches.Add(1)
	return c.e.recheck.add(ctx, candidate{suspect: suspect{c, key}, size: size})
}

// likelyOrder guesses which of two _ids comes first in an index: -1 for a, +1 for b, 0 for unknown.
// It only saves work, so it may be wrong (collations).
func likelyOrder(a, b []byte) int {
	if len(a) == 0 || len(b) == 0 || a[0] != b[0] {
		return 0
	}
	x, y := a[1:], b[1:]
	switch bson.Type(a[0]) {
	case bson.TypeObjectID:
		return bytes.Compare(x, y)
	case bson.TypeString:
		return bytes.Compare(x[4:], y[4:])
	case bson.TypeInt64, bson.TypeDateTime:
		return cmp.Compare(int64(binary.LittleEndian.Uint64(x)), int64(binary.LittleEndian.Uint64(y)))
	case bson.TypeInt32:
		return cmp.Compare(int32(binary.LittleEndian.Uint32(x)), int32(binary.LittleEndian.Uint32(y)))
	case bson.TypeBinary:
		return cmp.Or(cmp.Compare(len(x), len(y)), bytes.Compare(x[4:], y[4:])) // the subtype, then the bytes
	}
	return 0
}

// Two shards may have different documents of one _id, under different shard keys. All documents of
// one _id are compared as one: their bytes, sorted and joined.

func together(have, doc []byte) []byte {
	all := append(apart(have), doc)
	slices.SortFunc(all, bytes.Compare)
	return slices.Concat(all...)
}

func (e *Engine) several() bool {
	return e.clusters[source].Info.Kind == mongo.KindSharded || e.clusters[target].Info.Kind == mongo.KindSharded
}

func (j *join) doubt(ctx context.Context, key string, size int) error {
	if j.e.o.Online {
		return j.mismatch(ctx, key, size)
	}
	j.doubts = append(j.doubts, key)
	if j.doubted += size; j.doubted < j.e.limits.batch && len(j.doubts) < 1000 {
		return nil
	}
	return j.settle(ctx)
}

func (j *join) settle(ctx context.Context) error {
	keys := j.doubts
	j.doubts, j.doubted = nil, 0
	if len(keys) == 0 {
		return nil
	}
	return j.pairs(ctx, keys, func(_ int, a, b []byte) error { return j.found(ctx, a, b) })
}
