package expiry

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

func TestExpired(t *testing.T) {
	s := Settings{{Field: "at", Seconds: 10}, {Field: "a.b", Only: kit.Raw(bson.D{{Key: "s", Value: "open"}})}}
	for doc, want := range map[string]bool{
		`{"at":{"$date":{"$numberLong":"5000"}}}`:                                  true,
		`{"at":{"$date":{"$numberLong":"11000"}}}`:                                 true, // within the slack
		`{"at":{"$date":{"$numberLong":"11001"}}}`:                                 false,
		`{"at":[{"$date":{"$numberLong":"99000"}},{"$date":{"$numberLong":"1"}}]}`: true,
		`{"at":5}`: false, `{"at":null}`: false, `{}`: false, `{"at":{"$timestamp":{"t":1,"i":1}}}`: false,
		`{"a":{"b":{"$date":{"$numberLong":"20000"}}}}`:                      false,
		`{"s":"open","a":[{"c":1},{"b":{"$date":{"$numberLong":"20000"}}}]}`: true,
	} {
		var d bson.Raw
		if err := bson.UnmarshalExtJSON([]byte(doc), false, &d); err != nil {
			t.Fatal(err)
		}
		if got := s.Expired(d, 20_000); got != want {
			t.Errorf("%s: %v", doc, got)
		}
	}
	if (Settings{}).Expired(kit.Raw(bson.D{}), 1) {
		t.Error("without settings nothing expires")
	}
	if err := s.Check(false); err != nil {
		t.Error(err)
	}
	if err := s.Check(true); err == nil || !strings.Contains(err.Error(), `"a.b"`) {
		t.Errorf("text under a collation: %v", err)
	}
	near := Settings{{Field: "p", Only: kit.Raw(bson.D{{Key: "p", Value: bson.D{{Key: "$geoWithin", Value: bson.D{}}}}})}}
	if err := near.Check(false); err == nil {
		t.Error("places cannot be compared here")
	}
}

// TestServer: what a server deletes because it has expired is what Expired says of its
// documents, and what a deletion of live documents leaves.
func TestServer(t *testing.T) {
	for _, version := range lab.Versions("4.2", "4.4", "5.0") {
		t.Run(version, func(t *testing.T) {
			c := lab.ForTest(t, lab.Options{CacheGB: 0.25, Version: version,
				SetParameters: map[string]string{"ttlMonitorSleepSecs": "1"}})
			client, err := mongo.Connect(options.Client().ApplyURI(c.URI()))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = client.Disconnect(context.Background()) })
			testServer(t, client.Database("expiry"))
		})
	}
}

func testServer(t *testing.T, db *mongo.Database) {
	now := time.Now()
	at := func(d time.Duration) bson.DateTime { return bson.NewDateTimeFromTime(now.Add(d)) }
	past, future := at(-2*time.Hour), at(2*time.Hour)
	values := []any{past, future, at(-30 * time.Minute), nil, int64(past), "text", bson.Timestamp{T: 1}, bson.MinKey{},
		bson.MaxKey{}, bson.DateTime(0), bson.DateTime(-1 << 61),
		bson.A{future, past}, bson.A{future}, bson.A{}, bson.A{past, "text"}, bson.A{bson.A{past}},
		bson.D{{Key: "b", Value: past}},
		bson.A{bson.D{{Key: "b", Value: past}}, bson.D{{Key: "b", Value: future}}},
		bson.A{bson.D{{Key: "b", Value: bson.A{past}}}}}
	only := bson.D{{Key: "s", Value: bson.D{{Key: "$gt", Value: 1}}}}
	settings := Settings{{Field: "at", Seconds: 3600}, {Field: "at.b", Seconds: 3600},
		{Field: "by", Seconds: 3600, Only: kit.Raw(only)}}
	var docs []any
	for i, v := range values {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "at", Value: v}})
		docs = append(docs, bson.D{{Key: "_id", Value: 100 + i}, {Key: "by", Value: v}, {Key: "s", Value: i % 4}})
	}
	docs = append(docs, bson.D{{Key: "_id", Value: 200}})
	fill := func(name string) *mongo.Collection {
		if _, err := db.Collection(name).InsertMany(t.Context(), docs); err != nil {
			t.Fatal(err)
		}
		return db.Collection(name)
	}
	left := func(c *mongo.Collection) (ids []int32) {
		cur, err := c.Find(t.Context(), bson.D{})
		if err != nil {
			t.Fatal(err)
		}
		var found []struct {
			ID int32 `bson:"_id"`
		}
		if err := cur.All(t.Context(), &found); err != nil {
			t.Fatal(err)
		}
		for _, d := range found {
			ids = append(ids, d.ID)
		}
		slices.Sort(ids)
		return ids
	}
	monitored := fill("monitored")
	for i, s := range settings {
		index := bson.D{{Key: "key", Value: bson.D{{Key: s.Field, Value: 1}}}, {Key: "name", Value: fmt.Sprint(i)},
			{Key: "expireAfterSeconds", Value: s.Seconds}}
		if s.Only != nil {
			index = append(index, bson.E{Key: "partialFilterExpression", Value: s.Only})
		}
		if err := db.RunCommand(t.Context(), bson.D{{Key: "createIndexes", Value: "monitored"},
			{Key: "indexes", Value: bson.A{index}}}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	var live, dead []int32
	for _, d := range docs {
		doc := kit.Raw(d)
		if id := doc.Lookup("_id").Int32(); settings.Expired(doc, now.UnixMilli()) {
			dead = append(dead, id)
		} else {
			live = append(live, id)
		}
	}
	slices.Sort(live)
	slices.Sort(dead)
	if len(dead) < 8 || len(live) < 8 {
		t.Fatalf("%v expired, %v did not", dead, live)
	}
	// One deletes the documents that have not expired, the monitor the others.
	i, filter := bsoncore.AppendDocumentStart(nil)
	filter, err := bsoncore.AppendDocumentEnd(settings.AppendLive(filter, now.UnixMilli()), i)
	if err != nil {
		t.Fatal(err)
	}
	deleted := fill("deleted")
	if _, err := deleted.DeleteMany(t.Context(), bson.Raw(filter)); err != nil {
		t.Fatal(err)
	}
	if got := left(deleted); !slices.Equal(got, dead) {
		t.Errorf("a deletion of live documents leaves %v, want %v", got, dead)
	}
	passes := func() int64 {
		r, err := db.RunCommand(t.Context(), bson.D{{Key: "serverStatus", Value: 1}}).Raw()
		if err != nil {
			t.Fatal(err)
		}
		return r.Lookup("metrics", "ttl", "passes").AsInt64()
	}
	for first := passes(); passes() < first+2; time.Sleep(50 * time.Millisecond) {
		if t.Context().Err() != nil {
			t.Fatal(t.Context().Err())
		}
	}
	if got := left(monitored); !slices.Equal(got, live) {
		t.Errorf("the monitor leaves %v, want %v", got, live)
	}
}
