package router

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/wire"
)

// A change stream over all shards. Each shard is asked as a mongos asks it (fromMongos, needsMerge). It then takes
// tokens that another shard has given, and shows the event of the token itself. It leaves documents and images to the
// router. Shards leave out what migrations write and what removes orphans.
//
// A change is given when no shard can have an earlier one: the postBatchResumeToken of each is past it. For this order
// "mongos checks with each shard" (manual, Change Streams Production Recommendations). There an idle shard advances
// only by the entry that it writes every ten seconds (periodicNoopIntervalSecs). This router instead writes an entry
// (appendOplogNote) to a shard that others wait for.
//
// Schema changes come once for each shard that has made them, at different times, and are not joined. Until 6.3 so do
// those of a mongos: "every shard participating in the DDL is currently adding an internal {op: drop} event to its
// oplog" (SERVER-71085). Two shards may make one at the same time, and give it the same token (SERVER-42008,
// SERVER-34554). "If the stream is interrupted and resumed on the first of the identical events, the subsequent
// identical events will be skipped" (SERVER-90023). The first drop of a watched collection invalidates the stream. A
// stream that starts after that shows the drops of the other shards without an invalidation (SERVER-61933).
//
// A transaction over shards comes in a part of each, at the time of that shard's commit.

// changes are the change streams of all shards, merged by their tokens. One command uses them at a time.
type changes struct {
	cmd    bson.D     // what opens the stream of a shard, but for the stages and where it starts
	client []bson.Raw // the client's own stages
	stages bson.A     // the same for the shards
	spec   bson.D     // of $changeStream, without where it starts
	feeds  []*feed    // of the shards, and of config.shards
	lookup bool       // updates are shown with the document as it is now
	resume string     // token of the event after which the stream starts, which has to come first; "" after it
	found  bool       // it has come
	last   bson.Raw   // the token of what was given last; nil before
	ended  bool       // invalidated
	await  time.Duration
}

// feed is the change stream of one shard, or that of the config servers for shards that join and leave.
type feed struct {
	remote
	node    *node
	db      string
	coll    string
	heads   []string // tokens of what is in buf
	seen    string   // no later event comes before this token
	token   bson.Raw // seen, as a document
	idle    bool     // the last reply was empty
	fetched time.Time
}

const (
	newShard = "kNewShardDetected" // what a shard says before the first chunk of a collection goes to another shard

	// awaitChanges is how long a server waits for changes when the client does not say.
	awaitChanges = time.Second
	// A shard is waited for between leastAwait and mostAwait, longer each time, as another one may have changes before.
	leastAwait = 4 * time.Millisecond
	mostAwait  = 100 * time.Millisecond
	// keepAlive keeps the cursors of shards that have nothing to give for long.
	keepAlive = time.Minute
)

// watch opens a change stream. The first batch is empty, as the shards have not looked yet.
func (c *call) watch(ctx context.Context, stages []bson.Raw) (bson.D, error) {
	w, start, err := c.newChanges(stages)
	if err != nil {
		return nil, err
	}
	cur := c.cursor(cmp.Or(c.coll, "$cmd.aggregate"))
	cur.changes = w
	if err = w.openAll(ctx, c, start); err != nil {
		cur.kill(ctx, c.r.upstream)
		return nil, err
	}
	return cursorReply(cur, "firstBatch", c.settle(ctx, cur), nil), nil
}

// newChanges reads the pipeline of a change stream, and where the stream starts.
func (c *call) newChanges(stages []bson.Raw) (w *changes, start bson.E, err error) {
	spec, ok := stageValue(stages[0]).DocumentOK()
	if !ok {
		return nil, start, fail(50808, "Location50808", "$changeStream stage expects a document as argument")
	}
	if truth(get(c.cmd, "explain")) {
		return nil, start, unsupported("explain of a change stream")
	}
	w = &changes{}
	for _, e := range fields(spec) {
		v, _ := e.Value.(bson.RawValue)
		switch e.Key {
		case "resumeAfter", "startAfter":
			token, _ := v.DocumentOK()
			if data := text(token.Lookup("_data")); ofEvent(data) {
				w.resume = data
			}
			start = e
		case "startAtOperationTime":
			start = e
		case "fullDocument", "fullDocumentBeforeChange":
			if mode := text(v); mode == "whenAvailable" || mode == "required" {
				return nil, start, unsupported("a change stream with " + e.Key + " " + mode)
			}
			w.lookup = w.lookup || text(v) == "updateLookup"
			w.spec = append(w.spec, e)
		default:
			w.spec = append(w.spec, e)
		}
	}
	if start.Key == "" { // all shards start at the same time
		at, _ := c.r.clock.now()
		start = bson.E{Key: "startAtOperationTime", Value: bson.Timestamp{T: at.T, I: at.I + 1}}
	}
	for _, s := range stages[1:] {
		if w.lookup && bytes.Contains(s, []byte("fullDocument")) {
			return nil, start, unsupported("a stage that reads what a change stream looks up")
		}
	}
	w.client = stages[1:]
	w.cmd = with(without(c.cmd, "pipeline"), "cursor", bson.D{{Key: "batchSize", Value: 0}})
	w.cmd = append(w.cmd, bson.E{Key: "fromMongos", Value: true}, bson.E{Key: "needsMerge", Value: true})
	return w, start, nil
}

