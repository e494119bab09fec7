package oplog

import (
	"bytes"

	"github.com/millrace/millrace/internal/mongo"
)

// txnOverhead is what an open transaction costs beyond its operations.
const txnOverhead = 512

type openTxn struct {
	number   int64
	first    mongo.OpTime // its first entry, or the first one seen
	prepared mongo.OpTime // the position of the prepare entry, zero before it and once committing
	parts    []mongo.OpTime
	ops      [][]byte // holds a copy of each part's applyOps array, unless spilled
	bytes    int64
	spilled  bool // ops are reread from the oplog at commit
	headless bool // the transaction began before the first entry read, so parts is incomplete
}

func (t *openTxn) last() mongo.OpTime {
	if len(t.parts) == 0 {
		return mongo.OpTime{}
	}
	return t.parts[len(t.parts)-1]
}

// txnTable holds the open transactions, one per session: a session's next transaction ends the previous
// one. It is not safe for concurrent use.
type txnTable struct {
	limit int64
	bytes int64 // of all operations in memory, at most limit
	open  map[string]*openTxn

	oldest mongo.OpTime // cached minimum of first
	stale  bool         // oldest has to be computed again
}

func newTxnTable(limit int64) *txnTable {
	return &txnTable{limit: limit, open: map[string]*openTxn{}}
}

func (tt *txnTable) get(id txnID) *openTxn {
	if t := tt.open[string(id.lsid)]; t != nil && t.number == id.number {
		return t
	}
	return nil
}

// add adds an entry that does not end its transaction.
func (tt *txnTable) add(e *entry, ops []byte) *openTxn {
	t := tt.get(e.txn)
	if t == nil || e.prev.IsZero() {
		tt.drop(e.txn)
		t = &openTxn{number: e.txn.number, first: e.at}
		tt.open[string(e.txn.lsid)] = t
		tt.bytes += txnOverhead
		tt.stale = true
	}
	if !same(t.last(), e.prev) {
		t.headless = true
	}
	t.parts = append(t.parts, e.at)
	if t.headless || t.spilled || tt.bytes+int64(len(ops)) > tt.limit {
		tt.bytes -= t.bytes
		t.ops, t.bytes, t.spilled = nil, 0, true
		return t
	}
	t.ops = append(t.ops, bytes.Clone(ops)) // a copy, for ops pins a reply
	t.bytes += int64(len(ops))
	tt.bytes += int64(len(ops))
	return t
}

// drop forgets the session's transaction, if any.
func (tt *txnTable) drop(id txnID) {
	t := tt.open[string(id.lsid)]
	if t == nil {
		return
	}
	delete(tt.open, string(id.lsid))
	tt.bytes -= t.bytes + txnOverhead
	tt.stale = true
}

// undecided returns the position of the earliest prepared transaction, zero for none.
func (tt *txnTable) undecided() mongo.OpTime {
	var first mongo.OpTime
	for _, t := range tt.open {
		if !t.prepared.IsZero() && (first.IsZero() || t.prepared.Before(first)) {
			first = t.prepared
		}
	}
	return first
}

// first returns the first entry of the oldest open transaction, zero for none.
func (tt *txnTable) first() mongo.OpTime {
	if !tt.stale {
		return tt.oldest
	}
	tt.oldest, tt.stale = mongo.OpTime{}, false
	for _, t := range tt.open {
		if tt.oldest.IsZero() || t.first.Before(tt.oldest) {
			tt.oldest = t.first
		}
	}
	return tt.oldest
}
