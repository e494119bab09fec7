package mongosink

import (
	"maps"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
)

func at(n int) mongo.OpTime {
	return mongo.OpTime{TS: bson.Timestamp{T: uint32(n), I: 1}, Term: 1}
}

// TestCappedStartPasses: the events up to a position, and a number of further
// ones, are on the target.
func TestCappedStartPasses(t *testing.T) {
	s := &CappedStart{Past: at(5), Then: 2}
	for i, c := range []struct {
		at   int
		pass bool
	}{{3, true}, {5, true}, {6, true}, {6, true}, {6, false}, {7, false}} {
		if got := s.passes(at(c.at)); got != c.pass {
			t.Errorf("event %d at %d: %v", i, c.at, got)
		}
	}
}

// TestCappedStartsRenamed: what is known of a collection follows its name, and a
// rename that a restart repeats does not forget what is known since.
func TestCappedStartsRenamed(t *testing.T) {
	given := map[string]CappedStart{"d.a": {Past: at(1)}, "d.b": {Past: at(9)}, "d.c": {Past: at(3)}}
	before := maps.Clone(given)
	for _, c := range []struct {
		name, from, to string
		at             int
		want           map[string]int // Past by name
	}{
		{"to a new name", "d.a", "d.x", 5, map[string]int{"d.x": 1, "d.b": 9, "d.c": 3}},
		{"over another", "d.a", "d.b", 5, map[string]int{"d.b": 1, "d.c": 3}},
		{"dropped", "d.a", "", 5, map[string]int{"d.b": 9, "d.c": 3}},
		{"nothing known of it, over an older one", "d.y", "d.c", 5, map[string]int{"d.a": 1, "d.b": 9}},
		{"repeated, the other is newer", "d.y", "d.b", 5, map[string]int{"d.a": 1, "d.b": 9, "d.c": 3}},
	} {
		starts := newCappedStarts(given)
		starts.renamed(c.from, c.to, at(c.at))
		if len(starts) != len(c.want) {
			t.Errorf("%s: %d are left, want %d", c.name, len(starts), len(c.want))
		}
		for ns, past := range c.want {
			if s := starts[ns]; s == nil || s.Past != at(past) {
				t.Errorf("%s: %s starts at %v, want %d", c.name, ns, s, past)
			}
		}
		for _, s := range starts {
			s.passes(at(100))
		}
	}
	if !maps.Equal(given, before) {
		t.Error("the caller's map was changed")
	}
}
