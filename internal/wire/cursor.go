package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
)

// Cursor reads a server's cursor on the connection that opened it. It is not safe for concurrent use.
type Cursor struct {
	conn    *Conn
	db      string
	coll    string
	id      int64
	first   *Batch
	getMore bsoncore.Document
	size    int // where in getMore the batch's size is, 0 when it has none
}

// CursorOptions shape the getMore commands of a cursor.
type CursorOptions struct {
	BatchSize int           // documents a batch, 0 lets the server fill 16 MB
	MaxTime   time.Duration // for tailable-await cursors: how long an empty batch waits
}

// Batch is one reply of a cursor. Its documents stay valid: nothing reuses the reply's buffer.
type Batch struct {
	docs  []byte   // elements of the batch array, without length and terminator
	Size  int      // the bytes of all documents with their array overhead
	Token bson.Raw // postBatchResumeToken, nil when the server sent none
	// Done says that the server closed the cursor.
	Done bool
}

// OpenCursor runs a cursor-returning command in db on this connection.
func (c *Conn) OpenCursor(ctx context.Context, db string, cmd bson.D, o CursorOptions) (*Cursor, error) {
	body, err := c.Run(ctx, db, cmd)
	if err != nil {
		return nil, err
	}
	cur := &Cursor{conn: c, db: db}
	if cur.first, err = cur.parse(body, "firstBatch"); err != nil {
		return nil, err
	}
	ns, _ := body.Lookup("cursor", "ns").StringValueOK()
	_, cur.coll, _ = strings.Cut(ns, ".")
	idx, more := bsoncore.AppendDocumentStart(nil)
	more = bsoncore.AppendInt64Element(more, "getMore", cur.id)
	more = bsoncore.AppendStringElement(more, "collection", cur.coll)
	if o.BatchSize > 0 {
		more = bsoncore.AppendInt32Element(more, "batchSize", int32(o.BatchSize))
		cur.size = len(more) - 4
	}
	if o.MaxTime > 0 {
		more = bsoncore.AppendInt64Element(more, "maxTimeMS", o.MaxTime.Milliseconds())
	}
	cur.getMore, err = bsoncore.AppendDocumentEnd(more, idx)
	return cur, err
}

// Next returns the next batch. After a batch with Done there is no more.
func (cur *Cursor) Next(ctx context.Context) (*Batch, error) {
	if b := cur.first; b != nil {
		cur.first = nil
		return b, nil
	}
	if cur.id == 0 {
		return &Batch{Done: true}, nil
	}
	body, err := cur.conn.Command(ctx, cur.db, cur.getMore)
	if err != nil {
		cur.id = 0
		return nil, err
	}
	return cur.parse(body, "nextBatch")
}

// Limit bounds the documents of the next batches of a cursor opened with a BatchSize.
func (cur *Cursor) Limit(docs int) {
	if cur.size > 0 {
		binary.LittleEndian.PutUint32(cur.getMore[cur.size:], uint32(docs))
	}
}

// Close kills an open cursor, within ctx. A failure is harmless: the server times cursors out.
func (cur *Cursor) Close(ctx context.Context) {
	if cur.id == 0 || cur.conn.broken || cur.conn.mc == nil {
		return
	}
	_, _ = cur.conn.Run(ctx, cur.db, bson.D{{Key: "killCursors", Value: cur.coll},
		{Key: "cursors", Value: bson.A{cur.id}}})
	cur.id = 0
}

func (cur *Cursor) parse(body bsoncore.Document, field string) (*Batch, error) {
	c, ok := body.Lookup("cursor").DocumentOK()
	id, known := c.Lookup("id").AsInt64OK()
	if !ok || !known {
		return nil, errors.New("reply has no cursor")
	}
	cur.id = id
	b := &Batch{Done: cur.id == 0}
	if d, ok := c.Lookup("postBatchResumeToken").DocumentOK(); ok && bsonraw.Valid(d, bsonraw.MaxDepth) {
		b.Token = bson.Raw(d)
	}
	if v, err := c.LookupErr(field); err == nil {
		arr, ok := v.ArrayOK()
		if !ok || len(arr) < 5 {
			return nil, errors.New("reply's batch is not an array")
		}
		b.docs = arr[4 : len(arr)-1]
		b.Size = len(b.docs)
	}
	return b, nil
}

// Empty reports a batch without documents.
func (b *Batch) Empty() bool { return len(b.docs) == 0 }

// BatchOf makes a batch of elements: the type byte 3, a terminated key of any text, the document.
func BatchOf(elements []byte) *Batch { return &Batch{docs: elements, Size: len(elements)} }

// Each calls fn with each document's bytes in order until fn fails.
func (b *Batch) Each(fn func(doc []byte) error) error {
	rest := b.docs
	for len(rest) > 0 {
		if rest[0] != byte(bson.TypeEmbeddedDocument) {
			return errors.New("batch element is not a document")
		}
		i := 1
		for i < len(rest) && rest[i] != 0 { // the array key
			i++
		}
		i++
		if i+5 > len(rest) {
			return errors.New("truncated batch")
		}
		n := int(binary.LittleEndian.Uint32(rest[i:]))
		if n < 5 || i+n > len(rest) {
			return errors.New("batch element overruns the batch")
		}
		if err := fn(rest[i : i+n : i+n]); err != nil {
			return err
		}
		rest = rest[i+n:]
	}
	return nil
}
