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
	Raw     bson.Raw // the complete entry: keyPattern, keyValue, errInfo
}

func (e WriteError) Error() string { return fmt.Sprintf("%s (code %d)", e.Message, e.Code) }

// OnIDIndex reports a duplicate key on the _id index, by keyPattern (server manual, error 11000; since 4.2).
func (e WriteError) OnIDIndex() bool {
	if e.Code != 11000 {
		return false
	}
	kp, _ := e.Raw.Lookup("keyPattern").DocumentOK()
	elems, err := kp.Elements()
	return err == nil && len(elems) == 1 && elems[0].Key() == "_id"
}

// WriteResult is the reply of insert, update or delete, read without decoding.
type WriteResult struct {
	N            int64 // documents inserted, matched or deleted (upserts count)
	Modified     int64
	Errors       []WriteError
	ConcernError bson.Raw // the writeConcernError document, empty when none
	// Term is the election term of the primary that took the write (opTime.t), -1 without a replica set.
	Term int64
	At   bson.Timestamp // the cluster time of the write (opTime.ts), zero when the reply has none
}

// ParseWriteResult reads a write command's reply.
func ParseWriteResult(body bsoncore.Document) WriteResult {
	r := WriteResult{Term: -1}
	r.N, _ = body.Lookup("n").AsInt64OK()
	r.Modified, _ = body.Lookup("nModified").AsInt64OK()
	if t, ok := body.Lookup("opTime", "t").AsInt64OK(); ok {
		r.Term = t
	}
	if t, i, ok := body.Lookup("opTime", "ts").TimestampOK(); ok {
		r.At = bson.Timestamp{T: t, I: i}
	}
	if d, ok := body.Lookup("writeConcernError").DocumentOK(); ok && bsonraw.Valid(d, bsonraw.MaxDepth) {
		r.ConcernError = bson.Raw(d)
	}
	var failed []bsoncore.Value
	if all, ok := body.Lookup("writeErrors").ArrayOK(); ok {
		failed, _ = all.Values()
	}
	for _, v := range failed {
		d, ok := v.DocumentOK()
		if !ok || !bsonraw.Valid(d, bsonraw.MaxDepth) {
			d = bsoncore.Document{5, 0, 0, 0, 0} // still an error
		}
		index, _ := d.Lookup("index").AsInt64OK()
		code, _ := d.Lookup("code").AsInt64OK()
		message, _ := d.Lookup("errmsg").StringValueOK()
		r.Errors = append(r.Errors, WriteError{Index: int(index), Code: int32(code), Message: message, Raw: bson.Raw(d)})
	}
	return r
}
