package ownership

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
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
		db, _ := mongo.SplitNS(c.ns)
		if got := p.Has(db, uuid(c.id), on(c.shard, c.id)); got != c.want {
			t.Errorf("%s on %s: %t", c.ns, c.shard, got)
		}
		if p.Has(db, uuid(c.id), on(c.shard, 9)) {
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
