package write

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/wire"
)

type statement struct {
	op      *fold.Op
	doc     []byte // an update's modifiers or the query of a grouped delete, nil for op.Doc
	where   []byte
	guarded bool // it holds only for a document without the fields it inserts
	suspect bool // the document may have a timestamp that the server replaces
}

func (s *statement) size() int {
	n := max(len(s.doc), len(s.op.Doc))
	if s.guarded {
		n *= 2
	}
	return n + len(s.op.ID.Data) + 32
}

func (s *statement) append(dst []byte, command string, t *fold.Target) []byte {
	switch command {
	case "insert":
		start := len(dst)
		dst = append(dst, s.op.Doc...)
		s.suspect = delta.MayHoldEmptyTimestamp(dst[start:]) // while it is in the processor's cache
		return dst
	case "update":
		return s.appendUpdate(dst, t)
	}
	i, dst := bsoncore.AppendDocumentStart(dst)
	limit := int32(1)
	if s.doc != nil {
		limit = 0
		dst = bsoncore.AppendDocumentElement(dst, "q", s.doc)
	} else {
		dst = s.appendQuery(dst, t)
	}
	dst = bsoncore.AppendInt32Element(dst, "limit", limit)
	return bsonraw.Close(dst, i)
}

func (s *statement) appendUpdate(dst []byte, t *fold.Target) []byte {
	i, dst := bsoncore.AppendDocumentStart(dst)
	dst = s.appendQuery(dst, t)
	upsert := s.op.Kind == stream.Put || s.op.Upsert
	if s.op.Kind == stream.Update {
		dst = bsoncore.AppendDocumentElement(dst, "u", s.doc)
	} else {
		start := len(dst)
		dst = bsoncore.AppendDocumentElement(dst, "u", s.op.Doc)
		s.suspect = delta.MayHoldEmptyTimestamp(dst[start+len("\x03u\x00"):])
		if key := t.Key; !key.IsZero() { // it may have been elsewhere
			dst, upsert = key.AppendCollation(dst), true
		}
	}
	if upsert {
		dst = bsoncore.AppendBooleanElement(dst, "upsert", true)
	}
	return bsonraw.Close(dst, i)
}

func (s *statement) appendQuery(dst []byte, t *fold.Target) []byte {
	qi, dst := bsoncore.AppendDocumentElementStart(dst, "q")
	dst = bsoncore.AppendValueElement(dst, "_id", s.op.ID)
	switch key := t.Key; {
	case key.IsZero():
	case s.whole():
		dst = key.AppendEquals(dst, s.op.Doc)
	case s.where != nil:
		dst = key.AppendKnown(dst, s.where)
	}
	if s.guarded {
		dst = delta.AppendGuard(dst, s.op.Delta)
	}
	if s.op.Wall != 0 {
		dst = t.Expiry.AppendLive(dst, s.op.Wall)
	}
	return bsonraw.Close(dst, qi)
}

func (s *statement) whole() bool { return s.op.Kind != stream.Update && s.op.Kind != stream.Delete }

// split returns the statements that are so, and the others.
func split(list []statement, is func(*statement) bool) (yes, no []statement) {
	for i := range list {
		if is(&list[i]) {
			yes = append(yes, list[i])
		} else {
			no = append(no, list[i])
		}
	}
	return yes, no
}

// plan holds a batch's statements by command until it is reset.
type plan struct {
	deletes, spared, updates, guarded, rewrites, inserts []statement

	buf []byte // what was translated
}

// bufferKept bounds the buffer kept for the next batch.
const bufferKept = 16 << 20

func (p *plan) reset() {
	for _, list := range []*[]statement{&p.deletes, &p.spared, &p.updates, &p.guarded, &p.rewrites, &p.inserts} {
		clear(*list)
		*list = (*list)[:0]
	}
	if p.buf = p.buf[:0]; cap(p.buf) > bufferKept {
		p.buf = nil
	}
}

// fill translates updates and sorts operations by command. key is the collection's shard key.
func (p *plan) fill(ops []fold.Op, key docwrite.Key) {
	size := 0
	for i := range ops {
		size += len(ops[i].Delta.Raw())
	}
	p.buf = slices.Grow(p.buf, size)
	for i := range ops {
		o := &ops[i]
		keyed := o.Kind == stream.Update && o.Wall == 0 && !key.IsZero()
		if keyed && (o.Upsert || key.Touched(o.Delta)) {
			p.rewrites = append(p.rewrites, statement{op: o}) // for it may belong elsewhere then
		} else {
			p.add(o)
		}
	}
}

