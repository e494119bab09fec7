package verify

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/transform"
)

// documentsAtOnce is how many documents of unknown size are looked at together.
const documentsAtOnce = 16

// Documents are single documents of one collection.
type Documents struct {
	// UUID is that of the source's collection in which the documents were found; empty
	// where the source had none of that name. Under any other UUID nothing is compared.
	UUID bson.Binary
	IDs  []bson.RawValue
}

// identities returns an error where a name of Options.Documents means another collection
// of the source, by the UUIDs that names have now, than the one in which the documents were found.
func (e *Engine) identities(now map[string]bson.Binary) error {
	for _, ns := range slices.Sorted(maps.Keys(e.o.Documents)) {
		if err := sameIdentity(ns, e.o.Documents[ns].UUID, now[ns]); err != nil {
			return err
		}
	}
	return nil
}

func sameIdentity(ns string, was, is bson.Binary) error {
	var why string
	switch {
	case bytes.Equal(was.Data, is.Data):
		return nil
	case len(is.Data) == 0:
		why = fmt.Sprintf("the source has no collection of that name any more (UUID %x)", was.Data)
	case len(was.Data) == 0:
		why = fmt.Sprintf("on the source the name means a collection (UUID %x) that is not the one in which they were found,"+
			" or an older release found them", is.Data)
	default:
		why = fmt.Sprintf("on the source the name means another collection now (UUID %x) than when they were found (UUID %x)",
			is.Data, was.Data)
	}
	return mongo.WithHint(fmt.Errorf("cannot compare documents of %s: %s", ns, why),
		"verify again, and go on with what that finds")
}

// stillThose lists the source once more after the comparison: a name that changed its
// meaning meanwhile had documents of another collection compared.
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

// documents has single documents be looked at until they are decided, as those that a
// scan found to differ.
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
