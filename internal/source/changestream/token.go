package changestream

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
)

// token is a resume token: a key in hex, and the numeric types of its values where they are not the usual
// ones. It aliases the bytes that it was parsed from.
type token struct{ data, types []byte }

// errNoToken: millrace knows only tokens in hex, as servers send them since 4.0.7.
var errNoToken = errors.New("a resume token in an unknown form")

func parseToken(doc []byte) (t token, err error) {
	for f, ok := range bsonraw.Fields(doc) {
		switch {
		case !ok:
			return token{}, errNoToken
		case string(f.Name) == "_data" && f.Type == bson.TypeString:
			t.data = f.Text()
		case string(f.Name) == "_typeBits" && f.Type == bson.TypeBinary:
			t.types = f.Value[5:]
		}
	}
	if _, ok := t.time(); !ok {
		return token{}, errNoToken
	}
	return t, nil
}

const (
	timeEnd     = 9 // bytes of a key up to the end of its time
	keyTime     = 0x82
	keyZero     = 0x29
	keyPositive = 0x2a // plus the number of bytes
	keyFalse    = 0x6e
	keyTrue     = 0x6f
	keyBinary   = 0x5a
	uuidSize    = 16
	// keyBytes is more than a key has up to the end of the UUID.
	keyBytes = 64
)

// time returns the cluster time of a token's event, or of a high-water mark, before which there are no more
// events.
func (t token) time() (bson.Timestamp, bool) {
	var key [timeEnd]byte
	if len(t.data) < 2*timeEnd {
		return bson.Timestamp{}, false
	}
	if _, err := hex.Decode(key[:], t.data[:2*timeEnd]); err != nil || key[0] != keyTime {
		return bson.Timestamp{}, false
	}
	return bson.Timestamp{T: binary.BigEndian.Uint32(key[1:]), I: binary.BigEndian.Uint32(key[5:])}, true
}

func (t token) at() mongo.OpTime {
	ts, _ := t.time()
	return mongo.OpTime{TS: ts, Term: -1}
}

// uuid returns that of the event's collection, which events before 6.0 do not name elsewhere.
func (t token) uuid() *[16]byte {
	var space [keyBytes]byte
	n := min(len(t.data)/2, keyBytes)
	if _, err := hex.Decode(space[:], t.data[:2*n]); err != nil || n < timeEnd {
		return nil
	}
	key := space[timeEnd:n]
	for range 3 { // the version, the token's type, the number of the operation in its transaction
		size := 1
		switch {
		case len(key) == 0:
			return nil
		case key[0] > keyPositive && key[0] <= keyPositive+8:
			size += int(key[0] - keyPositive)
		case key[0] != keyZero:
			return nil
		}
		if len(key) < size {
			return nil
		}
		key = key[size:]
	}
	if len(key) > 0 && (key[0] == keyFalse || key[0] == keyTrue) {
		key = key[1:]
	}
	const subtype = 4
	if len(key) < 3+uuidSize || key[0] != keyBinary || key[1] != uuidSize || key[2] != subtype {
		return nil
	}
	return (*[16]byte)(append([]byte(nil), key[3:3+uuidSize]...))
}

// typed ends a position's token that has types, which the end of a key never does.
const typed = "FF"

// mark returns the token as a position has it, in hex: the key, and if there are types, those, how many bytes they are
// (in four digits), and typed.
func (t token) mark() string {
	if len(t.types) == 0 {
		return string(t.data)
	}
	return fmt.Sprintf("%s%X%04X%s", t.data, t.types, len(t.types), typed)
}

// fromMark returns the document of a position's token.
func fromMark(mark string) (bson.D, error) {
	var types []byte
	data, hasTypes := strings.CutSuffix(mark, typed)
	_, err := hex.DecodeString(mark)
	if hasTypes && err == nil {
		const digits = 4
		at := max(len(data)-digits, 0)
		n, _ := strconv.ParseUint(data[at:], 16, 16)
		from := max(at-2*int(n), 0)
		types, err = hex.DecodeString(data[from:at])
		data = data[:from]
	}
	if _, ok := (token{data: []byte(data)}).time(); !ok || err != nil {
		return nil, mongo.WithHint(fmt.Errorf("%q is not a resume token of a change stream", mark),
			"the position was made by another capture; start the job again with --restart")
	}
	doc := bson.D{{Key: "_data", Value: data}}
	if hasTypes {
		doc = append(doc, bson.E{Key: "_typeBits", Value: bson.Binary{Data: types}})
	}
	return doc, nil
}

// IsToken reports whether a position's token is one of change streams.
func IsToken(mark string) bool {
	_, err := fromMark(mark)
	return err == nil
}

// TimeOf returns the cluster time that a reply of a change stream has reached, zero if it has no token.
func TimeOf(reply bson.Raw) mongo.OpTime {
	doc, _ := reply.Lookup("cursor", "postBatchResumeToken").DocumentOK()
	t, err := parseToken(doc)
	if err != nil {
		return mongo.OpTime{}
	}
	return t.at()
}
