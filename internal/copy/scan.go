package copy

import (
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/wire"
)

var (
	errNoToken  = errors.New("the source's reply in record order has no resume token")
	errNoRecord = errors.New("the source's reply has no record ids")
)

const (
	maxReply     = 16<<20 + 16<<10 // of one cursor reply, by the server
	maxBatchDocs = 50_000          // the server takes 100,000 documents an insert
	guessedBatch = 1000            // documents, where their size is unknown
)

// scan reads one slice through one cursor after the other.
type scan struct {
	r *reader
	s *slice
	c *collection

	at    bson.Raw // last document sent, or where the slice starts
	floor int64    // ByRecord: record ids up to here are not the slice's, or sent
	upper int64    // ByRecord: the last record id, 0 for none
	start int64    // ByRecord: where the cursor starts, at or below floor; 0 is the beginning
	back  []int64  // ByRecord: places to start from when start was deleted
	first bool     // else, ByKey: the document at `at` comes first again

	batch   int   // documents asked for a reply
	reply   int64 // expected bytes of a reply
	sent    int   // chunks
	largest bool  // the last document's _id is MaxKey

	pending <-chan struct{} // Serial: closed when the last chunk is written
	edge    *edge           // Serial: where the copy of a capped collection ends
}

func (r *reader) newScan(s *slice) *scan {
	sc := &scan{r: r, s: s, c: s.c, batch: guessedBatch, reply: 1 << 20}
	var back []int64
	sc.at, back = s.start()
	sc.back = back
	sc.floor = markRecord(sc.at)
	sc.start = sc.floor
	sc.upper = markRecord(s.st.Upper)
	sc.first = len(s.st.Position) > 0 && s.st.Strategy != ByRecord
	sc.largest = s.st.Strategy == ByID && markID(s.st.Position).Type == bsoncore.TypeMaxKey
	if size := s.c.docSize(); size > 0 {
		sc.batch = int(min(max(r.batchBytes()/size, 1), maxBatchDocs))
		sc.reply = int64(sc.batch) * size * 5 / 4
	}
	const little = 64 << 10
	sc.reply = min(sc.reply, s.c.Source.Bytes+little, maxReply)
	return sc
}

// batchBytes is the wished size of a reply: less where so many are under way
// that the budget would not hold them.
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

// stepBack takes the next place to start from; false when there is none left
// because the beginning was refused too.
func (sc *scan) stepBack() bool {
	if sc.start == 0 {
		return false
	}
	for len(sc.back) > 0 {
		next := sc.back[0]
		sc.back = sc.back[1:]
		if next < sc.start {
			sc.start = next
			return true
		}
	}
	sc.start = 0
	return true
}

