package copy

import (
	"context"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/wire"
)

// resolve acts upon the errors of an unordered insert: what the target has is
// replaced, anything else ends the run. skipped are indexes of the chunk that were not
// sent, ascending.
func (w *writer) resolve(ctx context.Context, ch *chunk, errs []wire.WriteError, skipped []int) error {
	byIndex := make(map[int]wire.WriteError, len(errs))
	for _, e := range errs {
		byIndex[e.Index] = e
	}
	var met [][]byte
	sent := 0
	err := ch.each(func(i int, doc []byte) error {
		if len(skipped) > 0 && skipped[0] == i {
			skipped = skipped[1:]
			return nil
		}
		e, failed := byIndex[sent]
		sent++
		if !failed {
			return nil
		}
		if dup, err := w.duplicateID(ctx, ch.s.c, e, doc); err != nil || !dup {
			if err == nil {
				err = w.refused(ctx, ch.s.c, e, doc)
			}
			return err
		}
		met = append(met, doc)
		return nil
	})
	if err != nil {
		return err
	}
	return w.met(ctx, ch.s.c, met)
}

// refused hands a document on that the target refuses because of what it is.
// Other errors, and a document that nobody takes, end the run.
func (w *writer) refused(ctx context.Context, c *collection, e wire.WriteError, doc []byte) error {
	if w.e.opts.Refused == nil || e.Code != mongo.CodeDuplicateKey && !mongo.RefusesDocument(e.Code) {
		return writeFailed(e, doc)
	}
	taken, err := w.e.opts.Refused(ctx, Refusal{Target: c.Target, ID: scan.ID(doc), Doc: doc, Code: e.Code, Message: e.Message, Raw: e.Raw})
	if err == nil && !taken {
		err = writeFailed(e, doc)
	}
	w.e.count.refused.Add(1)
	return err
}

// duplicateID reports that a failed insert met its _id on the target. Where
// the server does not say which key it met, the target is asked.
func (w *writer) duplicateID(ctx context.Context, c *collection, e wire.WriteError, doc []byte) (bool, error) {
	switch {
	case c.Source.Clustered() && strings.HasPrefix(e.Message, "KeyString format error"):
		// 6.0 stumbles over naming a duplicate _id that is NaN, infinite or large.
	case e.Code != mongo.CodeDuplicateKey:
		return false, nil
	default:
		if _, err := e.Raw.LookupErr("keyPattern"); err == nil {
			return e.OnIDIndex(), nil
		}
	}
	_, coll := mongo.SplitNS(c.Target)
	body, err := w.command(ctx, c.targetDB, bson.D{
		{Key: "find", Value: coll}, {Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$eq", Value: rawValue(scan.ID(doc))}}}}},
		{Key: "projection", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "limit", Value: 1},
	})
	if err != nil {
		return false, err
	}
	found, _ := bson.Raw(body).Lookup("cursor", "firstBatch").Array().Values()
	return len(found) > 0, nil
}

func rawValue(v bsoncore.Value) bson.RawValue {
	return bson.RawValue{Type: bson.Type(v.Type), Value: v.Data}
}

// writeFailed makes an error of a write error. One that passes by itself keeps
// its class; a duplicate on a secondary index does not pass.
func writeFailed(e wire.WriteError, doc []byte) error {
	which := ""
	if doc != nil {
		which = fmt.Sprintf("_id %s: ", idText(doc))
	}
	cause := driver.CommandError{Code: e.Code, Message: e.Message}
	if mongo.Classify(cause) == mongo.ClassRetry {
		return fmt.Errorf("%s%w", which, cause)
	}
	err := fmt.Errorf("%s%s (code %d)", which, e.Message, e.Code)
	switch e.Code {
	case mongo.CodeDuplicateKey:
		return mongo.WithHint(err, "the target has a unique index that the document conflicts with; remove the conflicting document or the index from the target")
	case codeDollarField:
		return mongo.WithHint(err, "the target's version does not store this field name; use a target of the source's version or newer")
	}
	if mongo.RefusesDocument(e.Code) {
		return mongo.WithHint(err, "the target's indexes or version do not take the document: change the index, or go on without it with --on-conflict skip")
	}
	return err
}
