package copy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/lookup"
	"github.com/millrace/millrace/internal/wire"
)

// replace writes documents whose _ids exist, of this job or of somebody else.
func (w *writer) replace(ctx context.Context, c *collection, docs [][]byte) error {
	docs, err := w.announce(ctx, c, docs)
	if err != nil {
		return err
	}
	w.e.count.replaced.Add(int64(len(docs)))
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

// announce calls Options.Replacing. Of several documents with one _id, which a sharded target may have,
// it leaves out those that the target has already, byte for byte.
func (w *writer) announce(ctx context.Context, c *collection, docs [][]byte) (rest [][]byte, err error) {
	tell := w.e.opts.Replacing
	if tell == nil || len(docs) == 0 {
		return docs, nil
	}
	if err = tell(ctx, c.Task, docs); !errors.Is(err, lookup.ErrTwice) || c.key.IsZero() {
		return docs, err
	}
	for _, doc := range docs {
		twice := tell(ctx, c.Task, [][]byte{doc})
		if twice == nil {
			rest = append(rest, doc)
			continue
		}
		there := false
		if errors.Is(twice, lookup.ErrTwice) {
			there, err = w.find(ctx, c, bsonraw.IDOf(doc), func(other []byte) bool { return bytes.Equal(other, doc) })
			if err != nil {
				return nil, err
			}
		}
		if !there {
			return nil, twice
		}
		w.e.count.same.Add(1)
	}
	return rest, nil
}

// elsewhere deletes earlier copies on other shards: shard keys may have changed.
func (w *writer) elsewhere(ctx context.Context, c *collection, docs [][]byte) error {
	if c.key.IsZero() {
		return nil
	}
	return w.send(ctx, c, form{"delete", c.key.AppendElsewhere}, docs, writeFailed)
}

// others is elsewhere for inserts, of what missing does not look for.
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

// insertExact upserts by $replaceWith, which leaves zero timestamps alone.
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

// reinsert deletes the document with the _id, or one equal under the collation, and inserts ours.
func (w *writer) reinsert(ctx context.Context, c *collection, doc []byte) error {
	one := [][]byte{doc}
	if err := w.send(ctx, c, form{"delete", docwrite.AppendDelete}, one, writeFailed); err != nil {
		return err
	}
	return w.send(ctx, c, form{"update", c.key.AppendInsert}, one, func(e wire.WriteError, doc []byte) error {
		return w.refused(ctx, c, e, doc)
	})
}

type form struct {
	command string
	append  func(dst, doc []byte) []byte
}

const mostSent = 1000

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

// askAtOnce and largestAsked bound the _ids, and their bytes, of one question to the target.
const (
	askAtOnce    = 1000
	largestAsked = 8 << 10
)

// missing returns the documents of a chunk to insert: all of them, unless the copy to a sharded
// target is repeated. Then it returns those that the target lacks, replaces those that differ, and
// leaves identical ones alone. Refused inserts, searches on all shards and replacements would cost
// three writes per document.
//
// The target is read with majority read concern, as everything written to it before. If it has
// several documents of one _id, under other shard keys, one of them is wrong.
func (w *writer) missing(ctx context.Context, ch *chunk) (documents, error) {
	c := ch.s.c
	// For a clustered collection $in would walk the whole.
	if !c.Again || w.e.dst.Info.Kind != mongo.KindSharded || c.Source.Clustered() {
		return ch.part.Each, nil
	}
	docs, err := documents(ch.part.Each).all()
	if err != nil {
		return nil, err
	}
	var missing [][]byte
	for some := range slices.Chunk(docs, askAtOnce) {
		none, other, err := w.compare(ctx, c, some)
		if err == nil {
			err = w.replace(ctx, c, other)
		}
		if err != nil {
			return nil, err
		}
		missing = append(missing, none...)
		w.e.count.same.Add(int64(len(some) - len(none) - len(other)))
	}
	return func(each func(doc []byte) error) error {
		for _, doc := range missing {
			if err := each(doc); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// compare returns missing and differing documents. What it cannot ask for counts as missing.
func (w *writer) compare(ctx context.Context, c *collection, docs [][]byte) (none, other [][]byte, err error) {
	ids, byID := bson.A{}, map[string][]byte{}
	key := func(doc []byte) string { return string(bsonraw.AppendID(nil, bsonraw.IDOf(doc))) }
	for _, doc := range docs {
		id := bsonraw.RawValue(bsonraw.IDOf(doc))
		if id.Type != bson.TypeUndefined && len(id.Value) <= largestAsked { // refused in a $in
			ids = append(ids, id)
			byID[key(doc)] = doc
		}
	}
	has, same := map[string]int{}, map[string]bool{}
	_, coll := mongo.SplitNS(c.Target)
	err = w.Each(ctx, c.targetDB, bson.D{
		{Key: "find", Value: coll}, {Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}},
	}, len(docs), func(doc []byte) error {
		k := key(doc)
		has[k]++
		same[k] = bytes.Equal(doc, byID[k])
		return nil
	})
	if mongo.IsCode(err, mongo.CodeBadValue) { // an _id that looks like an operator
		return docs, nil, nil
	}
	for _, doc := range docs {
		switch k := key(doc); {
		case has[k] == 0:
			none = append(none, doc)
		case has[k] > 1 || !same[k]:
			other = append(other, doc)
		}
	}
	return none, other, err
}

// resolve replaces what the target has. Other errors end the run.
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

// failed adds a document to those there, or refuses it. If no key is named, it asks the target.
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

// refused asks Options.Refused about errors of the document itself. Others end the run.
func (w *writer) refused(ctx context.Context, c *collection, e wire.WriteError, doc []byte) error {
	if w.e.opts.Refused == nil || !docwrite.Of(e).OfDocument() {
		return writeFailed(e, doc)
	}
	again := w.again
	w.again = false
	answer, err := w.e.opts.Refused(ctx, Refusal{Source: c.Source, Target: c.Target, ID: bsonraw.IDOf(doc), Doc: doc,
		Again: again, WriteError: e})
	switch {
	case err != nil:
		return err
	case answer == Again:
		w.again = true
		defer func() { w.again = false }()
		return w.insertExact(ctx, c, [][]byte{doc})
	case answer == Ends:
		err = writeFailed(e, doc)
	}
	w.e.count.refused.Add(1)
	return err
}

func (w *writer) has(ctx context.Context, c *collection, id bsonraw.ID) (found bool, err error) {
	return w.find(ctx, c, id, func([]byte) bool { return true },
		bson.E{Key: "projection", Value: bson.D{{Key: "_id", Value: 1}}}, bson.E{Key: "limit", Value: 1})
}

// find reports whether one of the target's documents with an _id is the wanted one.
func (w *writer) find(ctx context.Context, c *collection, id bsonraw.ID, wanted func(doc []byte) bool,
	more ...bson.E) (found bool, err error) {
	_, coll := mongo.SplitNS(c.Target)
	err = w.Each(ctx, c.targetDB, append(bson.D{
		{Key: "find", Value: coll},
		{Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$eq", Value: bsonraw.RawValue(id)}}}}},
	}, more...), 0, func(doc []byte) error {
		found = found || wanted(doc)
		return nil
	})
	return found, err
}

func writeFailed(e wire.WriteError, doc []byte) error {
	which := ""
	if doc != nil {
		which = fmt.Sprintf("_id %s: ", idText(doc))
	}
	return mongo.WithHint(errors.New(which+e.Error()), docwrite.Hint(e))
}

func idText(doc []byte) string { return bsonraw.IDText(bsonraw.IDOf(doc)) }
