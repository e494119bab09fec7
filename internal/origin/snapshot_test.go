package origin

import (
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/shards"
)

// TestCopiesWhereStarted: a stream that begins in the middle of a movePrimary knows the
// copies, whichever of the two the router showed.
func TestCopiesWhereStarted(t *testing.T) {
	coll := func(id byte) []schema.Collection {
		uuid := func(n byte) bson.Binary { return bson.Binary{Subtype: 4, Data: append(make([]byte, 15), n)} }
		return []schema.Collection{{NS: "d.u", UUID: uuid(id)}, {NS: "d.other", UUID: uuid(9)}}
	}
	for _, c := range []struct{ seen, copy byte }{{1, 2}, {2, 1}} {
		got := copiesOf(coll(c.seen)[:1], [][]schema.Collection{coll(1), coll(2), nil})
		want := []shards.Copy{{NS: "d.u", ID: [16]byte{15: c.copy}, Of: [16]byte{15: c.seen}}}
		if !slices.Equal(got, want) {
			t.Errorf("seen %d: %v, want %v", c.seen, got, want)
		}
	}
}
