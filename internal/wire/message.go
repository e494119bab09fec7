// Package wire is the hot path to a server: OP_MSG over the driver's own connections. TLS, authentication and
// compression stay the driver's work while documents pass as bytes.
//
// It alone imports the driver's unstable x/ tree. A Conn is for one goroutine at a time, a Pool for any number.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/zstd"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/wiremessage"

	"github.com/millrace/millrace/internal/bsonraw"
)

// Message is an OP_MSG request in one reusable buffer: a body and at most one document sequence (section kind 1),
// which has no array keys. The zero value is ready for Reset.
//
// Format: MongoDB wire protocol, OP_MSG.
type Message struct {
	buf      []byte
	seqStart int // offset of the open sequence's length, 0 when none is open
	docs     int
}

// msgPrefix is the 16-byte header, the flag bits and the first section's kind.
const msgPrefix = 16 + 4 + 1

// Reset empties the message and writes body as its command, with `$db` and, when secondaryOk, a read preference
// that lets a secondary answer.
func (m *Message) Reset(db string, body bsoncore.Document, secondaryOk bool) {
	m.seqStart, m.docs = 0, 0
	if cap(m.buf) < msgPrefix {
		m.buf = make([]byte, 0, 512)
	}
	m.buf = m.buf[:msgPrefix]
	clear(m.buf)
	binary.LittleEndian.PutUint32(m.buf[12:], uint32(wiremessage.OpMsg))
	m.buf[20] = byte(wiremessage.SingleDocument)

	start := len(m.buf)
	m.buf = append(m.buf, body[:len(body)-1]...)
	m.buf = bsoncore.AppendStringElement(m.buf, "$db", db)
	if secondaryOk {
		m.buf = bsoncore.AppendDocumentElement(m.buf, "$readPreference",
			bsoncore.NewDocumentBuilder().AppendString("mode", "secondaryPreferred").Build())
	}
	m.buf = append(m.buf, 0)
	binary.LittleEndian.PutUint32(m.buf[start:], uint32(len(m.buf)-start))
}

// StartSequence opens the document sequence of an argument, such as "documents".
func (m *Message) StartSequence(name string) {
	m.buf = append(m.buf, byte(wiremessage.DocumentSequence))
	m.seqStart = len(m.buf)
	m.buf = append(m.buf, 0, 0, 0, 0)
	m.buf = append(m.buf, name...)
	m.buf = append(m.buf, 0)
}

// AppendDocument copies doc into the open sequence.
func (m *Message) AppendDocument(doc []byte) {
	m.buf = append(m.buf, doc...)
	m.docs++
}

// BuildDocument lets fn append one document's bytes to the open sequence.
func (m *Message) BuildDocument(fn func(dst []byte) []byte) {
	m.buf = fn(m.buf)
	m.docs++
}

// Unbuild removes the last document, before which the message had n bytes.
func (m *Message) Unbuild(n int) {
	m.buf = m.buf[:n]
	m.docs--
}

// Grow makes room for n more bytes.
func (m *Message) Grow(n int) { m.buf = slices.Grow(m.buf, n) }

func (m *Message) Len() int { return len(m.buf) }

func (m *Message) Docs() int { return m.docs }

// finish returns the framed bytes, valid until the next Reset.
func (m *Message) finish(requestID int32) []byte {
	if m.seqStart > 0 {
		binary.LittleEndian.PutUint32(m.buf[m.seqStart:], uint32(len(m.buf)-m.seqStart))
	}
	binary.LittleEndian.PutUint32(m.buf[0:], uint32(len(m.buf)))
	binary.LittleEndian.PutUint32(m.buf[4:], uint32(requestID))
	return m.buf
}

// Compression says how a pool's messages and the replies are compressed.
type Compression struct {
	// On says that they are compressed now, Measured that a measurement decides it.
	On, Measured bool
	// Gain is how many times as much the last measurement moved with compression as without, 0 before the first.
	Gain float64
}

// FarAway is the round trip from which waiting for the link counts. Compression is measured from there on: it pays on
// slow links, which are long.
const FarAway = 2 * time.Millisecond

const (
	legTime     = 500 * time.Millisecond // how long each of its legs is measured
	legMessages = 8                      // and how many exchanges it takes at least
	legMost     = 20 * time.Second       // a leg that takes longer says nothing
	worthwhile  = 1.1                    // the gain from which on messages are compressed
	leastRate   = 1 << 20                // bytes a second below which nobody waits for the link
	firstRest   = 30 * time.Second       // to the next trial; it doubles while the outcome stays
	longestRest = 10 * time.Minute
)

