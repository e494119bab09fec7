// Package versions is the form in which a target holds the history of documents; it is pure. A version is a document,
// {_id: {k, t, n}, op, doc}. k is the _id of the source's document. t is the cluster time of the commit, n the place
// among the events of that time. Without doc, the document ends. In the index on _id, versions are in order of
// document and time.
package versions

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
)

// The operations of versions that the source does not have.
const (
	Copy   = "copy"   // as it was when the copy had ended
	Drop   = "drop"   // the end of a document whose collection was dropped
	Rename = "rename" // the end under one name, or the beginning under the other
)

const (
	opField  = "op"
	atField  = "at"
	docField = "doc"
)

// Position is when a version begins.
type Position struct {
	T bson.Timestamp
	N int32
}

func (p Position) Compare(q Position) int {
	return cmp.Or(cmp.Compare(p.T.T, q.T.T), cmp.Compare(p.T.I, q.T.I), cmp.Compare(p.N, q.N))
}

// Version is a version of a document.
type Version struct {
	Key bsonraw.ID // the document's _id
	Position
	Op string
	// At is set by the copy: the document's last change up to the end of the copy, or the start of the copy.
	At  bson.Timestamp
	Doc bson.Raw // nil is none
}

// IsID reports a value that can be the _id of a version, and returns its parts.
func IsID(id bsonraw.ID) (key bsonraw.ID, at Position, ok bool) {
	if id.Type != bsoncore.TypeEmbeddedDocument {
		return key, at, false
	}
	key = bsonraw.Value(id.Data, "k")
	t, i, isTime := bsonraw.Value(id.Data, "t").TimestampOK()
	n, isNumber := bsonraw.Value(id.Data, "n").Int32OK()
	return key, Position{bson.Timestamp{T: t, I: i}, n}, key.Type != 0 && isTime && isNumber
}

// Parse reads a version. Its fields point into the document.
func Parse(doc bson.Raw) (v Version, err error) {
	var ok bool
	if v.Key, v.Position, ok = IsID(bsonraw.IDOf(doc)); ok {
		v.Op, ok = bsonraw.Value(doc, opField).StringValueOK()
	}
	if !ok {
		return v, fmt.Errorf("a document that is not a version of another one, _id %s", bsonraw.IDText(bsonraw.IDOf(doc)))
	}
	v.At.T, v.At.I, _ = bsonraw.Value(doc, atField).TimestampOK()
	if d := bsonraw.Value(doc, docField); d.Type == bsoncore.TypeEmbeddedDocument {
		v.Doc = d.Data
	}
	return v, nil
}

func AppendID(dst []byte, key bsonraw.ID, at Position) []byte {
	i, dst := bsoncore.AppendDocumentStart(dst)
	dst = bsoncore.AppendValueElement(dst, "k", key)
	dst = bsoncore.AppendTimestampElement(dst, "t", at.T.T, at.T.I)
	dst = bsoncore.AppendInt32Element(dst, "n", at.N)
	return bsonraw.Close(dst, i)
}

// Size is at least what Append appends besides the key and the document.
const Size = 96

func Append(dst []byte, v Version) []byte {
	i, dst := bsoncore.AppendDocumentStart(dst)
	dst = bsoncore.AppendHeader(dst, bsoncore.TypeEmbeddedDocument, "_id")
	dst = AppendID(dst, v.Key, v.Position)
	dst = bsoncore.AppendStringElement(dst, opField, v.Op)
	if !v.At.IsZero() {
		dst = bsoncore.AppendTimestampElement(dst, atField, v.At.T, v.At.I)
	}
	if v.Doc != nil {
		dst = bsoncore.AppendDocumentElement(dst, docField, bsoncore.Document(v.Doc))
	}
	return bsonraw.Close(dst, i)
}

// AppendCopy appends the version of a document that was copied, or changed during the copy, which began at start.
func AppendCopy(dst []byte, doc bson.Raw, start, at bson.Timestamp) []byte {
	return Append(dst, Version{Key: bsonraw.IDOf(doc), Position: Position{T: start}, Op: Copy, At: at, Doc: doc})
}

// AppendUpdate appends an update of a copied document's version, with the effect of an oplog's update on the document.
func AppendUpdate(dst []byte, form delta.Kind, o bson.Raw, at bson.Timestamp) ([]byte, error) {
	switch form {
	case delta.Diff:
		return appendDiff(dst, o, at)
	case delta.Modifiers:
		return appendModifiers(dst, o, at)
	}
	return nil, errors.New("neither $v:1 nor $v:2")
}

