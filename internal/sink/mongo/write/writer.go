// Package write turns operations into commands over one connection and reports each operation's outcome.
//
// It decides no policy and parks nothing. A refused document is a result; only what is not about a
// document is an error.
package write

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
	"github.com/millrace/millrace/internal/stream"
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

// If the shard key is more than the _id, each statement includes it. Without it a statement goes to all
// shards, ignores ownership, and may miss the document of a moving chunk. A key that no event reported
// is looked up.

// located adds the target's shard keys to statements on existing documents. A delete becomes one for
// each place. Updates of documents in no place or two go to all shards.
func (w *Writer) located(ctx context.Context, t *fold.Target, list []statement) ([]statement, error) {
	if t.Key.IsZero() || len(list) == 0 {
		return list, nil
	}
	out, parts := split(list, (*statement).whole)
	places, err := w.places(ctx, t, parts)
	if err != nil {
		return nil, err
	}
	for i, s := range parts {
		if s.op.Kind == stream.Delete {
			for _, s.where = range places[i] {
				out = append(out, s)
			}
			continue
		}
		if s.where = nil; len(places[i]) == 1 {
			s.where = places[i][0]
		} else {
			w.Stats.Broadcast.Add(1)
		}
		out = append(out, s)
	}
	return out, nil
}

// elsewhere deletes complete documents at other shard keys before they are written, as shards do not
// know each other's _ids. After a crash both are repeated. In the overlap an insert may find its
// document under another key, or a foreign one.
func (w *Writer) elsewhere(ctx context.Context, t *fold.Target, list []statement) error {
	if t.Key.IsZero() {
		return nil
	}
	whole := slices.DeleteFunc(slices.Clone(list), func(s statement) bool {
		return !s.whole() || s.op.Kind == stream.Insert && !s.op.Overlap && !w.o.Others
	})
	places, err := w.places(ctx, t, whole)
	if err != nil {
		return err
	}
	var moved []statement
	for i, s := range whole {
		for _, where := range places[i] {
			if !t.Key.Stays(where, s.op.Doc) {
				moved = append(moved, statement{op: &fold.Op{Kind: stream.Delete, ID: s.op.ID, At: s.op.At}, where: where})
			}
		}
	}
	_, err = w.delete(ctx, "delete where it does not belong any more", t, moved)
	return err
}

// places returns the target's shard keys of documents, as events reported them or as found. Two for a
// document are an error outside the overlap.
func (w *Writer) places(ctx context.Context, t *fold.Target, list []statement) ([][][]byte, error) {
	all := make([][][]byte, len(list))
	asked := map[string]int{}
	in, size := bson.A{}, 0
	ask := func() error {
		if len(in) == 0 {
			return nil
		}
		find := bson.D{
			{Key: "find", Value: t.Coll},
			{Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: in}}}}},
			{Key: "projection", Value: t.Key.Fields()},
			{Key: "batchSize", Value: 2*len(in) + 1},
		}
		err := w.replies(ctx, t, find, func(b *wire.Batch) error {
			return b.Each(func(doc []byte) error {
				i, ok := asked[delta.KeyOf(bsonraw.IDOf(doc))]
				if !ok {
					return nil
				}
				if all[i] = append(all[i], t.Key.At(doc)); len(all[i]) > 1 && !list[i].op.Overlap {
					return twice(t, list[i].op)
				}
				return nil
			})
		})
		w.Stats.Located.Add(int64(len(in)))
		clear(asked)
		in, size = bson.A{}, 0
		return err
	}
	for i := range list {
		o := list[i].op
		if o.Where != nil {
			all[i] = [][]byte{o.Where}
			continue
		}
		if len(in) >= readDocs || size > readBytes {
			if err := ask(); err != nil {
				return nil, err
			}
		}
		asked[delta.KeyOf(o.ID)] = i
		in, size = append(in, bsonraw.RawValue(o.ID)), size+len(o.ID.Data)
	}
	return all, ask()
}

// twice is the error for two documents with one _id. In the overlap one is to become the other.
func twice(t *fold.Target, o *fold.Op) error {
	err := errors.New("the target has two documents of this _id, under different shard keys")
	return mongo.WithHint(o.Fail(o.Verb(), t.NS, err), "give one of them another _id on the source; "+
		"or start the job again with --restart and the shard key that the source has, which tells them apart")
}

// concerns returns read options behind routers. A majority read at the writers' time excludes deposed
// primaries. The cluster time is for routers that have not heard of it.
func (ws *Writers) concerns() bson.D {
	ws.seen.Lock()
	defer ws.seen.Unlock()
	concern := bson.D{{Key: "level", Value: "majority"}}
	if ws.seen.at.IsZero() {
		return bson.D{{Key: "readConcern", Value: concern}}
	}
	concern = append(concern, bson.E{Key: "afterClusterTime", Value: ws.seen.at})
	out := bson.D{{Key: "readConcern", Value: concern}}
	if ws.seen.clock != nil {
		out = append(out, bson.E{Key: "$clusterTime", Value: ws.seen.clock})
	}
	return out
}

func (ws *Writers) see(reply bsoncore.Document) {
	t, i, ok := reply.Lookup("operationTime").TimestampOK()
	if at := (bson.Timestamp{T: t, I: i}); ok {
		clock, _ := reply.Lookup("$clusterTime").DocumentOK()
		ws.seen.Lock()
		defer ws.seen.Unlock()
		if at.After(ws.seen.at) {
			ws.seen.at, ws.seen.clock = at, bson.Raw(clock)
		}
	}
}
