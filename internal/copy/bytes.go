package copy

import (
	"bytes"
	"encoding/binary"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
)

// recordIDName is the element that showRecordId appends to a document: type
// int64, name, value; 19 bytes before the document's terminator. It is asked
// for with projected _ids only: in a whole document it overwrites a field of
// that name.
const (
	recordIDName = "\x12$recordId\x00"
	recordIDSize = len(recordIDName) + 8
)

var errNoRecordID = errors.New("document does not end with $recordId")

// recordID reads the record id that showRecordId appended.
func recordID(doc []byte) (int64, error) {
	at := len(doc) - 1 - recordIDSize
	if at < 4 || string(doc[at:at+len(recordIDName)]) != recordIDName {
		return 0, errNoRecordID
	}
	return int64(binary.LittleEndian.Uint64(doc[at+len(recordIDName):])), nil
}

// tokenRecord reads the record id of a resume token: the last record that a
// cursor in record order has given; 0 when the token names none.
func tokenRecord(token bson.Raw) int64 {
	rid, _ := bsonraw.Value(token, "$recordId").AsInt64OK()
	return rid
}

// idText shows a document's _id in errors.
func idText(doc []byte) string { return bsonraw.IDText(bsonraw.IDOf(doc)) }

// mark is a position: a document's _id, before it the record id where record
// ids count.
func mark(strategy Strategy, rid int64, id bsoncore.Value) bson.Raw {
	i, d := bsoncore.AppendDocumentStart(make([]byte, 0, len(id.Data)+32))
	if strategy == ByRecord {
		d = bsoncore.AppendInt64Element(d, "r", rid)
	}
	d = bsoncore.AppendValueElement(d, "_id", id)
	d, _ = bsoncore.AppendDocumentEnd(d, i)
	return d
}

// markRecord reads a mark's record id; 0, which no record has, for an absent mark.
func markRecord(m bson.Raw) int64 {
	n, _ := bsonraw.Value(m, "r").AsInt64OK()
	return n
}

// markID reads a mark's _id.
func markID(m bson.Raw) bsoncore.Value { return bsonraw.Value(m, "_id") }

func sameValue(a, b bsoncore.Value) bool { return a.Type == b.Type && bytes.Equal(a.Data, b.Data) }
