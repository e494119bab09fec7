package fold

import (
	"time"

	"github.com/millrace/millrace/internal/stream"
)

const (
	// keepFor bounds how long an operation is kept back, and with it how much a
	// restart replays.
	keepFor = 10 * time.Second
	// opOverhead is roughly what an operation takes in memory beside its bytes.
	opOverhead = 256
	// foldWorth is the share of updates, one in so many, that have to fold for
	// keeping them back to be worth it; else it is not tried for pauseFor flushes.
	foldWorth = 8
	pauseFor  = 64
	// insertWorth is the share of inserts that updates have to meet. An update costs the target
	// several times as much as an insert. To keep an insert back costs next to nothing.
	insertWorth = 16
	// smallInsert is up to what size in bytes inserts are kept back: of larger ones
	// too few fit.
	smallInsert = 512
	// moreWithInserts is how many times as much is kept with them: what folds grows with the
	// square of what is kept. The test had 1,000,000 operations on documents of 140 bytes, half
	// of them inserts. Without inserts 169,000 folded, with twice the room 279,000 and with
	// four times 395,000, in 5 to 7 s in place of 11.
	moreWithInserts = 4
	// MostKept is how many times their limit kept operations may come to in all:
	// the room with inserts, and once more the limit, for the batch that reaches it.
	MostKept = moreWithInserts + 1
)

// Coalesced are updates that a partition keeps back over batches while a backlog lasts, folded.
// A server pays for each version of a document that is changed often, far more than for a
// change of one that is not. Where updates mostly meet new documents, inserts are kept back
// too. It owns their bytes, so that the batches they came in do not stay in memory for them.
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

// NewCoalesced keeps about limit bytes back, with small inserts among them four times as many.
// It never keeps more than MostKept times as many, the last event aside that made an operation
// larger. With a negative limit it keeps nothing.
func NewCoalesced(limit int) *Coalesced { return &Coalesced{Batch: NewBatch(), limit: limit} }

// Join folds an event into a kept operation of its document. ok is false when
// the kept ones have to be sent first to keep the document's order.
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

// takes reports what is kept back.
func (c *Coalesced) takes(o *Op) bool {
	return o.Kind == stream.Update && !o.Upsert || o.Kind == stream.Insert && c.alone == 0 && len(o.Doc) <= smallInsert
}

// keep takes an operation over; false when another document has its hash, or there
// is no room.
func (c *Coalesced) keep(t *Target, o *Op, now time.Time) bool {
	g := c.group(t)
	if _, taken := g.index.find(o.Hash, g.Ops); taken || c.Bytes+o.size()+opOverhead > MostKept*c.limit {
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

// Split moves what is kept back out of a batch's group. The group is sent next;
// events join it no more.
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

// Due reports that the kept operations are to be sent.
func (c *Coalesced) Due(now time.Time) bool {
	limit := c.limit
	if c.inserts > 0 {
		limit *= moreWithInserts
	}
	return c.Ops > 0 && (c.Bytes >= limit || now.Sub(c.since) >= keepFor)
}

// Full reports that the kept operations have come to all they may: they are to be
// sent at once.
func (c *Coalesced) Full() bool { return c.Ops > 0 && c.Bytes >= MostKept*c.limit }

// Flush counts a flush and reports whether keeping updates back is worth it now.
func (c *Coalesced) Flush() bool {
	c.alone = max(c.alone-1, 0)
	if c.pause > 0 {
		c.pause--
		return false
	}
	return c.limit > 0
}

// Sent forgets the operations and learns from how many events met them.
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
