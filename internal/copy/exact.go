package copy

import (
	"context"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
)

// replace writes documents whose _ids the target has, also where only an earlier
// attempt can have written those: they are the same, or older, or somebody else's.
func (w *writer) replace(ctx context.Context, c *collection, docs [][]byte) error {
	w.e.count.replaced.Add(int64(len(docs)))
	if tell := w.e.opts.Replacing; tell != nil && len(docs) > 0 {
		if err := tell(ctx, c.Task, docs); err != nil {
			return err
		}
	}
	var plain [][]byte
	for _, doc := range docs {
		special, err := docwrite.Inspect(doc)
		if err != nil {
			return err
		}
		if special.Plain() {
			plain = append(plain, doc)
			continue
		}
		if err := w.exchange(ctx, c, doc); err != nil {
			return err
		}
	}
	if err := w.elsewhere(ctx, c, plain); err != nil {
		return err
	}
	return w.update(ctx, c, plain, c.key.AppendReplacement, func(e wire.WriteError, doc []byte) error {
		if docwrite.Of(e) == docwrite.OtherID {
			return w.exchange(ctx, c, doc)
		}
		return w.refused(ctx, c, e, doc)
	})
}

// elsewhere deletes what other shards of the target have of documents that are about
// to be written whole: their shard keys may have changed since.
func (w *writer) elsewhere(ctx context.Context, c *collection, docs [][]byte) error {
	if c.key.IsZero() || len(docs) == 0 {
		return nil
	}
	_, coll := mongo.SplitNS(c.Target)
	for some := range slices.Chunk(docs, 1000) {
		w.msg.Reset(c.targetDB, bsoncore.NewDocumentBuilder().AppendString("delete", coll).AppendBoolean("ordered", false).
			AppendDocument("writeConcern", bsoncore.Document(w.e.opts.WriteConcern)).Build(), false)
		w.msg.StartSequence("deletes")
		for _, doc := range some {
			w.msg.BuildDocument(func(dst []byte) []byte { return c.key.AppendElsewhere(dst, bsonraw.IDOf(doc), doc) })
		}
		res, err := w.roundTrip(ctx)
		if err != nil {
			return err
		}
		for _, e := range res.Errors {
			return writeFailed(e, some[e.Index])
		}
	}
	return nil
}

// others is elsewhere for documents that are about to be inserted, where documents of
// others may have their _ids, or earlier copies that missing does not look for.
func (w *writer) others(ctx context.Context, c *collection, docs documents) error {
	if !w.e.opts.Others && !(c.Again && c.Source.Clustered()) || c.key.IsZero() {
		return nil
	}
	var all [][]byte
	if err := docs(func(doc []byte) error { all = append(all, doc); return nil }); err != nil {
		return err
	}
	return w.elsewhere(ctx, c, all)
}

// insertExact inserts documents that an insert would change: an upsert by
// $replaceWith leaves zero timestamps as they are. Documents whose _ids are on
// the target are acted upon by policy.
func (w *writer) insertExact(ctx context.Context, c *collection, docs [][]byte) error {
	w.e.count.exact.Add(int64(len(docs)))
	var there [][]byte
	err := w.update(ctx, c, docs, c.key.AppendInsert, func(e wire.WriteError, doc []byte) error {
		return w.failed(ctx, c, e, doc, &there)
	})
	if err != nil || len(there) == 0 {
		return err
	}
	return w.replace(ctx, c, there)
}

// exchange deletes the document that has the _id, or one equal to it under the
// collation, and inserts ours.
func (w *writer) exchange(ctx context.Context, c *collection, doc []byte) error {
	_, coll := mongo.SplitNS(c.Target)
	cmd := append(docwrite.Delete(coll, bsonraw.IDOf(doc)), bson.E{Key: "writeConcern", Value: w.e.opts.WriteConcern})
	body, err := w.Command(ctx, c.targetDB, cmd)
	if err != nil {
		return err
	}
	res, err := w.answer(body)
	if err != nil {
		return err
	}
	for _, e := range res.Errors {
		return writeFailed(e, doc)
	}
	return w.update(ctx, c, [][]byte{doc}, c.key.AppendInsert, func(e wire.WriteError, doc []byte) error {
		return w.refused(ctx, c, e, doc)
	})
}

// update sends one update statement a document, made by statement, as many as one
// message takes at once, and hands failed ones to failed once their command is
// over.
func (w *writer) update(ctx context.Context, c *collection, docs [][]byte, statement func(dst, doc []byte) []byte,
	failed func(e wire.WriteError, doc []byte) error) error {
	const most, room = 1000, 20 << 20
	_, coll := mongo.SplitNS(c.Target)
	cmd := bsoncore.NewDocumentBuilder().
		AppendString("update", coll).
		AppendBoolean("ordered", false).
		AppendBoolean("bypassDocumentValidation", true).
		AppendDocument("writeConcern", bsoncore.Document(w.e.opts.WriteConcern)).
		Build()
	for len(docs) > 0 {
		w.msg.Reset(c.targetDB, cmd, false)
		w.msg.StartSequence("updates")
		n := 0
		for n < min(len(docs), most) && (n == 0 || w.msg.Len()+len(docs[n]) <= room) {
			w.msg.BuildDocument(func(dst []byte) []byte { return statement(dst, docs[n]) })
			n++
		}
		res, err := w.unordered(ctx, "update")
		if err != nil {
			return err
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
