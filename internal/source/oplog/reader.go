package oplog

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
)

const (
	oplogDB   = "local"
	oplogColl = "oplog.rs"
	// replyTimeout bounds one exchange, in case the connection was cut silently.
	replyTimeout = time.Minute
	// parkAfter is how long a cursor waits for room before it is closed. Servers end idle cursors after
	// ten minutes, firewalls idle connections.
	parkAfter = 4 * time.Minute
)

// errParked ends a stream whose consumer is slow. It resumes when there is room.
var errParked = errors.New("parked")

// sink takes what a reader reads.
type sink interface {
	// waitRoom waits until put may be called. It returns false after timeout; 0 is no timeout.
	waitRoom(ctx context.Context, timeout time.Duration) (bool, error)
	put(c chunk) error
}

// reader reads the oplog ahead into a sink, in one goroutine.
type reader struct {
	cluster *mongo.Cluster
	log     *slog.Logger
	await   time.Duration
	park    time.Duration
	sink    sink
	shared  *Shared
	feed    *feed   // during run; nil shares nothing
	filter  *filter // nil reads everything

	size    wire.ReplySize
	from    mongo.OpTime // where the next cursor starts
	skip    int          // 1 when the entry at from was delivered before
	started bool         // the entry at from was found
}

// run reads until something fails. It never returns nil.
func (r *reader) run(ctx context.Context) error {
	r.feed = r.shared.join(r.cluster)
	defer func() { r.shared.leave(r.cluster, r.feed) }()
	for {
		err := r.stream(ctx)
		if !errors.Is(err, errParked) {
			return err
		}
		r.log.Debug("oplog cursor closed until the target has caught up", "position", r.from)
		if _, err := r.sink.waitRoom(ctx, 0); err != nil {
			return err
		}
	}
}

// stream reads until something fails, with a cursor of its own wherever no other reader reads for it.
func (r *reader) stream(ctx context.Context) error {
	own := &ownCursor{reader: r}
	defer own.close(ctx)
	defer r.feed.resign(r)
	for {
		err := r.room(ctx)
		if err != nil {
			return err
		}
		var rep reply
		found := false
		names := r.excluded()
		if names != nil {
			r.feed.ahead(r)
		} else if rep, found, err = r.feed.next(ctx, r); err != nil {
			return err
		}
		if found {
			own.close(ctx)
			r.from, r.skip = rep.last, 1
			if err := r.sink.put(rep.chunk); err != nil {
				return err
			}
			continue
		}
		if err := own.read(ctx, names); err != nil {
			return err
		}
	}
}

// room waits for the sink. Meanwhile others read.
func (r *reader) room(ctx context.Context) error {
	if ok, err := r.sink.waitRoom(ctx, time.Nanosecond); ok || err != nil {
		return err
	}
	r.feed.resign(r)
	ok, err := r.sink.waitRoom(ctx, r.park)
	if err == nil && !ok {
		err = errParked
	}
	return err
}

// ownCursor is a reader's cursor, open from the first read to close.
type ownCursor struct {
	*reader
	conn *wire.Conn
	cur  *wire.Cursor

	// Of a filtered cursor:
	names     *[]string    // what it leaves out; nil is nothing
	until     mongo.OpTime // where its window ends; zero waits for more
	opened    time.Time
	window    time.Duration
	committed mongo.OpTime // when it was asked
	asked     time.Time
	took      time.Duration // to ask
}

// read delivers the next reply, in which the server leaves out the writes to some collections.
func (o *ownCursor) read(ctx context.Context, without *[]string) error {
	r := o.reader
	if o.conn != nil && without != o.names {
		o.close(ctx)
	}
	o.names = without
	if o.conn == nil {
		conn, err := r.cluster.Checkout(ctx, r.cluster.Reader())
		if err != nil {
			return err
		}
		o.conn, r.started = conn, false
		if o.cur, err = o.open(ctx); err != nil {
			return readError(conn.Addr(), r.from, err)
		}
	}
	o.cur.Limit(r.size.Docs)
	err := o.ask(ctx)
	var b *wire.Batch
	if err == nil {
		b, err = r.next(ctx, o.cur)
	}
	if err != nil {
		return readError(o.conn.Addr(), r.from, err)
	}
	if b.Empty() && !b.Done {
		return o.pass()
	}
	if err := r.deliver(ctx, o.conn, b); err != nil || !b.Done {
		return err
	}
	if o.until.IsZero() {
		o.cur, err = o.reopen(ctx)
	} else {
		err = o.nextWindow(ctx)
	}
	if err != nil {
		return readError(o.conn.Addr(), r.from, err)
	}
	return nil
}

// open opens the cursor at the reader's position.
func (o *ownCursor) open(ctx context.Context) (*wire.Cursor, error) {
	o.until = mongo.OpTime{}
	if o.names != nil {
		return o.openFiltered(ctx)
	}
	return o.reader.open(ctx, o.conn, bson.D{{Key: "ts", Value: bson.D{{Key: "$gte", Value: o.from.TS}}}}, true)
}

func (o *ownCursor) close(ctx context.Context) {
	if o.conn == nil {
		return
	}
	if o.cur != nil {
		o.cur.Close(ctx)
	}
	o.conn.Release()
	o.conn, o.cur = nil, nil
}

