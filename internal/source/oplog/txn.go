package oplog

import (
	"bytes"

	"github.com/millrace/millrace/internal/mongo"
)

// txnOverhead is what an open transaction costs beyond its operations.
const txnOverhead = 512

// openTxn is a transaction that has not committed yet.
type openTxn struct {
	number int64
	first  mongo.OpTime // its first entry, or the first one seen
	// prepared is the entry that prepared it, zero before that and once it commits.
	prepared mongo.OpTime
	parts    []mongo.OpTime
	// ops holds the applyOps array of each part, copied, unless spilled.
	ops   [][]byte
	bytes int64
	// spilled says that ops are not in memory: they are read from the oplog
	// again at commit.
	spilled bool
	// headless says that it began before the first entry read, so that parts
	// is incomplete.
	headless bool
}

// last is the position of the newest part.
func (t *openTxn) last() mongo.OpTime {
	if len(t.parts) == 0 {
		return mongo.OpTime{}
	}
	return t.parts[len(t.parts)-1]
}

// txnTable has the open transactions, one a session: a session's next
// transaction ends the one before. It is not safe for concurrent use.
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

// get returns the open transaction, nil when it is not known.
func (tt *txnTable) get(id txnID) *openTxn {
	if t := tt.open[string(id.lsid)]; t != nil && t.number == id.number {
		return t
	}
	return nil
}

// add takes an entry of a transaction that does not end it. A transaction
// whose earlier entries are not known becomes headless.
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
		tt.spill(t)
		return t
	}
	t.ops = append(t.ops, bytes.Clone(ops)) // a copy, for ops pins a reply
	t.bytes += int64(len(ops))
	tt.bytes += int64(len(ops))
	return t
}

func (tt *txnTable) spill(t *openTxn) {
	tt.bytes -= t.bytes
	t.ops, t.bytes, t.spilled = nil, 0, true
}

// drop forgets the session's transaction, if there is one.
func (tt *txnTable) drop(id txnID) {
	t := tt.open[string(id.lsid)]
	if t == nil {
		return
	}
	delete(tt.open, string(id.lsid))
	tt.bytes -= t.bytes + txnOverhead
	tt.stale = true
}

// undecided is where the earliest one stands that is prepared, zero when none is.
func (tt *txnTable) undecided() mongo.OpTime {
	var first mongo.OpTime
	for _, t := range tt.open {
		if !t.prepared.IsZero() && (first.IsZero() || t.prepared.Before(first)) {
			first = t.prepared
		}
	}
	return first
}

// first is the position of the first entry of the oldest open transaction,
// zero when none is open.
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
