package verify

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/transform"
)

const documentsAtOnce = 16

// Documents are single documents of one collection.
type Documents struct {
	// UUID is that of the source's collection when the documents were found; empty if there was
	// none. Under any other UUID nothing is compared.
	UUID bson.Binary
	IDs  []bson.RawValue
}

// identities fails if a name of Options.Documents now means another collection of the source than
// when its documents were found.
func (e *Engine) identities(now map[string]bson.Binary) error {
	for _, ns := range slices.Sorted(maps.Keys(e.o.Documents)) {
		was, is := e.o.Documents[ns].UUID, now[ns]
		var why string
		switch {
		case bytes.Equal(was.Data, is.Data):
			continue
		case len(is.Data) == 0:
			why = fmt.Sprintf("the source has no collection of that name any more (UUID %x)", was.Data)
		case len(was.Data) == 0:
			why = fmt.Sprintf("on the source the name means a collection (UUID %x) that is not the one in which they were"+
				" found, or an older release found them", is.Data)
		default:
			why = fmt.Sprintf("on the source the name means another collection now (UUID %x) than when they were found"+
				" (UUID %x)", is.Data, was.Data)
		}
		return mongo.WithHint(fmt.Errorf("cannot compare documents of %s: %s", ns, why),
			"verify again, and repair what that finds")
	}
	return nil
}

// stillThose lists the source again: a name may have changed its meaning meanwhile.
func (e *Engine) stillThose(ctx context.Context, rules *transform.Set) error {
	return e.clusters[source].Seen(ctx, func() error {
		list, err := schema.List(ctx, e.clusters[source], schema.Scope{NS: rules.Match, DB: rules.MatchDB})
		if err != nil {
			return err
		}
		now := map[string]bson.Binary{}
		for _, c := range list {
			now[c.DataNS()] = c.UUID
		}
		return e.identities(now)
	})
}

func (c *collection) documents() []task {
	ids := c.e.o.Documents[c.pair.Source].IDs
	c.e.c.estDocs.Add(2 * int64(len(ids)))
	c.row.Method, c.row.Ranges = Single, 1
	run := func(ctx context.Context) error {
		for _, id := range ids {
			key := string(bsonraw.AppendID(nil, bsonraw.FromRaw(id)))
			cand := candidate{suspect: suspect{c, key}, size: c.e.limits.batch / documentsAtOnce}
			if err := c.e.recheck.add(ctx, cand); err != nil {
				return err
			}
		}
		return nil
	}
	return []task{{what: "look at documents of " + c.pair.Source, slots: 1, run: run}}
}

const mostMarked = 1000

// marked checks that the source has none of the documents that the target has marked as deleted.
// Such a document would be there twice, which shards allow, or be hidden by its mark.
func (e *Engine) marked(ctx context.Context, cols []*collection) error {
	for _, c := range cols {
		if c.pair.SoftDelete == "" || e.o.StructureOnly || e.o.sampled() {
			continue
		}
		err := again(ctx, e.o.Log, "look for marked documents of "+c.pair.Target, func() error { return c.marked(ctx) })
		if err != nil {
			return fmt.Errorf("compare the documents of %s that are marked by %s: %w", c.pair.Target, c.pair.SoftDelete, err)
		}
	}
	return nil
}

func (c *collection) marked(ctx context.Context) error {
	cur, err := c.ids(ctx, target, c.isMarked())
	if err != nil {
		return err
	}
	defer func() { _ = cur.Close(context.WithoutCancel(ctx)) }()
	var ids []bson.RawValue
	for more := true; more; {
		if more = cur.Next(ctx); more {
			ids = append(ids, bsonraw.RawValue(bsonraw.Clone(bsonraw.IDOf(cur.Current))))
		}
		if len(ids) == mostMarked || !more {
			if err := c.hidden(ctx, ids); err != nil {
				return err
			}
			ids = ids[:0]
		}
	}
	return cur.Err()
}

// hidden reports marked documents that the source has. While writes go on, one may have come back
// that the target lacks: they are looked at again.
func (c *collection) hidden(ctx context.Context, ids []bson.RawValue) error {
	looks := 1
	if c.e.o.Online {
		looks = int(c.e.o.Recheck.For/c.e.o.Recheck.Every) + 1
	}
	for n := 0; len(ids) > 0 && n < looks; n++ {
		if n > 0 {
			if err := pace.Pause(ctx, c.e.o.Recheck.Every); err != nil {
				return err
			}
			if err := c.e.advance(ctx); err != nil {
				return err
			}
		}
		there, err := c.which(ctx, source, ids, nil)
		if err != nil {
			return err
		}
		if ids, err = c.which(ctx, target, there, c.isMarked()); err != nil {
			return err
		}
	}
	for _, id := range ids {
		doc, err := bson.Marshal(bson.D{{Key: "_id", Value: id}})
		if err != nil {
			return err
		}
		c.add(Extra, keyOf(nil, doc), [2][]byte{nil, doc}, func() bool { return false }, func() string {
			return "marked as deleted, though the source has a document of this _id"
		})
	}
	return nil
}

func (c *collection) ids(ctx context.Context, i int, filter bson.D) (*driver.Cursor, error) {
	db, name := mongo.SplitNS([...]string{c.pair.Source, c.pair.Target}[i])
	byID := bson.D{{Key: "_id", Value: 1}} // also where servers refuse queries without an index (notablescan)
	of := options.Database().SetReadConcern(readconcern.Majority()).SetReadPreference(readpref.Primary())
	return c.e.clusters[i].Client.Database(db, of).Collection(name).Find(ctx, filter,
		options.Find().SetProjection(byID).SetHint(byID))
}

func (c *collection) isMarked() bson.D {
	return bson.D{{Key: c.pair.SoftDelete, Value: bson.D{{Key: "$exists", Value: true}}}}
}

func (c *collection) which(ctx context.Context, i int, ids []bson.RawValue, and bson.D) ([]bson.RawValue, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	docs, err := mongo.ReadAll[bson.Raw](ctx, "read _ids")(
		c.ids(ctx, i, append(bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}, and...)))
	has := map[string]bool{}
	for _, doc := range docs {
		has[delta.KeyOf(bsonraw.IDOf(doc))] = true
	}
	return slices.DeleteFunc(slices.Clone(ids),
		func(id bson.RawValue) bool { return !has[delta.KeyOf(bsonraw.FromRaw(id))] }), err
}
