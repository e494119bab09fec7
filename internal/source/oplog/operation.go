package oplog

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/spool"
	"github.com/millrace/millrace/internal/wire"
)

// Operation is one change in an oplog as it stands there: of a document (i, u,
// d), or a command (c) that is no applyOps.
type Operation struct {
	Op    byte
	NS    string
	UUID  []byte // of the collection, nil when the entry does not tell
	At    mongo.OpTime
	O, O2 bson.Raw
}

// Operations calls fn for each operation of an oplog entry, in order: for those
// in an applyOps that stands alone, not for those of transactions. They alias doc.
func Operations(doc bson.Raw, fn func(Operation) error) error {
	e, err := parseEntry(doc)
	if err != nil {
		return err
	}
	if string(e.op) == "c" && e.inTransaction() { // a plain write that is tried again looks like one
		return nil
	}
	return e.operations(e.at, 0, fn)
}

func (e *entry) operations(at mongo.OpTime, depth int, fn func(Operation) error) error {
	if len(e.op) != 1 || e.op[0] == 'n' {
		return nil
	}
	if e.op[0] == 'c' {
		c, err := parseCommand(e.o)
		if err != nil {
			return err
		}
		if c.ops != nil {
			return nested(c.ops, at, depth, fn)
		}
	}
	return fn(Operation{Op: e.op[0], NS: string(e.ns), UUID: e.ui, At: at, O: e.o, O2: e.o2})
}

func nested(ops []byte, at mongo.OpTime, depth int, fn func(Operation) error) error {
	rest, ok := bsonraw.Body(ops)
	if !ok || depth > maxNesting {
		return errMalformed
	}
	for len(rest) > 0 {
		var f element
		if f, rest, ok = next(rest); !ok || f.typ != bson.TypeEmbeddedDocument {
			return errMalformed
		}
		e, err := parseEntry(f.val)
		if err == nil {
			err = e.operations(at, depth+1, fn)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// SpooledEntries calls fn for each entry that s holds after a position up to
// another, in order. What it gets aliases memory that nothing reuses.
func SpooledEntries(s *spool.Spool, after, until mongo.OpTime, fn func(doc bson.Raw) error) error {
	rd := s.From(spoolKey(after))
	defer rd.Close()
	for {
		rec, ok, err := rd.Next()
		if err != nil || !ok || spoolKey(until) < rec.First {
			return err
		}
		err = wire.BatchOf(rec.Payload).Each(func(doc []byte) error {
			e, err := parseEntry(doc)
			if err != nil || !after.Before(e.at) || until.Before(e.at) {
				return err
			}
			return fn(doc)
		})
		if err != nil {
			return err
		}
	}
}