// prepare makes the client's stages show the event after which the stream starts, which the router looks for. Where the
// config servers say which shards join, shards need not; else the client's filters have to show that, too.
func (w *changes) prepare(joins bool) {
	if joins && len(w.client) > 0 {
		w.stages = bson.A{bson.D{{Key: "$match", Value: bson.D{
			{Key: "operationType", Value: bson.D{{Key: "$ne", Value: newShard}}}}}}}
	}
	for _, s := range w.client {
		if stageName(s) != "$match" {
			w.stages = append(w.stages, s)
			continue
		}
		or := bson.A{stageValue(s)}
		if !joins {
			or = append(or, bson.D{{Key: "operationType", Value: newShard}})
		}
		if w.resume != "" {
			or = append(or, bson.D{{Key: "_id._data", Value: w.resume}})
		}
		w.stages = append(w.stages, bson.D{{Key: "$match", Value: bson.D{{Key: "$or", Value: or}}}})
	}
}

// ofEvent reports the token of an event, which unlike that of a time alone has to be found again. Behind the time it
// has a version and then the kind, 128 for an event, as a server encodes index keys.
func ofEvent(token string) bool {
	const kind = len("82") + 16 + len("2B02")
	return len(token) > kind && strings.HasPrefix(token[kind:], "2C0100")
}

// openAll opens the streams of all shards, and that of shards to come where the servers have it (4.4 does not).
func (w *changes) openAll(ctx context.Context, c *call, start bson.E) error {
	spec := bson.D{start, {Key: "allowToRunOnConfigDB", Value: true}}
	f := &feed{remote: remote{shard: configName}, node: c.r.upstream.config, db: "config", coll: "shards"}
	cmd := with(w.cmd, "aggregate", "shards")
	cmd = append(cmd, bson.E{Key: "pipeline", Value: bson.A{bson.D{{Key: "$changeStream", Value: spec}}}})
	err := f.open(ctx, c, cmd)
	if err == nil {
		w.feeds = append(w.feeds, f)
	} else if codeOf(err) != 40415 && codeOf(err) != 73 { // unknown field, or not for this database
		return err
	}
	w.prepare(err == nil)
	return w.openShards(ctx, c, start)
}

// openShards opens the streams of all shards that have none yet.
func (w *changes) openShards(ctx context.Context, c *call, start bson.E) error {
	if err := c.r.upstream.refresh(ctx); err != nil {
		return err
	}
	var added []*feed
	for _, name := range c.r.upstream.names() {
		if slices.ContainsFunc(w.feeds, func(f *feed) bool { return f.shard == name }) {
			continue
		}
		n, err := c.r.upstream.shard(ctx, name)
		if err != nil {
			return err
		}
		added = append(added,
			&feed{remote: remote{shard: name}, node: n, db: c.db, coll: cmp.Or(c.coll, "$cmd.aggregate")})
	}
	spec := append(bson.D{start}, w.spec...)
	cmd := append(without(w.cmd), bson.E{Key: "pipeline",
		Value: append(bson.A{bson.D{{Key: "$changeStream", Value: spec}}}, w.stages...)})
	w.feeds = append(w.feeds, added...)
	return together(added, func(f *feed) error { return f.open(ctx, c, cmd) })
}

// together does something for several feeds side by side.
func together(feeds []*feed, do func(*feed) error) error {
	names := make([]string, len(feeds))
	if len(feeds) == 0 {
		return nil
	}
	return each(names, func(i int, _ string) error { return do(feeds[i]) })
}

func (f *feed) open(ctx context.Context, c *call, cmd bson.D) error {
	reply, addr, err := c.sendTo(ctx, f.node, sending{db: f.db, cmd: cmd, sel: c.sel})
	if err != nil {
		return err
	}
	f.addr = addr
	return f.take(bson.Raw(reply))
}

// take takes a reply's changes and the token up to which they are all.
func (f *feed) take(reply bson.Raw) error {
	docs, id, ok := readBatch(reply)
	token, hasToken := reply.Lookup("cursor", "postBatchResumeToken").DocumentOK()
	if !ok || !hasToken {
		return errMalformed
	}
	f.id, f.buf, f.heads = id, docs, f.heads[:0]
	for _, d := range docs {
		key, ok := mergeKey(d)
		if !ok {
			return fail(280, "ChangeStreamFatalError", "the pipeline has modified the _id of an event")
		}
		f.heads = append(f.heads, key)
	}
	f.idle, f.fetched, f.token, f.seen = len(docs) == 0, time.Now(), token, text(token.Lookup("_data"))
	return nil
}

