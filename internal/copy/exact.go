package copy

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/wire"
)

const (
	codeDollarField    = 52
	codeImmutableField = 66 // a collation holds another _id for the same
)

// met replaces documents whose _ids the target has, also where only an earlier
// attempt can have written them: they are the same, or older, or somebody else's.
func (w *writer) met(ctx context.Context, c *collection, docs [][]byte) error {
	w.e.count.replaced.Add(int64(len(docs)))
	var plain [][]byte
	for _, doc := range docs {
		look, err := inspect(doc)
		if err != nil {
			return fmt.Errorf("_id %s: %w", idText(doc), err)
		}
		if !look.zeroTimestamp && !look.dollarName {
			plain = append(plain, doc)
			continue
		}
		if err := w.exchange(ctx, c, doc); err != nil {
			return err
		}
	}
	return w.update(ctx, c, plain, replacement, func(e wire.WriteError, doc []byte) error {
		if e.Code == codeImmutableField {
			return w.exchange(ctx, c, doc)
		}
		return w.refused(ctx, c, e, doc)
	})
}

// insertExact inserts documents that an insert would change: an upsert by
// $replaceWith leaves zero timestamps as they are. Documents whose _ids are on
// the target are acted upon by policy.
func (w *writer) insertExact(ctx context.Context, c *collection, docs [][]byte) error {
	w.e.count.exact.Add(int64(len(docs)))
	var found [][]byte
	err := w.update(ctx, c, docs, exactInsert, func(e wire.WriteError, doc []byte) error {
		dup, err := w.duplicateID(ctx, c, e, doc)
		switch {
		case err != nil:
			return err
		case !dup:
			return w.refused(ctx, c, e, doc)
		}
		found = append(found, doc)
		return nil
	})
	if err != nil || len(found) == 0 {
		return err
	}
	return w.met(ctx, c, found)
}

// exchange deletes the document that has the _id, or one equal to it under the
// collation, and inserts ours.
func (w *writer) exchange(ctx context.Context, c *collection, doc []byte) error {
	_, coll := mongo.SplitNS(c.Target)
	i, q := bsoncore.AppendDocumentStart(nil)
	q, _ = bsoncore.AppendDocumentEnd(appendEq(q, doc), i)
	body, err := w.command(ctx, c.targetDB, bson.D{
		{Key: "delete", Value: coll}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.Raw(q)}, {Key: "limit", Value: 1}}}},
		{Key: "writeConcern", Value: w.e.opts.WriteConcern},
	})
	if err != nil {
		return err
	}
	res := wire.ParseWriteResult(body)
	if err := mongo.WriteInterrupted(res); err != nil {
		return err
	}
	if err := w.e.store.SameTerm(res.Term); err != nil {
		return err
	}
	for _, e := range res.Errors {
		return writeFailed(e, doc)
	}
	return w.update(ctx, c, [][]byte{doc}, exactInsert, func(e wire.WriteError, doc []byte) error { return w.refused(ctx, c, e, doc) })
}

// update sends one update statement a document, made by statement, and hands
// failed ones to failed once their command is over.
func (w *writer) update(ctx context.Context, c *collection, docs [][]byte, statement func(doc []byte) []byte,
	failed func(e wire.WriteError, doc []byte) error) error {
	for len(docs) > 0 {
		n := w.frameUpdates(c, docs, statement)
		res, err := w.roundTrip(ctx)
		if err != nil {
			return err
		}
		if res.N+int64(len(res.Errors)) != int64(n) {
			return fmt.Errorf("update of %d documents was answered with %d done and %d errors", n, res.N, len(res.Errors))
		}
		for _, e := range res.Errors {
			if err := failed(e, docs[e.Index]); err != nil {
				return err
			}
		}
		docs = docs[n:]
	}
	return nil
}

// frameUpdates frames as many of docs as one message takes and returns how
// many that are.
func (w *writer) frameUpdates(c *collection, docs [][]byte, statement func(doc []byte) []byte) int {
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
		w.msg.AppendDocument(statement(doc))
		n++
	}
	return n
}

// exactInsert is {q: {_id: {$eq: id}, $nor: [{}]}, u: [{$replaceWith: {$literal:
// doc}}], upsert: true}. $nor makes it match nothing: it inserts or meets a
// duplicate. On a document that exists, $replaceWith with a field name twice
// brings down a 6.0 server.
func exactInsert(doc []byte) []byte {
	dst := make([]byte, 0, len(doc)+256)
	i, dst := bsoncore.AppendDocumentStart(dst)
	q, dst := bsoncore.AppendDocumentElementStart(dst, "q")
	dst = appendEq(dst, doc)
	nor, dst := bsoncore.AppendArrayElementStart(dst, "$nor")
	dst = bsoncore.AppendDocumentElement(dst, "0", bsoncore.NewDocumentBuilder().Build())
	dst, _ = bsoncore.AppendArrayEnd(dst, nor)
	dst, _ = bsoncore.AppendDocumentEnd(dst, q)
	u, dst := bsoncore.AppendArrayElementStart(dst, "u")
	stage, dst := bsoncore.AppendDocumentElementStart(dst, "0")
	repl, dst := bsoncore.AppendDocumentElementStart(dst, "$replaceWith")
	dst = bsoncore.AppendDocumentElement(dst, "$literal", doc)
	dst, _ = bsoncore.AppendDocumentEnd(dst, repl)
	dst, _ = bsoncore.AppendDocumentEnd(dst, stage)
	dst, _ = bsoncore.AppendArrayEnd(dst, u)
	return endUpsert(dst, i)
}

// replacement is {q: {_id: {$eq: id}}, u: doc, upsert: true}.
func replacement(doc []byte) []byte {
	dst := make([]byte, 0, len(doc)+256)
	i, dst := bsoncore.AppendDocumentStart(dst)
	q, dst := bsoncore.AppendDocumentElementStart(dst, "q")
	dst, _ = bsoncore.AppendDocumentEnd(appendEq(dst, doc), q)
	dst = bsoncore.AppendDocumentElement(dst, "u", doc)
	return endUpsert(dst, i)
}

func endUpsert(dst []byte, i int32) []byte {
	dst = bsoncore.AppendBooleanElement(dst, "upsert", true)
	dst, _ = bsoncore.AppendDocumentEnd(dst, i)
	return dst
}

func appendEq(dst, doc []byte) []byte {
	i, dst := bsoncore.AppendDocumentElementStart(dst, "_id")
	dst = bsoncore.AppendValueElement(dst, "$eq", scan.ID(doc))
	dst, _ = bsoncore.AppendDocumentEnd(dst, i)
	return dst
}
