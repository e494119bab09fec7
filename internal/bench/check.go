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
func (w *incrWork) complete(ctx context.Context) error {
	n, err := w.target.count(ctx, w.load.collections)
	if err != nil {
		return err
	}
	if n != int64(len(w.final)) {
		return fmt.Errorf("the target has %d documents, and should have %d", n, len(w.final))
	}
	for i := 0; i < len(w.final); i += len(w.final)/sampled + 1 {
		if err := w.same(ctx, &w.final[i]); err != nil {
			return err
		}
	}
	return nil
}

func (w *incrWork) same(ctx context.Context, c *change) error {
	want := bson.Raw(w.load.shape.appendDoc(nil, c.key, c.version[:]))
	raw, err := w.target.direct.Command(ctx, dataDB, bson.D{
		{Key: "find", Value: collection(int(c.key) % w.load.collections)}, {Key: "singleBatch", Value: true},
		{Key: "filter", Value: bson.D{{Key: "_id", Value: want.Lookup("_id")}}},
	})
	if err != nil {
		return err
	}
	got, ok := raw.Lookup("cursor", "firstBatch", "0").DocumentOK()
	if !ok || !bytes.Equal(got, want) {
		return fmt.Errorf("document %s is not as it should be", want.Lookup("_id"))
	}
	return nil
}
