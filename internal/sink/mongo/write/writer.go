package write

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/wire"
)

// Options configure the writers of one target.
type Options struct {
	Target *mongo.Cluster
	Gate   *pace.Gate // bounds concurrent exchanges; nil is none
	// Transactions of the target; nil starts a session for each, and sends no batches in transactions.
	Transactions   *mongo.Transactions
	TransactionOps int  // the smallest batch of updates that is sent in transactions, default 64
	Others         bool // the target may have foreign documents, which are replaced
	// SameTerm gets the election term of each write reply and returns an error if it changed.
	SameTerm func(term int64) error
}

// Stats counts what the writers of one target did.
type Stats struct {
	Statements atomic.Int64 // operations sent
	Batched    atomic.Int64 // of those, updates sent in transactions
	Rewritten  atomic.Int64 // documents updated by read-modify-write
	Misfits    atomic.Int64 // paths that do not fit, left alone in the overlap
	Missing    atomic.Int64 // deletes of documents that were not there
	Located    atomic.Int64 // documents that were looked for on all shards, to know which has them
	Broadcast  atomic.Int64 // updates that all shards got, for none has the document, or two
}

// Writers makes the writers of one target.
type Writers struct {
	o      Options
	routed bool // the target is behind routers
	Stats  Stats

	seen struct { // in answers of routers
		sync.Mutex
		at    bson.Timestamp
		clock bson.Raw // the $clusterTime that came with it
	}
}

// NewWriters sets defaults.
func NewWriters(o Options) *Writers {
	o.TransactionOps = cmp.Or(max(o.TransactionOps, 0), 64)
	return &Writers{o: o, routed: o.Target.Info.Kind == mongo.KindSharded}
}

// New returns a writer without a session for transaction batches.
func (ws *Writers) New() *Writer {
	w := &Writer{Writers: ws}
	w.out = docwrite.Sender{Line: w, Concern: bsoncore.Document(ws.o.Target.DataConcernDocument())}
	return w
}

// NewBatched returns a writer that sends updates in transactions of the target's n-th session, if any.
// Transactions that an earlier run left open must have been aborted.
func (ws *Writers) NewBatched(n int) *Writer {
	w := ws.New()
	if ws.o.Transactions != nil && ws.o.Target.Info.Kind == mongo.KindReplicaSet {
		w.session = ws.o.Transactions.Batch(n)
	}
	return w
}

// Writer writes over one connection, which it takes on first use. It is for one goroutine.
type Writer struct {
	*Writers

	conn *wire.Conn
	busy bool // a cursor is open on conn
	out  docwrite.Sender
	plan plan
	txn  []byte // room for the fields of a transaction's commands

	session bson.Raw // for transaction batches, nil when there are none
	pause   int      // batches until transactions are tried again
}

// Release returns the writer's connection to the pool.
func (w *Writer) Release() {
	if w.conn != nil {
		w.conn.Release()
		w.conn = nil
	}
}

// spare releases an idle connection under low load, so that all writers share one.
func (w *Writer) spare() {
	if w.o.Gate.Low() && !w.busy {
		w.Release()
	}
}

func (w *Writer) connection(ctx context.Context) (c *wire.Conn, err error) {
	if w.conn == nil {
		if c, err = w.o.Target.Pool.Checkout(ctx, wire.Primary()); err != nil {
			return nil, err
		}
		w.conn = c
	}
	return w.conn, nil
}

// RoundTrip sends a message over the writer's connection.
func (w *Writer) RoundTrip(ctx context.Context, name string, m *wire.Message) (reply bsoncore.Document, err error) {
	err = w.o.Gate.Do(ctx, func() (bytes int, err error) {
		conn, err := w.connection(ctx)
		if err != nil {
			return 0, err
		}
		failpoint.HitOf("send.before", name)
		reply, err = conn.RoundTrip(ctx, m)
		failpoint.HitOf("send.after", name)
		return m.Len(), err
	})
	if w.routed { // the next command may go to another router
		w.see(reply)
		w.Release()
	}
	w.spare()
	return reply, err
}

// SameTerm passes on the election term of a reply.
func (ws *Writers) SameTerm(term int64) error {
	if ws.o.SameTerm == nil {
		return nil
	}
	return ws.o.SameTerm(term)
}

// observeTerm reads the primary's term. The driver does not report the term of a commit. With the terms
// before and after it, a checkpoint cannot miss a change.
func (w *Writer) observeTerm(ctx context.Context) error {
	if w.o.SameTerm == nil || w.routed {
		return nil
	}
	conn, err := w.connection(ctx)
	if err != nil {
		return err
	}
	defer w.spare()
	reply, err := conn.Run(ctx, "admin", bson.D{{Key: "isMaster", Value: 1}})
	if err != nil {
		return fmt.Errorf("read the target's term: %w", err)
	}
	if t, ok := reply.Lookup("lastWrite", "opTime", "t").AsInt64OK(); ok {
		return w.SameTerm(t)
	}
	return nil
}
