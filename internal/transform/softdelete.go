package transform

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/stream"
)

// mark has the deletion of a document set a field of it to its time.
func mark(ev *stream.Event, field string, made *arena) {
	at := binary.LittleEndian.AppendUint64(nil, uint64(ev.At.TS.T)*1000)
	date := bsoncore.Value{Type: bsoncore.TypeDateTime, Data: at}
	change := bsoncore.NewDocumentBuilder().AppendInt32("$v", 2).
		AppendDocument("diff", bsoncore.NewDocumentBuilder().
			AppendDocument("i", bsoncore.NewDocumentBuilder().AppendValue(field, date).Build()).Build()).Build()
	ev.Kind, ev.Form, ev.Doc = stream.Update, delta.Diff, bson.Raw(made.take(append(made.room(len(change)), change...)))
}

// parseSoftDelete reads the name of a field.
func parseSoftDelete(field string) (string, string, error) {
	switch {
	case field == "":
		return "", "", errors.New("the field after the = is missing")
	case field == "_id" || strings.ContainsAny(field, ".$;\x00"):
		return "", "",
			fmt.Errorf("%q cannot be the field, which stands at the top level, is not _id, and has no dot, dollar or semicolon",
				field)
	}
	return field, field, nil
}
