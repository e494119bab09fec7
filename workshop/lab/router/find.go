package router

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/shardkey"
	"github.com/millrace/millrace/internal/wire"
)

func find(ctx context.Context, c *call) (bson.D, error) {
	filter, _ := get(c.cmd, "filter").DocumentOK()
	collation, _ := get(c.cmd, "collation").DocumentOK()
	if get(c.cmd, "tailable").Type != 0 && truth(get(c.cmd, "tailable")) {
		return nil, unsupported("tailable cursors")
	}
	var cur *cursor
	err := c.routed(ctx, c.coll, func(t *table) (err error) {
		cur = c.cursor(c.coll)
		if !t.db.exists {
			return nil
		}
		shards := t.shardsFor(filter, collation)
		cmd := c.cmd
		if len(shards) > 1 {
			cmd = c.forSeveral(cur)
		}
		return c.open(ctx, t, cur, shards, cmd)
	})
	if view, ok := viewOf(err); ok {
		return c.findOnView(ctx, view)
	}
	return c.first(ctx, cur, err)
}

// forSeveral is a find for several shards: as many documents as could be needed of each, with sort keys.
func (c *call) forSeveral(cur *cursor) bson.D {
	limit, skip := number(get(c.cmd, "limit")), number(get(c.cmd, "skip"))
	cmd := without(c.cmd, "skip", "limit", "singleBatch", "projection")
	cur.skip = skip
	if limit != 0 {
		cur.limit = limit
		cmd = append(cmd, bson.E{Key: "limit", Value: limit + skip})
	}
	projection := bson.D{}
	if p, ok := get(c.cmd, "projection").DocumentOK(); ok {
		projection = fields(p)
	}
	if sort, ok := get(c.cmd, "sort").DocumentOK(); ok {
		if cur.order = directions(sort); cur.order != nil {
			projection = append(projection, bson.E{Key: sortKey, Value: bson.D{{Key: "$meta", Value: "sortKey"}}})
		}
	}
	if len(projection) > 0 {
		cmd = append(cmd, bson.E{Key: "projection", Value: projection})
	}
	return pinned(cmd, c.r.clock)
}

// pinned gives a snapshot read of several shards one time for all.
func pinned(cmd bson.D, clock *clock) bson.D {
	concern, ok := get(cmd, "readConcern").DocumentOK()
	if !ok {
		return cmd
	}
	return with(cmd, "readConcern", pinnedConcern(concern, clock))
}

// pinnedConcern is a read concern at one time if it is one for snapshots.
func pinnedConcern(concern bson.Raw, clock *clock) bson.RawValue {
	at, _ := clock.now()
	if text(concern.Lookup("level")) == "snapshot" && concern.Lookup("atClusterTime").Type == 0 && !at.IsZero() {
		return rawValue(append(without(fields(concern), "afterClusterTime"), bson.E{Key: "atClusterTime", Value: at}))
	}
	return rawValue(concern)
}

// cursor is one for the client, with all that its shards will give.
func (c *call) cursor(coll string) *cursor {
	return &cursor{db: c.db, coll: coll, lsid: c.lsid, limit: -1}
}

// open opens the cursors of a read on all shards, or on none.
func (c *call) open(ctx context.Context, t *table, cur *cursor, shards []string, cmd bson.D) error {
	return c.openAt(ctx, cur, shards,
		func(shard string) bson.D { return append(without(cmd), c.r.features.stamp(t, shard)...) })
}

// openAt is open with a command for each shard, in the cursor's database.
func (c *call) openAt(ctx context.Context, cur *cursor, shards []string, cmd func(shard string) bson.D) error {
	cur.remotes = make([]*remote, len(shards))
	err := each(shards, func(i int, shard string) error {
		cur.remotes[i] = &remote{shard: shard}
		reply, addr, err := c.send(ctx, shard, sending{db: cur.db, cmd: cmd(shard), sel: c.sel})
		if err != nil {
			return err
		}
		docs, id, ok := readBatch(bson.Raw(reply))
		if !ok {
			return errMalformed
		}
		*cur.remotes[i] = remote{shard: shard, addr: addr, id: id, buf: docs}
		if i == 0 {
			cur.at = bson.Raw(reply).Lookup("cursor", "atClusterTime")
		}
		return nil
	})
	if err != nil && c.txn == nil {
		cur.kill(ctx, c.r.upstream)
	}
	return err
}

