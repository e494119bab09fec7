package copy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
)

// reader takes jobs and reads on one connection to the run's member.
type reader struct {
	run  *run
	e    *Engine
	conn *wire.Conn
	// reserve is one more than there have to be.
	reserve bool
}

func (r *reader) work(ctx context.Context) error {
	conn, err := r.e.src.Pool.Checkout(ctx, wire.ByAddress(r.run.node))
	if err != nil && r.reserve && ctx.Err() == nil {
		r.run.unmanned("source", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("copy: connect to the source: %w", err)
	}
	defer conn.Release()
	if now, err := life(ctx, conn); err != nil || now != r.run.life {
		return r.run.restarted(err)
	}
	r.conn = conn
	for {
		j, ok := r.run.jobs.pop(ctx)
		if !ok {
			return ctx.Err()
		}
		err := j.run(ctx, r)
		r.run.jobs.finished()
		if err != nil {
			r.e.count.failed(err)
			return err
		}
	}
}

// command runs one command.
func (r *reader) command(ctx context.Context, db string, cmd bson.D) (bsoncore.Document, error) {
	pass, err := r.e.opts.SourceGate.Enter(ctx)
	if err != nil {
		return nil, err
	}
	body, err := r.conn.Run(ctx, db, cmd)
	r.e.opts.SourceGate.Leave(pass, int64(len(body)))
	return body, err
}

// open runs a cursor-returning command and gives its first batch.
func (r *reader) open(ctx context.Context, db string, cmd bson.D, o wire.CursorOptions) (*wire.Cursor, *wire.Batch, error) {
	pass, err := r.e.opts.SourceGate.Enter(ctx)
	if err != nil {
		return nil, nil, err
	}
	cur, err := r.conn.OpenCursor(ctx, db, cmd, o)
	if err != nil {
		r.e.opts.SourceGate.Leave(pass, 0)
		return nil, nil, err
	}
	b, err := cur.Next(ctx) // came with the reply
	if err != nil {
		r.e.opts.SourceGate.Leave(pass, 0)
		return nil, nil, err
	}
	r.e.opts.SourceGate.Leave(pass, int64(b.Size))
	return cur, b, nil
}

// next asks a cursor for one more batch.
func (r *reader) next(ctx context.Context, cur *wire.Cursor) (*wire.Batch, error) {
	pass, err := r.e.opts.SourceGate.Enter(ctx)
	if err != nil {
		return nil, err
	}
	b, err := cur.Next(ctx)
	if err != nil {
		r.e.opts.SourceGate.Leave(pass, 0)
		return nil, err
	}
	r.e.opts.SourceGate.Leave(pass, int64(b.Size))
	return b, nil
}

// close ends a cursor that may be open, even when ctx has ended.
func (r *reader) close(ctx context.Context, cur *wire.Cursor) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	cur.Close(ctx)
}

// Errors that a scan ends with and that slice acts upon.
const (
	codeCursorNotFound = 43
	codeKeyNotFound    = 211 // $_resumeAfter names a record that was deleted
)

// errLarge ends the scan of a collection of unknown size that turned out to be
// no small one, before anything of it was sent.
var errLarge = errors.New("collection is larger than one batch")

