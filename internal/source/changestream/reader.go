package changestream

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/wire"
)

const (
	// parkAfter is how long a cursor waits for room before it is closed. Servers end idle cursors after ten
	// minutes, firewalls idle connections.
	parkAfter = 4 * time.Minute
	// aheadAfter is how long a position may be after everything that the source knows.
	aheadAfter = 30 * time.Second
	// knownPoll is the time between two looks at that.
	knownPoll = 100 * time.Millisecond

	// maxReply bounds a server's reply, except for a single larger event.
	maxReply = 16 << 20
	// replies is how many replies are in memory at once: the one that is read, one that waits, one in work.
	replies = 3
)

// errParked ends a stream whose consumer is slow. It resumes when there is room.
var errParked = errors.New("parked")

// reply is one reply of the cursor.
type reply struct {
	*wire.Batch
	token token // after which the next reply goes on
}

// reader reads the stream ahead, in one goroutine.
type reader struct {
	s       *Source
	replies chan reply
	err     error // why replies was closed

	from stream.Position // where the next cursor starts
	conn *wire.Conn
	cur  *wire.Cursor
	name string // of the operation on the server, among those of the same user
	size wire.ReplySize
}

// run reads until something fails. It never returns nil.
func (r *reader) run(ctx context.Context) error {
	if err := r.known(ctx); err != nil {
		return err
	}
	for {
		err := r.stream(ctx)
		r.close(ctx)
		if !errors.Is(err, errParked) {
			return err
		}
	}
}

// known fails for a position that stays after everything that the source has. The server would wait for that time, and
// omit what comes before. A deposed primary, and a router that has just started, may not know the position yet.
func (r *reader) known(ctx context.Context) error {
	began := time.Now()
	var newest mongo.OpTime
	var passed bool
	err := pace.Until(ctx, knownPoll, func() (_ bool, err error) {
		newest, err = r.s.cluster.ClusterTime(ctx)
		passed = newest.IsZero() || !newest.Before(r.from.At)
		return passed || time.Since(began) >= r.s.ahead, err
	})
	if err != nil || passed {
		return err
	}
	return mongo.WithHint(fmt.Errorf("read change stream of %s: %w: the position %s is after its newest time, %s",
		r.s.cluster.Address(), ErrLost, r.from.At, newest), "the source was restored, or it is another cluster: check the "+
		"address; if it is right, restart with a fresh copy (--restart)")
}

func (r *reader) stream(ctx context.Context) error {
	if err := r.open(ctx); err != nil {
		return err
	}
	for {
		rep, err := r.next(ctx)
		if err != nil {
			return r.explain(ctx, err)
		}
		r.from = stream.Position{At: mongo.MaxOpTime(r.from.At, rep.token.at().Previous()), Mark: rep.token.mark()}
		if err := r.deliver(ctx, rep); err != nil {
			return err
		}
	}
}

// open opens a cursor at the reader's position. The first reply is empty, as it would end with the search for
// the first event.
func (r *reader) open(ctx context.Context) (err error) {
	r.conn, err = r.s.cluster.Checkout(ctx, r.s.cluster.Reader())
	if err != nil {
		return err
	}
	pipeline, err := r.s.opt.pipeline(r.from)
	if err != nil {
		return err
	}
	r.name = "millrace " + rand.Text()
	r.size = wire.ReplySize{Bytes: min(r.s.opt.ReadAheadBytes/replies, maxReply), Docs: wire.FirstReply}
	err = r.patiently(ctx, func(ctx context.Context) error {
		r.cur, err = r.conn.OpenCursor(ctx, "admin", aggregate(pipeline, r.name),
			wire.CursorOptions{BatchSize: r.size.Docs, MaxTime: r.s.opt.Await})
		if err == nil {
			_, err = r.cur.Next(ctx)
		}
		return err
	})
	return readError(r.conn.Addr(), r.from.At, err)
}

// aggregate returns the command that opens a change stream with an empty first reply.
func aggregate(pipeline bson.A, name string) bson.D {
	return bson.D{
		{Key: "aggregate", Value: 1}, {Key: "pipeline", Value: pipeline},
		{Key: "cursor", Value: bson.D{{Key: "batchSize", Value: 0}}},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}},
		{Key: "comment", Value: name},
	}
}

// pipeline returns the stages of a change stream that goes on at a position. A zero position is the present.
func (o Options) pipeline(from stream.Position) (bson.A, error) {
	stage := append(bson.D{{Key: "allChangesForCluster", Value: true}}, o.Support.options()...)
	switch {
	case from.Mark != "":
		token, err := fromMark(from.Mark)
		if err != nil {
			return nil, err
		}
		stage = append(stage, bson.E{Key: "startAfter", Value: token})
	case !from.At.IsZero():
		stage = append(stage, bson.E{Key: "startAtOperationTime", Value: from.At.TS})
	}
	all := bson.A{bson.D{{Key: "$changeStream", Value: stage}}}
	if len(o.match) > 0 {
		all = append(all, bson.D{{Key: "$match", Value: bson.D{
			{Key: "operationType", Value: bson.D{{Key: "$nin", Value: o.match}}}}}})
	}
	if o.Support.Split {
		all = append(all, bson.D{{Key: "$changeStreamSplitLargeEvent", Value: bson.D{}}})
	}
	return all, nil
}

func (r *reader) next(ctx context.Context) (rep reply, err error) {
	r.cur.Limit(r.size.Docs)
	err = r.patiently(ctx, func(ctx context.Context) error {
		rep.Batch, err = r.cur.Next(ctx)
		return err
	})
	if err != nil {
		return rep, err
	}
	if rep.Done {
		return rep, mongo.Retry("the server ended the change stream", nil, "")
	}
	docs := 0
	_ = rep.Each(func([]byte) error { docs++; return nil })
	r.size.Learn(docs, int64(rep.Size))
	rep.token, err = parseToken(rep.Token)
	return rep, err
}

// deliver waits for room. When that takes long, the cursor is closed meanwhile.
func (r *reader) deliver(ctx context.Context, rep reply) error {
	parked := time.NewTimer(r.s.park)
	defer parked.Stop()
	select {
	case r.replies <- rep:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-parked.C:
	}
	r.s.opt.Log.Debug("change stream closed until the target has caught up", "position", r.from.At)
	r.close(ctx)
	select {
	case r.replies <- rep:
		return errParked
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *reader) close(ctx context.Context) {
	if r.conn == nil {
		return
	}
	if r.cur != nil {
		r.cur.Close(ctx)
	}
	r.conn.Release()
	r.conn, r.cur = nil, nil
}
