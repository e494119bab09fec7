package mongosink

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
)

// Updates are sent in transactions where that can be done: an update by itself
// costs a server (measured on 6.0.5) 170 to 180 us of processor time, one of
// two hundred in a transaction 115 to 130, for each by itself has a commit and
// an oplog entry of its own. Inserts gain nothing, the server groups them anyway.
// What a transaction does not take is sent as plain updates, whose answers say
// what is wrong with which: so a transaction changes what an update costs and
// nothing else.
const (
	togetherMost = 500
	// togetherNear is how long an exchange that does nothing may take: with a
	// target far away the exchanges of transactions cost more than they save.
	togetherNear = 20 * time.Millisecond
	// togetherBytes keeps a transaction's entries far below the 16 MB that one
	// oplog entry holds.
	togetherBytes = 2 << 20
	// togetherPause is how many batches are sent plainly where transactions do
	// not take them, or take too long.
	togetherPause = 64
)

// batchTxn is a worker's session for such transactions.
type batchTxn struct {
	session bson.Raw // nil when there are none
	pause   int      // batches until it is tried again
}

// mayTogether tells whether a batch of n updates goes into transactions.
func (w *worker) mayTogether(t *target, n int) bool {
	if w.txn.session == nil || n < w.e.o.TogetherOps || strings.HasPrefix(t.coll, "system.") || t.db == "admin" || t.db == "config" {
		return false
	}
	if w.txn.pause > 0 {
		w.txn.pause--
		return false
	}
	return true
}

// sendUpdates sends updates of different documents, in transactions if it may.
// The reply is that of plain unordered updates.
func (w *worker) sendUpdates(ctx context.Context, t *target, ops []*op) (wire.WriteResult, error) {
	if !w.mayTogether(t, len(ops)) {
		return w.sendOps(ctx, "update", t, ops, false, appendUpdate)
	}
	done, matched, err := w.sendTogether(ctx, t, ops)
	if err != nil || done == len(ops) {
		return wire.WriteResult{Term: -1, N: matched}, err
	}
	res, err := w.sendOps(ctx, "update", t, ops[done:], false, appendUpdate)
	for i := range res.Errors {
		res.Errors[i].Index += done
	}
	res.N += matched
	return res, err
}

// sendTogether sends as many of the updates in transactions as can be, from the
// first on.
func (w *worker) sendTogether(ctx context.Context, t *target, ops []*op) (done int, matched int64, err error) {
	// Under which term a transaction commits is not told. With those before
	// and after it noted, a checkpoint cannot miss a change between.
	began := time.Now()
	if err := w.observeTerm(ctx); err != nil {
		return 0, 0, err
	}
	if time.Since(began) > togetherNear {
		w.txn.pause = togetherPause
		return 0, 0, nil
	}
	for len(ops)-done >= w.e.o.TogetherOps {
		n, _ := fitting(ops[done:], togetherMost, togetherBytes)
		m, ok, err := w.transact(ctx, t, ops[done:done+n])
		if err != nil {
			return done, matched, err
		}
		if !ok {
			w.txn.pause = togetherPause
			break
		}
		done, matched = done+n, matched+m
	}
	return done, matched, w.observeTerm(ctx)
}

