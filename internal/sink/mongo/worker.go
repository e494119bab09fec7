package mongosink

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/wire"
)

// chunkItems is how many items the router hands over at once.
const chunkItems = 256

// message is what a worker receives: items, or the wish to be told when
// everything before is acknowledged.
type message struct {
	items   []item
	quiesce chan<- parkedBatch
	carry   *parkedBatch // documents to keep parked
}

// worker is one partition: it folds items into a batch and sends the batch
// when it is full or nothing more is waiting.
type worker struct {
	e    *Engine
	no   int
	in   chan message
	free chan []item // emptied chunks going back to the router

	chunk []item // under construction, owned by the router

	conn   *wire.Conn
	timer  *time.Timer
	b      *batch
	held   held
	parked parkedSet
	freed  ack   // events folded into held ones, whose release is counted together
	folded int64 // likewise
	txn    batchTxn
	msg    wire.Message
	cmds   map[commandKey]bsoncore.Document
	buf    []byte
}

func newWorker(e *Engine, no int) *worker {
	return &worker{e: e, no: no, in: make(chan message, 8), free: make(chan []item, 10),
		timer: stoppedTimer(), b: newBatch(), held: held{batch: newBatch()}, cmds: map[commandKey]bsoncore.Document{}}
}

func stoppedTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// push adds an item to the chunk under construction; router only.
func (w *worker) push(ctx context.Context, it item) error {
	if w.chunk == nil {
		select {
		case w.chunk = <-w.free:
		default:
			w.chunk = make([]item, 0, chunkItems)
		}
	}
	w.chunk = append(w.chunk, it)
	if len(w.chunk) < chunkItems {
		return nil
	}
	return w.sendChunk(ctx)
}

func (w *worker) sendChunk(ctx context.Context) error {
	if len(w.chunk) == 0 {
		return nil
	}
	c := w.chunk
	w.chunk = nil
	return w.send(ctx, message{items: c})
}

