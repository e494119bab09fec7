package fold

import (
	"bytes"
	"math/bits"
	"time"

	"github.com/millrace/millrace/internal/stream"
)

// Group holds the operations of one collection: one per document, or all in order if it is serial.
type Group struct {
	Target *Target
	Ops    []Op
	index  table // positions in Ops by document hash
}

// find returns the operation with the hash of an item's document. same is false for another document, or
// for an equal _id in other bytes (1 and 1.0), whose order one batch cannot express.
func (g *Group) find(it *Item) (prev *Op, same bool) {
	i, ok := g.index.find(it.Hash, g.Ops)
	if !ok {
		return nil, false
	}
	prev = &g.Ops[i]
	return prev, prev.ID.Type == it.Event.Key.ID.Type && bytes.Equal(prev.ID.Data, it.Event.Key.ID.Data)
}

// Batch collects a partition's operations until they are sent. Items and what was folded from them are
// valid until Reset.
type Batch struct {
	Groups []*Group
	Ops    int
	Bytes  int // of the operations, roughly

	byTarget map[*Target]*Group
	free     []*Group // emptied, for reuse
	mem      memory
}

func NewBatch() *Batch { return &Batch{byTarget: map[*Target]*Group{}} }

func (b *Batch) Empty() bool { return b.Ops == 0 }

// Reset empties the batch and keeps its memory.
func (b *Batch) Reset() {
	for _, g := range b.Groups {
		clear(g.Ops)
		g.Ops = g.Ops[:0]
		g.index.reset()
		g.Target = nil
	}
	b.free = append(b.free, b.Groups...)
	b.Groups = b.Groups[:0]
	clear(b.byTarget)
	b.mem.reset()
	b.Ops, b.Bytes = 0, 0
}

// Trim frees most of the memory, after Reset.
func (b *Batch) Trim() { b.mem.trim() }

func (b *Batch) group(t *Target) *Group {
	if g, ok := b.byTarget[t]; ok {
		return g
	}
	var g *Group
	if n := len(b.free); n > 0 {
		g, b.free = b.free[n-1], b.free[:n-1]
	} else {
		g = &Group{}
	}
	g.Target = t
	b.byTarget[t] = g
	b.Groups = append(b.Groups, g)
	return g
}

// Add adds an item, or folds it into an earlier operation of its document. If ok is false nothing
// changed, and the batch must be sent first to keep the document's order.
func (b *Batch) Add(it *Item) (ok, folded bool, err error) {
	g := b.group(it.Target)
	switch prev, same := g.find(it); {
	case prev == nil:
		o, err := NewOp(it)
		if err == nil {
			b.add(g, &o, 0)
		}
		return err == nil, false, err
	case same:
		ok, err = b.join(prev, it)
		return ok, ok, err
	}
	return false, false, nil
}

func (b *Batch) join(o *Op, it *Item) (ok bool, err error) {
	next, err := NewOp(it)
	if err != nil {
		return false, err
	}
	was := o.size()
	if ok, err = fold(o, &next, it.Target.Key, &b.mem); ok {
		b.Bytes += o.size() - was
	}
	return ok, err
}

// add adds an operation with a new hash. Serial groups have no index, as nothing folds there.
func (b *Batch) add(g *Group, o *Op, overhead int) {
	g.Ops = append(g.Ops, *o)
	if !g.Target.Serial() {
		g.index.add(len(g.Ops)-1, g.Ops)
	}
	b.Ops++
	b.Bytes += o.size() + overhead
}

// memory allocates bytes that are freed together, to spare the garbage collector many small objects of
// one lifetime. It keeps its size until trim.
type memory struct {
	pieces  [][]byte // of pieceBytes each; what is given out is their length
	at      int      // the piece that is given out of
	free    [classes][][]byte
	scratch []byte // for results before their size is known
}

const (
	pieceBytes = 64 << 10
	// Sizes are 64, 96, 128, 192, … bytes up to maxPart, so that freed parts can be reused. Larger parts
	// are allocated separately.
	classes    = 17
	maxPart    = 16 << 10
	maxScratch = 1 << 20
)

