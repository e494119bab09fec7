package copy

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
)

// resolve acts upon the errors of an unordered insert of documents: what the target
// has is replaced, anything else ends the run.
func (w *writer) resolve(ctx context.Context, c *collection, docs documents, errs []wire.WriteError) error {
	var sent, there [][]byte
	err := docs(func(doc []byte) error {
		special, err := docwrite.Inspect(doc)
		if !special.ZeroTimestamp {
			sent = append(sent, doc)
		}
		return err
	})
	for i := 0; err == nil && i < len(errs); i++ {
		err = w.failed(ctx, c, errs[i], sent[errs[i].Index], &there)
	}
	if err != nil {
		return err
	}
	return w.replace(ctx, c, there)
}

// failed acts upon a document that was not inserted: it adds it to those that are
// there already, or hands it on as refused. Where the server does not say which key it
// met, the target is asked.
func (w *writer) failed(ctx context.Context, c *collection, e wire.WriteError, doc []byte, there *[][]byte) error {
	one := []wire.WriteError{e}
	err := docwrite.FindDuplicates(one, func(int) (bool, error) { return w.has(ctx, c, bsonraw.IDOf(doc)) })
	switch {
	case err != nil:
		return err
	case one[0].OnIDIndex():
		*there = append(*there, doc)
		return nil
	}
	return w.refused(ctx, c, e, doc)
}

// refused hands a document on that the target refuses because of what it is.
// Other errors, and a document that nobody takes, end the run.
func (w *writer) refused(ctx context.Context, c *collection, e wire.WriteError, doc []byte) error {
	if w.e.opts.Refused == nil || !docwrite.Of(e).OfDocument() {
		return writeFailed(e, doc)
	}
	taken, err := w.e.opts.Refused(ctx, Refusal{Target: c.Target, ID: bsonraw.IDOf(doc), Doc: doc, WriteError: e})
	if err == nil && !taken {
		err = writeFailed(e, doc)
	}
	w.e.count.refused.Add(1)
	return err
}

// has reports that the target has a document with the _id.
func (w *writer) has(ctx context.Context, c *collection, id bsonraw.ID) (found bool, err error) {
	_, coll := mongo.SplitNS(c.Target)
	err = w.Each(ctx, c.targetDB, bson.D{
		{Key: "find", Value: coll},
		{Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$eq", Value: bsonraw.RawValue(id)}}}}},
		{Key: "projection", Value: bson.D{{Key: "_id", Value: 1}}},
		{Key: "limit", Value: 1},
	}, 0, func([]byte) error {
		found = true
		return nil
	})
	return found, err
}

// writeFailed makes an error of a write error, which ends the run whatever its
// code.
func writeFailed(e wire.WriteError, doc []byte) error {
	which := ""
	if doc != nil {
		which = fmt.Sprintf("_id %s: ", idText(doc))
	}
	return mongo.WithHint(errors.New(which+e.Error()), docwrite.Hint(e))
}

// idText shows a document's _id in errors.
func idText(doc []byte) string { return bsonraw.IDText(bsonraw.IDOf(doc)) }
