package mongosink

import (
	"context"
	"time"
)

const (
	// holdFor bounds how long an operation is held back, and with it how much a
	// restart replays.
	holdFor = 10 * time.Second
	// opOverhead is roughly what an operation takes in memory beside its bytes.
	opOverhead = 256
	// foldWorth is the share of updates, one in so many, that have to fold for
	// holding them back to be worth it; else it is not tried for holdPause flushes.
	foldWorth = 8
	holdPause = 64
	// insertWorth is the share of inserts that updates have to meet: an update
	// costs the target several times as much as an insert, and to hold an insert
	// back costs next to nothing.
	insertWorth = 16
	// smallInsert is up to what size in bytes inserts are held back: of larger ones
	// too few fit.
	smallInsert = 512
	// moreWithInserts is how many times as much is held with them: what folds grows
	// with the square of what is held. Of 1,000,000 operations on documents of 140
	// bytes, half of them inserts, 169,000 folded without inserts, 279,000 with twice
	// the room and 395,000 with four times, in 5 to 7 s in place of 11.
	moreWithInserts = 4
	// backlogLasts is how long one is assumed after a batch that had more behind
	// it: a source gives its entries in portions.
	backlogLasts = 300 * time.Millisecond
	// linger is how long a partition waits for more during a backlog before it
	// sends what it has.
	linger = 10 * time.Millisecond
)

// held are updates that a partition keeps back over batches while a backlog
// lasts, folded: a server pays for each version of a document that is changed
// often, far more than for a change of one that is not. Where updates mostly meet
// documents that are new, these are kept back too. They own their bytes,
// so that the batches they came in do not stay in memory for them; the
// positions of those do not count as applied before they are sent.
type held struct {
	*batch
	since   time.Time
	joined  int // events folded into updates
	inserts int // of the operations
	met     int // events folded into inserts
	pause   int // flushes until it is tried again
	alone   int // flushes until inserts are held back again
}

// join folds an event into a held update of its document. ok is false when the
// held have to be sent first to keep the document's order.
func (h *held) join(it item) (joined, ok bool, err error) {
	nb := h.ns[it.t]
	if nb == nil {
		return false, true, nil
	}
	prev, same := nb.find(it)
	if prev == nil || !same {
		return false, prev == nil, nil
	}
	next, err := newOp(it)
	if err != nil {
		return false, false, err
	}
	was, met := prev.size(), prev.kind == opInsert
	if ok, err := fold(prev, next, &h.mem); !ok || err != nil {
		return false, false, err
	}
	if !prev.owned && prev.doc != nil {
		prev.doc, prev.owned = h.mem.place(nil, prev.doc), true
	}
	h.bytes += prev.size() - was
	if met {
		h.met++
	} else {
		h.joined++
	}
	h.ack(it.seg, 1, true)
	return true, true, nil
}

// takes tells what is kept back.
func (h *held) takes(o *op) bool {
	return o.kind == opUpdate && !o.upsert || o.kind == opInsert && h.alone == 0 && len(o.doc) <= smallInsert
}

// keep takes an operation over; false when another document has its hash.
func (h *held) keep(t *target, o *op) bool {
	nb := h.namespace(t)
	if _, taken := nb.index.find(o.hash, nb.ops); taken {
		return false
	}
	if h.ops == 0 {
		h.since = time.Now()
	}
	k := *o
	k.owned, k.id.Data = true, h.mem.copy(o.id.Data)
	if o.kind == opUpdate {
		k.upd = o.upd.In(h.mem.copy(o.upd.Raw()))
	} else {
		k.doc = h.mem.copy(o.doc)
		h.inserts++
	}
	nb.add(k)
	h.ops++
	h.bytes += k.size() + opOverhead
	return true
}

// split moves what is kept back from a batch to the held.
func (h *held) split(nb *nsBatch) {
	now := nb.ops[:0]
	for i := range nb.ops {
		if o := &nb.ops[i]; !h.takes(o) || !h.keep(nb.t, o) {
			now = append(now, *o)
		}
	}
	clear(nb.ops[len(now):])
	nb.ops = now
}

// due tells that the held are to be sent.
func (h *held) due(limit int) bool {
	if h.inserts > 0 {
		limit *= moreWithInserts
	}
	return h.ops > 0 && (h.bytes >= limit || time.Since(h.since) >= holdFor)
}

// sent forgets them.
func (h *held) sent() {
	if h.ops > 0 {
		inserts := h.met*insertWorth > h.inserts
		if h.inserts > 0 && !inserts {
			h.alone = holdPause
		}
		if !inserts && h.joined*foldWorth < h.ops-h.inserts {
			h.pause = holdPause
		}
	}
	h.joined, h.met, h.inserts = 0, 0, 0
	h.reset()
}

// backlogged tells whether the target is behind the source.
func (e *Engine) backlogged() bool { return int64(time.Since(e.began)) < e.behind.Load() }

// holding tells whether updates are to be held back now.
func (w *worker) holding() bool {
	w.held.alone = max(w.held.alone-1, 0)
	if w.held.pause > 0 {
		w.held.pause--
		return false
	}
	return w.e.o.HoldBytes > 0 && w.e.backlogged() && w.parked.len() == 0
}

// await waits for the next message, or until what the partition has in hand is
// to be sent: during a backlog a little later than at once.
func (w *worker) await(ctx context.Context) (m message, ok bool, err error) {
	select {
	case m = <-w.in:
		return m, true, nil
	default:
	}
	if w.b.empty() && w.held.empty() {
		if !w.e.backlogged() {
			w.b.mem.trim()
			w.held.mem.trim()
		}
		select {
		case m = <-w.in:
			return m, true, nil
		case <-ctx.Done():
			return m, false, context.Cause(ctx)
		}
	}
	if !w.e.backlogged() {
		return m, false, nil
	}
	w.timer.Reset(linger)
	defer w.timer.Stop()
	select {
	case m = <-w.in:
		return m, true, nil
	case <-w.timer.C:
		return m, false, nil
	case <-ctx.Done():
		return m, false, context.Cause(ctx)
	}
}
