// Package scan reads collections, for the copy and for the comparison. It chooses the strategy for
// a server and a kind of collection, and cuts a collection into slices. It walks a slice, and goes
// on exactly where it was after a cursor has died or a document at a bound was deleted. Slice is
// also the stored form of a slice's progress.
//
// What depends on servers and collections alone belongs here. The packages above decide what
// happens to the documents, and which slices are read, by whom and in which order.
package scan

import (
	"bytes"
	"encoding/binary"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/wire"
)

// Slice is a part of a collection and its durable progress: all that a restart needs. Collection
// and N are its key; a later Plan of the collection supersedes earlier ones.
type Slice struct {
	Collection string   `bson:"collection"` // hex UUID of the source's collection
	N          int      `bson:"n"`          // 0 … Of-1
	Of         int      `bson:"of"`         // slices in the plan; a plan with fewer saved is void
	Plan       int64    `bson:"plan"`       // generation, the highest counts
	NS         string   `bson:"ns"`         // target namespace, for people
	Strategy   Strategy `bson:"strategy"`
	Member     `bson:",inline"`

	// Bounds and position are {r: record id, _id: …} for ByRecord, else {_id: …}; absent means
	// open. ByRecord is (Lower, Upper], else [Lower, Upper).
	Lower    bson.Raw `bson:"lower,omitempty"`
	Upper    bson.Raw `bson:"upper,omitempty"`
	Position bson.Raw `bson:"position,omitempty"` // last document acknowledged, with all before it
	// Back are record ids below Lower and at or below Position, newest first: places to start from
	// if the record at Lower or Position was deleted.
	Back []int64 `bson:"back,omitempty"`

	// At is the position of the documents of a capped collection. Documents deleted since may be
	// missing, later updates may be in them, later inserts are not.
	At mongo.OpTime `bson:"at,omitempty"`

	Done    bool `bson:"done"`
	Dropped bool `bson:"dropped,omitempty"` // the collection vanished from the source
	// Docs and Bytes were acknowledged up to Position, with estimates of what the source left out.
	Docs, Bytes int64
}

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
	// Unread and UnreadBytes estimate what the server left out (Want.Prefilter).
	Unread, UnreadBytes int64
}

func (s *Slice) Advance(p Progress) {
	if len(p.Position) > 0 {
		s.Back = remember(s.Back, Record(s.from()))
		s.Position = p.Position
	}
	s.Docs += int64(p.Docs) + p.Unread
	s.Bytes += p.Bytes + p.UnreadBytes
}

// trail is how many recent places are kept. Older ones are of the plan, and far apart.
const trail = 7

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

// mark is a position: a document's _id, after the record id if that counts.
func mark(strategy Strategy, rid int64, id bsoncore.Value) bson.Raw {
	i, d := bsoncore.AppendDocumentStart(make([]byte, 0, len(id.Data)+32))
	if strategy == ByRecord {
		d = bsoncore.AppendInt64Element(d, "r", rid)
	}
	d = bsoncore.AppendValueElement(d, "_id", id)
	return bsonraw.Close(d, i)
}

// Record returns the record id of a bound or position, 0 for none.
func Record(mark bson.Raw) int64 {
	n, _ := bsonraw.Value(mark, "r").AsInt64OK()
	return n
}

func markID(m bson.Raw) bsoncore.Value { return bsonraw.Value(m, "_id") }

func idKey(id bsoncore.Value) string { return string(bsonraw.AppendID(nil, id)) }

// tokenRecord is of the last record of a cursor in record order; 0 for none.
func tokenRecord(token bson.Raw) int64 {
	rid, _ := bsonraw.Value(token, "$recordId").AsInt64OK()
	return rid
}

// recordName begins what showRecordId appends; the number and the terminator follow.
const (
	recordName   = "\x12$recordId\x00"
	recordSuffix = len(recordName) + 8 + 1
)

func recordOf(doc []byte) (int64, bool) {
	at := len(doc) - recordSuffix
	if at < 4 || string(doc[at:at+len(recordName)]) != recordName {
		return 0, false
	}
	return int64(binary.LittleEndian.Uint64(doc[at+len(recordName):])), true
}

func withoutRecord(doc []byte) []byte {
	out := bytes.Clone(doc[:len(doc)-recordSuffix+1])
	out[len(out)-1] = 0
	binary.LittleEndian.PutUint32(out, uint32(len(out)))
	return out
}

// Strategy is how a collection is cut and walked.
type Strategy string

