package changestream

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// change is a change event. It aliases the bytes that it was parsed from. Absent fields are zero.
type change struct {
	token       token
	op          []byte // operationType
	at          mongo.OpTime
	wall        int64  // in milliseconds since 1970
	uuid        []byte // 16 bytes
	ns, to      []byte // documents {db, coll}
	full        bson.Raw
	key         bson.Raw
	update, raw bson.Raw // updateDescription, rawUpdateDescription
	description bson.Raw // operationDescription
	session     []byte   // of a transaction
	number      int64    // of the transaction
	fragment    int64    // of an event that the server split, from 1; 0 is a complete event
	fragments   int64
}

// parse adds the fields of an event, or of its next fragment.
func (c *change) parse(doc []byte) error {
	for f, ok := range bsonraw.Fields(doc) {
		if !ok {
			return fmt.Errorf("%w: no valid BSON", ErrUnknown)
		}
		if err := c.field(f); err != nil {
			return err
		}
	}
	if c.at.IsZero() {
		return fmt.Errorf("%w: no resume token", ErrUnknown)
	}
	return nil
}

func (c *change) field(f bsonraw.Element) (err error) {
	ok := true
	switch string(f.Name) {
	case "_id":
		c.token, err = parseToken(f.Value)
		c.at = c.token.at() // the event's clusterTime
	case "operationType":
		c.op, ok = f.Str()
	case "wallTime":
		if f.Type == bson.TypeDateTime {
			c.wall = f.Int64()
		}
	case "collectionUUID":
		if ok = f.Type == bson.TypeBinary && len(f.Value) == 5+uuidSize; ok {
			c.uuid = f.Value[5:]
		}
	case "ns":
		c.ns, ok = f.Document()
	case "to":
		c.to, ok = f.Document()
	case "fullDocument":
		c.full, ok = f.Document()
	case "documentKey":
		c.key, ok = f.Document()
	case "updateDescription":
		c.update, ok = f.Document()
	case "rawUpdateDescription":
		c.raw, ok = f.Document()
	case "operationDescription":
		c.description, ok = f.Document()
	case "lsid":
		c.session, ok = f.Document()
	case "txnNumber":
		c.number, ok = f.Int()
	case "splitEvent":
		var part, of bsonraw.Element
		part, _ = bsonraw.Field(f.Value, "fragment")
		of, _ = bsonraw.Field(f.Value, "of")
		c.fragment, ok = part.Int()
		c.fragments, _ = of.Int()
	}
	if err == nil && !ok {
		err = fmt.Errorf("%w: field %s of type %s", ErrUnknown, f.Name, f.Type)
	}
	return err
}

// identity returns the UUID of the event's collection, nil if the event does not say it.
func (c *change) identity() *[16]byte {
	if c.uuid != nil {
		return (*[16]byte)(c.uuid)
	}
	return c.token.uuid()
}

// name describes the event in an error.
func (c *change) name() string {
	return fmt.Sprintf("event %s of %s at %s", c.op, namespaceOf(c.ns), c.at)
}

// fill makes the event of a document's change. open reports that the event does not say how the document has
// changed, so that it must be read.
func (c *change) fill(ev *stream.Event, ns string) (open bool, err error) {
	ev.NS, ev.UUID, ev.At = ns, c.identity(), c.at
	if c.key == nil {
		return false, fmt.Errorf("%w: no documentKey", ErrUnknown)
	}
	ev.Key.ID, ev.Key.Shard = bsonraw.IDOf(c.key), c.key
	if ev.Key.ID.Type == 0 {
		return false, fmt.Errorf("%w: a documentKey without _id", ErrUnknown)
	}
	switch string(c.op) {
	case "insert":
		ev.Kind, ev.Doc = stream.Insert, c.full
	case "replace":
		ev.Kind, ev.Form, ev.Doc = stream.Replace, delta.Replacement, c.full
	case "delete":
		ev.Kind = stream.Delete
		if c.session == nil { // nothing expires in a transaction
			ev.Wall = c.wall
		}
		return false, nil
	case "update":
		return c.fillUpdate(ev)
	default:
		return false, fmt.Errorf("%w: unknown kind", ErrUnknown)
	}
	if ev.Doc == nil {
		return false, fmt.Errorf("%w: no fullDocument", ErrUnknown)
	}
	return false, nil
}

// moves reports a deletion or insertion that may be half of a document's move to another shard, by one transaction.
// Both have the times of their shards, so the insertion may come first, and later changes, too.
func (c *change) moves() bool {
	if op := string(c.op); op != "delete" && op != "insert" || c.session == nil {
		return false
	}
	fields := 0
	for range bsonraw.Fields(c.key) {
		fields++
	}
	return fields > 1 // the shard key is not the _id, which does not change
}

func (c *change) fillUpdate(ev *stream.Event) (open bool, err error) {
	ev.Kind = stream.Update
	if c.raw == nil {
		ev.Form, ev.Doc, err = described(c.update)
		return ev.Form == delta.Invalid, err
	}
	ev.Doc = c.raw
	switch ev.Form = delta.KindOf(c.raw); ev.Form {
	case delta.Replacement:
		ev.Kind = stream.Replace
	case delta.Invalid:
		return false, fmt.Errorf("%w: an update that is neither $v:1 nor $v:2", ErrUnknown)
	}
	return false, nil
}
