package lookup

import (
	"errors"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/test/dial"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// TestFind reads documents of a collection by its UUID, whatever its name is by now, as they are at
// a position or later, or at that very one.
func TestFind(t *testing.T) {
	t.Parallel()
	lab.NeedServers(t)
	l := lab.ForTest(t, lab.Options{})
	c, client := dial.Cluster(t, l.URI(), mongo.Options{}), kit.Client(t, l.URI())
	db := client.Database("lookup")
	docs := []any{kit.D("_id", 1, "v", "old", "pad", strings.Repeat("x", 2000)), kit.D("_id", 2.0), kit.D("_id", "three")}
	if _, err := db.Collection("c").InsertMany(t.Context(), docs); err != nil {
		t.Fatal(err)
	}
	specs, err := db.ListCollectionSpecifications(t.Context(), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	of := Collection{DB: "lookup", UUID: *specs[0].UUID}
	rename := bson.D{{Key: "renameCollection", Value: "lookup.c"}, {Key: "to", Value: "lookup.other"}}
	if err := client.Database("admin").RunCommand(t.Context(), rename).Err(); err != nil {
		t.Fatal(err)
	}
	before, err := c.Positions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	set := bson.D{{Key: "$set", Value: kit.D("v", "new")}}
	if _, err := db.Collection("other").UpdateOne(t.Context(), kit.D("_id", 1), set); err != nil {
		t.Fatal(err)
	}
	after, err := c.Positions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ids := []bson.RawValue{kit.Value("three"), kit.Value(4), kit.Value(1), kit.Value(int64(2))}
	found, err := Find(t.Context(), c, of, Question{IDs: ids, At: after.Last})
	if err != nil || len(found) != 4 {
		t.Fatal(found, err)
	}
	if found[1] != nil || found[0].Lookup("_id").StringValue() != "three" || found[2].Lookup("v").StringValue() != "new" ||
		found[3].Lookup("_id").Double() != 2 {
		t.Errorf("not each in its place: %v", found)
	}
	exact := Question{IDs: ids[2:3], At: before.Last, Exact: true}
	if c.Info.Version.AtLeast(5, 0) {
		if found, err = Find(t.Context(), c, of, exact); err != nil || found[0].Lookup("v").StringValue() != "old" {
			t.Errorf("as of the position before: %v, %v", found, err)
		}
		exact.At.TS = bson.Timestamp{T: 1, I: 1}
	}
	if _, err = Find(t.Context(), c, of, exact); !errors.Is(err, ErrForgotten) {
		t.Errorf("of long ago: %v", err)
	}
	if found, err = Find(t.Context(), c, of, Question{IDs: ids[2:3], OnlyIDs: true}); err != nil || len(found[0]) > 20 {
		t.Errorf("the _id alone: %v, %v", found, err)
	}
	for i := range 100 { // more than the first reply holds
		if _, err := db.Collection("other").InsertOne(t.Context(), kit.D("_id", 100+i, "pad", make([]byte,
			1<<10))); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, kit.Value(100+i))
	}
	// One reply is read in any case; with several documents of 300 kB there are more.
	large := make([]bson.RawValue, 80)
	for i := range large {
		large[i] = kit.Value(1000 + i)
		if _, err := db.Collection("other").InsertOne(t.Context(), kit.D("_id", 1000+i, "pad", make([]byte,
			300<<10))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err = Find(t.Context(), c, of, Question{IDs: large, Most: 1 << 20}); !errors.Is(err, ErrTooMuch) {
		t.Errorf("of 24 MB: %v", err)
	}
	if found, err = Find(t.Context(), c, of, Question{IDs: large}); err != nil || found[79] == nil {
		t.Errorf("without bound: %v", err)
	}
	if found, err = Find(t.Context(), c, of, Question{IDs: ids, Most: 1 << 20}); err != nil || found[len(ids)-1] == nil {
		t.Errorf("of 100 kB: %v", err)
	}
	if err := db.Collection("other").Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err = Find(t.Context(), c, of, Question{IDs: ids}); !mongo.IsCode(err, mongo.CodeNamespaceNotFound) {
		t.Errorf("of a collection that was dropped: %v", err)
	}
}

// TestTwice: of a router, which is asked by name, two documents of one _id are an error that says
// what to do. A set is asked by UUID, and has one.
func TestTwice(t *testing.T) {
	id := kit.Raw(kit.D("_id", 1))
	take := func(of Collection) (answer, error) {
		a := answer{of: of, docs: make([]bson.Raw, 1), where: map[string]int{delta.KeyOf(bsonraw.IDOf(id)): 0}}
		if err := a.take(kit.Raw(kit.D("_id", 7))); err != nil || a.docs[0] != nil {
			t.Errorf("nobody has asked for it: %v", err)
		}
		if err := a.take(id); err != nil {
			t.Error(err)
		}
		return a, a.take(id)
	}
	if _, err := take(Collection{DB: "d", Name: "c"}); !errors.Is(err, ErrTwice) || mongo.HintOf(err) == "" ||
		!strings.Contains(err.Error(), "d.c, _id") {
		t.Errorf("of a router: %v", err)
	}
	if a, err := take(Collection{DB: "d", UUID: bson.Binary{Data: make([]byte, 16)}}); err != nil || a.bytes != 2*len(id) {
		t.Errorf("of a set: %v, %d bytes", err, a.bytes)
	}
}