const (
	// ByRecord walks in record order, bounded by record ids (4.4 and newer). Record ids are valid
	// on one member only.
	ByRecord Strategy = "record"
	// ByID walks the _id index, or the key of a clustered collection, between raw index bounds, for
	// _ids of every type.
	ByID Strategy = "id"
	// ByKey walks a collection clustered by _id with comparisons, where the server takes no index
	// bounds for it. Comparisons find _ids of one type.
	ByKey Strategy = "key"
	// Serial walks in record order without cuts: if order is content (capped), without an _id
	// index, or if the server takes no cuts.
	Serial Strategy = "serial"
	// Sorted has the server sort a collection without an _id index.
	Sorted  Strategy = "sorted"
	ByRange Strategy = "range"
)

// Resumable reports whether the strategy can be cut, and continued.
func (s Strategy) Resumable() bool { return s != Serial && s != Sorted && s != ByRange }

// ByStorage returns the strategy that costs the server least.
func ByStorage(c *schema.Collection, info mongo.Info) Strategy {
	if c.Clustered() || info.Kind == mongo.KindSharded || !info.Version.AtLeast(4, 4) {
		return ByOrder(c, info)
	}
	return ByRecord
}

// ByOrder returns the strategy that reads in _id order. Servers before 5.3 cluster buckets only:
// they refuse index bounds on them, and the _ids are all ObjectIDs, so that comparisons lose none.
// From 5.3 on users cluster collections, with _ids of any type; 6.0 walks them like an index.
func ByOrder(c *schema.Collection, info mongo.Info) Strategy {
	switch {
	case c.Clustered() && !info.Version.AtLeast(5, 3):
		return ByKey
	case c.Clustered() || c.IDIndex:
		return ByID
	}
	return Sorted
}

// Prefilter lets the server leave documents out, if they are read in record order and that pays.
// Want.Keep still decides about those that come.
type Prefilter struct {
	// Filter finds every document that Want.Keep chooses.
	Filter bson.Raw
	// Match reports whether the server finds a document. It is safe for concurrent use.
	Match func(doc []byte) bool
}

// prefiltering is a walk's use of a Prefilter. It requests the documents of the filter, some at
// random, and the one at which the slice ends. With the random ones a reply and its resume token
// never wait for a distant document.
type prefiltering struct {
	Prefilter
	on      bool    // the filter is sent; else all documents come, and are counted
	tried   bool    // a reply has come
	rate    float64 // share of the random ones
	span    float64 // documents that the server is to look at for a reply
	most    float64 // documents in a reply
	density float64 // documents that come for each record id that is passed
}

const (
	trialDocs = 256
	leastRate = 0.005
)

func (s *prefiltering) filter(upper bson.Raw) bson.D {
	of := bson.A{s.Filter, bson.D{{Key: "$sampleRate", Value: s.rate}}}
	if len(upper) > 0 {
		of = append(of, bson.D{{Key: "_id", Value: bson.D{{Key: "$eq", Value: upper.Lookup("_id")}}}})
	}
	return bson.D{{Key: "$or", Value: of}}
}

// wanted returns how many documents to request, of at most batch. A find has no end at a record id:
// it should just reach it. left is the number of record ids left, 0 for no end.
func (s *prefiltering) wanted(batch int, left int64) int {
	switch {
	case !s.tried:
		return min(batch, trialDocs)
	case !s.on:
		return batch
	}
	n := min(s.span*s.density, s.most)
	if left > 0 {
		n = min(n, float64(left)*s.density+1)
	}
	return max(int(n), 1)
}

// pays counts documents that came without the filter. It turns the filter on if that finds less
// than half of them.
func (s *prefiltering) pays(p *Part) bool {
	s.tried = true
	if s.on || p.Docs == 0 || p.Last {
		return false
	}
	seen, found := 0, 0
	_ = p.batch.Each(func(doc []byte) error {
		if seen == trialDocs {
			return errEnough
		}
		seen++
		if s.Match(doc) {
			found++
		}
		return nil
	})
	if s.on = 2*found < seen; s.on {
		s.density = min(float64(found)/float64(seen)+s.rate, 1)
	}
	return s.on
}

func (s *prefiltering) passed(b *wire.Batch, ids int64) {
	docs := 0
	_ = b.Each(func([]byte) error { docs++; return nil })
	if docs > 0 && ids > 0 {
		s.density = (s.density + min(float64(docs)/float64(ids), 1)) / 2
	}
}

// unread estimates how many documents the server left out before one that came: a known share of
// those that the filter does not find comes. The document with the _id until came for its _id.
func (s *prefiltering) unread(p *Progress, doc []byte, until bsoncore.Value) {
	if s.Match(doc) || until.Type != 0 && bsonraw.IDOf(doc).Equal(until) {
		return
	}
	others := 1/s.rate - 1
	p.Unread += int64(others)
	p.UnreadBytes += int64(others * float64(len(doc)))
}