// class returns the smallest class that holds n bytes.
func class(n int) int {
	if n <= 64 {
		return 0
	}
	b := bits.Len(uint(n - 1))
	if c := 2 * (b - 6); n > 3<<(b-2) {
		return c
	}
	return 2*(b-6) - 1
}

func classSize(c int) int {
	if c%2 == 0 {
		return 64 << (c / 2)
	}
	return 96 << (c / 2)
}

// take returns n bytes, not cleared, and frees room.
func (m *memory) take(n int, room []byte) []byte {
	if k := cap(room); k >= classSize(0) && k <= maxPart {
		c := class(k)
		if classSize(c) > k {
			c--
		}
		m.free[c] = append(m.free[c], room)
	}
	if n > maxPart {
		return make([]byte, n)
	}
	c := class(n)
	if k := len(m.free[c]); k > 0 {
		b := m.free[c][k-1]
		m.free[c] = m.free[c][:k-1]
		return b[:n]
	}
	return m.cut(classSize(c))[:n]
}

func (m *memory) cut(n int) []byte {
	if m.at < len(m.pieces) && len(m.pieces[m.at])+n > pieceBytes {
		m.at++
	}
	if m.at == len(m.pieces) {
		m.pieces = append(m.pieces, make([]byte, 0, pieceBytes))
	}
	p := m.pieces[m.at]
	start, end := len(p), len(p)+n
	m.pieces[m.at] = p[:end]
	return p[start:end:end]
}

// copy copies b, which will not grow.
func (m *memory) copy(b []byte) []byte {
	if len(b) > maxPart {
		return bytes.Clone(b)
	}
	return append(m.cut(len(b))[:0], b...)
}

// place copies b into room if it fits, else into new memory.
func (m *memory) place(room, b []byte) []byte {
	if cap(room) < len(b) {
		room = m.take(len(b), room)
	}
	return append(room[:0], b...)
}

// result keeps a buffer that began as scratch.
func (m *memory) result(b []byte) {
	if cap(b) <= maxScratch {
		m.scratch = b[:0]
	}
}

func (m *memory) reset() {
	for i := range m.pieces[:min(m.at+1, len(m.pieces))] {
		m.pieces[i] = m.pieces[i][:0]
	}
	for c := range m.free {
		m.free[c] = m.free[c][:0]
	}
	m.at = 0
}

// trim, called after reset, frees all but one piece.
func (m *memory) trim() {
	if len(m.pieces) > 1 {
		*m = memory{pieces: m.pieces[:1:1], scratch: m.scratch}
	}
}

const (
	// keepFor bounds how long an operation is kept back, and so how much a restart replays.
	keepFor = 10 * time.Second
	// opOverhead is roughly an operation's memory beside its bytes.
	opOverhead = 256
	// foldWorth: one in so many updates must fold, else none is kept back for pauseFor flushes.
	foldWorth = 8
	pauseFor  = 64
	// insertWorth: updates must meet one in so many inserts. The target pays several times as much for
	// an update, and keeping an insert back costs next to nothing.
	insertWorth = 16
	// smallInsert is the largest insert, in bytes, that is kept back.
	smallInsert = 512
	// moreWithInserts multiplies the limit with inserts, since folding grows with the square of what is
	// kept. The test had 1,000,000 operations on documents of 140 bytes, half of them inserts. 169,000
	// folded without inserts, 279,000 at twice the limit, 395,000 at four times, in 5 to 7 s, not 11.
	moreWithInserts = 4
	// MostKept times the limit is the most that is kept: the room with inserts and one batch.
	MostKept = moreWithInserts + 1
)

// Coalesced keeps updates back over batches while a backlog lasts, and folds them. A server pays for
// each version of a frequently changed document. Where updates mostly meet new documents, inserts are
// kept back too. Coalesced owns the bytes, so that they do not pin their batches.
type Coalesced struct {
	*Batch
	limit     int
	since     time.Time
	inUpdates int // events folded into updates
	inserts   int // of the operations
	inInserts int // events folded into inserts
	pause     int // flushes until it is tried again
	alone     int // flushes until inserts are kept back again
}