// read opens a cursor at the scan's position and sends all up to the slice's
// end.
func (sc *scan) read(ctx context.Context) error {
	if err := sc.cursor(ctx, sc.command()); err != nil {
		return err
	}
	if sc.s.st.Strategy == ByID && sc.bounded() && !sc.largest && len(sc.s.st.Upper) == 0 {
		// Index bounds without a max end before MaxKey.
		return sc.cursor(ctx, sc.r.find(sc.c, bson.D{
			{Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$eq", Value: bson.MaxKey{}}}}}}}))
	}
	return nil
}

// bounded reports that the command carries index bounds.
func (sc *scan) bounded() bool { return len(sc.at) > 0 || len(sc.s.st.Upper) > 0 }

func (sc *scan) command() bson.D {
	more := bson.D{{Key: "batchSize", Value: sc.wanted(sc.start)}}
	switch sc.s.st.Strategy {
	case ByRecord:
		more = append(more, recordOrder()...)
		if sc.start != 0 {
			more = append(more, bson.E{Key: "$_resumeAfter", Value: bson.D{{Key: "$recordId", Value: sc.start}}})
		}
	case ByID:
		more = append(more, bson.E{Key: "hint", Value: bson.D{{Key: "_id", Value: 1}}})
		if len(sc.at) > 0 {
			more = append(more, bson.E{Key: "min", Value: sc.at})
		}
		if len(sc.s.st.Upper) > 0 {
			more = append(more, bson.E{Key: "max", Value: sc.s.st.Upper})
		}
	case ByKey:
		more = append(more, bson.E{Key: "filter", Value: keyRange(sc.at, sc.s.st.Upper)})
	case Serial:
		more = append(more, bson.E{Key: "hint", Value: bson.D{{Key: "$natural", Value: 1}}})
		if sc.edge != nil {
			more = append(more, bson.E{Key: "showRecordId", Value: true})
		}
	}
	return sc.r.find(sc.c, more)
}

// wanted is how many documents to ask for after a record: in record order those
// of the slice are no more than the numbers to its end.
func (sc *scan) wanted(after int64) int {
	if sc.s.st.Strategy != ByRecord || sc.upper == 0 {
		return sc.batch
	}
	return int(max(min(sc.upper-after, int64(sc.batch)), 1))
}

func keyRange(lower, upper bson.Raw) bson.D {
	cond := bson.D{}
	if len(lower) > 0 {
		cond = append(cond, bson.E{Key: "$gte", Value: lower.Lookup("_id")})
	}
	if len(upper) > 0 {
		cond = append(cond, bson.E{Key: "$lt", Value: upper.Lookup("_id")})
	}
	if len(cond) == 0 {
		return bson.D{}
	}
	return bson.D{{Key: "_id", Value: cond}}
}

// cursor sends the documents of one command.
func (sc *scan) cursor(ctx context.Context, cmd bson.D) error {
	if sc.largest { // a position at MaxKey has nothing after it
		return nil
	}
	held := sc.reply
	if err := sc.r.run.budget.take(ctx, held); err != nil {
		return err
	}
	cur, b, err := sc.r.open(ctx, sc.c.sourceDB, cmd, wire.CursorOptions{BatchSize: sc.batch})
	if err != nil {
		sc.r.run.budget.adjust(-held)
		return err
	}
	defer sc.r.close(ctx, cur)
	for {
		over, err := sc.batchRead(ctx, b, held)
		if err != nil || over {
			return err
		}
		held = sc.reply
		if err := sc.r.run.budget.take(ctx, held); err != nil {
			return err
		}
		cur.Limit(sc.wanted(tokenRecord(b.Token)))
		if b, err = sc.r.next(ctx, cur); err != nil {
			sc.r.run.budget.adjust(-held)
			return err
		}
	}
}

// batchRead sends a reply's documents on; over tells that the slice has ended.
// held is what the budget has granted for the reply.
func (sc *scan) batchRead(ctx context.Context, b *wire.Batch, held int64) (over bool, err error) {
	size := int64(b.Size)
	sc.r.run.budget.adjust(size - held)
	sc.reply = min(max(sc.reply, size), maxReply)
	if sc.sent == 0 && !b.Done && sc.c.unmeasured() {
		sc.r.run.budget.adjust(-size)
		return false, errLarge
	}
	ch, over, err := sc.take(b)
	if err != nil || ch.docs == 0 {
		sc.r.run.budget.adjust(-size)
		return over || b.Done, err
	}
	ch.held = size
	return over || b.Done, sc.send(ctx, ch)
}

// unmeasured reports a collection that came without estimates and was not
// asked for them yet.
func (c *collection) unmeasured() bool {
	return c.Source.Bytes <= 0 && !c.measured && !c.serial()
}

// take makes a chunk of the batch's documents that belong to the slice. In
// record order it decides by the batch's resume token: at either end of a slice
// it may take documents too many, which the target has or gets from the
// neighbour.
func (sc *scan) take(b *wire.Batch) (ch *chunk, over bool, err error) {
	ch = &chunk{s: sc.s, batch: b, records: sc.edge != nil}
	rid := int64(0)
	var until bsoncore.Value // the slice ends in this batch, after this _id if it is there
	if sc.s.st.Strategy == ByRecord {
		rid = tokenRecord(b.Token)
		switch {
		case rid == 0 && !b.Done:
			return nil, false, errNoToken
		case rid != 0 && rid <= sc.floor:
			return ch, false, nil
		case sc.upper != 0 && rid >= sc.upper:
			over, until = true, markID(sc.s.st.Upper)
		}
	}
	last, beyond, err := sc.count(ch, until)
	over = over || beyond
	if err != nil || ch.docs == 0 {
		return ch, over, err
	}
	id := bsonraw.IDOf(last)
	sc.largest = id.Type == bsoncore.TypeMaxKey && sc.s.st.Strategy == ByID
	switch {
	case over && !beyond:
		ch.position = sc.s.st.Upper
	case rid != 0 || sc.s.st.Strategy != ByRecord:
		ch.position = mark(sc.s.st.Strategy, rid, id)
	}
	sc.floor = max(sc.floor, rid)
	return ch, over, nil
}

// count sets the chunk's extent: all of the batch, but for a first document
// that was sent before and those after the _id until, or beyond the edge.
func (sc *scan) count(ch *chunk, until bsoncore.Value) (last []byte, beyond bool, err error) {
	i := -1
	ended := false
	err = ch.batch.Each(func(doc []byte) error {
		i++
		if ended {
			return nil
		}
		if sc.edge != nil {
			record, ok := recordOf(doc)
			if !ok {
				return errNoRecord
			}
			if beyond = record > sc.edge.record; beyond {
				ended = true
				return nil
			}
		}
		if sc.first {
			sc.first = false
			if sameValue(bsonraw.IDOf(doc), markID(sc.at)) {
				return nil
			}
		}
		if ch.docs == 0 {
			ch.from = i
		}
		ch.docs++
		ch.bytes += int64(len(doc))
		if sc.edge != nil {
			ch.bytes -= int64(recordSuffix - 1)
		}
		last = doc
		ended = until.Type != 0 && sameValue(bsonraw.IDOf(doc), until)
		return nil
	})
	return last, beyond, err
}

// send hands a chunk to the writers, in a serial slice when the one before it
// is written.
func (sc *scan) send(ctx context.Context, ch *chunk) error {
	if err := sc.r.e.opts.Limit.Wait(ctx, int64(ch.docs), ch.bytes); err != nil {
		return err
	}
	if sc.s.st.Strategy == Serial {
		if err := sc.settle(ctx); err != nil {
			return err
		}
		ch.done = make(chan struct{})
		sc.pending = ch.done
	}
	ch.n = sc.s.number()
	select {
	case sc.r.run.chunks <- ch:
	case <-ctx.Done():
		return ctx.Err()
	}
	sc.sent++
	sc.moved(ch)
	return nil
}

// settle waits until the last chunk of a serial slice is written.
func (sc *scan) settle(ctx context.Context) error {
	if sc.pending == nil {
		return nil
	}
	select {
	case <-sc.pending:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// moved lets a cursor that has to be opened again begin after the chunk.
func (sc *scan) moved(ch *chunk) {
	record := sc.s.st.Strategy == ByRecord
	if record {
		sc.back = append([]int64{sc.start}, sc.back...)
		if len(sc.back) > trailLength+candidates {
			sc.back = sc.back[:trailLength+candidates]
		}
		sc.start = sc.floor
	}
	sc.at, sc.first = ch.position, !record
}
