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

type reader struct {
	scan.Reader
	*run
}

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

// reading calls next over one connection until there is nothing more, or the worker does not stay.
func (r *run) reading(ctx context.Context, w worker, next func(ctx context.Context, rd *reader) (some bool,
	err error)) (more bool, err error) {
	err = r.connected(ctx, r.e.src, r.source(), w.reserve, func(conn *wire.Conn) error {
		if r.routers == nil {
			if err := r.member.Lives(ctx, conn); err != nil {
				return fmt.Errorf("copy: read the source: %w", err)
			}
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

func (r *run) reader(conn *wire.Conn) *reader {
	rd := &reader{run: r, Reader: scan.Reader{Conn: conn, Gate: r.e.opts.SourceGate, Routers: r.routers,
		Reopened: func(cause error) { r.e.opts.Log.Debug("cursor opened again", "cause", cause) }}}
	if at := r.e.opts.AfterClusterTime; !at.IsZero() {
		rd.Concern = scan.Majority(at.TS)
	}
	return rd
}

// errLarge ends the reading of an unmeasured collection before anything was sent.
var errLarge = errors.New("collection is larger than one batch")

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
		r.e.mu.Lock()
		r.e.left = append(r.e.left, s.c.Task)
		r.e.mu.Unlock()
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

// vanished takes a drop that may roll back, or has, for a temporary error.
func (rd *reading) vanished(ctx context.Context, cause error) error {
	c := rd.s.c
	var gone bool
	var err error
	if rd.routers != nil {
		gone, err = rd.routers.Gone(ctx, &c.Source)
	} else {
		gone, err = rd.e.src.Vanished(ctx, c.sourceDB, c.Source.UUID)
	}
	if err != nil {
		return fmt.Errorf("learn whether %s is gone: %w", c.Source.NS, err)
	}
	if !gone {
		return mongo.Retry(fmt.Sprintf("copy: source member %s has not yet undone the drop of %s, which was rolled back",
			rd.Conn.Addr(), c.Source.NS), cause, "")
	}
	rd.s.end(rd.sent, true)
	return nil
}

// restart waits until all sent chunks have arrived.
func (rd *reading) restart(ctx context.Context) error {
	if err := rd.written(ctx); err != nil {
		return err
	}
	rd.e.opts.Log.Info("the source overtook the copy of an ordered collection; it begins anew",
		"collection", rd.s.c.Source.NS)
	return rd.collection(ctx, rd.s.c)
}

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

const (
	maxReply     = 16<<20 + 16<<10 // of one cursor reply, by the server
	maxBatchDocs = 50_000          // the server takes 100,000 documents an insert
	guessedBatch = 1000            // documents, where their size is unknown
)

type reading struct {
	*reader
	s       *slice
	walk    *scan.Walk
	reply   int64           // expected bytes of a reply
	batch   int             // most documents of a reply
	size    int64           // mean bytes of a document
	sent    int             // chunks, numbered from 0
	pending <-chan struct{} // Serial: closed when the last chunk is written
}

func (rd *reading) begin(ctx context.Context) (err error) {
	s := rd.s
	rd.reply, rd.batch, rd.size = 1<<20, guessedBatch, 0
	if of := &s.c.Source; of.Count > 0 && of.Bytes > 0 {
		rd.size = max(of.Bytes/of.Count, 1)
		rd.batch = int(min(max(rd.batchBytes()/rd.size, 1), maxBatchDocs))
		rd.reply = int64(rd.batch) * rd.size * 5 / 4
	}
	want := scan.Want{Batch: rd.batch, Measure: true, Range: s.c.Range, Keep: s.c.keep, Prefilter: s.c.sent,
		Map: s.c.mapped}
	const little = 64 << 10
	rd.reply = min(rd.reply, s.c.Source.Bytes+little, maxReply)
	if want.Edge, err = rd.edge(ctx); err != nil {
		return err
	}
	st := s.state()
	rd.walk = rd.Walk(&s.c.Source, &st, want)
	return nil
}

func (rd *reading) edge(ctx context.Context) (*scan.Edge, error) {
	o, s := &rd.e.opts, rd.s
	if !s.c.Source.Capped() || o.AfterClusterTime.IsZero() || rd.e.src.Info.Kind == mongo.KindStandalone {
		return nil, nil
	}
	e, err := rd.FindEdge(ctx, &s.c.Source, o.AfterClusterTime, o.Inserted)
	if err != nil || e == nil {
		return nil, err
	}
	s.mu.Lock()
	s.st.At = e.At
	s.mu.Unlock()
	if o.edged != nil {
		err = o.edged(ctx)
	}
	return e, err
}

// batchBytes is smaller when the replies in flight would exceed the budget.
func (r *reader) batchBytes() int64 {
	const least = 512 << 10
	o := &r.e.opts
	_, reads := o.SourceGate.Load()
	_, writes := o.TargetGate.Load()
	if reads <= o.Readers && writes <= o.Writers {
		return o.BatchBytes
	}
	share := o.MaxBufferedBytes / int64(max(reads, o.Readers)+max(writes, o.Writers))
	return min(o.BatchBytes, max(share, least))
}

func (rd *reading) all(ctx context.Context) error {
	if err := rd.begin(ctx); err != nil {
		return err
	}
	defer rd.walk.Close(ctx)
	budget, c := rd.budget, rd.s.c
	for {
		held := rd.reply
		if err := budget.take(ctx, held); err != nil {
			return err
		}
		rd.walk.SetBatch(rd.e.opts.Limit.Batch(rd.batch, rd.size)) // the rates may have changed
		p, err := rd.walk.Next(ctx)
		if err != nil || p == nil {
			budget.adjust(-held)
			return err
		}
		size := int64(p.Size)
		budget.adjust(size - held)
		rd.reply = min(max(rd.reply, size), maxReply)
		if p.Docs > 0 {
			rd.size = p.Bytes / int64(p.Docs)
		}
		if rd.sent == 0 && !p.Last && c.Source.Bytes <= 0 && !c.measured && !c.serial() {
			err = errLarge
		}
		if err != nil || p.Docs == 0 {
			budget.adjust(-size)
		} else {
			err = rd.send(ctx, &chunk{s: rd.s, part: p, held: size})
		}
		if err != nil || p.Last {
			return err
		}
	}
}

// send hands a chunk to the writers; in a serial slice after the one before is written.
func (rd *reading) send(ctx context.Context, ch *chunk) error {
	if err := rd.e.opts.Limit.Wait(ctx, int64(ch.part.Docs), ch.part.Bytes); err != nil {
		return err
	}
	if grant := rd.e.opts.Grant; grant != nil {
		if err := grant(ctx, int64(ch.part.Docs), ch.part.Bytes); err != nil {
			return err
		}
	}
	if rd.s.st.Strategy == scan.Serial {
		if err := rd.written(ctx); err != nil {
			return err
		}
		ch.done = make(chan struct{})
		rd.pending = ch.done
	}
	ch.n = rd.sent
	rd.sent++
	select {
	case rd.chunks <- ch:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (rd *reading) written(ctx context.Context) error {
	if rd.pending == nil {
		return nil
	}
	return await(ctx, rd.pending)
}