// NewCoalesced returns a Coalesced of about limit bytes, four times as many with small inserts. It never
// keeps more than MostKept times limit plus one event. A negative limit keeps nothing.
func NewCoalesced(limit int) *Coalesced { return &Coalesced{Batch: NewBatch(), limit: limit} }

// Join folds an event into a kept operation of its document. If ok is false the kept operations must be
// sent first to keep the document's order.
func (c *Coalesced) Join(it *Item) (joined, ok bool, err error) {
	g := c.byTarget[it.Target]
	if g == nil {
		return false, true, nil
	}
	prev, same := g.find(it)
	if prev == nil || !same {
		return false, prev == nil, nil
	}
	met := prev.Kind == stream.Insert
	if ok, err := c.join(prev, it); !ok || err != nil {
		return false, false, err
	}
	if !prev.owned && prev.Doc != nil {
		prev.Doc, prev.owned = c.mem.place(nil, prev.Doc), true
	}
	if met {
		c.inInserts++
	} else {
		c.inUpdates++
	}
	return true, true, nil
}

func (c *Coalesced) takes(o *Op) bool {
	return o.Kind == stream.Update && !o.Upsert || o.Kind == stream.Insert && c.alone == 0 && len(o.Doc) <= smallInsert
}

// keep copies an operation. It returns false if another document has its hash, or without room. One of twice the limit
// would be sent at once.
func (c *Coalesced) keep(t *Target, o *Op, now time.Time) bool {
	g := c.group(t)
	if _, taken := g.index.find(o.Hash, g.Ops); taken || o.size() > 2*c.limit ||
		c.Bytes+o.size()+opOverhead > MostKept*c.limit {
		return false
	}
	if c.Ops == 0 {
		c.since = now
	}
	k := *o
	k.owned, k.ID.Data = true, c.mem.copy(o.ID.Data)
	if o.Where != nil {
		k.Where = c.mem.copy(o.Where)
	}
	if o.Kind == stream.Update {
		k.Delta = o.Delta.In(c.mem.copy(o.Delta.Raw()))
	} else {
		k.Doc = c.mem.copy(o.Doc)
		c.inserts++
	}
	c.add(g, &k, opOverhead)
	return true
}

// Split moves what is kept back out of a group. The caller sends the group and adds nothing to it.
func (c *Coalesced) Split(g *Group, now time.Time) {
	rest := g.Ops[:0]
	for i := range g.Ops {
		if o := &g.Ops[i]; !c.takes(o) || !c.keep(g.Target, o, now) {
			rest = append(rest, *o)
		}
	}
	clear(g.Ops[len(rest):])
	g.Ops = rest
}

// Due reports whether to send the kept operations.
func (c *Coalesced) Due(now time.Time) bool {
	limit := c.limit
	if c.inserts > 0 {
		limit *= moreWithInserts
	}
	return c.Ops > 0 && (c.Bytes >= limit || now.Sub(c.since) >= keepFor)
}

// Full reports whether the kept operations must be sent at once.
func (c *Coalesced) Full() bool { return c.Ops > 0 && c.Bytes >= MostKept*c.limit }

// Flush counts a flush and reports whether keeping updates back is worthwhile.
func (c *Coalesced) Flush() bool {
	c.alone = max(c.alone-1, 0)
	if c.pause > 0 {
		c.pause--
		return false
	}
	return c.limit > 0
}

// Sent clears the kept operations and learns from how many events met them.
func (c *Coalesced) Sent() {
	if c.Ops > 0 {
		inserts := c.inInserts*insertWorth > c.inserts
		if c.inserts > 0 && !inserts {
			c.alone = pauseFor
		}
		if !inserts && c.inUpdates*foldWorth < c.Ops-c.inserts {
			c.pause = pauseFor
		}
	}
	c.inUpdates, c.inInserts, c.inserts = 0, 0, 0
	c.Reset()
}