func (p *plan) add(o *fold.Op) {
	if o.Wall != 0 {
		s := statement{op: o}
		if o.Kind == stream.Update {
			s, _ = p.translate(o) // a guard that fails has met a mark
		}
		p.spared = append(p.spared, s)
		return
	}
	switch o.Kind {
	case stream.Delete:
		p.deletes = append(p.deletes, statement{op: o})
	case stream.Insert:
		p.inserts = append(p.inserts, statement{op: o})
	case stream.Update:
		switch s, form := p.translate(o); {
		case form == delta.Classic:
			p.updates = append(p.updates, s)
		case form == delta.Guarded && !o.Upsert: // a guard that fails would insert
			p.guarded = append(p.guarded, s)
		default:
			p.rewrites = append(p.rewrites, statement{op: o})
		}
	default:
		p.updates = append(p.updates, statement{op: o})
	}
}

// translate appends an update's statement to buf.
func (p *plan) translate(o *fold.Op) (statement, delta.Form) {
	start := len(p.buf)
	out, form := delta.AppendStatement(p.buf, o.Delta)
	s := statement{op: o, doc: out[start:len(out):len(out)], guarded: form == delta.Guarded}
	if form != delta.None && s.tooLarge() {
		p.buf = out[:start]
		return statement{op: o}, delta.None
	}
	p.buf = out
	return s, form
}

// tooLarge reports that no server takes the update's statement, which has all field paths and the _id.
func (s *statement) tooLarge() bool {
	size := len(s.doc) + len(s.op.ID.Data) + 64
	if s.guarded && 8*size > docwrite.MaxStatement { // a condition may be longer than what it guards
		size += len(delta.AppendGuard(nil, s.op.Delta))
	}
	return size > docwrite.MaxStatement
}

// groupDeletes and groupBytes bound a grouped delete, in documents and bytes of _ids.
const (
	groupDeletes = 100
	groupBytes   = 1 << 20
)

// grouped combines deletes, which halves their cost. _ids that mean something else in a $in stay alone.
func (p *plan) grouped(deletes []statement) (out []statement) {
	alone := 0
	for i := range deletes {
		if !plainID(deletes[i].op.ID) {
			deletes[alone], deletes[i] = deletes[i], deletes[alone]
			alone++
		}
	}
	out = append(out, deletes[:alone]...)
	for plain := deletes[alone:]; len(plain) > 0; {
		n, _ := fitting(plain, groupDeletes, groupBytes)
		s := plain[0]
		if n > 1 {
			s.doc = p.appendIn(plain[:n])
		}
		out, plain = append(out, s), plain[n:]
	}
	return out
}

func (p *plan) appendIn(group []statement) []byte {
	start := len(p.buf)
	q, dst := bsoncore.AppendDocumentStart(p.buf)
	id, dst := bsoncore.AppendDocumentElementStart(dst, "_id")
	in, dst := bsoncore.AppendArrayElementStart(dst, "$in")
	for i := range group {
		dst = bsoncore.AppendValueElement(dst, strconv.Itoa(i), group[i].op.ID)
	}
	dst = bsonraw.Close(dst, in, id, q)
	p.buf = dst
	return dst[start:len(dst):len(dst)]
}

// plainID reports an _id that means itself in a $in.
func plainID(id bsoncore.Value) bool {
	switch id.Type {
	case bsoncore.TypeDouble, bsoncore.TypeString, bsoncore.TypeBinary, bsoncore.TypeObjectID, bsoncore.TypeBoolean,
		bsoncore.TypeDateTime, bsoncore.TypeInt32, bsoncore.TypeTimestamp, bsoncore.TypeInt64, bsoncore.TypeDecimal128:
		return true
	}
	return false
}

// Updates are sent in transactions if possible. Measured on 6.0.5, an update costs a server 170 to 180 us
// of processor time, as it has its own commit and oplog entry. One of two hundred in a transaction costs
// 115 to 130 us. Servers group inserts anyway. What a transaction does not take is sent as plain updates,
// whose replies name the refused ones.
const (
	transactionMost = 500
	// transactionNear is the longest exchange that does nothing. Farther away, transactions cost more
	// than they save.
	transactionNear = 20 * time.Millisecond
	nearTries       = 4
	// transactionBytes keeps a transaction far below the 16 MB of an oplog entry.
	transactionBytes = 2 << 20
	// transactionPause is how many batches are sent plainly after transactions failed or took too long.
	transactionPause = 64
)