// mergeKey is the token by which a shard wants an event sorted: the first of several parts, the only one for 4.4.
func mergeKey(event bson.Raw) (string, bool) {
	e, ok := bsonraw.Field(event, sortKey)
	if !ok {
		return "", false
	}
	first := valueOf(firstField(e.Value))
	if doc, ok := first.DocumentOK(); ok {
		first = doc.Lookup("_data")
	}
	return first.StringValueOK()
}

// moreChanges gives the next changes, and waits for some as long as the client wants.
func (c *call) moreChanges(ctx context.Context, cur *cursor, most int64) (bson.D, error) {
	wait := awaitChanges
	if ms := number(get(c.cmd, "maxTimeMS")); ms > 0 {
		wait = time.Duration(ms) * time.Millisecond
	}
	docs, err := cur.changes.next(ctx, c, most, time.Now().Add(wait))
	if err != nil {
		cur.kill(ctx, c.r.upstream)
		return nil, resumable(err)
	}
	return cursorReply(cur, "nextBatch", c.settle(ctx, cur), docs), nil
}

// resumable adds the label by which drivers open the stream once more (specification on change streams). Servers
// label their own errors.
func resumable(err error) error {
	if rawOf(err) != nil || !isPassing(err) {
		return err
	}
	return &cmdError{code: 6, name: "HostUnreachable", msg: err.Error(), labels: []string{"ResumableChangeStreamError"}}
}

// next returns up to so many changes, or all at hand for less than 0. It waits for one until a time.
func (w *changes) next(ctx context.Context, c *call, most int64, until time.Time) ([]bson.Raw, error) {
	for first := true; ; first = false {
		docs, err := w.ready(ctx, c, most)
		if err != nil || len(docs) > 0 || w.ended || !first && !time.Now().Before(until) {
			return docs, err
		}
		if err := w.fill(ctx, c, until); err != nil {
			return nil, err
		}
	}
}

// ready takes the changes that no shard can have an earlier one than.
func (w *changes) ready(ctx context.Context, c *call, most int64) (docs []bson.Raw, err error) {
	for size := 0; (most < 0 || int64(len(docs)) < most) && !w.ended; {
		f, safe := w.lowest(), w.safe()
		if f == nil || f.heads[0] > safe.seen {
			w.ended = safe.id == 0 && len(safe.heads) == 0 // by an invalidate that the client's stages have removed
			break
		}
		doc, key := f.buf[0], f.heads[0]
		if size += len(doc); size > maxBatch && len(docs) > 0 {
			break
		}
		f.buf, f.heads = f.buf[1:], f.heads[1:]
		kind := text(doc.Lookup("operationType"))
		if f.shard == configName || kind == newShard {
			if err := w.shardsChanged(ctx, c, doc); err != nil {
				return nil, err
			}
			continue
		}
		if given, err := w.resumed(key, doc); given || err != nil {
			if err != nil {
				return nil, err
			}
			continue
		}
		if doc = withoutSortKey(doc); w.lookup && kind == "update" {
			if doc, err = c.withDocument(ctx, doc); err != nil {
				return nil, err
			}
		}
		w.last, _ = doc.Lookup("_id").DocumentOK()
		w.ended = kind == "invalidate"
		docs = append(docs, doc)
	}
	return docs, nil
}

// resumed reports the event after which the stream was to start, which the client has. It must be the first. Others
// with its token are taken for it: an invalidation that two shards have made at the same time must not come again.
func (w *changes) resumed(key string, event bson.Raw) (bool, error) {
	switch {
	case w.resume == "":
		return false, nil
	case key == w.resume:
		w.found = true
		return true, nil
	case !w.found:
		return false, fail(280, "ChangeStreamFatalError",
			"cannot resume stream; the resume token was not found. %s", event.Lookup("_id"))
	}
	w.resume = ""
	return false, nil
}

// lowest is the feed with the earliest change; nil when there is none at hand.
func (w *changes) lowest() (best *feed) {
	for _, f := range w.feeds {
		if len(f.heads) > 0 && (best == nil || f.heads[0] < best.heads[0]) {
			best = f
		}
	}
	return best
}

// safe is the feed that has come the least far.
func (w *changes) safe() *feed {
	return slices.MinFunc(w.feeds, func(a, b *feed) int { return strings.Compare(a.seen, b.seen) })
}

