package copy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/scan"
)

// idText shows an _id in errors.
func idText(doc []byte) string {
	const enough = 200
	s := scan.ID(doc).String()
	if len(s) > enough {
		s = s[:enough] + "…"
	}
	return s
}

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
