package mongosink

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/wire"
)

// Limits of one write command (MongoDB manual, "Limits and Thresholds":
// 100,000 operations, 48,000,000 bytes a message, 16 MB a document, which a
// statement may exceed by 16 KB).
const (
	maxCommandOps   = 100_000
	maxCommandBytes = 30 << 20 // a statement of 16 MB may still follow
	maxMessageBytes = 48_000_000
	maxStatement    = 16<<20 + 15<<10
)

type commandKey struct {
	name, coll string
	ordered    bool
}

// command returns the body of a write command, made once per collection.
func (w *worker) command(name, coll string, ordered bool) (bsoncore.Document, error) {
	k := commandKey{name, coll, ordered}
	if c, ok := w.cmds[k]; ok {
		return c, nil
	}
	d := bson.D{{Key: name, Value: coll}, {Key: "ordered", Value: ordered}, {Key: "writeConcern", Value: w.e.o.WriteConcern}}
	if name != "delete" {
		// What the source accepted belongs on the target, whatever its validator says.
		d = append(d, bson.E{Key: "bypassDocumentValidation", Value: true})
	}
	raw, err := bson.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("build %s command: %w", name, err)
	}
	if len(w.cmds) > 4096 {
		clear(w.cmds)
	}
	w.cmds[k] = raw
	return raw, nil
}

// sequenceName is the argument that carries a write command's operations.
func sequenceName(command string) string {
	switch command {
	case "insert":
		return "documents"
	case "update":
		return "updates"
	}
	return "deletes"
}

// sendOps runs one write command made of the given operations; each appends one
// operation's document. It returns the reply, whose error indexes point into ops.
func (w *worker) sendOps(ctx context.Context, name string, t *target, ops []*op, ordered bool, each func(dst []byte, o *op) []byte) (wire.WriteResult, error) {
	total := wire.WriteResult{Term: -1}
	for base := 0; base < len(ops); {
		body, err := w.command(name, t.coll, ordered)
		if err != nil {
			return total, err
		}
		w.msg.Reset(t.db, body, false)
		w.msg.StartSequence(sequenceName(name))
		n, size := fitting(ops[base:], maxCommandOps, maxCommandBytes)
		w.msg.Grow(size)
		for i, o := range ops[base : base+n] {
			before := w.msg.Len()
			w.msg.BuildDocument(func(dst []byte) []byte { return each(dst, o) })
			if i > 0 && w.msg.Len() > maxMessageBytes {
				w.msg.Unbuild(before)
				n = i
				break
			}
		}
		res, err := w.roundTrip(ctx, name, t.ns)
		if err != nil {
			return total, err
		}
		for _, e := range res.Errors {
			e.Index += base
			total.Errors = append(total.Errors, e)
		}
		total.N += res.N
		base += n
		if ordered && len(res.Errors) > 0 {
			break
		}
	}
	w.e.n.statements.Add(int64(len(ops)))
	return total, nil
}

// sendInserts is sendOps for inserts. An error that may be that of a duplicate
// _id becomes one when the target has the _id.
func (w *worker) sendInserts(ctx context.Context, t *target, ops []*op, ordered bool) (wire.WriteResult, error) {
	res, err := w.sendOps(ctx, "insert", t, ops, ordered, appendInsert)
	if err != nil {
		return res, err
	}
	for i, e := range res.Errors {
		if !docwrite.Unclear(e) {
			continue
		}
		docs, err := w.fetch(ctx, t, []*op{ops[e.Index]})
		if err != nil {
			return res, err
		}
		if docs[0] != nil {
			res.Errors[i] = docwrite.AsDuplicateID(e)
		}
	}
	return res, nil
}

// fitting is how many of ops, one at least, are no more than most and no larger
// than bytes together, and how large those are, roughly.
func fitting(ops []*op, most, bytes int) (n, size int) {
	for _, o := range ops[:min(len(ops), most)] {
		s := o.size()
		if n > 0 && size+s > bytes {
			break
		}
		n, size = n+1, size+s
	}
	return n, size
}

