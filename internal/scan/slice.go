package scan

import (
	"bytes"
	"encoding/binary"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
)

// Slice is a part of a collection, and its durable progress: all that a restart
// needs. Collection and N are its key; a later Plan of the same collection
// supersedes the slices of earlier ones.
type Slice struct {
	Collection string   `bson:"collection"` // hex UUID of the source's collection
	N          int      `bson:"n"`          // 0 … Of-1
	Of         int      `bson:"of"`         // slices in the plan; a plan with fewer saved is void
	Plan       int64    `bson:"plan"`       // generation, the highest counts
	NS         string   `bson:"ns"`         // target namespace, for people
	Strategy   Strategy `bson:"strategy"`
	Member     `bson:",inline"`

	// Bounds and position are {r: record id, _id: …} for ByRecord, else
	// {_id: …}; absent means open. ByRecord is (Lower, Upper], else [Lower, Upper).
	Lower    bson.Raw `bson:"lower,omitempty"`
	Upper    bson.Raw `bson:"upper,omitempty"`
	Position bson.Raw `bson:"position,omitempty"` // last document acknowledged, with all before it
	// Back are record ids below Lower and at or below Position, newest first:
	// places to start from when the record at Lower or Position was deleted.
	Back []int64 `bson:"back,omitempty"`

	// At is the position as of which the documents of a capped collection are.
	// Those deleted since may be missing, updates since may be in them, and what
	// was inserted since is not there.
	At mongo.OpTime `bson:"at,omitempty"`

	Done    bool `bson:"done"`
	Dropped bool `bson:"dropped,omitempty"` // the collection vanished from the source
	// Docs and Bytes are what was acknowledged up to Position, with estimates of what the
	// source has left out.
	Docs, Bytes int64
}

// from is where reading begins: the position, or else the lower bound.
func (s *Slice) from() bson.Raw {
	if len(s.Position) > 0 {
		return s.Position
	}
	return s.Lower
}

// Progress is what a part adds to a slice.
type Progress struct {
	Docs     int
	Bytes    int64
	Position bson.Raw // of the last document; nil leaves it where it is
	// Unread and UnreadBytes are estimates of what the server has left out (Want.Prefilter).
	Unread, UnreadBytes int64
}

// Advance adds the next part's progress.
func (s *Slice) Advance(p Progress) {
	if len(p.Position) > 0 {
		s.Back = remember(s.Back, Record(s.from()))
		s.Position = p.Position
	}
	s.Docs += int64(p.Docs) + p.Unread
	s.Bytes += p.Bytes + p.UnreadBytes
}

// trail is how many recent places to start from are kept. Older ones are those
// that a plan began with, and far apart.
const trail = 7

// remember adds a record id to the places to start from, and leaves the list as
// it was for those who have it.
func remember(back []int64, rid int64) []int64 {
	if rid == 0 {
		return back
	}
	out := append(make([]int64, 0, trail+candidates+1), rid)
	out = append(out, back...)
	if len(out) > trail+candidates {
		out = slices.Delete(out, trail, trail+1)
	}
	return out
}

// mark is a position: a document's _id, before it the record id where record
// ids count.
func mark(strategy Strategy, rid int64, id bsoncore.Value) bson.Raw {
	i, d := bsoncore.AppendDocumentStart(make([]byte, 0, len(id.Data)+32))
	if strategy == ByRecord {
		d = bsoncore.AppendInt64Element(d, "r", rid)
	}
	d = bsoncore.AppendValueElement(d, "_id", id)
	d, _ = bsoncore.AppendDocumentEnd(d, i)
	return d
}

// Record reads the record id of a bound or position; 0, which no record has, for
// an absent one.
func Record(mark bson.Raw) int64 {
	n, _ := bsonraw.Value(mark, "r").AsInt64OK()
	return n
}

// markID reads a mark's _id.
func markID(m bson.Raw) bsoncore.Value { return bsonraw.Value(m, "_id") }

// idKey stands for an _id in a map.
func idKey(id bsoncore.Value) string { return string(bsonraw.AppendID(nil, id)) }

// tokenRecord reads the record id of a resume token: the last record that a
// cursor in record order has given; 0 when the token names none.
func tokenRecord(token bson.Raw) int64 {
	rid, _ := bsonraw.Value(token, "$recordId").AsInt64OK()
	return rid
}

// recordName begins the element that showRecordId puts at the end of a document,
// in place of a field of that name; the number and the document's terminator
// follow.
const (
	recordName   = "\x12$recordId\x00"
	recordSuffix = len(recordName) + 8 + 1
)

// recordOf is the record id that showRecordId put at the end of a document.
func recordOf(doc []byte) (int64, bool) {
	at := len(doc) - recordSuffix
	if at < 4 || string(doc[at:at+len(recordName)]) != recordName {
		return 0, false
	}
	return int64(binary.LittleEndian.Uint64(doc[at+len(recordName):])), true
}

// withoutRecord is a copy of the document as the source has it.
func withoutRecord(doc []byte) []byte {
	out := bytes.Clone(doc[:len(doc)-recordSuffix+1])
	out[len(out)-1] = 0
	binary.LittleEndian.PutUint32(out, uint32(len(out)))
	return out
}
