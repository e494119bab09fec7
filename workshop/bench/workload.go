package bench

import (
	"context"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
)

type opKind uint8

const (
	opInsert opKind = iota + 1
	opUpdate        // sets one field
	opDelete
)

// op is one operation of a backlog. Its number, from 1, is the version that an update gives its field.
type op struct {
	kind  opKind
	field uint8
	key   uint32
	n     uint32
}

// workload is a sequence of operations, the same each time. A key is never inserted again after its delete.
type workload struct {
	shape       *shape
	collections int
	operations  int
	inserts     float64 // share of inserts
	deletes     float64 // share of deletes, always the oldest document
	hot         int     // not 0: only so many documents, inserted first, updated evenly
	kept        int     // how many of the collections a sync keeps, the first; 0 is all
}

// mine are the operations on what a sync keeps.
func (w workload) mine() iter.Seq[op] {
	if w.kept == 0 {
		return w.ops()
	}
	return func(yield func(op) bool) {
		for o := range w.ops() {
			if int(o.key)%w.collections < w.kept && !yield(o) {
				return
			}
		}
	}
}

// keeping names what a sync keeps, nil for everything.
func (w workload) keeping() (names []string) {
	for c := range w.kept {
		names = append(names, dataDB+"."+collection(c))
	}
	return names
}

func (w workload) describe() string {
	if w.hot > 0 {
		return itoa(w.operations) + " operations: updates of one field, evenly on " + itoa(w.hot) +
			" documents that are inserted first"
	}
	updates := 1 - w.inserts - w.deletes
	text := itoa(w.operations) + " operations: " + percent(w.inserts) + " inserts, " + percent(updates) +
		" updates of one field, "
	if w.deletes > 0 {
		text += "evenly, " + percent(w.deletes) + " deletes of the oldest"
	} else {
		text += "zipfian 0.99 (scrambled)"
	}
	return text + "; plain writes without sessions"
}

func (w workload) ops() iter.Seq[op] {
	return func(yield func(op) bool) {
		r := rand.New(rand.NewPCG(7, 11))
		var inserted, deleted uint32
		for n := uint32(1); n <= uint32(w.operations); n++ {
			o := op{kind: opUpdate, n: n}
			dice := r.Float64()
			alive := inserted - deleted
			switch {
			case w.hot > 0 && inserted < uint32(w.hot), w.hot == 0 && (dice < w.inserts || alive < 2):
				o.kind, o.key = opInsert, inserted
				inserted++
			case w.hot == 0 && dice < w.inserts+w.deletes:
				o.kind, o.key = opDelete, deleted
				deleted++
			case w.hot > 0:
				o.key = r.Uint32N(inserted)
			case w.deletes > 0:
				o.key = deleted + r.Uint32N(alive)
			default:
				o.key = w.scramble(zipf(r.Float64(), alive), inserted)
			}
			if o.kind == opUpdate {
				o.field = uint8(r.IntN(w.shape.fields))
			}
			if !yield(o) {
				return
			}
		}
	}
}

// scramble spreads popular documents over all that will be inserted. A rank keeps its document.
func (w workload) scramble(rank uint64, inserted uint32) uint32 {
	all := uint64(float64(w.operations)*w.inserts) + 1
	for try := range uint64(8) {
		if key := mix(rank+try<<32) % all; key < uint64(inserted) {
			return uint32(key)
		}
	}
	return uint32(rank % uint64(inserted))
}

// zipf returns rank 0 to n-1 for an even random u: a continuous zipfian of exponent 0.99, whose n may grow freely.
func zipf(u float64, n uint32) uint64 {
	const rest = 1 - 0.99
	x := math.Pow(u*(math.Pow(float64(n)+1, rest)-1)+1, 1/rest)
	return min(uint64(x)-1, uint64(n)-1)
}

// change is what remains of the operations on one document of a window.
type change struct {
	kind    opKind
	fresh   bool // inserted within the window
	key     uint32
	set     uint16 // of an update: the fields it sets, by bit
	version [maxFields]uint32
}

const maxFields = 16

func (w workload) entryBytes(o op) int {
	const frame = 130
	switch o.kind {
	case opInsert:
		return frame + w.shape.size
	case opUpdate:
		return frame + 50 + w.shape.size/w.shape.fields
	}
	return frame
}

// fold merges each document's operations within windows of so many bytes of oplog; 0 is one window.
func (w workload) fold(ops iter.Seq[op], windowBytes int) iter.Seq[[]change] {
	return func(yield func([]change) bool) {
		var changes []change
		at := map[uint32]int{}
		size := 0
		for o := range ops {
			i, known := at[o.key]
			if !known {
				i = len(changes)
				at[o.key] = i
				changes = append(changes, change{kind: o.kind, fresh: o.kind == opInsert, key: o.key})
			}
			changes[i].take(o)
			size += w.entryBytes(o)
			if windowBytes == 0 || size < windowBytes {
				continue
			}
			if !yield(settled(changes)) {
				return
			}
			changes, size = nil, 0
			clear(at)
		}
		if len(changes) > 0 {
			yield(settled(changes))
		}
	}
}

