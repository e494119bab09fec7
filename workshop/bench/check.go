package bench

import (
	"bytes"
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// sampled is how many documents are compared byte for byte after a round.
const sampled = 200

// complete checks that the target is at the end of the backlog: the number of
// documents, and the bytes of some.
func (w *incrWork) complete(ctx context.Context) error { return w.completeAs(ruled{})(ctx) }

// completeAs is complete after a rule.
func (w *incrWork) completeAs(r ruled) func(context.Context) error {
	return func(ctx context.Context) error {
		n, err := w.target.count(ctx, w.load.collections)
		if err != nil {
			return err
		}
		if n != int64(len(w.final)) {
			return fmt.Errorf("the target has %d documents, and should have %d", n, len(w.final))
		}
		for i := 0; i < len(w.final); i += len(w.final)/sampled + 1 {
			c := &w.final[i]
			doc := w.load.shape.appendDoc(nil, c.key, c.version[:])
			if err := w.target.has(ctx, collection(int(c.key)%w.load.collections), doc, r); err != nil {
				return err
			}
		}
		return nil
	}
}

// has checks one document, byte for byte, as it is after a rule.
func (s *side) has(ctx context.Context, in string, doc bson.Raw, r ruled) (err error) {
	id := doc.Lookup("_id")
	raw, err := s.direct.Command(ctx, dataDB, bson.D{
		{Key: "find", Value: in}, {Key: "singleBatch", Value: true}, {Key: "filter", Value: bson.D{{Key: "_id", Value: id}}},
	})
	if err != nil {
		return err
	}
	if r.becomes != nil {
		if doc, err = r.becomes(doc); err != nil {
			return err
		}
	}
	got, ok := raw.Lookup("cursor", "firstBatch", "0").DocumentOK()
	if !ok || !bytes.Equal(got, doc) {
		return fmt.Errorf("document %s of the target is not as it should be", id)
	}
	return nil
}
