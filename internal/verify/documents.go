package verify

import (
	"context"

	"github.com/millrace/millrace/internal/bsonraw"
)

// documentsAtOnce is how many documents of unknown size are looked at together.
const documentsAtOnce = 16

// documents has single documents be looked at until they are decided, as those that a
// scan found to differ.
func (c *collection) documents() []task {
	ids := c.e.o.Documents[c.pair.SourceNS]
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
	return []task{{what: "look at documents of " + c.pair.SourceNS, slots: 1, run: run}}
}