func (w *worker) send(ctx context.Context, m message) error {
	select {
	case w.in <- m:
		return nil
	case <-w.e.stopped:
		return errors.New("apply workers stopped")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (w *worker) run(ctx context.Context) error {
	defer w.letGo()
	for {
		m, ok, err := w.await(ctx)
		switch {
		case err != nil:
			return err
		case ok:
			err = w.take(ctx, m)
		default:
			err = w.flush(ctx)
		}
		if err != nil {
			return fmt.Errorf("apply, partition %d: %w", w.no, err)
		}
	}
}

func (w *worker) take(ctx context.Context, m message) error {
	if m.quiesce != nil {
		if err := w.flushAll(ctx); err != nil {
			return err
		}
		m.quiesce <- w.parked.take() // buffered for all workers
		return nil
	}
	if m.carry != nil {
		w.parked.adopt(m.carry)
		return nil
	}
	for _, it := range m.items {
		if err := w.takeItem(ctx, it); err != nil {
			return err
		}
	}
	w.count()
	clear(m.items)
	select {
	case w.free <- m.items[:0]:
	default:
	}
	return nil
}

func (w *worker) takeItem(ctx context.Context, it item) error {
	if w.parked.len() > 0 {
		if taken, err := w.parked.join(it); taken || err != nil {
			return err
		}
	}
	if w.e.o.Letters.Disputed(it.t.ns, it.ev.Key.ID) {
		if it.t.serial() { // what came before it must not wait behind it
			if err := w.flushAll(ctx); err != nil {
				return err
			}
			if taken, err := w.parked.join(it); taken || err != nil {
				return err
			}
		}
		w.wakeRouter()
		return w.parked.parkItem(it)
	}
	for {
		ok, folded, err := w.fold(it)
		if err != nil {
			return err
		}
		if ok {
			if folded {
				w.folded++
			}
			break
		}
		if err := w.flushAll(ctx); err != nil {
			return err
		}
		// The flush may have parked an operation of this very document.
		if taken, err := w.parked.join(it); taken || err != nil {
			return err
		}
	}
	if w.b.ops >= w.e.o.BatchOps || w.b.bytes >= w.e.o.BatchBytes {
		return w.flush(ctx)
	}
	return nil
}

// fold takes an item into a held update or into the batch. ok is false when
// all in hand has to be sent first.
func (w *worker) fold(it item) (ok, folded bool, err error) {
	if !w.held.empty() {
		joined, ok, err := w.held.join(it)
		if joined {
			if w.freed.seg != it.seg {
				w.count()
				w.freed.seg = it.seg
			}
			w.freed.n++
		}
		if joined || !ok || err != nil {
			return ok, joined, err
		}
	}
	return w.b.add(it)
}

// flush sends the batch, its updates perhaps later.
func (w *worker) flush(ctx context.Context) error {
	if w.holding() && !w.held.due(w.e.o.HoldBytes) {
		for _, nb := range w.b.order {
			if !nb.t.serial() && !nb.t.contested.Load() {
				w.held.split(nb)
			}
		}
		if w.held.ops > 0 {
			return w.flushBeside(ctx)
		}
	}
	return w.flushAll(ctx)
}

// flushBeside sends the batch while updates are held back, with which the
// acknowledgements of its events wait.
func (w *worker) flushBeside(ctx context.Context) error {
	if err := w.writeBatch(ctx, w.b); err != nil {
		return err
	}
	for _, a := range w.b.acks {
		w.release(a.seg, a.n)
		w.held.ack(a.seg, a.n, true)
	}
	w.b.reset()
	if w.parked.len() > 0 {
		return w.flushAll(ctx)
	}
	return nil
}

// flushAll sends the batch and what is held back, and acknowledges their
// events, except those parked.
func (w *worker) flushAll(ctx context.Context) error {
	for _, b := range []*batch{w.b, w.held.batch} {
		if err := w.writeBatch(ctx, b); err != nil {
			return err
		}
	}
	for _, a := range [][]ack{w.b.acks, w.held.acks} {
		if w.parked.len() == 0 {
			w.acknowledge(a)
			continue
		}
		// Which segments the parked operations stem from is not tracked, so
		// the acknowledgements wait for all of them.
		w.parked.hold(a)
	}
	if w.parked.len() > 0 {
		w.wakeRouter()
	}
	w.b.reset()
	w.held.sent()
	return nil
}

func (w *worker) writeBatch(ctx context.Context, b *batch) error {
	for _, nb := range b.order {
		if err := failpoint.Err("batch.before"); err != nil {
			return err
		}
		var err error
		if nb.t.serial() {
			err = w.writeSerial(ctx, nb)
		} else {
			err = w.write(ctx, nb)
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

// acknowledge says that events are on the target.
func (w *worker) acknowledge(acks []ack) {
	for _, a := range acks {
		if !a.released {
			w.release(a.seg, a.n)
		}
		w.e.ledger.done(a.seg, a.n)
	}
}

// release says that nothing points into the memory of n events any more.
func (w *worker) release(seg *segment, n int64) {
	w.e.n.operations.Add(n)
	w.e.ledger.release(seg, n)
}

// count passes on what was counted since it was last called: for each event by
// itself the workers would wait for one another's counters.
func (w *worker) count() {
	if w.freed.n > 0 {
		w.release(w.freed.seg, w.freed.n)
	}
	w.e.n.folded.Add(w.folded)
	w.freed, w.folded = ack{}, 0
}

func (w *worker) wakeRouter() {
	select {
	case w.e.parkCh <- struct{}{}:
	default:
	}
}

// letGo gives the worker's connection back.
func (w *worker) letGo() {
	if w.conn != nil {
		w.conn.Release()
	}
}

// connection returns the worker's connection to the target's primary.
func (w *worker) connection(ctx context.Context) (*wire.Conn, error) {
	if w.conn != nil {
		return w.conn, nil
	}
	c, err := w.e.dst.Pool.Checkout(ctx, wire.Primary())
	if err != nil {
		return nil, err
	}
	w.conn = c
	return c, nil
}
