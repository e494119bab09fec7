package deadletter

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
)

// Policy says what becomes of a document that the target refuses.
type Policy string

// The policies.
const (
	Stop      Policy = "stop"      // end the job with an error
	Skip      Policy = "skip"      // leave the target as it is
	Overwrite Policy = "overwrite" // remove what stands in the way
)

// State is how far a letter's case is.
type State string

// The states of a letter.
const (
	// Undecided: it may turn out that nothing is in conflict, once the target
	// has caught up.
	Undecided State = "undecided"
	// Open: the target lacks the document, or this state of it.
	Open State = "open"
	// Settled: the document reached the target later, or is gone from the source.
	Settled State = "settled"
	// Removed: a document that stood in the way and was taken off the target.
	Removed State = "removed"
)

// Cause is why the target has not taken a document.
type Cause string

// The causes.
const (
	CauseID      Cause = "id"      // the target has another document with the _id
	CauseKey     Cause = "key"     // another document holds a key of a unique index
	CauseMissing Cause = "missing" // the document to be changed is not on the target
	CauseShape   Cause = "shape"   // the document on the target is not what it has to be
	CauseRefused Cause = "refused" // the server does not store it: too large, not indexable
	CauseInWay   Cause = "in the way"
)

// Foreign reports that the target's document of the same _id is somebody else's.
func (c Cause) Foreign() bool { return c == CauseID || c == CauseShape }

// Letter is one document.
type Letter struct {
	ID    string // unique; empty until it is written
	NS    string // target namespace, now
	State State
	Cause Cause
	DocID bsoncore.Value
	Doc   []byte // the whole document; nil when it is not known
	// At is the source's position of Doc. Changes up to Until may be in it
	// already.
	At, Until mongo.OpTime

	// Source and UUID are of its collection on the source, where they are known.
	Source string
	UUID   *[16]byte

	Reason string
	Code   int32
	Index  string        // of CauseKey
	Other  bson.RawValue // _id of the other document, where it is known
}

// stored is a letter as the target keeps it.
type stored struct {
	ID       string         `bson:"_id"`
	Job      string         `bson:"job"`
	NS       string         `bson:"ns"`
	State    State          `bson:"state"`
	Cause    Cause          `bson:"cause"`
	DocID    *bson.RawValue `bson:"documentId,omitempty"`
	IDText   string         `bson:"documentIdText"`
	Document bson.Raw       `bson:"document,omitempty"`
	// A document that cannot be embedded is kept as bytes, in parts.
	Parts int    `bson:"parts"`
	Of    string `bson:"partsOf"`
	Bytes int    `bson:"bytes"`

	Reason string         `bson:"reason"`
	Code   int32          `bson:"code"`
	Index  string         `bson:"index,omitempty"`
	Other  *bson.RawValue `bson:"otherId,omitempty"`
	At     mongo.OpTime   `bson:"position"`
	Until  mongo.OpTime   `bson:"until"`
	Time   time.Time      `bson:"time"`
	Moved  mongo.OpTime   `bson:"moved"` // position of the last rename of its collection
	Key    bson.Binary    `bson:"key"`   // docKey
	// The collection's name on the source when the letter was written, and its UUID.
	Source string       `bson:"source,omitempty"`
	UUID   *bson.Binary `bson:"uuid,omitempty"`
}

// docKey tells documents of one namespace apart, by the bytes of their _ids,
// which all entries of an oplog about one document have in common.
type docKey [16]byte

func keyOf(id bsoncore.Value) docKey {
	h := sha256.New()
	h.Write([]byte{byte(id.Type)})
	h.Write(id.Data)
	return docKey(h.Sum(nil)[:16])
}

// letterID is the same each time the same refusal is met.
func letterID(job string, l Letter) string {
	h := sha256.New()
	fmt.Fprintf(h, "%d:%s", len(l.NS), l.NS)
	key := keyOf(l.DocID)
	h.Write(key[:])
	id := job + "/" + hex.EncodeToString(h.Sum(nil)[:10]) + "/" + l.At.String()
	if l.State == Removed {
		id += "/removed"
	}
	return id
}

// Sizes of what one stored document takes; the server's limit is 16 MB.
const (
	maxEmbedded = 15 << 20
	partSize    = 8 << 20
	maxDepth    = 60 // of nesting, the server takes 180
)

// embeddable reports that a server stores the document unchanged as a field of
// another: not too large, not too deep, and without names that begin with a
// dollar sign, which servers before 5.0 refuse.
func embeddable(doc []byte) bool { return len(doc) <= maxEmbedded && plainNames(doc, 0) }

func plainNames(doc []byte, depth int) bool {
	if depth > maxDepth {
		return false
	}
	elems, err := bsoncore.Document(doc).Elements()
	if err != nil {
		return false
	}
	for _, e := range elems {
		if k := e.KeyBytes(); len(k) > 0 && k[0] == '$' {
			return false
		}
		v := e.Value()
		switch v.Type {
		case bsoncore.TypeEmbeddedDocument, bsoncore.TypeArray:
			if !plainNames(v.Data, depth+1) {
				return false
			}
		case bsoncore.TypeCodeWithScope:
			return false // the scope's names are checked by some servers
		}
	}
	return true
}

// rawOf is a value to be stored, nil when it cannot be a field.
func rawOf(v bsoncore.Value) *bson.RawValue {
	if v.Type == 0 || len(v.Data) > 1<<20 {
		return nil
	}
	if v.Type == bsoncore.TypeEmbeddedDocument && !plainNames(v.Data, 1) {
		return nil
	}
	raw := bsonraw.RawValue(v)
	return &raw
}
