package copy

import (
	"context"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
)

const (
	codeDollarField    = 52
	codeImmutableField = 66    // a collation holds another _id for the same
)

// resolve acts upon the errors of an unordered insert: duplicates by policy,
// anything else ends the run. skipped are indexes of the chunk that were not
// sent, ascending.
func (w *writer) resolve(ctx context.Context, ch *chunk, errs []wire.WriteError, skipped []int) error {
	byIndex := make(map[int]wire.WriteError, len(errs))
	for _, e := range errs {
		byIndex[e.Index] = e
	}
	var replace [][]byte
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
				err = writeFailed(e, doc)
			}
			return err
		}
		if ch.s.c.OnExisting == Replace {
			replace = append(replace, doc)
		} else {
			w.e.count.duplicates.Add(1)
		}
		return nil
	})
	if err != nil {
		return err
	}
	w.e.count.replaced.Add(int64(len(replace)))
	return w.upsert(ctx, ch.s.c, replace)
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
	body, err := w.conn.Run(ctx, c.targetDB, bson.D{
		{Key: "find", Value: coll}, {Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$eq", Value: rawValue(idOf(doc))}}}}},
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

// upsert puts documents on the target exactly as they are, whether their _ids
// exist there or not: an update by $replaceWith changes nothing in them, where
// an insert or replacement changes zero timestamps and refuses some names.
func (w *writer) upsert(ctx context.Context, c *collection, docs [][]byte) error {
	for len(docs) > 0 {
		n := w.upsertMessage(c, docs)
		res, err := w.roundTrip(ctx)
		if err != nil {
			return err
		}
		if res.N+int64(len(res.Errors)) != int64(n) {
			return fmt.Errorf("update of %d documents was answered with %d done and %d errors", n, res.N, len(res.Errors))
		}
		for _, e := range res.Errors {
			if e.Code != codeImmutableField {
				return writeFailed(e, docs[e.Index])
			}
			if err := w.exchange(ctx, c, docs[e.Index]); err != nil {
				return err
			}
		}
		docs = docs[n:]
	}
	return nil
}

// upsertMessage frames as many of docs as one message takes and returns how
// many that are.
func (w *writer) upsertMessage(c *collection, docs [][]byte) int {
	const most, room = 1000, 20 << 20
	_, coll := mongo.SplitNS(c.Target)
	w.msg.Reset(c.targetDB, bsoncore.NewDocumentBuilder().
		AppendString("update", coll).
		AppendBoolean("ordered", false).
		AppendBoolean("bypassDocumentValidation", true).
		AppendDocument("writeConcern", bsoncore.Document(w.e.opts.WriteConcern)).
		Build(), false)
	w.msg.StartSequence("updates")
	n := 0
	for _, doc := range docs {
		if n == most || n > 0 && w.msg.Len()+len(doc) > room {
			break
		}
		w.msg.AppendDocument(exactUpdate(doc))
		n++
	}
	return n
}

// exactUpdate is {q: {_id: {$eq: id}}, u: [{$replaceWith: {$literal: doc}}], upsert: true}.
func exactUpdate(doc []byte) []byte {
	dst := make([]byte, 0, len(doc)+256)
	i, dst := bsoncore.AppendDocumentStart(dst)
	q, dst := bsoncore.AppendDocumentElementStart(dst, "q")
	dst = appendEq(dst, doc)
	dst, _ = bsoncore.AppendDocumentEnd(dst, q)
	u, dst := bsoncore.AppendArrayElementStart(dst, "u")
	stage, dst := bsoncore.AppendDocumentElementStart(dst, "0")
	repl, dst := bsoncore.AppendDocumentElementStart(dst, "$replaceWith")
	dst = bsoncore.AppendDocumentElement(dst, "$literal", doc)
	dst, _ = bsoncore.AppendDocumentEnd(dst, repl)
	dst, _ = bsoncore.AppendDocumentEnd(dst, stage)
	dst, _ = bsoncore.AppendArrayEnd(dst, u)
	dst = bsoncore.AppendBooleanElement(dst, "upsert", true)
	dst, _ = bsoncore.AppendDocumentEnd(dst, i)
	return dst
}

func appendEq(dst, doc []byte) []byte {
	i, dst := bsoncore.AppendDocumentElementStart(dst, "_id")
	dst = bsoncore.AppendValueElement(dst, "$eq", idOf(doc))
	dst, _ = bsoncore.AppendDocumentEnd(dst, i)
	return dst
}

// exchange deletes the document whose _id equals under the collation and
// inserts ours.
func (w *writer) exchange(ctx context.Context, c *collection, doc []byte) error {
	_, coll := mongo.SplitNS(c.Target)
	i, q := bsoncore.AppendDocumentStart(nil)
	q, _ = bsoncore.AppendDocumentEnd(appendEq(q, doc), i)
	_, err := w.conn.Run(ctx, c.targetDB, bson.D{
		{Key: "delete", Value: coll}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.Raw(q)}, {Key: "limit", Value: 1}}}},
		{Key: "writeConcern", Value: w.e.opts.WriteConcern},
	})
	if err != nil {
		return err
	}
	w.upsertMessage(c, [][]byte{doc})
	res, err := w.roundTrip(ctx)
	if err == nil && len(res.Errors) > 0 {
		err = writeFailed(res.Errors[0], doc)
	}
	return err
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
	return err
}

// concernFailed makes an error of a write concern error: the writes stand, yet
// not as durably as asked.
func concernFailed(res wire.WriteResult) error {
	if len(res.ConcernError) == 0 {
		return nil
	}
	code, _ := res.ConcernError.Lookup("code").AsInt64OK()
	text, _ := res.ConcernError.Lookup("errmsg").StringValueOK()
	return driver.CommandError{Code: int32(code), Message: "write concern: " + text, Labels: []string{"RetryableWriteError"}}
}
