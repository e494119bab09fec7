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
	// replyTimeout bounds one exchange, so that a connection that was cut
	// silently does not block the run for ever.
	replyTimeout = time.Minute
	// parkAfter is how long a cursor waits for room before it is closed: the
	// server ends idle cursors after ten minutes, firewalls connections.
	parkAfter = 4 * time.Minute
	// closeTimeout bounds the courtesy of killing a cursor.
	closeTimeout = 2 * time.Second
)

// errParked ends a stream whose consumer takes long; it is resumed when there
// is room again.
var errParked = errors.New("parked")

// sink takes what a reader reads.
type sink interface {
	// waitRoom waits until a reply may be put, at most for
	// timeout (0 is for ever); then it returns false.
	waitRoom(ctx context.Context, timeout time.Duration) (bool, error)
	put(c chunk) error
}

// reader reads the oplog ahead into a sink. It runs in one goroutine.
type reader struct {
	cluster *mongo.Cluster
	log     *slog.Logger
	await   time.Duration
	park    time.Duration
	sink    sink

	size    replySize
	from    mongo.OpTime // where the next cursor starts
	skip    int          // 1 when the entry at from was delivered before
	started bool         // the entry at from was found
}

// run reads until something fails; it never returns nil.
func (r *reader) run(ctx context.Context) error {
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

// stream reads with one cursor.
func (r *reader) stream(ctx context.Context) error {
	conn, err := r.cluster.Checkout(ctx, r.cluster.Reader())
	if err != nil {
		return err
	}
	defer conn.Release()
	cur, err := r.open(ctx, conn)
	if err != nil {
		return readError(conn.Addr(), r.from, err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		cur.Close(ctx)
	}()
	r.started = false
	for {
		ok, err := r.sink.waitRoom(ctx, r.park)
		if err != nil {
			return err
		}
		if !ok {
			return errParked
		}
		cur.Limit(r.size.docs)
		b, err := r.next(ctx, cur)
		if err != nil {
			return readError(conn.Addr(), r.from, err)
		}
		if err := r.deliver(ctx, conn, b); err != nil {
			return err
		}
		if b.Done {
			again, err := r.reopen(ctx, conn)
			if err != nil {
				return readError(conn.Addr(), r.from, err)
			}
			cur = again
		}
	}
}

// open starts a tailing cursor at from.
func (r *reader) open(ctx context.Context, conn *wire.Conn) (*wire.Cursor, error) {
	cmd := bson.D{
		{Key: "find", Value: oplogColl},
		{Key: "filter", Value: bson.D{{Key: "ts", Value: bson.D{{Key: "$gte", Value: r.from.TS}}}}},
		{Key: "tailable", Value: true},
		{Key: "awaitData", Value: true},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}},
	}
	cmd = append(cmd, seekHint(r.cluster)...)
	if r.size.docs > 0 {
		cmd = append(cmd, bson.E{Key: "batchSize", Value: r.size.docs})
	}
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	return conn.OpenCursor(ctx, oplogDB, cmd, wire.CursorOptions{MaxTime: r.await, BatchSize: r.size.docs})
}

// firstReply is how many documents a server gives in a first reply by itself.
const firstReply = 101

// replySize is what is asked of the next reply. The zero value leaves it to the
// server.
type replySize struct {
	bytes int64
	docs  int
}

// learn takes note of a reply: the next one has as many documents of that size as
// fit, but not more than twice as many as were asked for.
func (s *replySize) learn(docs int, bytes int64) {
	if s.docs == 0 || docs == 0 {
		return
	}
	const most = 1 << 20
	fit := s.bytes * int64(docs) / max(bytes, 1)
	s.docs = int(max(min(fit, 2*int64(s.docs), most), 1))
}

// seekHint makes servers before 4.4 seek to a timestamp instead of scanning
// the oplog from its beginning; later ones do so by themselves.
func seekHint(c *mongo.Cluster) bson.D {
	if c.Info.Version.AtLeast(4, 4) {
		return nil
	}
	return bson.D{{Key: "oplogReplay", Value: true}}
}

// reopen follows a cursor that the server ended. It does so at once when
// nothing lies at or after the start position yet, as on a member that lags.
func (r *reader) reopen(ctx context.Context, conn *wire.Conn) (*wire.Cursor, error) {
	if r.started {
		return nil, passing("the server ended the oplog cursor")
	}
	t := time.NewTimer(r.await)
	defer t.Stop()
	select {
	case <-t.C:
		return r.open(ctx, conn)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (r *reader) next(ctx context.Context, cur *wire.Cursor) (*wire.Batch, error) {
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	return cur.Next(ctx)
}

// deliver checks the first entry after a start, puts the batch into the queue
// and notes its last entry.
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
	r.size.learn(docs, int64(b.Size))
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
	r.from, r.skip = e.at, 1
	return r.sink.put(chunk{batch: b, skip: skip})
}

// verifyStart checks that the cursor starts at from.
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

// complete reports whether an oplog that begins with oldest has lost nothing since
// a time: either no entry can lie between the two, or there never was one before
// oldest.
func complete(since mongo.OpTime, oldest entry) bool {
	return !since.First().Before(oldest.at) || beginsSet(oldest)
}

// exact distinguishes a position of an entry from one that is only a time.
func exact(p mongo.OpTime) bool { return p.TS.I != 0 }

// same compares timestamps, and terms where both are known.
func same(a, b mongo.OpTime) bool {
	return a.TS == b.TS && (a.Term < 0 || b.Term < 0 || a.Term == b.Term)
}

// beginsSet knows the entry with which a replica set's history begins; an
// oplog that still has it is complete.
func beginsSet(e entry) bool {
	msg, _ := bsonraw.Field(e.o, "msg")
	return string(e.op) == "n" && str(msg) == "initiating set"
}

// oplogEnd reads the oldest (direction 1) or newest (-1) entry of the member
// behind conn: its position and what beginsSet looks at, for it may be large.
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
