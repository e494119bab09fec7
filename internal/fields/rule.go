package fields

import (
	"go.mongodb.org/mongo-driver/v2/bson"
)

// valueRule says what becomes of a value: it is converted, or masked.
type valueRule struct {
	kind      ruleKind
	to        bson.Type // convert
	otherwise otherwise
	n         int       // maskFirst, maskLast
	unit      dateUnit  // maskDate
	key       *keyedSum // maskSum
}

type ruleKind uint8

const (
	convertTo ruleKind = iota
	maskSum
	maskFirst
	maskLast
	maskNull
	maskDate
)

// append writes what becomes of a value, and says its type: none where it is left out.
func (r *valueRule) append(dst []byte, v value, path string) ([]byte, bson.Type, error) {
	switch r.kind {
	case maskSum:
		return r.key.append(dst, v), bson.TypeString, nil
	case maskFirst, maskLast:
		dst, typ := r.stars(dst, v)
		return dst, typ, nil
	case maskDate:
		dst, typ := r.unit.truncate(dst, v)
		return dst, typ, nil
	case maskNull:
		return dst, bson.TypeNull, nil
	}
	at := len(dst)
	dst, why := convert(dst, v, r.to)
	if why == "" {
		if v.isNull() {
			return dst, bson.TypeNull, nil
		}
		return dst, r.to, nil
	}
	switch dst = dst[:at]; r.otherwise {
	case otherwiseKeep:
		return append(dst, v.data...), v.typ, nil
	case otherwiseNull:
		return dst, bson.TypeNull, nil
	case otherwiseDrop:
		return dst, none, nil
	}
	return nil, none, &Misfit{path, why}
}