// chooser measures whether compression moves more. A trial has four legs, without and with compression in turn, so
// that other changes do not decide. It is safe for concurrent use.
type chooser struct {
	rtt     func() time.Duration
	changed func(Compression)

	on   atomic.Bool
	wake atomic.Int64 // when the next trial may begin, or the leg under way may end

	mu    sync.Mutex
	rest  time.Duration
	gain  float64
	was   bool // before the trial
	leg   int  // 1 to 4, 0 between trials
	from  time.Time
	first time.Time // when the first exchange of the leg ended
	count int
	bytes int64
	rates [4]float64
}

func (c *chooser) compression() Compression {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Compression{On: c.was, Measured: true, Gain: c.gain}
}

// moved counts an exchange, by its bytes before compression.
func (c *chooser) moved(bytes int, began, ended time.Time) {
	if ended.UnixNano() < c.wake.Load() || c.rtt() < FarAway {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.leg == 0:
		if ended.UnixNano() >= c.wake.Load() {
			c.was = c.on.Load()
			c.next(ended)
		}
	case ended.Sub(c.from) > legMost:
		c.end(ended, c.was)
	case began.Before(c.from): // it was sent as those of the leg before
	case c.first.IsZero():
		c.first = ended
	default:
		c.count++
		c.bytes += int64(bytes)
		if took := ended.Sub(c.first); took >= legTime && c.count >= legMessages {
			c.rates[c.leg-1] = float64(c.bytes) / took.Seconds()
			c.measured(ended)
		}
	}
}

func (c *chooser) measured(now time.Time) {
	if c.rates[c.leg-1] < leastRate {
		c.end(now, c.was)
		return
	}
	if c.leg < len(c.rates) {
		c.next(now)
		return
	}
	r := c.rates
	c.gain = (r[1] + r[3]) / (r[0] + r[2])
	c.end(now, c.gain >= worthwhile && r[1] > r[0] && r[3] > r[2])
}

// next begins a leg. Every second leg compresses.
func (c *chooser) next(now time.Time) {
	c.leg++
	c.on.Store(c.leg%2 == 0)
	c.from, c.first, c.count, c.bytes = now, time.Time{}, 0, 0
}

func (c *chooser) end(now time.Time, on bool) {
	changed := on != c.was
	if c.leg = 0; changed {
		c.rest = 0
	}
	c.rest = min(max(2*c.rest, firstRest), longestRest)
	c.wake.Store(now.Add(c.rest).UnixNano())
	c.was = on
	c.on.Store(on)
	if changed && c.changed != nil {
		c.changed(Compression{On: on, Measured: true, Gain: c.gain})
	}
}

// WriteError is one entry of a write command's writeErrors.
type WriteError struct {
	Index   int // position of the failed document in the sequence
	Code    int32
	Message string
	Raw     bson.Raw // the complete entry: keyPattern, keyValue, errInfo
}

func (e WriteError) Error() string { return fmt.Sprintf("%s (code %d)", e.Message, e.Code) }

// OnIDIndex reports a duplicate key on the _id index, by keyPattern (server manual, error 11000; since 4.2).
func (e WriteError) OnIDIndex() bool {
	if e.Code != 11000 {
		return false
	}
	kp, _ := e.Raw.Lookup("keyPattern").DocumentOK()
	elems, err := kp.Elements()
	return err == nil && len(elems) == 1 && elems[0].Key() == "_id"
}

// WriteResult is the reply of insert, update or delete, read without decoding.
type WriteResult struct {
	N            int64 // documents inserted, matched or deleted (upserts count)
	Modified     int64
	Errors       []WriteError
	ConcernError bson.Raw // the writeConcernError document, empty when none
	// Term is the election term of the primary that took the write (opTime.t), -1 without a replica set.
	Term int64
	At   bson.Timestamp // the cluster time of the write (opTime.ts), zero when the reply has none
}

