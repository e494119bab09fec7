package deadletter

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

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
	// Held: nothing was refused. The document was read from the source to repair the
	// target's, and is written when the target has caught up.
	Held State = "held"
	// Open: the target lacks the document, or this state of it.
	Open State = "open"
	// Settled: the document reached the target later, or is gone from the source.
	Settled State = "settled"
	// Removed: a document that stood in the way and was taken off the target.
	Removed State = "removed"
	// Unmapped: a document of the source that the rules for fields cannot map. The target
	// is without it, until it is changed.
	Unmapped State = "unmapped"
)

// InDispute says that changes of the document go through its letter.
func (s State) InDispute() bool { return s == Undecided || s == Held || s == Open }

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
	CauseRule    Cause = "rule"   // a rule for fields does not fit
	CauseRepair  Cause = "repair" // an operator has asked for it
)

// Foreign reports that the target's document of the same _id is somebody else's.
func (c Cause) Foreign() bool { return c == CauseID || c == CauseShape }

// Letter is one document. Stored are its fields as they are, but for those that
// may not fit into another document.
type Letter struct {
	ID    string         `bson:"_id"` // unique; empty until it is written
	NS    string         `bson:"ns"`  // target namespace, now
	State State          `bson:"state"`
	Cause Cause          `bson:"cause"`
	DocID bsoncore.Value `bson:"-"`
	Doc   []byte         `bson:"-"` // the whole document; nil when it is not known
	// At is the source's position of Doc. Changes up to Until may be in it
	// already.
	At    mongo.OpTime `bson:"position"`
	Until mongo.OpTime `bson:"until"`

	// Source and UUID are of its collection on the source, where they are known.
	Source string    `bson:"source,omitempty"`
	UUID   *[16]byte `bson:"-"`
	// Target is the UUID of its collection on the target when the job was finalized; nil
	// before, and of jobs that older versions finalized.
	Target *bson.Binary `bson:"targetUuid,omitempty"`

	Reason string        `bson:"reason"`
	Code   int32         `bson:"code"`
	Index  string        `bson:"index,omitempty"`   // of CauseKey
	Other  bson.RawValue `bson:"otherId,omitempty"` // _id of the other document, where it is known
}

// Key distinguishes documents of one namespace, by the bytes of their _ids,
// which all entries of an oplog about one document have in common.
type Key [16]byte

// KeyOf is the key of a document's _id.
func KeyOf(id bsoncore.Value) Key {
	h := sha256.New()
	h.Write([]byte{byte(id.Type)})
	h.Write(id.Data)
	return Key(h.Sum(nil)[:16])
}

// letterID is the same each time the same refusal comes.
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
