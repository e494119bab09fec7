package wire

import (
	"encoding/binary"
	"slices"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/wiremessage"
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

// Len is the message's size in bytes.
func (m *Message) Len() int { return len(m.buf) }

// Docs is the number of documents in the sequence.
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