// open opens a cursor. One that tails waits for more entries at the end of the oplog.
func (r *reader) open(ctx context.Context, conn *wire.Conn, filter bson.D, tails bool) (*wire.Cursor, error) {
	cmd := bson.D{
		{Key: "find", Value: oplogColl},
		{Key: "filter", Value: filter},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}},
	}
	cmd = append(cmd, seekHint(r.cluster)...)
	options := wire.CursorOptions{BatchSize: r.size.Docs}
	if tails {
		cmd = append(cmd, bson.E{Key: "tailable", Value: true}, bson.E{Key: "awaitData", Value: true})
		if options.MaxTime = r.await; len(filter) > 1 {
			options.MaxTime = min(r.await, filteredAwait)
		}
	}
	if r.size.Docs > 0 {
		cmd = append(cmd, bson.E{Key: "batchSize", Value: r.size.Docs})
	}
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	return conn.OpenCursor(ctx, oplogDB, cmd, options)
}

// seekHint makes servers before 4.4 seek to a timestamp in place of a scan.
func seekHint(c *mongo.Cluster) bson.D {
	if c.Info.Version.AtLeast(4, 4) {
		return nil
	}
	return bson.D{{Key: "oplogReplay", Value: true}}
}

// reopen replaces a cursor that the server ended at once, as a lagging member does that has nothing
// after the start position yet.
func (o *ownCursor) reopen(ctx context.Context) (*wire.Cursor, error) {
	if o.started {
		return nil, mongo.Retry("the server ended the oplog cursor", nil, "")
	}
	t := time.NewTimer(o.await)
	defer t.Stop()
	select {
	case <-t.C:
		return o.open(ctx)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (r *reader) next(ctx context.Context, cur *wire.Cursor) (*wire.Batch, error) {
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	return cur.Next(ctx)
}

// deliver checks the first entry after a start and passes the batch on.
func (r *reader) deliver(ctx context.Context, conn *wire.Conn, b *wire.Batch) error {
	if b.Empty() {
		return nil
	}
	var first, last []byte
	docs := 0
	err := b.Each(func(doc []byte) error {
		if first == nil {
			first = doc
		}
		last = doc
		docs++
		return nil
	})
	if err != nil {
		return err
	}
	r.size.Learn(docs, int64(b.Size))
	skip := 0
	if !r.started {
		if err := r.verifyStart(ctx, conn, first); err != nil {
			return err
		}
		r.started, skip = true, r.skip
	}
	e, err := parseEntry(last)
	if err != nil {
		return err
	}
	c := chunk{batch: b, skip: skip}
	r.feed.publish(r, reply{chunk: c, after: r.from, last: e.at})
	r.from, r.skip = e.at, 1
	return r.sink.put(c)
}

func (r *reader) verifyStart(ctx context.Context, conn *wire.Conn, first []byte) error {
	e, err := parseEntry(first)
	if err != nil {
		return err
	}
	if exact(r.from) && same(e.at, r.from) {
		return nil
	}
	oldest, err := oplogEnd(ctx, conn, 1)
	if err != nil {
		return readError(conn.Addr(), r.from, err)
	}
	switch {
	case !exact(r.from) && complete(r.from, oldest):
		return nil
	case !exact(r.from) || r.from.Before(oldest.at):
		return tooOld("the entry", r.from, oldest.at)
	}
	return rolledBack("the entry", r.from, e.at)
}

// complete reports that an oplog with this oldest entry has everything since a time.
func complete(since mongo.OpTime, oldest entry) bool {
	return !since.First().Before(oldest.at) || beginsSet(oldest)
}

// exact tells the position of an entry from a mere time.
func exact(p mongo.OpTime) bool { return p.TS.I != 0 }

// same compares timestamps, and terms if both are known.
func same(a, b mongo.OpTime) bool {
	return a.TS == b.TS && (a.Term < 0 || b.Term < 0 || a.Term == b.Term)
}

// beginsSet recognizes the first entry of a replica set's history.
func beginsSet(e entry) bool {
	msg, _ := bsonraw.Field(e.o, "msg")
	return string(e.op) == "n" && str(msg) == "initiating set"
}

// oplogEnd reads the oldest (direction 1) or newest (-1) entry, without fields that may be large.
func oplogEnd(ctx context.Context, conn *wire.Conn, direction int) (entry, error) {
	e, found, err := findOne(ctx, conn, bson.D{
		{Key: "find", Value: oplogColl}, {Key: "limit", Value: 1}, {Key: "singleBatch", Value: true},
		{Key: "sort", Value: bson.D{{Key: "$natural", Value: direction}}},
		{Key: "projection", Value: bson.D{{Key: "ts", Value: 1}, {Key: "t", Value: 1}, {Key: "op", Value: 1},
			{Key: "o.msg", Value: 1}}},
	})
	if err == nil && !found {
		err = errors.New("the oplog is empty")
	}
	return e, err
}

// findOne runs a find on the oplog and parses its first entry.
func findOne(ctx context.Context, conn *wire.Conn, cmd bson.D) (e entry, found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	cur, err := conn.OpenCursor(ctx, oplogDB, cmd, wire.CursorOptions{})
	if err != nil {
		return e, false, err
	}
	b, err := cur.Next(ctx)
	if err != nil {
		return e, false, err
	}
	err = b.Each(func(doc []byte) error {
		var perr error
		if !found {
			e, perr = parseEntry(doc)
			found = true
		}
		return perr
	})
	return e, found, err
}