// shardsChanged opens the streams of shards that have joined by a change, and ends that of one that was removed.
func (w *changes) shardsChanged(ctx context.Context, c *call, event bson.Raw) error {
	t, i, _ := event.Lookup("clusterTime").TimestampOK()
	if text(event.Lookup("operationType")) == "delete" {
		name := text(event.Lookup("documentKey", "_id"))
		w.feeds = slices.DeleteFunc(w.feeds, func(f *feed) bool {
			if f.shard == name {
				f.kill(ctx, c.lsid)
			}
			return f.shard == name
		})
		return nil
	}
	return w.openShards(ctx, c, bson.E{Key: "startAtOperationTime", Value: bson.Timestamp{T: t, I: i}})
}

// fill asks the shards that have nothing at hand. If a change waits for them, they are not waited for.
func (w *changes) fill(ctx context.Context, c *call, until time.Time) error {
	w.await = min(max(2*w.await, leastAwait), mostAwait)
	wait, head := min(w.await, time.Until(until)), ""
	if f := w.lowest(); f != nil {
		wait, head, w.await = time.Millisecond, f.heads[0], 0
	}
	var ask []*feed
	for _, f := range w.feeds {
		if len(f.heads) == 0 && (head == "" || f.seen < head || time.Since(f.fetched) > keepAlive) {
			ask = append(ask, f)
		}
	}
	return together(ask, func(f *feed) error {
		switch {
		case f.idle && head != "":
			f.node.advance(ctx, waitedFor)
		case f.idle && f.behind(c.r.clock):
			f.node.advance(ctx, nobodyWaits)
		}
		return f.fetch(ctx, c, wait)
	})
}

// behind reports a shard of which the stream has not come to the present, as nobody writes there.
func (f *feed) behind(k *clock) bool {
	now, _ := k.now()
	return f.seen < fmt.Sprintf("82%08X%08X", now.T, now.I)
}

func (f *feed) fetch(ctx context.Context, c *call, wait time.Duration) error {
	cmd := bson.D{{Key: "getMore", Value: f.id}, {Key: "collection", Value: f.coll},
		{Key: "maxTimeMS", Value: max(wait.Milliseconds(), 1)}}
	reply, _, err := c.sendTo(ctx, f.node, sending{db: f.db, cmd: cmd, sel: wire.ByAddress(f.addr)})
	if err != nil {
		return err
	}
	return f.take(bson.Raw(reply))
}

// kill ends a shard's cursor. One that lives on is ended by the server's own timeout.
func (f *feed) kill(ctx context.Context, lsid bson.RawValue) {
	if f.id == 0 {
		return
	}
	cmd := bson.D{{Key: "killCursors", Value: f.coll}, {Key: "cursors", Value: bson.A{f.id}}}
	if lsid.Type != 0 {
		cmd = append(cmd, bson.E{Key: "lsid", Value: lsid})
	}
	_, _, _ = f.node.run(ctx, sending{db: f.db, cmd: cmd, sel: wire.ByAddress(f.addr)})
}

// token is where a client may resume: after what was given last if more is at hand, else where no shard is before.
func (w *changes) token() bson.Raw {
	safe, low := w.safe(), w.lowest()
	if w.last == nil {
		return safe.token
	}
	if last := text(w.last.Lookup("_data")); w.ended || last > safe.seen || low != nil && low.heads[0] <= safe.seen {
		return w.last
	}
	return safe.token
}

// withDocument is an update's event with the document as it is now, null when there is none, which a mongos looks up.
func (c *call) withDocument(ctx context.Context, event bson.Raw) (bson.Raw, error) {
	key, _ := event.Lookup("documentKey").DocumentOK()
	filter := bson.D{}
	for _, e := range fields(key) {
		filter = append(filter, bson.E{Key: e.Key, Value: bson.D{{Key: "$eq", Value: e.Value}}})
	}
	coll := event.Lookup("ns", "coll")
	one := &call{r: c.r, client: c.client, db: text(event.Lookup("ns", "db")), coll: text(coll), name: "find"}
	one.cmd = bson.D{{Key: "find", Value: coll}, {Key: "filter", Value: rawValue(filter)},
		{Key: "limit", Value: rawValue(1)}, {Key: "singleBatch", Value: rawValue(true)},
		{Key: "readConcern", Value: rawValue(bson.D{{Key: "level", Value: "majority"},
			{Key: "afterClusterTime", Value: event.Lookup("clusterTime")}})}}
	reply, err := find(ctx, one)
	if err != nil {
		return nil, err
	}
	raw, err := bson.Marshal(reply)
	if err != nil {
		return nil, fmt.Errorf("encode a document: %w", err)
	}
	var now any
	if docs, _, _ := readBatch(raw); len(docs) > 0 {
		now = docs[0]
	}
	d := fields(event)
	at := max(slices.IndexFunc(d, func(e bson.E) bool { return e.Key == "ns" }), 0)
	return bson.Marshal(slices.Insert(d, at, bson.E{Key: "fullDocument", Value: now}))
}
