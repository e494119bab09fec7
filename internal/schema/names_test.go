package schema

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

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