func (c *change) take(o op) {
	switch o.kind {
	case opUpdate:
		c.set |= 1 << o.field
		c.version[o.field] = o.n
	case opDelete:
		c.kind = opDelete
	}
}

// settled leaves out what came and went.
func settled(changes []change) []change {
	kept := changes[:0]
	for _, c := range changes {
		if c.kind != opDelete || !c.fresh {
			kept = append(kept, c)
		}
	}
	return kept
}

// limit is the first n operations.
func limit(ops iter.Seq[op], n int) iter.Seq[op] {
	return func(yield func(op) bool) {
		if n == 0 {
			return
		}
		left := n
		for o := range ops {
			if left--; !yield(o) || left == 0 {
				return
			}
		}
	}
}

const (
	loadConnections = 4
	// loadChunk is how many operations of a connection go together: the longest run of a kind in the oplog.
	loadChunk = 250
	markEvery = 10_000 // how many operations lie between marks of a span.
)

// write does each operation by itself, in order by document, and returns the span of the oplog.
func (w workload) write(ctx context.Context, to *side) (span, error) {
	from, err := to.position(ctx)
	if err != nil {
		return span{}, err
	}
	// Some tools begin at a second: it must not hold anything from before.
	if !tick(ctx, time.Until(from.Time().Add(time.Second))) {
		return span{}, ctx.Err()
	}
	s := span{from: from}
	next := uint32(markEvery)
	_, err = w.spread(ctx, to, writing{loadConnections, loadChunk, func(ctx context.Context, o op) (bool, error) {
		if o.n < next {
			return true, nil
		}
		next += markEvery
		at, err := to.position(ctx)
		if n := len(s.marks); n == 0 || s.marks[n-1].Before(at) {
			s.marks = append(s.marks, at)
		}
		return true, err
	}})
	if err != nil {
		return s, fmt.Errorf("write the backlog: %w", err)
	}
	s.to, err = to.position(ctx)
	return s, err
}

func (s *side) position(ctx context.Context) (mongo.OpTime, error) {
	p, err := s.direct.Positions(ctx)
	return p.Last, err
}

type writing struct {
	connections int
	chunk       int // operations of a connection that go together
	// more is asked before a chunk is handed out, with its last operation, and may wait; false ends the writing.
	more func(ctx context.Context, o op) (bool, error)
}

// spread writes the operations over several connections, by document, and returns how many were done.
func (w workload) spread(ctx context.Context, to *side, how writing) (int, error) {
	g, ctx := errgroup.WithContext(ctx)
	var done atomic.Int64
	queues := make([]chan []op, how.connections)
	for i := range queues {
		queues[i] = make(chan []op, 1)
		g.Go(func() error {
			wr, err := newWriter(ctx, to, 1)
			if err != nil {
				return err
			}
			defer wr.conn.Release()
			wr.size = 4 << 20
			for chunk := range queues[i] {
				if err := w.writeChunk(ctx, wr, chunk); err != nil {
					return err
				}
				done.Add(int64(len(chunk)))
			}
			return nil
		})
	}
	g.Go(func() error {
		defer func() {
			for _, q := range queues {
				close(q)
			}
		}()
		return w.handOut(ctx, queues, how)
	})
	err := g.Wait()
	return int(done.Load()), err
}

func (w workload) handOut(ctx context.Context, queues []chan []op, how writing) error {
	chunks := make([][]op, len(queues))
	for o := range w.ops() {
		i := int(mix(uint64(o.key)) % uint64(len(queues)))
		if chunks[i] = append(chunks[i], o); len(chunks[i]) < how.chunk {
			continue
		}
		if more, err := how.more(ctx, o); err != nil || !more {
			return err
		}
		if err := hand(ctx, queues[i], chunks[i]); err != nil {
			return err
		}
		chunks[i] = nil
	}
	for i, c := range chunks {
		if err := hand(ctx, queues[i], c); err != nil {
			return err
		}
	}
	return nil
}

