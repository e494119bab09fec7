// Package deadletter keeps, in the target's database millrace, the complete documents that a job
// could not write to the target, and those that it removed there to make room. It also defines the
// policy on conflicts.
//
// A document that the target refuses is in dispute. Its dead letter holds its state on the source
// at a position. Each later change is applied to the dead letter, and the outcome is tried on the
// target, until it fits there or the source deletes it. So a partial document is never used, and a
// dead letter is never out of date.
package deadletter

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// Policy is what to do with a document that the target refuses.
type Policy string

const (
	Stop      Policy = "stop"      // end the job with an error
	Skip      Policy = "skip"      // leave the target as it is
	Overwrite Policy = "overwrite" // remove what stands in the way
)

// State is the state of a dead letter.
type State string

const (
	// Undecided: there may be no conflict once the target has caught up.
	Undecided State = "undecided"
	// Held: nothing was refused. A repair has read the document from the source, and writes it when
	// the target has caught up.
	Held State = "held"
	// Open: the target lacks the document, or this state of it.
	Open State = "open"
	// Settled: the document reached the target later, or the source deleted it.
	Settled State = "settled"
	// Removed: a document that conflicted and was removed from the target.
	Removed State = "removed"
	// Unmapped: the rules cannot map the document. The target lacks it until it changes.
	Unmapped State = "unmapped"
)

// InDispute reports whether changes of the document go through its dead letter.
func (s State) InDispute() bool { return s == Undecided || s == Held || s == Open }

// Cause is why the target lacks a document.
type Cause string

const (
	CauseID      Cause = "id"      // the target has another document with the _id
	CauseKey     Cause = "key"     // another document holds a key of a unique index
	CauseMissing Cause = "missing" // the document to be changed is not on the target
	CauseShape   Cause = "shape"   // the document on the target is not what it has to be
	CauseRefused Cause = "refused" // the server does not store it: too large, not indexable
	CauseInWay   Cause = "in the way"
	CauseRule    Cause = "rule"   // a rule for fields does not fit
	CauseRepair  Cause = "repair" // an operator has asked for it
)

// Foreign reports that the target's document with the _id is somebody else's.
func (c Cause) Foreign() bool { return c == CauseID || c == CauseShape }

// Letter is the dead letter of one document, with its fields as stored, except those that may not
// fit into another document.
type Letter struct {
	ID            string `bson:"_id"` // unique; empty until it is written
	stream.Origin `bson:",inline"`
	State         State          `bson:"state"`
	Cause         Cause          `bson:"cause"`
	DocID         bsoncore.Value `bson:"-"`
	Doc           []byte         `bson:"-"` // the whole document; nil when it is not known
	// At is the source's position of Doc. It may already have changes up to Until.
	At    mongo.OpTime `bson:"position"`
	Until mongo.OpTime `bson:"until"`

	// Target is the UUID of its collection on the target when the job was finalized; nil before.
	Target *bson.Binary `bson:"targetUuid,omitempty"`

	Reason string        `bson:"reason"`
	Code   int32         `bson:"code"`
	Index  string        `bson:"index,omitempty"`   // of CauseKey
	Other  bson.RawValue `bson:"otherId,omitempty"` // _id of the other document, where it is known
}

// Key distinguishes documents of a namespace by the bytes of their _ids, which are the same in all
// entries of an oplog about a document.
type Key [16]byte

// KeyOf returns the key of an _id.
func KeyOf(id bsoncore.Value) Key {
	h := sha256.New()
	h.Write([]byte{byte(id.Type)})
	h.Write(id.Data)
	return Key(h.Sum(nil)[:16])
}

func letterID(job string, l Letter) string {
	h := sha256.New()
	fmt.Fprintf(h, "%d:%s", len(l.NS), l.NS)
	key := KeyOf(l.DocID)
	h.Write(key[:])
	id := job + "/" + hex.EncodeToString(h.Sum(nil)[:10]) + "/" + l.At.String()
	if l.State == Removed {
		id += "/removed"
	}
	return id
}
