package router

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/wire"
)

// fields are a document's fields at the top level, their values as they are.
func fields(doc []byte) bson.D {
	var d bson.D
	for e, ok := range bsonraw.Fields(doc) {
		if !ok {
			break
		}
		d = append(d, bson.E{Key: string(e.Name), Value: bson.RawValue{Type: e.Type, Value: e.Value}})
	}
	return d
}

// passed are the fields of a server's reply that a client gets.
func passed(reply bsoncore.Document) bson.D {
	return without(fields(reply), "$clusterTime", "operationTime", "lastCommittedOpTime", "$gleStats", "$configServerState",
		"$configTime", "$topologyTime", "electionId", "opTime", "readOnly")
}

// without is a copy of d without the fields of some names.
func without(d bson.D, names ...string) bson.D {
	return slices.DeleteFunc(slices.Clone(d), func(e bson.E) bool { return slices.Contains(names, e.Key) })
}

// with is a copy of d in which the field of a name has a value.
func with(d bson.D, name string, value any) bson.D {
	d = slices.Clone(d)
	for i := range d {
		if d[i].Key == name {
			d[i].Value = value
			return d
		}
	}
	return append(d, bson.E{Key: name, Value: value})
}

// get is a field's value as it came; the zero value when there is none.
func get(d bson.D, name string) bson.RawValue {
	for _, e := range d {
		if e.Key == name {
			v, _ := e.Value.(bson.RawValue)
			return v
		}
	}
	return bson.RawValue{}
}

// has reports a field.
func has(d bson.D, name string) bool {
	return slices.ContainsFunc(d, func(e bson.E) bool { return e.Key == name })
}

// number is an integer of a command, 0 when there is none.
func number(v bson.RawValue) int64 {
	n, _ := v.AsInt64OK()
	return n
}

// truth is a boolean of a command, which may be a number.
func truth(v bson.RawValue) bool {
	if b, ok := v.BooleanOK(); ok {
		return b
	}
	n, ok := v.AsInt64OK()
	return ok && n != 0
}

// text is a string of a command, "" when it is none.
func text(v bson.RawValue) string {
	s, _ := v.StringValueOK()
	return s
}

// documents are the documents of an array.
func documents(array []byte) []bson.Raw {
	var all []bson.Raw
	for e, ok := range bsonraw.Fields(array) {
		if ok && e.Type == bson.TypeEmbeddedDocument {
			all = append(all, bson.Raw(e.Value))
		}
	}
	return all
}

// valueOf is an element's value as the driver has it.
func valueOf(e bsonraw.Element) bson.RawValue { return bson.RawValue{Type: e.Type, Value: e.Value} }

// emptyDocument is {}.
func emptyDocument() bson.Raw { return bson.Raw{5, 0, 0, 0, 0} }

// rawValue encodes any value.
func rawValue(v any) bson.RawValue {
	t, data, err := bson.MarshalValue(v)
	if err != nil {
		return bson.RawValue{}
	}
	return bson.RawValue{Type: t, Value: data}
}

// byAddress selects one server again.
func byAddress(addr string) wire.Selector { return wire.ByAddress(addr) }