func appendDiff(dst []byte, o bson.Raw, at bson.Timestamp) ([]byte, error) {
	diff := bsonraw.Value(o, "diff")
	if diff.Type != bsoncore.TypeEmbeddedDocument {
		return nil, errors.New("an update without a diff")
	}
	all, dst := bsoncore.AppendDocumentStart(dst)
	dst = bsoncore.AppendInt32Element(dst, "$v", 2)
	outer, dst := bsoncore.AppendDocumentElementStart(dst, "diff")
	set, dst := bsoncore.AppendDocumentElementStart(dst, "u")
	dst = bsoncore.AppendTimestampElement(dst, atField, at.T, at.I)
	dst = bsonraw.Close(dst, set)
	dst = bsoncore.AppendDocumentElement(dst, "s"+docField, diff.Data)
	dst = bsonraw.Close(dst, outer, all)
	return dst, nil
}

func appendModifiers(dst []byte, o bson.Raw, at bson.Timestamp) ([]byte, error) {
	all, dst := bsoncore.AppendDocumentStart(dst)
	dst = bsoncore.AppendInt32Element(dst, "$v", 1)
	set, dst := bsoncore.AppendDocumentElementStart(dst, "$set")
	dst = bsoncore.AppendTimestampElement(dst, atField, at.T, at.I)
	dst, err := appendPaths(dst, bsonraw.Value(o, "$set"))
	if err != nil {
		return nil, err
	}
	dst = bsonraw.Close(dst, set)
	if gone := bsonraw.Value(o, "$unset"); gone.Type != 0 {
		var unset int32
		unset, dst = bsoncore.AppendDocumentElementStart(dst, "$unset")
		if dst, err = appendPaths(dst, gone); err != nil {
			return nil, err
		}
		dst = bsonraw.Close(dst, unset)
	}
	dst = bsonraw.Close(dst, all)
	return dst, nil
}

// appendPaths appends the paths of a modifier, below a version's document.
func appendPaths(dst []byte, modifier bsonraw.ID) ([]byte, error) {
	if modifier.Type == 0 {
		return dst, nil
	}
	for f, ok := range bsonraw.Fields(modifier.Data) {
		if !ok {
			return nil, errors.New("an update that is not valid BSON")
		}
		dst = append(append(dst, byte(f.Type)), docField...)
		dst = append(append(append(dst, '.'), f.Name...), 0)
		dst = append(dst, f.Value...)
	}
	return dst, nil
}

// Before returns the stages that find the newest version of each document before a position.
func Before(collection string, asked []Asked) bson.A {
	var out bson.A
	for _, one := range asked {
		stages := bson.A{
			bson.D{{Key: "$match", Value: one.Filter()}},
			bson.D{{Key: "$sort", Value: bson.D{{Key: "_id", Value: -1}}}},
			bson.D{{Key: "$limit", Value: 1}},
		}
		if out == nil {
			out = stages
			continue
		}
		out = append(out, bson.D{{Key: "$unionWith", Value: bson.D{{Key: "coll", Value: collection},
			{Key: "pipeline", Value: stages}}}})
	}
	return out
}

// Asked asks for a document's newest version before a position.
type Asked struct {
	Key    bsonraw.ID
	Before Position
}

// Ever is a position after all versions.
func Ever() Position { return Position{T: bson.Timestamp{T: 1<<32 - 1, I: 1<<32 - 1}, N: 1<<31 - 1} }

// Filter matches the versions of the document before the position.
func (a Asked) Filter() bson.D {
	upper := bson.Raw(AppendID(nil, a.Key, a.Before))
	return bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: Least(a.Key)}, {Key: "$lt", Value: upper}}}}
}

// Least is less than the _ids of all versions of a document.
func Least(key bsonraw.ID) bson.Raw {
	return bson.Raw(bsoncore.NewDocumentBuilder().AppendValue("k", key).Build())
}

// Newest finds the newest versions in versions that are sorted by _id.
type Newest struct {
	before Position
	key    []byte // of the document in work, nil at the beginning
	next   []byte
	last   bson.Raw // of it, nil for none
}

func NewNewest(before Position) *Newest { return &Newest{before: before} }

// Add takes the next version. It returns the newest one of the previous document, nil for none, valid until the next
// call.
func (w *Newest) Add(version bson.Raw) (newest bson.Raw, err error) {
	key, at, ok := IsID(bsonraw.IDOf(version))
	if !ok {
		_, err := Parse(version)
		return nil, err
	}
	w.next = delta.AppendKey(w.next[:0], key)
	if w.key == nil || !slices.Equal(w.key, w.next) {
		newest = w.last
		w.key, w.next, w.last = w.next, w.key, nil
	}
	if at.Compare(w.before) < 0 {
		w.last = slices.Clone(version)
	}
	return newest, nil
}

// End returns the newest version of the last document, nil for none.
func (w *Newest) End() bson.Raw {
	last := w.last
	w.last, w.key = nil, nil
	return last
}

// Unwrap returns the document of a version, nil for the end of one.
func Unwrap(version bson.Raw) bson.Raw {
	if d := bsonraw.Value(version, docField); d.Type == bsoncore.TypeEmbeddedDocument {
		return d.Data
	}
	return nil
}

// ShapeFields is a projection that shows whether versions are an end.
func ShapeFields() bson.D {
	return bson.D{{Key: opField, Value: 1}, {Key: docField + "._id", Value: 1}}
}
