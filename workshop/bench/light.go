package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// lightText describes the load of startLight.
const lightText = "while 100 documents a second are updated all over, and 100 inserted elsewhere"

// light writes at a slow pace until it is stopped.
type light struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	err    error
}

// startLight begins to write to the source: updates of a dataset's documents,
// and inserts into another collection.
func startLight(ctx context.Context, to *side, d dataset) *light {
	ctx, cancel := context.WithCancel(ctx)
	l := &light{cancel: cancel}
	l.wg.Go(func() {
		ticks := time.NewTicker(10 * time.Millisecond)
		defer ticks.Stop()
		for n := uint32(0); ; n++ {
			select {
			case <-ctx.Done():
				return
			case <-ticks.C:
			}
			if err := lightWrite(ctx, to, d, n); err != nil {
				if ctx.Err() == nil {
					l.err = fmt.Errorf("write to the source: %w", err)
				}
				return
			}
		}
	})
	return l
}

// stop ends the load; the error is why it ended before.
func (l *light) stop() error {
	l.cancel()
	l.wg.Wait()
	return l.err
}

func lightWrite(ctx context.Context, to *side, d dataset, n uint32) error {
	key := uint32(mix(uint64(n)) % uint64(d.docs))
	version := n + 1
	id, field := bson.Raw(d.shape.appendDoc(nil, key, nil)).Lookup("_id"), int(n)%d.shape.fields
	i, set := bsoncore.AppendDocumentStart(nil)
	set, err := bsoncore.AppendDocumentEnd(d.shape.field(d.shape, set, key, field, version), i)
	if err != nil {
		return err
	}
	concern := bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: 1}}}
	raw, err := to.direct.Command(ctx, dataDB, bson.D{{Key: "update", Value: collection(int(key) % d.collections)}, {Key: "updates", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{{Key: "_id", Value: id}}},
		{Key: "u", Value: bson.D{{Key: "$set", Value: bson.Raw(set)}}},
	}}}, concern})
	if err != nil {
		return err
	}
	if n, _ := raw.Lookup("n").AsInt64OK(); n != 1 {
		return fmt.Errorf("document %s is not in %s", id, collection(int(key)%d.collections))
	}
	_, err = to.direct.Command(ctx, dataDB, bson.D{{Key: "insert", Value: "light"}, {Key: "documents", Value: bson.A{
		bson.D{{Key: "pad", Value: bson.Binary{Data: d.shape.bytes(key, 0, version, ycsbFieldSize)}}}}}, concern})
	return err
}
