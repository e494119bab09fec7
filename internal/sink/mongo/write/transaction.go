package write

import (
	"context"
	"errors"
	"strings"
	"time"

	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
	"github.com/millrace/millrace/internal/wire"
)

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
