package sharded_test

import (
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// TestIndexOnOneShard: indexes that one shard of the source could build and another could
// not, before the job and during it. No document is taken off the target for them. One that
// the other shard gets later is on the target then; of one that it does not get the
// comparison tells.
func TestIndexOnOneShard(t *testing.T) {
	for _, policy := range []deadletter.Policy{deadletter.Stop, deadletter.Overwrite} {
		t.Run(string(policy), func(t *testing.T) { testIndexOnOneShard(newBed(t), policy) })
	}
}

func testIndexOnOneShard(b *bed, policy deadletter.Policy) {
	ctx, names := b.Context(), b.lab.ShardNames()
	b.ok(b.lab.CreateDatabase(ctx, "d", names[0]))
	b.ok(b.lab.ShardCollection(ctx, "d.ranged", sharded.Sharding{Key: bson.D{{Key: "k", Value: 1}}}))
	b.ok(b.lab.Split(ctx, "d.ranged", key(100)))
	b.ok(b.lab.MoveChunk(ctx, "d.ranged", key(150), names[1]))
	arrays := bson.A{1, 2}
	_, err := b.source.Database("d").Collection("ranged").InsertMany(ctx, []any{
		bson.D{{Key: "_id", Value: 1}, {Key: "k", Value: 1}},
		bson.D{{Key: "_id", Value: 11}, {Key: "k", Value: 150}},
		bson.D{{Key: "_id", Value: 12}, {Key: "k", Value: 150}},
		bson.D{{Key: "_id", Value: 13}, {Key: "k", Value: 151}, {Key: "a", Value: arrays}, {Key: "b", Value: arrays}},
	})
	b.ok(err)
	var shards []*driver.Collection
	for _, s := range b.lab.Shards() {
		shards = append(shards, b.client(s.URI()).Database("d").Collection("ranged"))
	}
	index := func(shard int, name string, unique bool, keys ...string) {
		b.Helper()
		model := driver.IndexModel{Options: options.Index().SetName(name)}
		of := bson.D{}
		for _, k := range keys {
			of = append(of, bson.E{Key: k, Value: 1})
		}
		if model.Keys = of; unique {
			model.Options.SetUnique(true)
		}
		_, err := shards[shard].Indexes().CreateOne(ctx, model)
		b.ok(err)
	}
	index(0, "before", true, "k", "u")
	spec := b.spec()
	spec.OnConflict = policy
	first, ended, breakOff := b.begin(spec)
	b.following(first, ended)
	breakOff()
	index(0, "during", true, "k", "v")
	index(0, "arrays", false, "a", "b")
	index(0, "after", false, "after")
	source := b.source.Database("d").Collection("ranged")
	_, err = source.UpdateOne(ctx, bson.D{{Key: "_id", Value: 11}, {Key: "k", Value: 150}},
		bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
	b.ok(err)

	j, done := b.start(spec)
	b.until(done, func() bool { return slices.Contains(b.indexesOf("ranged"), "after") })
	b.following(j, done)
	if has := b.indexesOf("ranged"); slices.Contains(has, "before") || slices.Contains(has, "during") ||
		slices.Contains(has, "arrays") {
		b.Errorf("the target has indexes %v", has)
	}
	_, err = source.DeleteOne(ctx, bson.D{{Key: "_id", Value: 12}, {Key: "k", Value: 150}})
	b.ok(err)
	index(1, "before", true, "k", "u")
	index(1, "during", true, "k", "v")
	b.until(done, func() bool {
		has := b.indexesOf("ranged")
		return slices.Contains(has, "before") && slices.Contains(has, "during")
	})
	b.ok(j.Finalize(ctx, true))
	b.ok(<-done)
	if st := j.Status(); len(st.Differences) != 1 || !strings.Contains(st.Differences[0], "index arrays") {
		b.Errorf("the comparison tells of %v", st.Differences)
	}
	if left, err := b.target.Database("millrace").Collection("held").CountDocuments(ctx, bson.D{}); err != nil ||
		left > 0 {
		b.Errorf("%d indexes are to be built still, %v", left, err)
	}
	b.sameDocuments("ranged")
}

// indexesOf names the indexes of a collection of the target.
func (b *bed) indexesOf(name string) (names []string) {
	b.Helper()
	specs, err := b.target.Database("d").Collection(name).Indexes().ListSpecifications(b.Context())
	b.ok(err)
	for _, s := range specs {
		names = append(names, s.Name)
	}
	return names
}
