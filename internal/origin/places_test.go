package origin

import (
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/shards"
)

func at(n uint32) mongo.OpTime { return mongo.OpTime{TS: bson.Timestamp{T: n}, Term: -1} }

func uuid(n byte) bson.Binary {
	return bson.Binary{Subtype: bson.TypeBinaryUUID, Data: append(make([]byte, 15), n)}
}

// TestPlacesHas: a sharded collection is where it belongs on any shard, another one on its
// database's own; where that is not known, on any.
func TestPlacesHas(t *testing.T) {
	p := &Places{primary: map[string]string{"d": "s0"}, sharded: map[[16]byte]bool{{15: 1}: true}}
	on := func(shard string, id byte) map[string]map[[16]byte]bool {
		all := map[string]map[[16]byte]bool{"s0": {}, "s1": {}}
		all[shard][[16]byte{15: id}] = true
		return all
	}
	for _, c := range []struct {
		ns    string
		id    byte
		shard string
		want  bool
	}{{"d.sharded", 1, "s1", true}, {"d.c", 2, "s0", true}, {"d.c", 2, "s1", false}, {"other.c", 2, "s1", true}} {
		one := schema.Collection{NS: c.ns, UUID: uuid(c.id)}
		if got := p.has(one, on(c.shard, c.id)); got != c.want {
			t.Errorf("%s on %s: %t", c.ns, c.shard, got)
		}
		if p.has(one, on(c.shard, 9)) {
			t.Errorf("%s is nowhere", c.ns)
		}
	}
	if !p.Sharded(uuid(1)) || p.Sharded(uuid(2)) || p.Sharded(bson.Binary{}) {
		t.Error("what is sharded")
	}
	if s, ok := p.Primary("d"); s != "s0" || !ok {
		t.Errorf("%q has the database", s)
	}
	if _, ok := p.Primary("other"); ok {
		t.Error("nothing says who has the database")
	}
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

// TestChunkSince: a chunk whose newest history is another shard's may have come at any time.
func TestChunkSince(t *testing.T) {
	c := chunkOf(0, 1, "s0", 1, 77)
	if c.since().T != 77 {
		t.Errorf("since %v", c.since())
	}
	if c.Shard = "s1"; c.since().T != 1<<32-1 {
		t.Errorf("since %v though that was another shard", c.since())
	}
}
