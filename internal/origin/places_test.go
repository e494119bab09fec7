package origin

import (
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/source/shards"
)

func uuid(n byte) bson.Binary {
	return bson.Binary{Subtype: bson.TypeBinaryUUID, Data: append(make([]byte, 15), n)}
}

// TestMissingShards: shards that have joined, and those that have left.
func TestMissingShards(t *testing.T) {
	a, b, c := shards.Shard{Name: "a"}, shards.Shard{Name: "b"}, shards.Shard{Name: "c"}
	if got := missing([]shards.Shard{a, b, c}, []shards.Shard{c, a}); !slices.Equal(got, []string{"b"}) {
		t.Errorf("missing %v", got)
	}
	if got := missing([]shards.Shard{a}, []shards.Shard{c, a}); got != nil {
		t.Errorf("missing %v", got)
	}
}
