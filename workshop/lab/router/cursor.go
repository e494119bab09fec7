package router

import (
	"cmp"
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

const (
	// cursorTimeout is the servers' default for cursors that nobody uses.
	cursorTimeout = 10 * time.Minute
	// firstBatch is how many documents come first if the client does not say.
	firstBatch = 101
	// maxBatch bounds a batch in bytes.
	maxBatch = 16 << 20
)

// cursor merges the cursors of several shards, or passes on that of one. One
// command uses it at a time.
type cursor struct {
	id      int64
	db      string
	coll    string // as the client knows it
	from    string // as the shards know it, "" for the same
	lsid    bson.RawValue
	remotes []*remote
	order   []int         // direction of each part of the sort key; nil: as they come
	at      bson.RawValue // the time of a snapshot read, which clients use for the next
	skip    int64         // documents still to be left out
	limit   int64         // documents still to be given, -1 for all

	used time.Time
}

// remote is a cursor on a shard.
type remote struct {
	shard string
	addr  string
	id    int64 // 0 when there is no more to fetch
	buf   []bson.Raw
}

// cursors are those that clients have open.
type cursors struct {
	mu  sync.Mutex
	all map[int64]*cursor
}

func newCursors() *cursors { return &cursors{all: map[int64]*cursor{}} }

// keep gives a cursor an id.
func (cs *cursors) keep(c *cursor) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c.used = time.Now()
	for c.id == 0 || cs.all[c.id] != nil {
		c.id = rand.Int64()
	}
	cs.all[c.id] = c
}

// take takes a cursor out, so that nobody else uses it.
func (cs *cursors) take(id int64) *cursor {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.all[id]
	delete(cs.all, id)
	return c
}

// idle takes out what nobody has used for long.
func (cs *cursors) idle(now time.Time) []*cursor {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	var old []*cursor
	for id, c := range cs.all {
		if now.Sub(c.used) > cursorTimeout {
			old = append(old, c)
			delete(cs.all, id)
		}
	}
	return old
}

// done reports that there is nothing more to give.
func (c *cursor) done() bool {
	if c.limit == 0 {
		return true
	}
	for _, r := range c.remotes {
		if r.id != 0 || len(r.buf) > 0 {
			return false
		}
	}
	return true
}

// next gives up to n documents, or as many as are at hand when n is negative. It
// fetches more only when it has none.
func (c *cursor) next(ctx context.Context, cl *call, n int64) ([]bson.Raw, error) {
	var docs []bson.Raw
	for size := 0; n < 0 || int64(len(docs)) < n; {
		if c.limit == 0 {
			break
		}
		r, err := c.pick(ctx, cl, n, len(docs) == 0)
		if err != nil {
			return nil, err
		}
		if r == nil || size+len(r.buf[0]) > maxBatch && len(docs) > 0 {
			break
		}
		doc := r.buf[0]
		r.buf = r.buf[1:]
		if c.skip > 0 {
			c.skip--
			continue
		}
		if c.order != nil {
			doc = withoutSortKey(doc)
		}
		if c.limit > 0 {
			c.limit--
		}
		size += len(doc)
		docs = append(docs, doc)
	}
	return docs, nil
}

// pick finds the shard whose document comes next; nil when there is none, or none
// at hand and none may be fetched.
func (c *cursor) pick(ctx context.Context, cl *call, n int64, fetch bool) (*remote, error) {
	if c.order != nil {
		return c.lowest(ctx, cl, n)
	}
	for {
		var live *remote
		for _, r := range c.remotes {
			if len(r.buf) > 0 {
				return r, nil
			}
			if r.id != 0 && live == nil {
				live = r
			}
		}
		if live == nil || !fetch {
			return nil, nil
		}
		if err := c.fetch(ctx, cl, live, n); err != nil {
			return nil, err
		}
	}
}

// lowest finds the shard whose document is the lowest in the order.
func (c *cursor) lowest(ctx context.Context, cl *call, n int64) (*remote, error) {
	var best *remote
	for _, r := range c.remotes {
		for len(r.buf) == 0 && r.id != 0 {
			if err := c.fetch(ctx, cl, r, n); err != nil {
				return nil, err
			}
		}
		if len(r.buf) > 0 && (best == nil || c.compare(r.buf[0], best.buf[0]) < 0) {
			best = r
		}
	}
	return best, nil
}

// source is what the cursor reads, as the shards know it.
func (c *cursor) source() string { return cmp.Or(c.from, c.coll) }

// fetch gets a shard's next batch.
func (c *cursor) fetch(ctx context.Context, cl *call, r *remote, n int64) error {
	cmd := bson.D{{Key: "getMore", Value: r.id}, {Key: "collection", Value: c.source()}}
	if n >= 0 {
		cmd = append(cmd, bson.E{Key: "batchSize", Value: max(n, 1)})
	}
	reply, _, err := cl.send(ctx, r.shard, sending{db: c.db, cmd: cmd, sel: byAddress(r.addr)})
	if err != nil {
		return err
	}
	docs, id, ok := readBatch(bson.Raw(reply))
	if !ok {
		return errMalformed
	}
	r.buf, r.id = docs, id
	return nil
}

// kill ends the cursors on the shards.
func (c *cursor) kill(ctx context.Context, u *upstream) {
	for _, r := range c.remotes {
		n, err := u.shard(ctx, r.shard)
		if r.id == 0 || err != nil {
			continue
		}
		cmd := bson.D{{Key: "killCursors", Value: c.source()}, {Key: "cursors", Value: bson.A{r.id}}}
		if c.lsid.Type != 0 {
			cmd = append(cmd, bson.E{Key: "lsid", Value: c.lsid})
		}
		// One that lives on is ended by the server's own timeout.
		_, _, _ = n.run(ctx, sending{db: c.db, cmd: cmd, sel: byAddress(r.addr)})
	}
}
