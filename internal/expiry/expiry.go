// Package expiry determines which documents of a collection have expired at a time, as a condition
// for a server and for a single document. It reads the expiry from options and indexes, and defines
// the stand-in for a deferred expiry. Other packages read and change collections.
package expiry

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/query"
)

// Slack is how much later than a deletion counts as expired, in milliseconds. The clock in a server's
// oplog may be behind the one by which it finds expired documents.
const Slack = 1000

// Setting is the expiry by one index, or by the _id of a clustered collection.
type Setting struct {
	Field   string // a date, or an array whose earliest counts
	Seconds int64  // after it
	Only    bson.Raw
	// Collated: Only compares text under a collation.
	Collated bool
}

// Settings are the expiries of a collection.
type Settings []Setting

// Check fails for conditions of partial indexes that cannot be evaluated as servers do.
func (s Settings) Check(collated bool) error {
	for _, one := range s {
		if one.Only == nil {
			continue
		}
		q, err := query.Parse(one.Only)
		switch {
		case err != nil:
			return fmt.Errorf("the partialFilterExpression of the index by which %q expires: %w", one.Field, err)
		case (collated || one.Collated) && q.ComparesText():
			return fmt.Errorf("the partialFilterExpression of the index by which %q expires compares text, under a collation",
				one.Field)
		}
	}
	return nil
}

// AppendLive appends an element to a filter that then matches only documents not expired at a time, in
// milliseconds since 1970. Settings must not be empty.
func (s Settings) AppendLive(dst []byte, at int64) []byte { return s.append(dst, "$nor", at) }

func (s Settings) append(dst []byte, operator string, at int64) []byte {
	i, dst := bsoncore.AppendArrayElementStart(dst, operator)
	for n, one := range s {
		dst = bsoncore.AppendDocumentElement(dst, strconv.Itoa(n), one.expired(at))
	}
	return bsonraw.Close(dst, i)
}

// expired is the filter of expired documents. Dates are compared with dates only.
func (one Setting) expired(at int64) bsoncore.Document {
	until := at + Slack - min(one.Seconds, math.MaxInt32)*1000
	date := bsoncore.NewDocumentBuilder().AppendDateTime("$lte", until).Build()
	expired := bsoncore.NewDocumentBuilder().AppendDocument(one.Field, date).Build()
	if one.Only == nil {
		return expired
	}
	return bsoncore.NewDocumentBuilder().
		AppendArray("$and", bsoncore.NewArrayBuilder().AppendDocument(expired).
			AppendDocument(bsoncore.Document(one.Only)).Build()).Build()
}

// Expired reports a document that had expired at a time, in milliseconds since 1970. Check first.
func (s Settings) Expired(doc bson.Raw, at int64) bool {
	if len(s) == 0 {
		return false
	}
	i, filter := bsoncore.AppendDocumentStart(nil)
	filter, err := bsoncore.AppendDocumentEnd(s.append(filter, "$or", at), i)
	if err != nil {
		return false
	}
	q, err := query.Parse(filter)
	return err == nil && q.Match(doc)
}

// String is for people.
func (s Settings) String() string {
	var out []string
	for _, one := range s {
		text := fmt.Sprintf("%s + %d s", one.Field, one.Seconds)
		if one.Only != nil {
			text += " where " + one.Only.String()
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

// Option is the name of the expiry in options and index specifications.
const Option = "expireAfterSeconds"

// Seconds reads an expiry as current servers do: truncated, NaN is the largest value. It is false for
// what is no number, such as "off".
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

// Of returns the expiries by a collection's options and index specifications.
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

// With adds the expiry by an index, or without one by the _id. Some indexes expire nothing.
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

// datesOf is the only, ordered field of an index, by which it expires documents.
func datesOf(spec bson.Raw) (field string, ok bool) {
	key, _ := spec.Lookup("key").DocumentOK()
	fields, _ := key.Elements()
	if len(fields) != 1 {
		return "", false
	}
	kind, _ := fields[0].Value().StringValueOK() // as "hashed"
	return fields[0].Key(), kind == ""
}

const leastStandIn = 1_600_000_000

// StandIn replaces the expiry of an index until it is restored, in seconds, on servers before 5.1, whose
// collMod cannot add one. It is larger than any in use, but not before 1970, which they refuse.
func StandIn(seconds int64) int64 { return max(seconds, leastStandIn) }

// StandsIn reports a stand-in.
func StandsIn(v bson.RawValue) bool {
	n, ok := Seconds(v)
	return ok && n >= leastStandIn
}

// Deferral is a deferred expiry of a collection, or of one of its indexes.
type Deferral struct {
	Index string // "" for the collection
	Was   bson.RawValue
	Spec  bson.Raw // of the index
	// StandIn is the expiry until Was is restored: seconds, or "off".
	StandIn any
}

// Deferrals returns the expiries to defer, by options and index specifications. It ignores stand-ins,
// and those of a capped collection, which expire nothing. late: collMod can add an expiry to any index.
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
