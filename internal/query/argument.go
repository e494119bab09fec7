package query

import (
	"bytes"
	"encoding/binary"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// typeOf reads $type: a type, or a list of types.
func typeOf(v value, at place) (leaf, error) {
	l := &typeLeaf{}
	list := []value{v}
	if v.isArray() {
		list = nil
		for e := range bsonraw.Fields(v.data) {
			list = append(list, valueOf(e))
		}
	}
	for _, v := range list {
		types := typesOf(v)
		if types == nil {
			return nil, at.refuse("%s is no type; use a name such as \"string\" or \"number\", or its number", describe(v))
		}
		for _, t := range types {
			l.types[t] = true
		}
	}
	if len(list) == 0 {
		return nil, at.refuse("the list is empty; give it one type at least")
	}
	return l, nil
}

// typesOf are the types that a name or a number stands for.
func typesOf(v value) []bson.Type {
	if v.typ == bson.TypeString {
		return typesNamed(string(v.text()))
	}
	n, ok := argument(v)
	if !ok || n != -1 && n != 127 && (n < 1 || n > 19) {
		return nil
	}
	return []bson.Type{bson.Type(n)}
}

func typesNamed(name string) []bson.Type {
	if name == "number" {
		return []bson.Type{bson.TypeDouble, bson.TypeInt32, bson.TypeInt64, bson.TypeDecimal128}
	}
	for t, n := range typeNames() {
		if n != "" && n == name {
			return []bson.Type{bson.Type(t)}
		}
	}
	return nil
}

// typeNames are those of types, by their numbers.
func typeNames() []string {
	return []string{
		bson.TypeDouble: "double", bson.TypeString: "string", bson.TypeEmbeddedDocument: "object", bson.TypeArray: "array",
		bson.TypeBinary: "binData", bson.TypeUndefined: "undefined", bson.TypeObjectID: "objectId", bson.TypeBoolean: "bool",
		bson.TypeDateTime: "date", bson.TypeNull: "null", bson.TypeRegex: "regex", bson.TypeDBPointer: "dbPointer",
		bson.TypeJavaScript: "javascript", bson.TypeSymbol: "symbol", bson.TypeCodeWithScope: "javascriptWithScope",
		bson.TypeInt32: "int", bson.TypeTimestamp: "timestamp", bson.TypeInt64: "long", bson.TypeDecimal128: "decimal",
		bson.TypeMaxKey: "maxKey", bson.TypeMinKey: "minKey",
	}
}

// maxMask is how many bytes a mask has at most: no document holds more bits.
const maxMask = 16 << 20

// bitsOf reads $bitsAllSet and so on.
func bitsOf(name string, v value, at place) (leaf, error) {
	mask, ok := maskOf(v)
	if !ok {
		return nil, at.refuse("it needs a whole number that is not negative, a list of bit positions, or binary data, not %s",
			describe(v))
	}
	return &bitsLeaf{
		mask: mask,
		all:  name == "$bitsAllSet" || name == "$bitsAllClear",
		set:  name == "$bitsAllSet" || name == "$bitsAnySet",
	}, nil
}

func maskOf(v value) ([]byte, bool) {
	switch {
	case v.typ == bson.TypeBinary:
		return bytes.Clone(binaryBits(v)), true
	case v.isArray():
		return maskOfPositions(v.data)
	}
	n, ok := argument(v)
	return binary.LittleEndian.AppendUint64(nil, uint64(n)), ok && n >= 0
}

func maskOfPositions(array []byte) ([]byte, bool) {
	var mask []byte
	for e := range bsonraw.Fields(array) {
		n, ok := argument(valueOf(e))
		if !ok || n < 0 || n >= maxMask*8 {
			return nil, false
		}
		if grow := int(n/8) + 1 - len(mask); grow > 0 {
			mask = append(mask, make([]byte, grow)...)
		}
		mask[n/8] |= 1 << (n % 8)
	}
	return mask, true
}
