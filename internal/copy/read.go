package copy

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/ownership"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/wire"
)

// reader takes jobs and reads on one connection to the run's member.
type reader struct {
	scan.Reader
	*run
}

// read does jobs until none is left, or the worker does not stay.
func (r *run) read(ctx context.Context, w worker) (more bool, err error) {
	return r.reading(ctx, w, func(ctx context.Context, rd *reader) (bool, error) {
		j, ok := r.jobs.pop(ctx)
		if !ok {
			return false, ctx.Err()
		}
		defer r.jobs.finished()
		return true, j.run(ctx, rd)
	})
}

// reading has one thing after another read over one connection, until there is none, or the
// worker does not stay.
func (r *run) reading(ctx context.Context, w worker, next func(ctx context.Context, rd *reader) (some bool,
	err error)) (more bool, err error) {
	err = r.connected(ctx, r.e.src, wire.ByAddress(r.member.Node), w.reserve, func(conn *wire.Conn) error {
		if err := r.member.Lives(ctx, conn); err != nil {
			return fmt.Errorf("copy: read the source: %w", err)
		}
		rd := r.reader(conn)
		for w.stays() {
			if some, err := next(ctx, rd); err != nil || !some {
				return err
			}
		}
		more = true
		return nil
	})
	return more, err
}

// reader reads over a connection.
func (r *run) reader(conn *wire.Conn) *reader {
	rd := &reader{run: r, Reader: scan.Reader{Conn: conn, Gate: r.e.opts.SourceGate, Reopened: func(cause error) {
		r.e.opts.Log.Debug("cursor opened again", "cause", cause)
	}}}
	if at := r.e.opts.AfterClusterTime; !at.IsZero() {
		rd.Concern = scan.Majority(at.TS)
	}
	return rd
}

// errLarge ends the reading of a collection of unknown size that turned out to be
// no small one, before anything of it was sent.
var errLarge = errors.New("collection is larger than one batch")

// slice reads one slice to its end.
func (r *reader) slice(ctx context.Context, s *slice) error {
	r.Owned = s.c.Owned
	rd := &reading{reader: r, s: s}
	err := rd.all(ctx)
	serial := s.st.Strategy == scan.Serial
	switch {
	case err == nil:
		s.end(rd.sent, false)
		return nil
	case mongo.IsCode(err, mongo.CodeNamespaceNotFound):
		return rd.vanished(ctx, err)
	case s.c.Range != nil && (ownership.Stale(err) || scan.CursorLost(err)):
		r.e.leave(s.c.Task)
		s.end(rd.sent, false)
		return nil
	case serial && mongo.IsCode(err, mongo.CodeCappedPositionLost), serial && rd.sent > 0 && scan.CursorLost(err):
		return rd.restart(ctx)
	case rd.sent == 0 && s.st.Strategy == scan.ByRecord && s.st.Of == 1 && scan.Refused(err):
		r.e.noRecords.Store(true)
		s.c.plan = nil
		return r.collection(ctx, s.c)
	case errors.Is(err, errLarge):
		if err := r.measure(ctx, s.c); err != nil && !mongo.IsCode(err, mongo.CodeNamespaceNotFound) {
			return err
		}
		return r.collection(ctx, s.c)
	}
	return fmt.Errorf("read %s (slice %d of %d): %w", s.c.Source.NS, s.st.N+1, s.st.Of, err)
}

// vanished ends the slice when the collection the member does not have, if it is gone
// for good. A drop that may roll back, or has, says nothing: then the run ends
// with an error that passes, and the next one reads on.
func (rd *reading) vanished(ctx context.Context, cause error) error {
	c := rd.s.c
	gone, err := rd.e.src.Vanished(ctx, c.sourceDB, c.Source.UUID)
	if err != nil {
		return fmt.Errorf("learn whether %s is gone: %w", c.Source.NS, err)
	}
	if !gone {
		return mongo.Retry(fmt.Sprintf("copy: source member %s has not yet undone the drop of %s, which was rolled back",
			rd.member.Node, c.Source.NS), cause, "")
	}
	rd.s.end(rd.sent, true)
	return nil
}

// restart begins an ordered collection anew after its position was lost and
// what was sent has arrived.
func (rd *reading) restart(ctx context.Context) error {
	if err := rd.written(ctx); err != nil {
		return err
	}
	rd.e.opts.Log.Info("the source overtook the copy of an ordered collection; it begins anew",
		"collection", rd.s.c.Source.NS)
	return rd.collection(ctx, rd.s.c)
}

// measure asks for the size of a collection that came without estimates.
func (r *reader) measure(ctx context.Context, c *collection) error {
	c.measured, c.plan = true, nil
	name, err := r.Name(ctx, &c.Source, scan.ByID)
	if err != nil || name == "" {
		return err
	}
	body, err := r.Command(ctx, c.sourceDB, bson.D{{Key: "collStats", Value: name}})
	if err != nil {
		return fmt.Errorf("size of %s: %w", c.Source.NS, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Source.Bytes, c.Source.Count = scan.SizeOf(bson.Raw(body))
	c.progress.TotalDocs, c.progress.TotalBytes = c.Source.Count, c.Source.Bytes
	return nil
}
