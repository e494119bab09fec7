package expiry

import (
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Option names the expiry in the options of a collection, and in the specification of an index.
const Option = "expireAfterSeconds"

// Seconds reads an expiry the way current servers do: fractions are cut off,
// not-a-number stands for the largest value. It is false for what is no number, as "off".
func Seconds(v bson.RawValue) (int64, bool) {
	switch v.Type {
	case bson.TypeInt32:
		return int64(v.Int32()), true
	case bson.TypeInt64:
		return v.Int64(), true
	case bson.TypeDouble:
		if f := v.Double(); !math.IsNaN(f) && f < math.MaxInt32 {
			return int64(f), true
		}
		return math.MaxInt32, true
	case bson.TypeDecimal128:
		bi, exp, err := v.Decimal128().BigInt()
		if err != nil || exp != 0 || !bi.IsInt64() {
			return math.MaxInt32, true
		}
		return bi.Int64(), true
	}
	return 0, false
}

// Of is how documents expire by the options of a collection and the specifications of its indexes.
func Of(options bson.Raw, indexes ...bson.Raw) (s Settings) {
	if v, err := options.LookupErr(Option); err == nil {
		s = s.With(v, nil)
	}
	for _, spec := range indexes {
		if v, err := spec.LookupErr(Option); err == nil {
			s = s.With(v, spec)
		}
	}
	return s
}

// With adds how documents expire by an index, or without one by the _id. By some indexes
// nothing expires.
func (s Settings) With(after bson.RawValue, spec bson.Raw) Settings {
	n, ok := Seconds(after)
	if !ok {
		return s // "off"
	}
	if spec == nil {
		return append(s, Setting{Field: "_id", Seconds: n})
	}
	field, ok := datesOf(spec)
	if !ok {
		return s
	}
	one := Setting{Field: field, Seconds: n}
	if v, err := spec.LookupErr("collation", "locale"); err == nil {
		locale, _ := v.StringValueOK()
		one.Collated = locale != "simple"
	}
	const empty = 5 // bytes
	if only, _ := spec.Lookup("partialFilterExpression").DocumentOK(); len(only) > empty {
		one.Only = only
	}
	return append(s, one)
}

// datesOf is the field by which an index expires documents: the only one, in an order.
func datesOf(spec bson.Raw) (field string, ok bool) {
	key, _ := spec.Lookup("key").DocumentOK()
	fields, _ := key.Elements()
	if len(fields) != 1 {
		return "", false
	}
	kind, _ := fields[0].Value().StringValueOK() // as "hashed"
	return fields[0].Key(), kind == ""
}

// leastStandIn is from where on an expiry counts as one that stands in for another, in seconds.
const leastStandIn = 1_600_000_000

// StandIn replaces the expiry of an index until it is restored, in seconds, on servers before
// 5.1. Their collMod cannot add an expiry later. The value is larger than any in use, but does
// not reach beyond 1970, which those servers refuse. It is the same at every attempt.
func StandIn(seconds int64) int64 { return max(seconds, leastStandIn) }

// StandsIn reports an expiry that stands in for another.
func StandsIn(v bson.RawValue) bool {
	n, ok := Seconds(v)
	return ok && n >= leastStandIn
}

// Deferral is the expiry of a collection, or of one of its indexes, that is deferred.
type Deferral struct {
	Index string // its name; "" is the collection itself
	Was   bson.RawValue
	Spec  bson.Raw // of the index
	// StandIn is the expiry until Was is restored: seconds, or "off".
	StandIn any
}

// Deferrals are the expiries of a collection with options, and of indexes of these
// specifications. Those that are deferred already, and those of a capped collection, by which
// nothing expires, are none. late says that collMod can give any index an expiry later.
func Deferrals(options bson.Raw, capped, late bool, indexes ...bson.Raw) (out []Deferral) {
	if v, err := options.LookupErr(Option); err == nil {
		out = append(out, Deferral{Was: v, StandIn: "off"})
	}
	for _, spec := range indexes {
		v, err := spec.LookupErr(Option)
		n, ok := Seconds(v)
		if err != nil || !ok || n >= leastStandIn || capped {
			continue
		}
		d := Deferral{Was: v, Spec: spec, StandIn: StandIn(n)}
		if d.Index, _ = spec.Lookup("name").StringValueOK(); late {
			d.StandIn = int64(math.MaxInt32)
		}
		out = append(out, d)
	}
	return out
}
