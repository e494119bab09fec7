package mongosink

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
	"github.com/millrace/millrace/internal/sink/mongo/resolve"
	"github.com/millrace/millrace/internal/sink/mongo/write"
	"github.com/millrace/millrace/internal/stream"
)

const (
	// chunkItems is how many items the router sends at once.
	chunkItems = 256
	// backlogLasts is how long a backlog is assumed after a batch with more behind it.
	backlogLasts = 300 * time.Millisecond
	// linger is how long a partition waits for more during a backlog before it sends.
	linger = 10 * time.Millisecond
)

// backlog reports whether the target is behind the source.
type backlog struct {
	began time.Time
	end   atomic.Int64 // as nanoseconds since began
}

// until assumes a backlog for d from now.
func (b *backlog) until(d time.Duration) {
	if d < math.MaxInt64 {
		d += time.Since(b.began)
	}
	b.end.Store(int64(d))
}

func (b *backlog) lasts() bool { return int64(time.Since(b.began)) < b.end.Load() }

// message carries items, documents to keep parked, or a request to reply once everything before is
// acknowledged.
type message struct {
	items   []item
	quiesce chan<- waiting
	adopt   *waiting
}

// partition folds items into a batch. It sends the batch when it is full or no items wait.
type partition struct {
	*shared
	no     int
	writer *write.Writer
	parked *resolve.Parked

	in    chan message
	free  chan []item // emptied chunks going back to the router
	chunk []item      // under construction, owned by the router

	batch    *fold.Batch
	kept     *fold.Coalesced
	acks     acks // of the batch
	keptAcks acks
	parkAcks acks // of what is parked

	timer  *time.Timer
	joined ack   // events folded into kept operations, whose release is counted together
	merged int64 // events folded, likewise
}

func newPartition(s *shared, no int, w *write.Writer, parked *resolve.Parked) *partition {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &partition{shared: s, no: no, writer: w, parked: parked, in: make(chan message, 8), free: make(chan []item, 10),
		batch: fold.NewBatch(), kept: fold.NewCoalesced(s.sizes.Coalesce), timer: t}
}

// push adds an item to the chunk under construction; router only.
func (p *partition) push(ctx context.Context, it *item) error {
	if p.chunk == nil {
		select {
		case p.chunk = <-p.free:
		default:
			p.chunk = make([]item, 0, chunkItems)
		}
	}
	p.chunk = append(p.chunk, *it)
	if len(p.chunk) < chunkItems {
		return nil
	}
	return p.sendChunk(ctx)
}

// sendChunk is for the router only.
func (p *partition) sendChunk(ctx context.Context) error {
	if len(p.chunk) == 0 {
		return nil
	}
	c := p.chunk
	p.chunk = nil
	return p.send(ctx, message{items: c})
}

