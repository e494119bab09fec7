package copy

import (
	"context"
	"slices"

	"github.com/millrace/millrace/internal/docwrite"
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
		if err := w.reinsert(ctx, c, doc); err != nil {
			return err
		}
	}
	if err := w.elsewhere(ctx, c, plain); err != nil {
		return err
	}
	return w.send(ctx, c, form{"update", c.key.AppendReplacement}, plain, func(e wire.WriteError, doc []byte) error {
		if docwrite.Of(e) == docwrite.OtherID {
			return w.reinsert(ctx, c, doc)
		}
		return w.refused(ctx, c, e, doc)
	})
}

// elsewhere deletes what other shards of the target have of documents that are about
// to be written whole: their shard keys may have changed since.
func (w *writer) elsewhere(ctx context.Context, c *collection, docs [][]byte) error {
	if c.key.IsZero() {
		return nil
	}
	return w.send(ctx, c, form{"delete", c.key.AppendElsewhere}, docs, writeFailed)
}

// others is elsewhere for documents that are about to be inserted, where documents of
// others may have their _ids, or earlier copies that missing does not look for.
func (w *writer) others(ctx context.Context, c *collection, docs documents) error {
	if !w.e.opts.Others && !(c.Again && c.Source.Clustered()) || c.key.IsZero() {
		return nil
	}
	all, err := docs.all()
	if err != nil {
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
	err := w.send(ctx, c, form{"update", c.key.AppendInsert}, docs, func(e wire.WriteError, doc []byte) error {
		return w.failed(ctx, c, e, doc, &there)
	})
	if err != nil || len(there) == 0 {
		return err
	}
	return w.replace(ctx, c, there)
}

// reinsert deletes the document that has the _id, or one equal to it under the
// collation, and inserts ours.
func (w *writer) reinsert(ctx context.Context, c *collection, doc []byte) error {
	one := [][]byte{doc}
	if err := w.send(ctx, c, form{"delete", docwrite.AppendDelete}, one, writeFailed); err != nil {
		return err
	}
	return w.send(ctx, c, form{"update", c.key.AppendInsert}, one, func(e wire.WriteError, doc []byte) error {
		return w.refused(ctx, c, e, doc)
	})
}

// form is how a document becomes a statement of a command.
type form struct {
	command string
	append  func(dst, doc []byte) []byte
}

// mostSent is how many statements one command has at most.
const mostSent = 1000

// send sends one statement a document, and hands those that fail to failed once their command
// is over.
func (w *writer) send(
	ctx context.Context, c *collection, f form, docs [][]byte, failed func(e wire.WriteError, doc []byte) error,
) error {
	for some := range slices.Chunk(docs, mostSent) {
		res, err := w.out.Send(ctx, c.command(f.command), elements(some, f.append))
		if err == nil && f.command == "update" { // what a delete does not find is not there
			err = answered(f.command, len(some), res)
		}
		for i := 0; err == nil && i < len(res.Errors); i++ {
			err = failed(res.Errors[i], some[res.Errors[i].Index])
		}
		if err != nil {
			return err
		}
	}
	return nil
}