func hand(ctx context.Context, to chan<- []op, chunk []op) error {
	select {
	case to <- chunk:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w workload) writeChunk(ctx context.Context, wr *writer, chunk []op) error {
	changes := make([]change, len(chunk))
	for i, o := range chunk {
		changes[i] = change{kind: o.kind, key: o.key}
		changes[i].take(o)
	}
	return w.window(ctx, wr, changes)
}

// plan is what each connection has to do, window after window.
type plan [][][]change

// newPlan spreads the changes over connections by document, so that those of one document stay in order.
func newPlan(windows iter.Seq[[]change], connections int) plan {
	p := make(plan, connections)
	for changes := range windows {
		parts := make([][]change, connections)
		for _, c := range changes {
			i := int(mix(uint64(c.key)) % uint64(connections))
			parts[i] = append(parts[i], c)
		}
		for i, part := range parts {
			p[i] = append(p[i], part)
		}
	}
	return p
}

func (p plan) statements() (n int) {
	for _, windows := range p {
		for _, changes := range windows {
			n += len(changes)
		}
	}
	return n
}

// apply writes a plan: each window's inserts, updates and deletes by collection, in commands of batchBytes.
func (w workload) apply(ctx context.Context, to *side, p plan, s settings) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, windows := range p {
		g.Go(func() error {
			wr, err := newWriter(ctx, to, s.concern())
			if err != nil {
				return err
			}
			defer wr.conn.Release()
			wr.size = s.batchBytes
			for _, changes := range windows {
				if err := w.window(ctx, wr, changes); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

func (w workload) window(ctx context.Context, wr *writer, changes []change) error {
	for _, kind := range []opKind{opInsert, opUpdate, opDelete} {
		for coll := range w.collections {
			var same []change
			for _, c := range changes {
				if c.kind == kind && int(c.key)%w.collections == coll {
					same = append(same, c)
				}
			}
			if err := w.send(ctx, wr, kind, coll, same); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w workload) send(ctx context.Context, wr *writer, kind opKind, coll int, changes []change) error {
	for len(changes) > 0 {
		n, err := w.command(wr, kind, coll, changes)
		if err != nil {
			return err
		}
		if err := wr.send(ctx, "apply to "+collection(coll), n); err != nil {
			return err
		}
		changes = changes[n:]
	}
	return nil
}

// command makes one command of as many of the changes as fit.
func (w workload) command(wr *writer, kind opKind, coll int, changes []change) (n int, err error) {
	const most = 100_000 // operations a command, by the server
	name := collection(coll)
	if kind == opDelete {
		if err := wr.begin("delete", name, false, "deletes"); err != nil {
			return 0, err
		}
		n = min(len(changes), max(wr.size/30, 1), most)
		wr.msg.BuildDocument(func(dst []byte) []byte { return w.appendDeletes(dst, changes[:n]) })
		return n, nil
	}
	if kind == opInsert {
		err = wr.begin("insert", name, false, "documents")
	} else {
		err = wr.begin("update", name, true, "updates")
	}
	if err != nil {
		return 0, err
	}
	for n < len(changes) && n < most && (n == 0 || wr.msg.Len() < wr.size) {
		c := &changes[n]
		wr.msg.BuildDocument(func(dst []byte) []byte {
			if kind == opInsert {
				return w.shape.appendDoc(dst, c.key, c.version[:])
			}
			return w.appendUpdate(dst, c)
		})
		n++
	}
	return n, nil
}

// appendDeletes makes one delete statement of many documents, which costs the server half of as many statements.
func (w workload) appendDeletes(dst []byte, changes []change) []byte {
	i, dst := bsoncore.AppendDocumentStart(dst)
	q, dst := bsoncore.AppendDocumentElementStart(dst, "q")
	id, dst := bsoncore.AppendDocumentElementStart(dst, "_id")
	in, dst := bsoncore.AppendArrayElementStart(dst, "$in")
	for n, c := range changes {
		dst = w.appendID(dst, itoa(n), c.key)
	}
	dst, _ = bsoncore.AppendArrayEnd(dst, in)
	dst, _ = bsoncore.AppendDocumentEnd(dst, id)
	dst, _ = bsoncore.AppendDocumentEnd(dst, q)
	dst = bsoncore.AppendInt32Element(dst, "limit", 0)
	dst, _ = bsoncore.AppendDocumentEnd(dst, i)
	return dst
}

// appendID writes a document's _id under another name.
func (w workload) appendID(dst []byte, name string, key uint32) []byte {
	var buf [64]byte
	el := bsoncore.Element(w.shape.id(w.shape, buf[:0], key))
	return bsoncore.AppendValueElement(dst, name, el.Value())
}

func (w workload) appendUpdate(dst []byte, c *change) []byte {
	i, dst := bsoncore.AppendDocumentStart(dst)
	q, dst := bsoncore.AppendDocumentElementStart(dst, "q")
	dst = w.shape.id(w.shape, dst, c.key)
	dst, _ = bsoncore.AppendDocumentEnd(dst, q)
	u, dst := bsoncore.AppendDocumentElementStart(dst, "u")
	set, dst := bsoncore.AppendDocumentElementStart(dst, "$set")
	for f := range w.shape.fields {
		if c.set&(1<<f) != 0 {
			dst = w.shape.field(w.shape, dst, c.key, f, c.version[f])
		}
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, set)
	dst, _ = bsoncore.AppendDocumentEnd(dst, u)
	dst, _ = bsoncore.AppendDocumentEnd(dst, i)
	return dst
}

// unfolded makes a plan that does each operation by itself, those of one document in order.
func (w workload) unfolded(connections int) plan {
	const together = 1000 // operations of a connection
	p := make(plan, connections)
	parts := make([][]change, connections)
	for o := range w.ops() {
		i := int(mix(uint64(o.key)) % uint64(connections))
		c := change{kind: o.kind, key: o.key}
		c.take(o)
		if parts[i] = append(parts[i], c); len(parts[i]) == together {
			p[i], parts[i] = append(p[i], parts[i]), nil
		}
	}
	for i, part := range parts {
		p[i] = append(p[i], part)
	}
	return p
}