// mayBatch reports whether n updates go into transactions.
func (w *Writer) mayBatch(t *fold.Target, n int) bool {
	system := strings.HasPrefix(t.Coll, "system.") || t.DB == "admin" || t.DB == "config"
	if w.session == nil || n < w.o.TransactionOps || system {
		return false
	}
	if w.pause > 0 {
		w.pause--
		return false
	}
	return true
}

// sendUpdates sends updates of different documents. Its reply is that of plain unordered updates.
func (w *Writer) sendUpdates(ctx context.Context, t *fold.Target, list []statement) (wire.WriteResult, error) {
	done, matched, err := w.sendBatched(ctx, t, list)
	if err != nil || done == len(list) {
		return wire.WriteResult{Term: -1, N: matched}, err
	}
	res, err := w.send(ctx, "update", t, list[done:], false)
	for i := range res.Errors {
		res.Errors[i].Index += done
	}
	res.N += matched
	return res, err
}

// sendBatched sends as many leading updates as possible in transactions.
func (w *Writer) sendBatched(
	ctx context.Context, t *fold.Target, list []statement,
) (done int, matched int64, err error) {
	if !w.mayBatch(t, len(list)) {
		return 0, 0, nil
	}
	if near, err := w.near(ctx); err != nil || !near {
		w.pause = transactionPause
		return 0, 0, err
	}
	for len(list)-done >= w.o.TransactionOps {
		n, _ := fitting(list[done:], transactionMost, transactionBytes)
		m, ok, err := w.transact(ctx, t, list[done:done+n])
		if err != nil {
			return done, matched, err
		}
		if !ok {
			w.pause = transactionPause
			break
		}
		done, matched = done+n, matched+m
	}
	return done, matched, w.observeTerm(ctx)
}

// near observes the term and reports whether the target is near. A busy near target is slow only
// sometimes.
func (w *Writer) near(ctx context.Context) (bool, error) {
	if _, err := w.connection(ctx); err != nil { // making one says nothing of the distance
		return false, err
	}
	for range nearTries {
		began := time.Now()
		if err := w.observeTerm(ctx); err != nil {
			return false, err
		}
		if time.Since(began) <= transactionNear {
			return true, nil
		}
	}
	return false, nil
}

// transact applies updates in one transaction. ok is false if none was applied.
func (w *Writer) transact(ctx context.Context, t *fold.Target, list []statement) (matched int64, ok bool, err error) {
	number := w.o.Transactions.Number()
	w.appendTransaction(bsoncore.AppendBooleanElement(w.txn[:0], "startTransaction", true), number)
	c := docwrite.Command{Name: "update", DB: t.DB, Coll: t.Coll, Ordered: true, Txn: w.txn}
	w.out.Frame(c, elements("update", t, list), 0) // all: fewer, and smaller, than a command takes
	res, err := w.out.RoundTrip(ctx, "update")
	switch {
	case err != nil && !docwrite.Answered(err):
		return 0, false, mongo.Wrap(err, "update into %s", t.NS)
	case err != nil || len(res.Errors) > 0:
		return 0, false, w.endTransaction(ctx, "abortTransaction", t, number)
	}
	failpoint.Hit("commit.before")
	defer failpoint.Hit("commit.after")
	if err := w.endTransaction(ctx, "commitTransaction", t, number); err != nil {
		if aborted(err) {
			return 0, false, w.endTransaction(ctx, "abortTransaction", t, number)
		}
		return 0, false, err
	}
	w.Stats.Statements.Add(int64(len(list)))
	w.Stats.Batched.Add(int64(len(list)))
	return res.N, true, nil
}

// endTransaction commits or aborts. Nothing to abort is no error.
func (w *Writer) endTransaction(ctx context.Context, how string, t *fold.Target, number int64) error {
	w.appendTransaction(w.txn[:0], number)
	err := w.out.EndTransaction(ctx, how, w.txn)
	if how == "abortTransaction" && docwrite.Answered(err) {
		return nil
	}
	return mongo.Wrap(err, "%s into %s", how, t.NS)
}

func (w *Writer) appendTransaction(dst []byte, number int64) {
	dst = bsoncore.AppendDocumentElement(dst, "lsid", w.session)
	dst = bsoncore.AppendInt64Element(dst, "txnNumber", number)
	w.txn = bsoncore.AppendBooleanElement(dst, "autocommit", false)
}

// aborted reports a commit that certainly failed. By the transactions specification, a transient error
// means that the transaction may be sent again. A commit of updates can return WriteConflict (seen).
func aborted(err error) bool {
	var ce driver.CommandError
	return docwrite.Answered(err) && errors.As(err, &ce) && ce.HasErrorLabel("TransientTransactionError") &&
		!ce.HasErrorLabel("UnknownTransactionCommitResult")
}