// first gives a cursor's first batch, and keeps it if there is more.
func (c *call) first(ctx context.Context, cur *cursor, err error) (bson.D, error) {
	if err != nil {
		return nil, err
	}
	n := int64(-1) // as many as the one shard gave
	if len(cur.remotes) != 1 || cur.remotes[0].id == 0 {
		n = c.batchSize()
	}
	docs, err := cur.next(ctx, c, n)
	if err != nil {
		cur.kill(ctx, c.r.upstream)
		return nil, err
	}
	if truth(get(c.cmd, "singleBatch")) {
		cur.limit = 0
	}
	return cursorReply(cur, "firstBatch", c.settle(ctx, cur), docs), nil
}

// batchSize is how many documents the client wants at first.
func (c *call) batchSize() int64 {
	size := get(c.cmd, "batchSize")
	if options, ok := get(c.cmd, "cursor").DocumentOK(); ok {
		size = options.Lookup("batchSize")
	}
	if size.Type == 0 {
		return firstBatch
	}
	return number(size)
}

// settle keeps a cursor that has more to give, and ends one that has not. It returns the id for the client.
func (c *call) settle(ctx context.Context, cur *cursor) int64 {
	if cur.done() {
		cur.kill(ctx, c.r.upstream)
		return 0
	}
	c.r.cursors.keep(cur)
	return cur.id
}

func getMore(ctx context.Context, c *call) (bson.D, error) {
	id := number(get(c.cmd, "getMore"))
	coll := text(get(c.cmd, "collection"))
	cur := c.r.cursors.use(id)
	defer func() {
		if dead := c.r.cursors.release(id); dead != nil {
			dead.kill(ctx, c.r.upstream)
		}
	}()
	if cur == nil || cur.coll != coll || cur.db != c.db {
		if cur != nil {
			c.r.cursors.keep(cur)
		}
		return nil, fail(codeCursorNotFound, "CursorNotFound", "cursor id %d not found", id)
	}
	n := int64(-1)
	if v := get(c.cmd, "batchSize"); v.Type != 0 && number(v) > 0 {
		n = number(v)
	}
	if cur.changes != nil {
		return c.moreChanges(ctx, cur, n)
	}
	docs, err := cur.next(ctx, c, n)
	if err != nil {
		cur.kill(ctx, c.r.upstream)
		return nil, err
	}
	return cursorReply(cur, "nextBatch", c.settle(ctx, cur), docs), nil
}

func killCursors(ctx context.Context, c *call) (bson.D, error) {
	killed, missing := bson.A{}, bson.A{}
	ids, _ := get(c.cmd, "cursors").ArrayOK()
	values, err := ids.Values()
	if err != nil {
		return nil, fail(codeFailedToParse, "FailedToParse", "killCursors: %v", err)
	}
	for _, v := range values {
		id := number(v)
		cur := c.r.cursors.take(id)
		switch {
		case cur != nil:
			cur.kill(ctx, c.r.upstream)
			killed = append(killed, id)
		case c.r.cursors.doom(id):
			killed = append(killed, id)
		default:
			missing = append(missing, id)
		}
	}
	return bson.D{{Key: "cursorsKilled", Value: killed}, {Key: "cursorsNotFound", Value: missing},
		{Key: "cursorsAlive", Value: bson.A{}}, {Key: "cursorsUnknown", Value: bson.A{}}}, nil
}

const (
	cursorTimeout = 10 * time.Minute // the servers' default for unused cursors
	firstBatch    = 101              // how many documents come first if the client does not say.
	maxBatch      = 16 << 20         // maxBatch bounds a batch in bytes.
)

// cursor merges the cursors of several shards, or passes on that of one. One command uses it at a time.
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
	changes *changes      // of a change stream, instead of remotes; nil for others

	used time.Time
}

type remote struct {
	shard string
	addr  string
	id    int64 // 0 when there is no more to fetch
	buf   []bson.Raw
}

type cursors struct {
	mu   sync.Mutex
	all  map[int64]*cursor
	busy map[int64]bool // that a command uses; true for those to be killed then
}

// use takes a cursor for a command, which has to call release.
func (cs *cursors) use(id int64) *cursor {
	c := cs.take(id)
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if c != nil {
		cs.busy[id] = false
	}
	return c
}

// release ends the use of a cursor, and takes it to be killed if that was wanted meanwhile.
func (cs *cursors) release(id int64) *cursor {
	cs.mu.Lock()
	doomed := cs.busy[id]
	delete(cs.busy, id)
	cs.mu.Unlock()
	if !doomed {
		return nil
	}
	return cs.take(id)
}

// doom has a cursor killed once the command that uses it is done; false when none does.
func (cs *cursors) doom(id int64) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	_, used := cs.busy[id]
	if used {
		cs.busy[id] = true
	}
	return used
}

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

// take removes a cursor, so that no other command uses it.
func (cs *cursors) take(id int64) *cursor {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.all[id]
	delete(cs.all, id)
	return c
}