func ParseWriteResult(body bsoncore.Document) WriteResult {
	r := WriteResult{Term: -1}
	r.N, _ = body.Lookup("n").AsInt64OK()
	r.Modified, _ = body.Lookup("nModified").AsInt64OK()
	if t, ok := body.Lookup("opTime", "t").AsInt64OK(); ok {
		r.Term = t
	}
	if t, i, ok := body.Lookup("opTime", "ts").TimestampOK(); ok {
		r.At = bson.Timestamp{T: t, I: i}
	}
	if d, ok := body.Lookup("writeConcernError").DocumentOK(); ok && bsonraw.Valid(d, bsonraw.MaxDepth) {
		r.ConcernError = bson.Raw(d)
	}
	var failed []bsoncore.Value
	if all, ok := body.Lookup("writeErrors").ArrayOK(); ok {
		failed, _ = all.Values()
	}
	for _, v := range failed {
		d, ok := v.DocumentOK()
		if !ok || !bsonraw.Valid(d, bsonraw.MaxDepth) {
			d = bsoncore.Document{5, 0, 0, 0, 0} // still an error
		}
		index, _ := d.Lookup("index").AsInt64OK()
		code, _ := d.Lookup("code").AsInt64OK()
		message, _ := d.Lookup("errmsg").StringValueOK()
		r.Errors = append(r.Errors, WriteError{Index: int(index), Code: int32(code), Message: message, Raw: bson.Raw(d)})
	}
	return r
}

// maxReply bounds a reply after decompression: the server's maxMessageSizeBytes.
const maxReply = 48_000_000

// replyDepth is how deep a reply is checked: its fields and those of its cursor, but no document of a batch.
const replyDepth = 2

// unpacker reads replies. It is not safe for concurrent use.
type unpacker struct {
	zstd *zstd.Decoder // made when the first reply needs it
}

// reply returns the body of an OP_MSG reply. It checks sizes before it allocates memory.
func (u *unpacker) reply(wm []byte) (bsoncore.Document, error) {
	length, _, _, op, rem, ok := wiremessage.ReadHeader(wm)
	if !ok || int(length) != len(wm) {
		return nil, fmt.Errorf("malformed reply header (%d bytes)", len(wm))
	}
	if op == wiremessage.OpCompressed {
		var err error
		if op, rem, err = u.decompress(rem); err != nil {
			return nil, err
		}
	}
	if op != wiremessage.OpMsg {
		return nil, fmt.Errorf("reply has opcode %d, want OP_MSG", op)
	}
	flags, rem, ok := wiremessage.ReadMsgFlags(rem)
	if !ok || flags&wiremessage.ChecksumPresent != 0 {
		return nil, errors.New("malformed reply flags")
	}
	kind, rem, ok := wiremessage.ReadMsgSectionType(rem)
	if !ok || kind != wiremessage.SingleDocument {
		return nil, errors.New("reply does not start with a body section")
	}
	body, _, ok := wiremessage.ReadMsgSectionSingleDocument(rem)
	if !ok {
		return nil, errors.New("truncated reply body")
	}
	if !bsonraw.Valid(body, replyDepth) {
		return nil, errors.New("malformed reply body")
	}
	return body, nil
}

func (u *unpacker) decompress(rem []byte) (wiremessage.OpCode, []byte, error) {
	op, rem, ok1 := wiremessage.ReadCompressedOriginalOpCode(rem)
	size, rem, ok2 := wiremessage.ReadCompressedUncompressedSize(rem)
	id, rem, ok3 := wiremessage.ReadCompressedCompressorID(rem)
	if !ok1 || !ok2 || !ok3 || size < 0 || size > maxReply {
		return 0, nil, errors.New("malformed compressed reply")
	}
	var out []byte
	var err error
	if id == wiremessage.CompressorZstd {
		out, err = u.zstandard(rem, int(size))
	} else {
		out, err = driver.DecompressPayload(rem, driver.CompressionOpts{Compressor: id, UncompressedSize: size})
	}
	if err == nil && len(out) != int(size) {
		err = fmt.Errorf("it has %d bytes and claims %d", len(out), size)
	}
	if err != nil {
		return 0, nil, fmt.Errorf("decompress reply: %w", err)
	}
	return op, out, nil
}

// zstandard replaces the driver's decoder, which accepts frames of up to 64 GB.
func (u *unpacker) zstandard(in []byte, size int) ([]byte, error) {
	if u.zstd == nil {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxReply))
		if err != nil {
			return nil, err
		}
		u.zstd = d
	}
	return u.zstd.DecodeAll(in, make([]byte, 0, size))
}