// slice reads one slice to its end. It opens the cursor again where the server
// ended it for a reason that does not end the copy: a rename, a time-out, the
// place to start from deleted.
func (r *reader) slice(ctx context.Context, s *slice) error {
	sc := r.newScan(s)
	if err := sc.findEdge(ctx); mongo.IsCode(err, mongo.CodeNamespaceNotFound) {
		s.end(true)
		return nil
	} else if err != nil {
		return fmt.Errorf("read %s: %w", s.c.Source.NS, err)
	}
	const patience = 5
	for idle := 0; ; idle++ {
		before := sc.sent
		err := sc.read(ctx)
		if sc.sent > before {
			idle = 0
		}
		switch {
		case err == nil:
			s.end(false)
			return nil
		case mongo.IsCode(err, mongo.CodeNamespaceNotFound):
			return r.vanished(ctx, s, err)
		case mongo.IsCode(err, codeKeyNotFound) && sc.stepBack():
			idle = 0
		case mongo.IsCode(err, mongo.CodeCappedPositionLost) && s.st.Strategy == Serial:
			return r.restart(ctx, sc)
		case idle < patience && (mongo.IsCode(err, mongo.CodeQueryPlanKilled) || mongo.IsCode(err, codeCursorNotFound)):
			r.e.count.reopened.Add(1)
			if s.st.Strategy == Serial && sc.sent > 0 {
				return r.restart(ctx, sc)
			}
		case sc.sent == 0 && s.st.Strategy == ByRecord && s.st.Of == 1 && refused(err):
			r.e.noRecords.Store(true)
			s.c.plan = nil
			return r.collection(ctx, s.c)
		case errors.Is(err, errLarge):
			if err := r.measure(ctx, s.c); err != nil && !mongo.IsCode(err, mongo.CodeNamespaceNotFound) {
				return err
			}
			return r.collection(ctx, s.c)
		default:
			return fmt.Errorf("read %s (slice %d of %d): %w", s.c.Source.NS, s.st.N+1, s.st.Of, err)
		}
		r.e.opts.Log.Debug("cursor opened again", "collection", s.c.Source.NS, "slice", s.st.N, "cause", err)
	}
}

// vanished ends a slice whose collection the member does not have, if it is gone
// for good. A drop that may roll back, or has, says nothing: then the run ends
// with an error that passes, and the next one reads on.
func (r *reader) vanished(ctx context.Context, s *slice, cause error) error {
	gone, err := r.e.src.Vanished(ctx, s.c.sourceDB, s.c.Source.UUID)
	if err != nil {
		return fmt.Errorf("learn whether %s is gone: %w", s.c.Source.NS, err)
	}
	if !gone {
		return mongo.Retry(fmt.Sprintf("copy: source member %s has not yet undone the drop of %s, which was rolled back", r.run.node, s.c.Source.NS), cause, "")
	}
	s.end(true)
	return nil
}

// restart begins an ordered collection anew after its position was lost and
// what was sent has arrived.
func (r *reader) restart(ctx context.Context, sc *scan) error {
	if err := sc.settle(ctx); err != nil {
		return err
	}
	r.e.opts.Log.Info("the source overtook the copy of an ordered collection; it begins anew", "collection", sc.c.Source.NS)
	return r.collection(ctx, sc.c)
}

// measure asks for the size of a collection that came without estimates.
func (r *reader) measure(ctx context.Context, c *collection) error {
	c.measured, c.plan = true, nil
	name, err := r.currentName(ctx, c, ByID)
	if err != nil || name == "" {
		return err
	}
	body, err := r.command(ctx, c.sourceDB, bson.D{{Key: "collStats", Value: name}})
	if err != nil {
		return fmt.Errorf("size of %s: %w", c.Source.NS, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Source.Bytes, _ = bson.Raw(body).Lookup("size").AsInt64OK()
	var ok bool
	if c.Source.Count, ok = bson.Raw(body).Lookup("count").AsInt64OK(); !ok {
		c.Source.Count, _ = bson.Raw(body).Lookup("timeseries", "bucketCount").AsInt64OK()
	}
	c.totalDocs, c.totalBytes = c.Source.Count, c.Source.Bytes
	return nil
}

// find starts a find of the collection by UUID with the run's read concern.
func (r *reader) find(c *collection, more bson.D) bson.D {
	cmd := append(bson.D{{Key: "find", Value: c.Source.UUID}}, more...)
	if at := r.e.opts.AfterClusterTime; !at.IsZero() {
		cmd = append(cmd, bson.E{Key: "readConcern", Value: bson.D{
			{Key: "level", Value: "majority"}, {Key: "afterClusterTime", Value: at.TS}}})
	}
	return cmd
}

func recordOrder() bson.D {
	return bson.D{
		{Key: "hint", Value: bson.D{{Key: "$natural", Value: 1}}},
		{Key: "$_requestResumeToken", Value: true},
	}
}
