package wire

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
)

// WriteError is one entry of a write command's writeErrors.
type WriteError struct {
	Index   int // position of the failed document in the sequence
	Code    int32
	Message string
	Raw     bson.Raw // the whole entry: keyPattern, keyValue, errInfo
}

// Error is the server's message and code.
func (e WriteError) Error() string { return fmt.Sprintf("%s (code %d)", e.Message, e.Code) }

// OnIDIndex reports a duplicate key on the _id index. The server sends
// keyPattern since 4.2 (server manual, error 11000).
func (e WriteError) OnIDIndex() bool {
	if e.Code != 11000 {
		return false
	}
	kp, ok := e.Raw.Lookup("keyPattern").DocumentOK()
	if !ok {
		return false
	}
	elems, err := kp.Elements()
	return err == nil && len(elems) == 1 && elems[0].Key() == "_id"
}

// WriteResult is the reply of insert, update or delete, read without decoding.
type WriteResult struct {
	N        int64 // documents inserted, matched or deleted (upserts count)
	Modified int64
	Errors   []WriteError
	// ConcernError is the writeConcernError document, empty when none.
	ConcernError bson.Raw
	// Term is the primary's election term that took the write (opTime.t), or
	// -1 when the server is no replica-set member.
	Term int64
}

// ParseWriteResult reads a write command's reply.
func ParseWriteResult(body bsoncore.Document) WriteResult {
	r := WriteResult{Term: -1}
	elems, _ := body.Elements()
	for _, e := range elems {
		v := e.Value()
		switch e.Key() {
		case "n":
			r.N, _ = v.AsInt64OK()
		case "nModified":
			r.Modified, _ = v.AsInt64OK()
		case "writeErrors":
			r.Errors = parseWriteErrors(v)
		case "writeConcernError":
			if d, ok := v.DocumentOK(); ok && bsonraw.Valid(d, bsonraw.MaxDepth) {
				r.ConcernError = bson.Raw(d)
			}
		case "opTime":
			if d, ok := v.DocumentOK(); ok {
				if t, ok := d.Lookup("t").AsInt64OK(); ok {
					r.Term = t
				}
			}
		}
	}
	return r
}

func parseWriteErrors(v bsoncore.Value) []WriteError {
	arr, ok := v.ArrayOK()
	if !ok {
		return nil
	}
	vals, _ := arr.Values()
	out := make([]WriteError, 0, len(vals))
	for _, v := range vals {
		d, ok := v.DocumentOK()
		if !ok || !bsonraw.Valid(d, bsonraw.MaxDepth) {
			d = bsoncore.Document{5, 0, 0, 0, 0} // still an error
		}
		e := WriteError{Raw: bson.Raw(d)}
		if n, ok := d.Lookup("index").AsInt64OK(); ok {
			e.Index = int(n)
		}
		if n, ok := d.Lookup("code").AsInt64OK(); ok {
			e.Code = int32(n)
		}
		e.Message, _ = d.Lookup("errmsg").StringValueOK()
		out = append(out, e)
	}
	return out
}