func (w *worker) roundTrip(ctx context.Context, name, ns string) (wire.WriteResult, error) {
	conn, err := w.connection(ctx)
	if err != nil {
		return wire.WriteResult{}, err
	}
	pass, err := w.e.o.Gate.Enter(ctx)
	if err != nil {
		return wire.WriteResult{}, err
	}
	failpoint.HitOf("send.before", name)
	reply, err := conn.RoundTrip(ctx, &w.msg)
	failpoint.HitOf("send.after", name)
	w.e.o.Gate.Leave(pass, int64(w.msg.Len()))
	if err != nil {
		return wire.WriteResult{}, fmt.Errorf("%s into %s: %w", name, ns, err)
	}
	res := wire.ParseWriteResult(reply)
	err = mongo.Interrupted(res)
	if err == nil && w.e.o.SameTerm != nil {
		err = w.e.o.SameTerm(res.Term) // before anything is concluded from the answer
	}
	if err != nil {
		return res, fmt.Errorf("%s into %s: %w", name, ns, err)
	}
	return res, nil
}

// sorted is a namespace's operations by the command that carries them.
type sorted struct {
	deletes, updates, guarded, rewrites, inserts []*op
}

// sort translates updates and finds each operation's command. Statements stay
// in w.buf until the next batch.
func (w *worker) sort(ops []op) (s sorted) {
	size := 0
	for i := range ops {
		size += len(ops[i].upd.Raw())
	}
	if cap(w.buf) > bufferKept {
		w.buf = nil
	}
	w.buf = slices.Grow(w.buf[:0], size)
	for i := range ops {
		o := &ops[i]
		switch o.kind {
		case opDelete:
			s.deletes = append(s.deletes, o)
		case opInsert:
			s.inserts = append(s.inserts, o)
		case opUpdate:
			switch form := w.translate(o); {
			case form == delta.Classic:
				s.updates = append(s.updates, o)
			case form == delta.Guarded && !o.upsert: // a guard that fails would insert
				s.guarded = append(s.guarded, o)
			default:
				s.rewrites = append(s.rewrites, o)
			}
		default:
			s.updates = append(s.updates, o)
		}
	}
	return s
}

// bufferKept bounds what stays allocated for the next batch's statements.
const bufferKept = 16 << 20

// translate writes the update's statement behind what w.buf holds.
func (w *worker) translate(o *op) delta.Form {
	start := len(w.buf)
	out, form := delta.AppendStatement(w.buf, o.upd)
	w.buf = out
	o.doc, o.guarded = out[start:len(out):len(out)], form == delta.Guarded
	if form != delta.None && o.tooLarge() {
		w.buf, o.doc, o.guarded = out[:start], nil, false
		return delta.None
	}
	return form
}

// tooLarge tells that no server takes the update's statement, which holds the
// paths of all fields and the _id.
func (o *op) tooLarge() bool {
	size := len(o.doc) + len(o.id.Data) + 64
	if o.guarded && 8*size > maxStatement { // a condition may be longer than what it guards
		size += len(delta.AppendGuard(nil, o.upd))
	}
	return size > maxStatement
}

// write sends a batch in which each document occurs once: deletes first, so
// that they free unique keys, then updates, then inserts.
func (w *worker) write(ctx context.Context, nb *nsBatch) error {
	s := w.sort(nb.ops)
	if err := w.deletes(ctx, nb.t, s.deletes); err != nil {
		return err
	}
	if err := w.updates(ctx, nb.t, s.updates); err != nil {
		return err
	}
	if err := w.guarded(ctx, nb.t, s.guarded); err != nil {
		return err
	}
	if err := w.rewrite(ctx, nb.t, s.rewrites); err != nil {
		return err
	}
	return w.inserts(ctx, nb.t, s.inserts)
}

