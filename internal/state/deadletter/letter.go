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
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
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

// Filter chooses dead letters of all jobs. Empty fields choose all.
type Filter struct {
	ID, Job string
	NS      string // a collection of the target, or a database
	State   State
	// After is the id of a dead letter, whose followers are chosen; Limit bounds them.
	After string
	Limit int64
}

func (f Filter) query() bson.D {
	// Always by _id: a server with notablescan answers nothing else.
	ids := bson.A{bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: f.After}}}}}
	if f.ID != "" {
		ids = append(ids, byID(f.ID))
	}
	if f.Job != "" {
		ids = append(ids, bson.D{mongo.OfJob(f.Job)})
	}
	q := bson.D{{Key: "$and", Value: ids}}
	if f.State != "" {
		q = append(q, bson.E{Key: "state", Value: f.State})
	}
	switch {
	case strings.Contains(f.NS, "."):
		q = append(q, bson.E{Key: "ns", Value: f.NS})
	case f.NS != "":
		q = append(q, bson.E{Key: "ns", Value: bson.Regex{Pattern: "^" + regexp.QuoteMeta(f.NS) + `\.`}})
	}
	return q
}

// Counts counts the dead letters of a target by job.
func Counts(ctx context.Context, c *mongo.Cluster) (map[string]Stats, error) {
	type group struct {
		ID struct {
			Job   string
			State State
		} `bson:"_id"`
		N int64
	}
	groups, err := mongo.ReadAll[group](ctx, "count dead letters")(onPrimary(c).Aggregate(ctx, bson.A{
		bson.D{{Key: "$group", Value: bson.D{
			{Key: "_id", Value: bson.D{{Key: "job", Value: "$job"}, {Key: "state", Value: "$state"}}},
			{Key: "n", Value: bson.D{{Key: "$sum", Value: int64(1)}}}}}}}))
	if err != nil {
		return nil, err
	}
	out := map[string]Stats{}
	for _, g := range groups {
		s := out[g.ID.Job]
		s.count(g.ID.State, g.N)
		out[g.ID.Job] = s
	}
	return out, nil
}

func onPrimary(c *mongo.Cluster) *driver.Collection {
	primary := options.Database().SetReadPreference(readpref.Primary())
	return c.Client.Database(mongo.StateDB, primary).Collection(Collection)
}

// Browse calls do for dead letters as they are stored, by job. If whole is set they have the
// document as field document, else none.
func Browse(ctx context.Context, c *mongo.Cluster, f Filter, whole bool, do func(letter bson.Raw) error) error {
	find := options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}).SetLimit(f.Limit)
	if !whole {
		find.SetProjection(bson.D{{Key: "document", Value: 0}})
	}
	cur, err := onPrimary(c).Find(ctx, f.query(), find)
	if err != nil {
		return fmt.Errorf("read dead letters: %w", err)
	}
	defer func() { _ = cur.Close(context.WithoutCancel(ctx)) }()
	for cur.Next(ctx) {
		letter := cur.Current
		if n, _ := letter.Lookup("parts").AsInt64OK(); whole && n > 0 {
			if letter, err = joined(ctx, c, letter); err != nil {
				return err
			}
		}
		if err := do(letter); err != nil {
			return err
		}
	}
	if err := cur.Err(); err != nil {
		return fmt.Errorf("read dead letters: %w", err)
	}
	return nil
}

// Found is a dead letter with its document, and what conflicts on the target, or nil.
type Found struct {
	Summary

	// Doc is the document, Same the target's with its _id, Holder the target's with the key.
	Doc, Same, Holder bson.Raw
}

// Find returns one dead letter, nil for none.
func Find(ctx context.Context, c *mongo.Cluster, f Filter) (out *Found, err error) {
	err = Browse(ctx, c, f, true, func(raw bson.Raw) error {
		raw = bytes.Clone(raw)
		one, err := ReadSummary(raw)
		out = &Found{Summary: one}
		if out.Doc, _ = raw.Lookup("document").DocumentOK(); one.DocID.IsZero() {
			out.DocID = bsonraw.RawValue(bsonraw.IDOf(out.Doc))
		}
		return err
	})
	if err != nil || out == nil {
		return nil, err
	}
	if out.Same, err = onTarget(ctx, c, out.NS, out.DocID); err == nil {
		out.Holder, err = onTarget(ctx, c, out.NS, out.Other)
	}
	return out, err
}

func onTarget(ctx context.Context, c *mongo.Cluster, ns string, id bson.RawValue) (bson.Raw, error) {
	if id.IsZero() || id.Type == 0 {
		return nil, nil
	}
	db, coll := mongo.SplitNS(ns)
	same := bson.D{{Key: "_id", Value: bson.D{{Key: "$eq", Value: id}}}}
	doc, err := c.Client.Database(db).Collection(coll).FindOne(ctx, same).Raw()
	if err != nil && !errors.Is(err, driver.ErrNoDocuments) {
		return nil, fmt.Errorf("read %s: %w", ns, err)
	}
	return doc, nil
}

func joined(ctx context.Context, c *mongo.Cluster, letter bson.Raw) (bson.Raw, error) {
	id, _ := letter.Lookup("_id").StringValueOK()
	l, err := (&keptInMongo{c: c}).Get(ctx, id)
	if err != nil {
		return nil, err
	}
	var all bson.D
	if err := bson.Unmarshal(letter, &all); err != nil {
		return nil, fmt.Errorf("read dead letter %s: %w", id, err)
	}
	return bson.Marshal(append(all, bson.E{Key: "document", Value: bson.Raw(l.Doc)}))
}

// Listed is a dead letter without its document, as lists show it. Reason may quote values.
type Listed struct {
	ID       string    `json:"id" bson:"_id"`
	NS       string    `json:"ns" bson:"ns"`                     // on the target
	Document string    `json:"documentId" bson:"documentIdText"` // the _id as text
	State    string    `json:"state" bson:"state"`
	Cause    string    `json:"cause" bson:"cause"`
	Reason   string    `json:"reason" bson:"reason"`
	Index    string    `json:"index,omitempty" bson:"index"`
	Position string    `json:"position" bson:"-"`
	Time     time.Time `json:"time" bson:"time"`
	Updated  time.Time `json:"updated" bson:"updated"`
	Settled  string    `json:"settledBy,omitempty" bson:"settledBy"`
	Bytes    int64     `json:"bytes" bson:"bytes"`
}

// Summary is a letter with its job, without its document.
type Summary struct {
	Listed `bson:",inline"`

	Job   string        `json:"job" bson:"job"`
	At    mongo.OpTime  `json:"-" bson:"position"` // Position
	DocID bson.RawValue `json:"-" bson:"documentId"`
	Other bson.RawValue `json:"-" bson:"otherId"`
}

// ReadSummary reads a letter that Browse gives.
func ReadSummary(raw bson.Raw) (s Summary, err error) {
	if err := bson.Unmarshal(raw, &s); err != nil {
		return s, fmt.Errorf("read a dead letter: %w", err)
	}
	s.Position = s.At.String()
	return s, nil
}
