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
	dst, _ = bsoncore.AppendArrayEnd(dst, i)
	return dst
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
