package transform

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// softDelete has the target mark documents that the source deletes.
type softDelete struct {
	pattern
	field string
}

// String is canonical.
func (d *softDelete) String() string { return d.pattern.String() + "=" + d.field }

// SoftDelete is the field that marks documents of a source namespace which the source
// has deleted; "" has them deleted.
func (s *Set) SoftDelete(ns string) string {
	if i := s.softDeleteOf(ns); i >= 0 {
		return s.softDeletes[i].field
	}
	return ""
}

// softDeleteOf is the index of the rule of a namespace, below 0 for none.
func (s *Set) softDeleteOf(ns string) int {
	if s == nil || len(s.softDeletes) == 0 || s.staged(ns) {
		return -1
	}
	db, coll := mongo.SplitNS(ns)
	coll = strings.TrimPrefix(coll, mongo.BucketsPrefix)
	return slices.IndexFunc(s.softDeletes, func(d softDelete) bool { return d.matches(db, coll) })
}

// Unmarked chooses the documents of the target that the source has still; nil is all.
func (s *Set) Unmarked(ns string) func(doc []byte) bool {
	field := s.SoftDelete(ns)
	if field == "" {
		return nil
	}
	return func(doc []byte) bool {
		_, marked := bsonraw.Field(doc, field)
		return !marked
	}
}

// mark has the deletion of a document set a field of it to its time.
func mark(ev *stream.Event, field string, made *arena) {
	at := binary.LittleEndian.AppendUint64(nil, uint64(ev.At.TS.T)*1000)
	date := bsoncore.Value{Type: bsoncore.TypeDateTime, Data: at}
	change := bsoncore.NewDocumentBuilder().AppendInt32("$v", 2).
		AppendDocument("diff", bsoncore.NewDocumentBuilder().
			AppendDocument("i", bsoncore.NewDocumentBuilder().AppendValue(field, date).Build()).Build()).Build()
	ev.Kind, ev.Form, ev.Doc = stream.Update, delta.Diff, bson.Raw(made.take(append(made.room(len(change)), change...)))
}

func compileSoftDeletes(texts []string) (out []softDelete, err error) {
	for _, text := range texts {
		d, err := compileSoftDelete(text)
		if err != nil {
			return nil, fmt.Errorf("soft-delete %q: %w; write 'db.coll=deletedAt'", text, err)
		}
		out = append(out, d)
	}
	return out, nil
}

// compileSoftDelete reads "pattern=field".
func compileSoftDelete(text string) (d softDelete, err error) {
	name, field, found := cutRule(text)
	switch {
	case !found || field == "":
		return d, errors.New("the = with the field is missing after the pattern")
	case field == "_id" || strings.ContainsAny(field, ".$;\x00"):
		return d, fmt.Errorf("%q cannot be the field, which stands at the top level, is not _id, and has no dot, dollar or semicolon", field)
	}
	d.field = field
	if d.pattern, err = compile(name); err != nil {
		err = fmt.Errorf("the pattern: %w", err)
	}
	return d, err
}
