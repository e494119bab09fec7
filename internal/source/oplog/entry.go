package oplog

import (
	"encoding/binary"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
)

var errMalformed = errors.New("malformed oplog entry")

// entry is an oplog entry, or an operation inside applyOps. It aliases the bytes it was parsed from.
// Absent fields are zero, an absent term is -1.
type entry struct {
	at          mongo.OpTime
	op          []byte
	ns          []byte
	ui          []byte // the 16 bytes of a UUID, nil when absent
	o           bson.Raw
	o2          bson.Raw
	txn         txnID
	prev        mongo.OpTime // the previous entry of the transaction or retryable write, zero for the first
	separate    bool         // multiOpType 1: writes of one command, in order, that belong to no transaction
	fromMigrate bool
	wall        int64 // milliseconds since 1970
}

type txnID struct {
	lsid   []byte // nil when the entry has none
	number int64
	set    bool // a number was given
}

func parseEntry(doc []byte) (e entry, err error) {
	err = e.parse(doc)
	return e, err
}

func (e *entry) parse(doc []byte) error {
	*e = entry{at: mongo.OpTime{Term: -1}}
	for f, ok := range bsonraw.Fields(doc) {
		if !ok {
			return errMalformed
		}
		if !e.field(f) {
			return fmt.Errorf("%w: field %q of type %s", errMalformed, f.Name, f.Type)
		}
	}
	return nil
}

// field sets one field; false means an unexpected type.
func (e *entry) field(f bsonraw.Element) (ok bool) {
	switch string(f.Name) {
	case "ts":
		e.at.TS, ok = timestamp(f)
	case "t":
		e.at.Term, ok = integer(f)
	case "op":
		e.op, ok = f.Str()
	case "ns":
		e.ns, ok = f.Str()
	case "ui":
		e.ui, ok = uuid(f)
	case "o":
		e.o, ok = f.Document()
	case "o2":
		e.o2, ok = f.Document()
	case "lsid":
		e.txn.lsid, ok = f.Document()
	case "txnNumber":
		e.txn.number, ok = integer(f)
		e.txn.set = true
	case "prevOpTime":
		e.prev, ok = opTime(f)
	case "multiOpType":
		n, isInt := integer(f)
		e.separate, ok = n == 1, isInt && (n == 0 || n == 1)
	case "wall":
		if ok = true; f.Type == bson.TypeDateTime {
			e.wall = int64(binary.LittleEndian.Uint64(f.Value))
		}
	case "fromMigrate":
		e.fromMigrate, ok = truth(f), true
	default:
		ok = true
	}
	return ok
}

// inTransaction tells a transaction's applyOps from a standalone one.
func (e *entry) inTransaction() bool {
	return e.txn.lsid != nil && e.txn.set && !e.separate
}

// isWrite reports the write of a document.
func isWrite(op []byte) bool { return string(op) == "i" || string(op) == "u" || string(op) == "d" }

func uuid(f bsonraw.Element) ([]byte, bool) {
	if f.Type != bson.TypeBinary || len(f.Value) != 4+1+16 {
		return nil, false
	}
	return f.Value[5:], true
}

func opTime(f bsonraw.Element) (o mongo.OpTime, ok bool) {
	if f.Type != bson.TypeEmbeddedDocument {
		return o, false
	}
	o.Term = -1
	_, ok = bsonraw.Body(f.Value)
	for g, valid := range bsonraw.Fields(f.Value) {
		switch ok = valid; string(g.Name) {
		case "ts":
			o.TS, ok = timestamp(g)
		case "t":
			o.Term, ok = integer(g)
		}
		if !ok {
			break
		}
	}
	return o, ok
}

// command holds what transactions need of a command entry.
type command struct {
	name     []byte // the first field's name
	ops      []byte // the array of applyOps, nil when o is another command
	partial  bool   // more entries of the transaction follow
	prepared bool   // a commit or an abort entry follows
	sent     bool   // it is logged as a client sent it
}

func parseCommand(o bson.Raw) (c command, err error) {
	for f, ok := range bsonraw.Fields(o) {
		if !ok {
			return c, errMalformed
		}
		if c.name == nil {
			c.name = f.Name
			if string(f.Name) != "applyOps" {
				return c, nil
			}
			if f.Type != bson.TypeArray {
				return c, fmt.Errorf("%w: applyOps is not an array", errMalformed)
			}
			c.ops = f.Value
		}
		switch string(f.Name) {
		case "partialTxn":
			c.partial = truth(f)
		case "prepare":
			c.prepared = truth(f)
		case "$db":
			c.sent = true
		}
	}
	if c.name == nil {
		return c, fmt.Errorf("%w: command without a name", errMalformed)
	}
	return c, nil
}

// commitTime returns the time at which all shards commit a prepared transaction.
func commitTime(o bson.Raw) (mongo.OpTime, error) {
	f, _ := bsonraw.Field(o, "commitTimestamp")
	ts, ok := timestamp(f)
	if !ok || ts.IsZero() {
		return mongo.OpTime{}, fmt.Errorf("%w: a commit without its time", errMalformed)
	}
	return mongo.OpTime{TS: ts, Term: -1}, nil
}

// truth reads a flag, which servers write as a boolean or a number.
func truth(e bsonraw.Element) bool {
	switch e.Type {
	case bson.TypeBoolean:
		return e.Value[0] != 0
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble:
		for _, c := range e.Value {
			if c != 0 {
				return true
			}
		}
	}
	return false
}

func integer(e bsonraw.Element) (int64, bool) {
	switch e.Type {
	case bson.TypeInt64:
		return int64(binary.LittleEndian.Uint64(e.Value)), true
	case bson.TypeInt32:
		return int64(int32(binary.LittleEndian.Uint32(e.Value))), true
	}
	return 0, false
}

func timestamp(e bsonraw.Element) (bson.Timestamp, bool) {
	if e.Type != bson.TypeTimestamp {
		return bson.Timestamp{}, false
	}
	return bson.Timestamp{I: binary.LittleEndian.Uint32(e.Value), T: binary.LittleEndian.Uint32(e.Value[4:])}, true
}
