package copy

import (
	"context"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/scan"
)

const (
	maxReply     = 16<<20 + 16<<10 // of one cursor reply, by the server
	maxBatchDocs = 50_000          // the server takes 100,000 documents an insert
	guessedBatch = 1000            // documents, where their size is unknown
)

// reading is a slice that is read and handed to the writers part by part.
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

// begin prepares to read a slice: what is left of it, or up to the edge of a
// capped collection.
func (rd *reading) begin(ctx context.Context) (err error) {
	s := rd.s
	rd.reply, rd.batch, rd.size = 1<<20, guessedBatch, s.c.docSize()
	if rd.size > 0 {
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

// edge finds where the copy of a capped collection ends, if changes follow.
func (rd *reading) edge(ctx context.Context) (*scan.Edge, error) {
	o, s := &rd.e.opts, rd.s
	if !s.c.Source.Capped() || o.AfterClusterTime.IsZero() || rd.e.src.Info.Kind != mongo.KindReplicaSet {
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

// batchBytes returns the target size of a reply: less where so many replies are in flight that
// they would exceed the budget.
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

// all sends all up to the slice's end.
func (rd *reading) all(ctx context.Context) error {
	if err := rd.begin(ctx); err != nil {
		return err
	}
	defer rd.walk.Close(ctx)
	budget := rd.budget
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
		if rd.sent == 0 && !p.Last && rd.s.c.unmeasured() {
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

// unmeasured reports a collection that came without estimates and was not
// asked for them yet.
func (c *collection) unmeasured() bool {
	return c.Source.Bytes <= 0 && !c.measured && !c.serial()
}

// send hands a chunk to the writers, in a serial slice when the one before it
// is written.
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

// written waits until the last chunk of a serial slice is written.
func (rd *reading) written(ctx context.Context) error {
	if rd.pending == nil {
		return nil
	}
	return await(ctx, rd.pending)
}