// guarded sends updates that are exact only if the fields they insert are not
// there. If any of them matched nothing they are all computed here; those that
// did match come out the same a second time.
func (w *worker) guarded(ctx context.Context, t *target, ops []*op) error {
	if len(ops) == 0 {
		return nil
	}
	res, err := w.sendOps(ctx, "update", t, ops, false, appendUpdate)
	if err != nil {
		return err
	}
	if res.N == int64(len(ops)) {
		return nil
	}
	return w.rewrite(ctx, t, ops)
}

func (w *worker) deletes(ctx context.Context, t *target, ops []*op) error {
	if len(ops) == 0 {
		return nil
	}
	statements := ops
	if !t.capped && w.e.dst.Info.Kind != mongo.KindSharded {
		statements = w.deleteTogether(ops)
	}
	res, err := w.sendOps(ctx, "delete", t, statements, false, appendDelete)
	if err != nil {
		return err
	}
	for _, e := range res.Errors {
		if t.capped && docwrite.Of(e) == docwrite.NoDelete {
			continue // what rolls off the source rolls off here by itself
		}
		return opError("delete", t.ns, statements[e.Index].id, statements[e.Index].at, e)
	}
	w.e.n.missing.Add(int64(len(ops)) - res.N)
	return nil
}

func (w *worker) updates(ctx context.Context, t *target, ops []*op) error {
	ops, err := w.dollars(ctx, t, ops)
	if err != nil || len(ops) == 0 {
		return err
	}
	res, err := w.sendUpdates(ctx, t, ops)
	if err != nil {
		return err
	}
	var again []*op
	for _, e := range res.Errors {
		o := ops[e.Index]
		switch {
		case e.Code == mongo.CodeDuplicateKey:
			w.parkDuplicate(t, o, e)
		case docwrite.Of(e) == docwrite.Misfit && o.kind == opUpdate:
			again = append(again, o)
		case w.parkRefusal(t, o, e):
		default:
			return writeError(o.kind.String(), t.ns, o, e)
		}
	}
	if missing := int64(len(ops)-len(res.Errors)) - res.N; missing > 0 {
		if err := w.explainMissing(ctx, t, ops); err != nil {
			return err
		}
	}
	if err := w.repairOrPark(ctx, t, ops); err != nil {
		return err
	}
	return w.rewrite(ctx, t, again)
}

