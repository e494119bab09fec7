package docwrite

import (
	"context"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
)

// Duplicate is a server's report of a duplicate key.
type Duplicate struct {
	Pattern bson.Raw // of the index
	Value   bson.Raw // the duplicate
	// collated: text in Value is a sort key of the index's collation.
	collated bool
	message  string
}

// ParseDuplicate reads a write error's entry or a failed command's reply.
func ParseDuplicate(raw bson.Raw) Duplicate {
	var d Duplicate
	d.Pattern, _ = raw.Lookup("keyPattern").DocumentOK()
	d.Value, _ = raw.Lookup("keyValue").DocumentOK()
	d.message, _ = raw.Lookup("errmsg").StringValueOK()
	_, d.collated = raw.Lookup("collation").DocumentOK()
	d.collated = d.collated || strings.Contains(d.message, " collation: {")
	return d
}

// Index is the name of the index in the server's message, or "".
func (d Duplicate) Index() string {
	_, rest, ok := strings.Cut(d.message, " index: ")
	if !ok {
		return ""
	}
	for _, end := range []string{" collation: ", " dup key: "} {
		if i := strings.Index(rest, end); i >= 0 {
			rest = rest[:i]
		}
	}
	return rest
}

// Holding selects documents of a target namespace with a duplicate key.
type Holding struct {
	NS string
	// Doc is a document with the key, which servers do not return readable under a collation. With a
	// collation and without Doc, none are found.
	Doc []byte
	// Spec is the index's specification if the target does not have it yet.
	Spec   bson.Raw
	Except *bsonraw.ID // a document to ignore
	Most   int64
}

// Holders returns the documents with the key.
func (d Duplicate) Holders(ctx context.Context, c *mongo.Cluster, h Holding) ([]bson.Raw, error) {
	if len(d.Pattern) == 0 || len(d.Value) == 0 {
		return nil, nil
	}
	spec := h.Spec
	if spec == nil {
		var err error
		if spec, err = findIndex(ctx, c, h.NS, d); err != nil {
			return nil, err
		}
	}
	if _, ok := spec.Lookup("collation").DocumentOK(); ok {
		d.collated = true // 4.2 does not say so
	}
	filter, ok := keyFilter(d, h.Doc)
	if !ok {
		return nil, nil
	}
	and := bson.A{filter}
	if p, ok := spec.Lookup("partialFilterExpression").DocumentOK(); ok {
		and = append(and, p)
	}
	if sparse, ok := spec.Lookup("sparse").BooleanOK(); ok && sparse {
		and = append(and, anyExists(d.Pattern))
	}
	if h.Except != nil {
		and = append(and, bson.D{{Key: "_id", Value: bson.D{{Key: "$ne", Value: bsonraw.RawValue(*h.Except)}}}})
	}
	db, name := mongo.SplitNS(h.NS)
	var collation any = bson.D{{Key: "locale", Value: "simple"}}
	if c, ok := spec.Lookup("collation").DocumentOK(); ok {
		collation = c
	}
	return mongo.ReadAll[bson.Raw](ctx, "find what holds a key of %s", h.NS)(c.Client.Database(db).RunCommandCursor(ctx,
		bson.D{{Key: "find", Value: name}, {Key: "filter", Value: bson.D{{Key: "$and", Value: and}}},
			{Key: "limit", Value: h.Most}, {Key: "collation", Value: collation}}))
}

// findIndex returns the index's specification, empty if it is missing because its build failed.
func findIndex(ctx context.Context, c *mongo.Cluster, ns string, d Duplicate) (bson.Raw, error) {
	db, name := mongo.SplitNS(ns)
	all, err := mongo.ReadAll[bson.Raw](ctx, "list indexes of %s", ns)(
		c.Client.Database(db).Collection(name).Indexes().List(ctx))
	if err != nil {
		return nil, err
	}
	for _, spec := range all {
		if n, _ := spec.Lookup("name").StringValueOK(); n == d.Index() {
			return spec, nil
		}
	}
	return bson.Raw(bsoncore.NewDocumentBuilder().Build()), nil
}

// keyFilter matches documents with the key. As in the index, equality also matches array elements.
func keyFilter(d Duplicate, doc []byte) (bson.D, bool) {
	filter := bson.D{}
	elems, err := d.Value.Elements()
	if err != nil {
		return nil, false
	}
	for _, e := range elems {
		v := e.Value()
		if d.collated {
			var ok bool
			if v, ok = plainValue(doc, e.Key()); !ok {
				return nil, false
			}
		}
		filter = append(filter, bson.E{Key: e.Key(), Value: bson.D{{Key: "$eq", Value: v}}})
	}
	return filter, len(filter) > 0
}

// plainValue is the value at a path without arrays; absent is null, as in an index.
func plainValue(doc []byte, path string) (bson.RawValue, bool) {
	if len(doc) == 0 {
		return bson.RawValue{}, false
	}
	v, err := bson.Raw(doc).LookupErr(strings.Split(path, ".")...)
	if err != nil {
		return bson.RawValue{Type: bson.TypeNull}, true
	}
	return v, v.Type != bson.TypeArray
}

func anyExists(pattern bson.Raw) bson.D {
	or := bson.A{}
	elems, _ := pattern.Elements()
	for _, e := range elems {
		or = append(or, bson.D{{Key: e.Key(), Value: bson.D{{Key: "$exists", Value: true}}}})
	}
	return bson.D{{Key: "$or", Value: or}}
}
