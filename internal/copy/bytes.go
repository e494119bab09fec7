package copy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

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
	rid, _ := field(token, "$recordId").AsInt64OK()
	return rid
}

// idOf returns a document's _id; a document without one gives the zero value.
func idOf(doc []byte) bsoncore.Value {
	if len(doc) > 9 && string(doc[5:9]) == "_id\x00" { // servers store _id first
		if n, ok := bsonraw.ValueSize(bson.Type(doc[4]), doc[9:]); ok {
			return bsoncore.Value{Type: bsoncore.Type(doc[4]), Data: doc[9 : 9+n]}
		}
	}
	return field(doc, "_id")
}

// field finds a field at the top level; the zero value when there is none.
func field(doc []byte, name string) bsoncore.Value {
	e, ok := bsonraw.Field(doc, name)
	if !ok {
		return bsoncore.Value{}
	}
	return bsoncore.Value{Type: bsoncore.Type(e.Type), Data: e.Value}
}

// idText shows an _id in errors.
func idText(doc []byte) string {
	const enough = 200
	s := idOf(doc).String()
	if len(s) > enough {
		s = s[:enough] + "…"
	}
	return s
}

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
	n, _ := field(m, "r").AsInt64OK()
	return n
}

// markID reads a mark's _id.
func markID(m bson.Raw) bsoncore.Value { return field(m, "_id") }

func sameValue(a, b bsoncore.Value) bool { return a.Type == b.Type && bytes.Equal(a.Data, b.Data) }

// look is what matters for how a document can be written, of its top level.
type look struct {
	zeroTimestamp bool // a field but _id that an insert or replacement would set to the present time
	dollarName    bool // a field name that a replacement refuses
}

// inspect walks a document's top level. It also guards the target from
// malformed documents.
func inspect(doc []byte) (l look, err error) {
	i, end := 4, len(doc)-1
	for i < end {
		t := bson.Type(doc[i])
		i++
		n := bytes.IndexByte(doc[i:end], 0)
		if n < 0 {
			return l, errors.New("malformed document: unterminated field name")
		}
		name := doc[i : i+n]
		i += n + 1
		size, ok := bsonraw.ValueSize(t, doc[i:end])
		if !ok {
			return l, fmt.Errorf("malformed document: field %q of type %s overruns it", name, t)
		}
		if t == bson.TypeTimestamp && binary.LittleEndian.Uint64(doc[i:]) == 0 && string(name) != "_id" {
			l.zeroTimestamp = true
		}
		if n > 0 && name[0] == '$' {
			l.dollarName = true
		}
		i += size
	}
	return l, nil
}
