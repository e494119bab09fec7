package fold

import (
	"time"

	"github.com/millrace/millrace/internal/stream"
)

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