func (p *partition) send(ctx context.Context, m message) error {
	select {
	case p.in <- m:
		return nil
	case <-p.stopped.Done():
		return context.Cause(p.stopped)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *partition) run(ctx context.Context) error {
	defer p.writer.Release()
	for {
		m, ok, err := p.await(ctx)
		switch {
		case err != nil:
			return err
		case ok:
			err = p.take(ctx, m)
		default:
			err = p.flush(ctx)
		}
		if err != nil {
			return fmt.Errorf("apply, partition %d: %w", p.no, err)
		}
	}
}

// await waits for the next message, or, with ok false, until the partition should send what it has.
func (p *partition) await(ctx context.Context) (m message, ok bool, err error) {
	select {
	case m = <-p.in:
		return m, true, nil
	default:
	}
	var lingered <-chan time.Time
	if p.empty() {
		if !p.backlog.lasts() {
			p.batch.Trim()
			p.kept.Trim()
		}
	} else if p.backlog.lasts() {
		p.timer.Reset(linger)
		defer p.timer.Stop()
		lingered = p.timer.C
	} else {
		return m, false, nil
	}
	select {
	case m = <-p.in:
		return m, true, nil
	case <-lingered:
		return m, false, nil
	case <-ctx.Done():
		return m, false, context.Cause(ctx)
	}
}

func (p *partition) take(ctx context.Context, m message) error {
	switch {
	case m.quiesce != nil:
		if err := p.flushAll(ctx); err != nil {
			return err
		}
		m.quiesce <- waiting{docs: p.parked.Take(), acks: p.parkAcks} // buffered for all partitions
		p.parkAcks = nil
		return nil
	case m.adopt != nil:
		p.parked.Adopt(m.adopt.docs)
		p.parkAcks = append(p.parkAcks, m.adopt.acks...)
		return nil
	}
	for i := range m.items {
		if err := p.takeItem(ctx, &m.items[i]); err != nil {
			return err
		}
	}
	p.count()
	clear(m.items)
	select {
	case p.free <- m.items[:0]:
	default:
	}
	return nil
}

func (p *partition) takeItem(ctx context.Context, it *item) error {
	for ok := false; !ok; {
		if p.parked.Len() > 0 { // a flush may have parked an operation of this very document
			if taken, err := p.parked.Join(&it.Item); taken || err != nil {
				p.parkAcks.add(it.seg, 1, false)
				return err
			}
		}
		disputed := p.parked.Disputed(&it.Item)
		if disputed && (p.empty() || !it.Target.Serial()) {
			p.parkAcks.add(it.seg, 1, false)
			notify(p.wake)
			return p.parked.Park(&it.Item)
		}
		var err error
		if !disputed { // of a serial collection, what came before must not wait behind it
			ok, err = p.fold(it)
		}
		if err == nil && !ok {
			err = p.flushAll(ctx)
		}
		if err != nil {
			return err
		}
	}
	if p.batch.Ops >= p.sizes.BatchOps || p.batch.Bytes >= p.sizes.BatchBytes || p.kept.Full() {
		return p.flush(ctx)
	}
	return nil
}

func (p *partition) empty() bool { return p.batch.Empty() && p.kept.Empty() }

// fold adds an item to a kept operation or to the batch. ok is false if all must be sent first.
func (p *partition) fold(it *item) (bool, error) {
	if !p.kept.Empty() {
		joined, ok, err := p.kept.Join(&it.Item)
		if joined {
			if p.joined.seg != it.seg {
				p.count()
				p.joined.seg = it.seg
			}
			p.joined.n++
			p.merged++
			p.keptAcks.add(it.seg, 1, true)
		}
		if joined || !ok || err != nil {
			return ok, err
		}
	}
	ok, folded, err := p.batch.Add(&it.Item)
	if !ok || err != nil {
		return false, err
	}
	p.acks.add(it.seg, 1, false)
	if folded {
		p.merged++
	}
	return true, nil
}

// flush sends the batch, its updates perhaps later.
func (p *partition) flush(ctx context.Context) error {
	now := time.Now()
	keep := p.kept.Flush() && p.backlog.lasts() && p.parked.Len() == 0 && !p.kept.Due(now)
	if keep {
		for _, g := range p.batch.Groups {
			if !g.Target.Serial() && !g.Target.Contested.Load() {
				p.kept.Split(g, now)
			}
		}
	}
	if !keep || p.kept.Empty() {
		return p.flushAll(ctx)
	}
	// The acknowledgements of all events wait for the updates that are kept back.
	if err := p.write(ctx, p.batch); err != nil {
		return err
	}
	for _, a := range p.acks {
		p.release(a)
		p.keptAcks.add(a.seg, a.n, true)
	}
	p.batch.Reset()
	p.acks.reset()
	if p.parked.Len() > 0 {
		return p.flushAll(ctx)
	}
	return nil
}

// flushAll sends the batch and what is kept back, and acknowledges their events unless some are parked.
func (p *partition) flushAll(ctx context.Context) error {
	for _, b := range []*fold.Batch{p.batch, p.kept.Batch} {
		if err := p.write(ctx, b); err != nil {
			return err
		}
	}
	for _, a := range []*acks{&p.acks, &p.keptAcks} {
		if p.parked.Len() == 0 {
			p.acknowledge(*a)
		} else {
			// The segments of parked operations are unknown, so all acknowledgements wait.
			p.parkAcks = append(p.parkAcks, *a...)
		}
		a.reset()
	}
	if p.parked.Len() > 0 {
		notify(p.wake)
	}
	p.batch.Reset()
	p.kept.Sent()
	return nil
}

func (p *partition) write(ctx context.Context, b *fold.Batch) error {
	for _, g := range b.Groups {
		err := failpoint.Err("batch.before")
		if err == nil && g.Target.Serial() {
			err = p.writeSerial(ctx, g)
		} else if err == nil {
			err = p.writeOps(ctx, g, g.Ops)
		}
		if err == nil {
			err = failpoint.Err("batch.after")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *partition) writeOps(ctx context.Context, g *fold.Group, ops []fold.Op) error {
	results, err := p.writer.Write(ctx, g.Target, ops)
	if err != nil {
		return err
	}
	p.parked.Deleted(g.Target, ops)
	return p.parked.Decide(ctx, p.writer, g.Target, results)
}

// writeSerial writes operations on a capped or collated collection in order. Runs of inserts share a
// command.
func (p *partition) writeSerial(ctx context.Context, g *fold.Group) error {
	for i := 0; i < len(g.Ops); {
		run, n := p.inserts(g, i), 1
		var err error
		switch o := &g.Ops[i]; {
		case len(run) > 0:
			var results []write.Result
			if n, results, err = p.writer.InsertOrdered(ctx, g.Target, run); err == nil {
				err = p.parked.Decide(ctx, p.writer, g.Target, results)
			}
		case p.parked.Waits(g.Target, o.ID):
			p.parked.Behind(g.Target, o.Clone())
		default:
			err = p.writeOps(ctx, g, g.Ops[i:i+1])
		}
		if err != nil {
			return err
		}
		i += n
	}
	return nil
}

// inserts returns the inserts from the i-th operation on that wait for nothing.
func (p *partition) inserts(g *fold.Group, i int) (run []*fold.Op) {
	for ; i < len(g.Ops); i++ {
		o := &g.Ops[i]
		if o.Kind != stream.Insert || p.parked.Waits(g.Target, o.ID) {
			break
		}
		run = append(run, o)
	}
	return run
}

// count publishes counters in bulk, as partitions would contend for them with every event.
func (p *partition) count() {
	if p.joined.n > 0 {
		p.release(p.joined)
	}
	p.folded.Add(p.merged)
	p.joined, p.merged = ack{}, 0
}
