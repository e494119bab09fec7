package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/mnet"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/wiremessage"

	"github.com/millrace/millrace/internal/bsonraw"
)

var (
	errClosed = errors.New("connection was released")
	errBroken = errors.New("an earlier exchange failed half-way, and its reply may still come")
)

// Conn is one checked-out connection. It is not safe for concurrent use.
type Conn struct {
	pool        *Pool
	mc          *mnet.Connection
	processor   driver.ErrorProcessor
	secondaryOk bool
	broken      bool
	wait        *Wait
	router      string  // the address, if it is one of those that exchanges are spread over
	msg         Message // for Command; hot paths bring their own
	zbuf        []byte
	unpack      unpacker
}

func (c *Conn) Addr() string { return c.mc.Address().String() }

// Release returns the connection to the pool, or closes it after an exchange that failed half-way. It may be
// called twice.
func (c *Conn) Release() {
	if c.mc == nil {
		return
	}
	if e, ok := c.mc.ReadWriteCloser.(driver.Expirable); c.broken && ok {
		_ = e.Expire()
	} else {
		_ = c.mc.Close()
	}
	c.mc = nil
	c.pool.waits.Forget(c.wait)
}

// Command sends cmd (without `$db`) to db and returns the reply's body, which the caller may keep. A reply with ok:0
// is a mongo.CommandError; write errors are in the body (ParseWriteResult).
func (c *Conn) Command(ctx context.Context, db string, cmd bsoncore.Document) (bsoncore.Document, error) {
	c.msg.Reset(db, cmd, c.secondaryOk)
	return c.RoundTrip(ctx, &c.msg)
}

// Run is Command, with cmd as bson.D instead of raw bytes.
func (c *Conn) Run(ctx context.Context, db string, cmd bson.D) (bsoncore.Document, error) {
	raw, err := bson.Marshal(cmd)
	if err != nil {
		return nil, fmt.Errorf("encode command: %w", err)
	}
	return c.Command(ctx, db, raw)
}

// RunBoth sends two commands before the reply to the first, which must be a quick one. failed is the error of the
// first, of the kinds of Command.
func (c *Conn) RunBoth(ctx context.Context, db string, first bson.D, secondDB string,
	second bson.D) (replies [2]bsoncore.Document, failed, err error) {
	for i, cmd := range []bson.D{first, second} {
		raw, err := bson.Marshal(cmd)
		if err != nil {
			return replies, nil, fmt.Errorf("encode command: %w", err)
		}
		c.msg.Reset([]string{db, secondDB}[i], raw, c.secondaryOk)
		if err := c.send(ctx, &c.msg); err != nil {
			c.broken = true // an answer may be under way
			return replies, nil, err
		}
	}
	if replies[0], failed = c.receive(ctx); c.broken {
		return replies, nil, failed
	}
	c.wait.begin()
	replies[1], err = c.receive(ctx)
	return replies, failed, err
}

// RoundTrip sends a message and returns the reply's body, which the caller may keep. See Command.
func (c *Conn) RoundTrip(ctx context.Context, m *Message) (bsoncore.Document, error) {
	began := time.Now()
	if err := c.send(ctx, m); err != nil {
		return nil, err
	}
	body, err := c.receive(ctx)
	if !c.broken {
		c.pool.exchanged(m.Len()+len(body), began, time.Now())
	}
	return body, err
}

func (c *Conn) send(ctx context.Context, m *Message) error {
	if c.mc == nil {
		return errClosed
	}
	if c.broken {
		return networkError("write "+c.Addr(), errBroken)
	}
	if err := c.pool.Allowed(); err != nil {
		return err
	}
	wm, err := c.compress(m.finish(wiremessage.NextRequestID()))
	if err != nil {
		return err
	}
	if c.router != "" {
		c.pool.over.message(c.router, int64(len(wm)))
	}
	c.wait.begin()
	if err := c.mc.Write(ctx, wm); err != nil {
		return c.fail(ctx, "write", err)
	}
	return nil
}

func (c *Conn) receive(ctx context.Context) (bsoncore.Document, error) {
	reply, err := c.mc.Read(ctx)
	c.wait.end()
	if err != nil {
		return nil, c.fail(ctx, "read", err)
	}
	body, err := c.unpack.reply(reply)
	if err != nil {
		c.broken = true
		return nil, err
	}
	return body, c.commandError(body)
}

func (c *Conn) compress(wm []byte) ([]byte, error) {
	if c.mc.Compressor == nil || len(c.mc.Description().Compression) == 0 || c.pool.zip != nil && !c.pool.zip.on.Load() {
		return wm, nil
	}
	out, err := c.mc.CompressWireMessage(wm, c.zbuf[:0])
	if err != nil {
		return nil, fmt.Errorf("compress message: %w", err)
	}
	c.zbuf = out
	return out, nil
}

func (c *Conn) fail(ctx context.Context, op string, err error) error {
	c.broken = true
	c.wait.end()
	if c.processor != nil {
		c.processor.ProcessError(err, c.mc)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return networkError(op+" "+c.Addr(), err)
}

// networkError wraps a transport failure as the driver's public API does.
func networkError(op string, err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	return mongo.CommandError{Message: op, Labels: []string{driver.NetworkError}, Wrapped: err}
}

func (c *Conn) commandError(body bsoncore.Document) error {
	okv, err := body.LookupErr("ok")
	if err != nil {
		return fmt.Errorf("reply without ok: %w", err)
	}
	if n, isNum := okv.AsInt64OK(); isNum && n == 1 {
		return nil
	}
	e, ok := errors.AsType[driver.Error](driver.ExtractErrorFromServerResponse(body))
	if !ok {
		return errors.New("reply is neither well nor an error")
	}
	if c.processor != nil {
		c.processor.ProcessError(e, c.mc)
	}
	return mongo.CommandError{Code: e.Code, Message: e.Message, Name: e.Name, Labels: e.Labels, Raw: bson.Raw(body)}
}

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

// FirstReply is the server's default number of documents in a first reply.
const FirstReply = 101

// ReplySize limits the next reply of a cursor to bytes. Docs is that limit in documents; 0 leaves it to the server.
type ReplySize struct {
	Bytes int64
	Docs  int
}

// Learn sizes the next reply by this one: as many such documents as fit, at most twice as many as before.
func (s *ReplySize) Learn(docs int, bytes int64) {
	if s.Docs == 0 || docs == 0 {
		return
	}
	const most = 1 << 20
	fit := s.Bytes * int64(docs) / max(bytes, 1)
	s.Docs = int(max(min(fit, 2*int64(s.Docs), most), 1))
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

// closeTime bounds the end of a cursor.
const closeTime = 2 * time.Second

// Close kills an open cursor, also after ctx has ended. Servers time one out after 10 minutes. Until then a shard
// deletes no orphans of its collection, and chunks of the same ranges cannot move.
func (cur *Cursor) Close(ctx context.Context) {
	if cur.id == 0 || cur.conn.broken || cur.conn.mc == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer cancel()
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

func (b *Batch) Empty() bool { return len(b.docs) == 0 }

// BatchOf makes a batch of elements: the type byte 3, a terminated key of any text, the document.
func BatchOf(elements []byte) *Batch { return &Batch{docs: elements, Size: len(elements)} }

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