// explainMissing settles updates that matched no document: inside the window a
// later event deletes the document, and that it does is looked at when the window
// ends; outside it is a conflict.
func (w *worker) explainMissing(ctx context.Context, t *target, ops []*op) error {
	var some []*op
	for _, o := range ops {
		if o.kind != opPut {
			some = append(some, o)
		}
	}
	docs, err := w.fetchFields(ctx, t, some, onlyIDs())
	if err != nil {
		return err
	}
	for i, d := range docs {
		o := some[i]
		switch {
		case d != nil || w.parked.has(t, o):
		case w.excused(t, o):
			w.skip(t, o)
		default:
			if err := w.lost(t, o, deadletter.CauseMissing, textMissing); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *worker) inserts(ctx context.Context, t *target, ops []*op) error {
	if len(ops) == 0 {
		return nil
	}
	res, err := w.sendInserts(ctx, t, ops, false)
	if err != nil {
		return err
	}
	var replace []*op
	for _, e := range res.Errors {
		o := ops[e.Index]
		switch {
		case e.OnIDIndex() && (o.window || w.e.o.Overwrite):
			o.kind = opPut
			replace = append(replace, o)
		case e.OnIDIndex():
			if err := w.lost(t, o, deadletter.CauseID, textTaken); err != nil {
				return err
			}
		case e.Code == mongo.CodeDuplicateKey:
			w.parkDuplicate(t, o, e)
		case w.parkRefusal(t, o, e):
		default:
			return writeError("insert", t.ns, o, e)
		}
	}
	if got := res.N + int64(len(res.Errors)); got != int64(len(ops)) {
		return fmt.Errorf("insert into %s: the server answered for %d of %d documents", t.ns, got, len(ops))
	}
	if err := w.repairOrPark(ctx, t, ops); err != nil {
		return err
	}
	return w.updates(ctx, t, replace)
}

const textTaken = "a document with this _id is on the target already"

// lost is a document that is not what it has to be: parked to be handled by
// policy, or the end of the job.
func (w *worker) lost(t *target, o *op, cause deadletter.Cause, text string) error {
	if !w.e.lenient() || w.no < 0 {
		return conflict(o.kind.String(), t.ns, o, text)
	}
	w.parked.parkRefused(t, o, &refusal{cause: cause, text: text})
	return nil
}

// parkDuplicate parks an operation that meets a duplicate key. A capped
// collection takes no document later: there it is judged as it is.
func (w *worker) parkDuplicate(t *target, o *op, e wire.WriteError) {
	var r *refusal
	if t.capped && (o.kind == opInsert || !o.window) {
		r = refusedBy(e)
	}
	w.parked.parkRefused(t, o, r)
}

// parkRefusal parks an operation that the server refuses because of its
// document, unless that ends the job. Inside the window an index may refuse a
// mixture of old and new values that the source never had.
func (w *worker) parkRefusal(t *target, o *op, e wire.WriteError) bool {
	r := refusedBy(e)
	inWindow := o.window && !t.capped
	if r == nil || !w.e.lenient() && !inWindow || w.no < 0 {
		return false
	}
	w.parked.parkRefused(t, o, r)
	return true
}

// writeError ends the job over one operation.
func writeError(what, ns string, o *op, e wire.WriteError) error {
	return mongo.WithHint(opError(what, ns, o.id, o.at, e), docwrite.Hint(e))
}

func appendInsert(dst []byte, o *op) []byte {
	start := len(dst)
	dst = append(dst, o.doc...)
	o.lasting = !delta.MayHoldEmptyTimestamp(dst[start:])
	return dst
}

// appendDelete makes the statement of one delete, or of several that
// deleteTogether has made one.
func appendDelete(dst []byte, o *op) []byte {
	i, dst := bsoncore.AppendDocumentStart(dst)
	limit := int32(1)
	if o.kind == opDeletes {
		limit = 0
		dst = bsoncore.AppendDocumentElement(dst, "q", o.doc)
	} else {
		dst = appendQuery(dst, o.id)
	}
	dst = bsoncore.AppendInt32Element(dst, "limit", limit)
	dst, _ = bsoncore.AppendDocumentEnd(dst, i)
	return dst
}

func appendUpdate(dst []byte, o *op) []byte {
	i, dst := bsoncore.AppendDocumentStart(dst)
	if o.guarded {
		dst = appendGuardedQuery(dst, o)
	} else {
		dst = appendQuery(dst, o.id)
	}
	dst = bsoncore.AppendDocumentElement(dst, "u", o.doc)
	if o.kind == opPut || o.upsert {
		dst = bsoncore.AppendBooleanElement(dst, "upsert", true)
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, i)
	return dst
}

func appendQuery(dst []byte, id bsoncore.Value) []byte {
	qi, dst := bsoncore.AppendDocumentElementStart(dst, "q")
	dst = bsoncore.AppendValueElement(dst, "_id", id)
	dst, _ = bsoncore.AppendDocumentEnd(dst, qi)
	return dst
}

func appendGuardedQuery(dst []byte, o *op) []byte {
	qi, dst := bsoncore.AppendDocumentElementStart(dst, "q")
	dst = bsoncore.AppendValueElement(dst, "_id", o.id)
	dst = delta.AppendGuard(dst, o.upd)
	dst, _ = bsoncore.AppendDocumentEnd(dst, qi)
	return dst
}