// idle removes and returns cursors unused for cursorTimeout.
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
	if c.changes != nil {
		return c.changes.ended
	}
	return c.limit == 0 || !slices.ContainsFunc(c.remotes, func(r *remote) bool { return r.id != 0 || len(r.buf) > 0 })
}

// next returns up to n documents, or those at hand when n is negative. It fetches only when it has none.
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

// pick finds the shard whose document comes next; nil when there is none, or none at hand and none may be fetched.
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

// killTime bounds the end of a cursor on all shards.
const killTime = 5 * time.Second

// source is what the cursor reads, as the shards know it.
func (c *cursor) source() string { return cmp.Or(c.from, c.coll) }

func (c *cursor) fetch(ctx context.Context, cl *call, r *remote, n int64) error {
	cmd := bson.D{{Key: "getMore", Value: r.id}, {Key: "collection", Value: c.source()}}
	if n >= 0 {
		cmd = append(cmd, bson.E{Key: "batchSize", Value: max(n, 1)})
	}
	reply, _, err := cl.send(ctx, r.shard, sending{db: c.db, cmd: cmd, sel: wire.ByAddress(r.addr)})
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

// kill also ends the cursors of a client that has gone: one that stays open keeps a shard from deleting orphans.
func (c *cursor) kill(ctx context.Context, u *upstream) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
	defer cancel()
	if c.changes != nil {
		_ = together(c.changes.feeds, func(f *feed) error {
			f.kill(ctx, c.lsid)
			return nil
		})
	}
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
		_, _, _ = n.run(ctx, sending{db: c.db, cmd: cmd, sel: wire.ByAddress(r.addr)})
	}
}

// gather sends a read to all shards that may have matches; no replies without the database.
func (c *call) gather(ctx context.Context, filter bson.Raw, make func(shards int) bson.D) ([]bson.Raw, error) {
	collation, _ := get(c.cmd, "collation").DocumentOK()
	var replies []bson.Raw
	err := c.routed(ctx, c.coll, func(t *table) (err error) {
		if !t.db.exists {
			return nil
		}
		shards := t.shardsFor(filter, collation)
		cmd := make(len(shards))
		replies, err = c.askAll(ctx, shards, c.db,
			func(shard string) bson.D { return append(without(cmd), c.r.features.stamp(t, shard)...) })
		return err
	})
	return replies, err
}

// askAll sends each shard a command and returns their replies in the order of the shards.
func (c *call) askAll(ctx context.Context, shards []string, db string, cmd func(shard string) bson.D) ([]bson.Raw,
	error) {
	replies := make([]bson.Raw, len(shards))
	return replies, each(shards, func(i int, shard string) error {
		reply, _, err := c.send(ctx, shard, sending{db: db, cmd: cmd(shard), sel: c.sel})
		replies[i] = bson.Raw(reply)
		return err
	})
}

// count adds the shards' counts. Like that of a mongos it counts orphans too.
func count(ctx context.Context, c *call) (bson.D, error) {
	q, _ := get(c.cmd, "query").DocumentOK()
	limit, skip := number(get(c.cmd, "limit")), number(get(c.cmd, "skip"))
	limit = max(limit, -limit)
	several := false
	replies, err := c.gather(ctx, q, func(shards int) bson.D {
		if several = shards > 1; !several {
			return c.cmd
		}
		cmd := without(c.cmd, "skip", "limit")
		if limit != 0 {
			cmd = append(cmd, bson.E{Key: "limit", Value: limit + skip})
		}
		return cmd
	})
	if view, ok := viewOf(err); ok {
		return c.countOnView(ctx, view)
	}
	if err != nil {
		return nil, err
	}
	n := int64(0)
	for _, r := range replies {
		n += number(r.Lookup("n"))
	}
	if several {
		if n = max(0, n-skip); limit != 0 {
			n = min(n, limit)
		}
	}
	return bson.D{{Key: "n", Value: n}}, nil
}

func distinct(ctx context.Context, c *call) (bson.D, error) {
	q, _ := get(c.cmd, "query").DocumentOK()
	replies, err := c.gather(ctx, q, func(int) bson.D { return c.cmd })
	if err != nil {
		return nil, err
	}
	found := []bson.RawValue{}
	for _, r := range replies {
		list, _ := r.Lookup("values").ArrayOK()
		found = append(found, values(list)...)
	}
	if len(replies) > 1 {
		slices.SortStableFunc(found, shardkey.Compare)
		found = slices.CompactFunc(found, func(a, b bson.RawValue) bool { return shardkey.Compare(a, b) == 0 })
	}
	return bson.D{{Key: "values", Value: found}}, nil
}
