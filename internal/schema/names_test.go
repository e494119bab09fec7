package schema

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// TestRenamedByItsNewUUID: a shard tells of a rename of what has moved to it, by the UUID
// that the collection got there.
func TestRenamedByItsNewUUID(t *testing.T) {
	rules, err := transform.New(transform.Config{})
	if err != nil {
		t.Fatal(err)
	}
	uuid := func(n byte) bson.Binary { return bson.Binary{Subtype: 4, Data: append(make([]byte, 15), n)} }
	names := NewNames([]Name{{NS: "d.u", Target: "d.u", Type: TypeCollection, UUID: uuid(1)}})
	names.Change(names.After(stream.Change{Kind: stream.ChangeRename, NS: "d.u", To: "d.v", UUID: uuid(2)}, rules))
	if one, ok := names.Source("d.v"); !ok || !one.UUID.Equal(uuid(2)) {
		t.Errorf("%+v", one)
	}
}

// TestLeftByItsRename: whether the target goes on having a collection under the name of
// before depends on what it had there when the rename was left out.
func TestLeftByItsRename(t *testing.T) {
	rules, err := transform.New(transform.Config{Skip: []string{"*.*=rename"}})
	if err != nil {
		t.Fatal(err)
	}
	uuid := func(n byte) bson.Binary { return bson.Binary{Subtype: 4, Data: append(make([]byte, 15), n)} }
	names := NewNames([]Name{{NS: "d.a", Target: "d.a", Type: TypeCollection, UUID: uuid(1),
		Copied: mongo.OpTime{TS: bson.Timestamp{T: 7}}}})
	for _, step := range []struct {
		from, to string
		left     bool
	}{
		{"d.a", "e.a", true},
		{"e.a", "f.a", false}, // the target has nothing under e.a
	} {
		rename := stream.Change{Kind: stream.ChangeRename, NS: step.from, To: step.to, UUID: uuid(1)}
		for _, what := range []string{"first", "once more after a crash"} {
			names.Change(names.After(rename, rules))
			if one, ok := names.Source(step.to); !ok || !one.Gone || one.Left != step.left || !names.Missing(step.to) {
				t.Errorf("%s to %s, %s: %+v", step.from, step.to, what, one)
			}
		}
	}
}

// TestMissing: what was left out stays so under the next name, which no rule is about.
func TestMissing(t *testing.T) {
	rules, err := transform.New(transform.Config{Skip: []string{"d.*=rename"}})
	if err != nil {
		t.Fatal(err)
	}
	uuid := bson.Binary{Subtype: 4, Data: make([]byte, 16)}
	names := NewNames([]Name{{NS: "d.a", Target: "d.a", Type: TypeCollection, UUID: uuid,
		Copied: mongo.OpTime{TS: bson.Timestamp{T: 7}}}})
	for _, step := range [][2]string{{"d.a", "e.a"}, {"e.a", "f.a"}} {
		names.Change(names.After(stream.Change{Kind: stream.ChangeRename, NS: step[0], To: step[1], UUID: uuid}, rules))
		if !names.Missing(step[1]) {
			one, _ := names.Source(step[1])
			t.Errorf("%s is not missing: %+v", step[1], one)
		}
	}
}