// transact applies updates in one transaction. ok is false when none of them
// was applied.
func (w *worker) transact(ctx context.Context, t *target, ops []*op) (matched int64, ok bool, err error) {
	number := w.e.o.Transactions.Number()
	body, err := bson.Marshal(bson.D{{Key: "update", Value: t.coll}, {Key: "ordered", Value: true}, {Key: "bypassDocumentValidation", Value: true},
		{Key: "lsid", Value: w.txn.session}, {Key: "txnNumber", Value: number}, {Key: "startTransaction", Value: true}, {Key: "autocommit", Value: false}})
	if err != nil {
		return 0, false, fmt.Errorf("build update command: %w", err)
	}
	w.msg.Reset(t.db, body, false)
	w.msg.StartSequence(sequenceName("update"))
	for _, o := range ops {
		w.msg.BuildDocument(func(dst []byte) []byte { return appendUpdate(dst, o) })
	}
	res, err := w.roundTrip(ctx, "update", t.ns)
	switch {
	case err != nil && !answered(err):
		return 0, false, err
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
	w.e.n.statements.Add(int64(len(ops)))
	w.e.n.together.Add(int64(len(ops)))
	return res.N, true, nil
}

// endTransaction commits or aborts; that there is nothing to abort is no error.
func (w *worker) endTransaction(ctx context.Context, how string, t *target, number int64) error {
	d := bson.D{{Key: how, Value: 1}, {Key: "lsid", Value: w.txn.session}, {Key: "txnNumber", Value: number}, {Key: "autocommit", Value: false}}
	if how == "commitTransaction" {
		d = append(d, bson.E{Key: "writeConcern", Value: w.e.o.WriteConcern})
	}
	body, err := bson.Marshal(d)
	if err != nil {
		return fmt.Errorf("build %s command: %w", how, err)
	}
	w.msg.Reset("admin", body, false)
	_, err = w.roundTrip(ctx, how, t.ns)
	if how == "abortTransaction" && answered(err) {
		return nil
	}
	return err
}

// answered reports an error that the server has told, or that millrace has drawn
// from its answer, over a connection that still works.
func answered(err error) bool {
	var own *mongo.Retryable
	var we wire.WriteError
	var ce driver.CommandError
	return errors.As(err, &own) || errors.As(err, &we) || errors.As(err, &ce) && !ce.HasErrorLabel("NetworkError")
}

// aborted reports a commit that certainly did not happen: the server calls an
// error transient when the whole transaction may be sent again (transactions
// specification). A WriteConflict at the commit of updates alone was seen.
func aborted(err error) bool {
	var ce driver.CommandError
	return answered(err) && errors.As(err, &ce) && ce.HasErrorLabel("TransientTransactionError") &&
		!ce.HasErrorLabel("UnknownTransactionCommitResult")
}

// openSessions gives the workers their sessions, if the target knows
// transactions. What an earlier run left open in them was ended before.
func (e *Engine) openSessions() {
	if e.o.Transactions == nil || e.dst.Info.Kind != mongo.KindReplicaSet {
		return
	}
	for i, w := range e.workers {
		w.txn.session = e.o.Transactions.Batch(i)
	}
}

// deletesTogether and deletesBytes are how many documents one statement deletes
// at most, and how large their _ids are together.
const (
	deletesTogether = 100
	deletesBytes    = 1 << 20
)

// deleteTogether makes statements of many deletes each, which cost the server
// half of what as many statements do. _ids of rare types stay by themselves: a
// $in takes some of them for something else. Queries stay in w.buf until the
// next batch.
func (w *worker) deleteTogether(ops []*op) []*op {
	var out, group []*op
	bytes := 0
	end := func() {
		if len(group) == 1 {
			out = append(out, group[0])
		}
		if len(group) > 1 {
			o := *group[0]
			o.kind, o.doc = opDeletes, w.appendIn(group)
			out = append(out, &o)
		}
		group, bytes = group[:0], 0
	}
	for _, o := range ops {
		if !plainID(o.id) {
			out = append(out, o)
			continue
		}
		if bytes += len(o.id.Data); bytes > deletesBytes {
			end()
			bytes = len(o.id.Data)
		}
		if group = append(group, o); len(group) == deletesTogether {
			end()
		}
	}
	end()
	return out
}

// appendIn makes the query for all of the group behind what w.buf holds.
func (w *worker) appendIn(group []*op) []byte {
	start := len(w.buf)
	q, dst := bsoncore.AppendDocumentStart(w.buf)
	id, dst := bsoncore.AppendDocumentElementStart(dst, "_id")
	in, dst := bsoncore.AppendArrayElementStart(dst, "$in")
	for i, o := range group {
		dst = bsoncore.AppendValueElement(dst, strconv.Itoa(i), o.id)
	}
	dst, _ = bsoncore.AppendArrayEnd(dst, in)
	dst, _ = bsoncore.AppendDocumentEnd(dst, id)
	dst, _ = bsoncore.AppendDocumentEnd(dst, q)
	w.buf = dst
	return dst[start:len(dst):len(dst)]
}

// plainID reports an _id that means itself within a $in.
func plainID(id bsoncore.Value) bool {
	switch id.Type {
	case bsoncore.TypeDouble, bsoncore.TypeString, bsoncore.TypeBinary, bsoncore.TypeObjectID, bsoncore.TypeBoolean, bsoncore.TypeDateTime,
		bsoncore.TypeInt32, bsoncore.TypeTimestamp, bsoncore.TypeInt64, bsoncore.TypeDecimal128:
		return true
	}
	return false
}
