package query_test

import (
	"context"
	"maps"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/query"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/wire"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
)

// TestSent: where wild filters are sent along with the find of a walk in record order, the
// documents that come and are kept here are those that are kept here of all.
func TestSent(t *testing.T) {
	lab.NeedServers(t)
	for _, version := range lab.Versions("4.4", "5.0") {
		t.Run(version, func(t *testing.T) { testSent(t, lab.ForTest(t, lab.Options{CacheGB: 0.25, Version: version})) })
	}
}

func testSent(t *testing.T, l *lab.Cluster) {
	c, err := mongo.Connect(t.Context(), l.URI(), mongo.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	conn, err := c.Pool.Checkout(t.Context(), wire.Primary())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	s := sending{T: t, c: c, r: &scan.Reader{Conn: conn}}
	defer func() { _ = c.Client.Database("sent").Drop(context.Background()) }()
	w := query.NewWild(t)
	rounds := 1
	if lab.InMatrix() {
		rounds = 4
	}
	for range testseed.Rounds(t, rounds) {
		s.fill(w.Documents(t, 320))
		for range 80 {
			s.compare(w.Filter(t))
		}
		for _, text := range []string{`{}`, `{"$comment": "none"}`, `{"$or": [{"$comment": "none", "a": 1}, {"b": null}]}`,
			`{"_id": null}`, `{"_id": {"$in": [5, 300]}}`, `{"_id": 7}`,
			`{"long": {"$regex": ".*.*d|c"}}`, `{"$and": [{"$or": [{"a": 1}, {"a": 2}]}, {"$nor": [{"b": 1}]}]}`,
			`{"a": {"$in": [null]}}`, `{"a": {"$ne": null}}`, `{"a": {"$in": []}}`} {
			var filter bson.Raw
			if err := bson.UnmarshalExtJSON([]byte(text), true, &filter); err != nil {
				t.Fatal(err)
			}
			s.compare(filter)
		}
	}
	t.Logf("%d filters, by %d of which documents were left out", s.filters, s.sifted)
	if s.sifted*3 < s.filters {
		t.Error("too few filters were sent")
	}
}

// sending compares filters that are sent with those that are not.
type sending struct {
	*testing.T
	c               *mongo.Cluster
	r               *scan.Reader
	col             schema.Collection
	docs            []bson.Raw
	filters, sifted int
}

// fill makes the collection of the documents and of some more: two whose _ids are not
// numbers, and one with a text on which a server gives up.
func (s *sending) fill(docs []bson.Raw) {
	s.Helper()
	for _, id := range []any{nil, bson.D{{Key: "a", Value: 1}}} {
		doc, err := bson.Marshal(bson.D{{Key: "_id", Value: id}, {Key: "a", Value: 1}})
		if err != nil {
			s.Fatal(err)
		}
		docs = append(docs, doc)
	}
	long, err := bson.Marshal(bson.D{{Key: "_id", Value: "long"}, {Key: "long", Value: strings.Repeat("a", 2000) + "c"}})
	if err != nil {
		s.Fatal(err)
	}
	docs = append(docs, long)
	coll := s.c.Client.Database("sent").Collection("wild")
	if err := coll.Drop(s.Context()); err != nil {
		s.Fatal(err)
	}
	if _, err := coll.InsertMany(s.Context(), docs); err != nil {
		s.Fatal(err)
	}
	s.docs = docs
	s.col = schema.Collection{NS: "sent.wild", Type: schema.TypeCollection, IDIndex: true, Count: int64(len(docs))}
}

// compare walks the collection with a filter.
func (s *sending) compare(filter bson.Raw) {
	s.Helper()
	q, err := query.Parse(filter)
	if err != nil || !q.OfAll() {
		return
	}
	want, got := map[string]bool{}, map[string]bool{}
	for _, doc := range s.docs {
		if q.Match(doc) {
			want[string(bsonraw.AppendID(nil, bsonraw.IDOf(doc)))] = true
		}
	}
	match := func(doc []byte) bool { return q.Match(doc) }
	walk := s.r.Walk(&s.col, &scan.Slice{Strategy: scan.ByRecord},
		scan.Want{Batch: 40, Measure: true, Keep: match, Prefilter: &scan.Prefilter{Filter: filter, Match: match}})
	defer walk.Close(s.Context())
	docs := 0
	for {
		p, err := walk.Next(s.Context())
		if err != nil {
			s.Fatalf("%s: %v", filter, err)
		}
		if p == nil {
			break
		}
		docs += p.Docs
		_ = p.Each(func(doc []byte) error { got[string(bsonraw.AppendID(nil, bsonraw.IDOf(doc)))] = true; return nil })
	}
	s.filters++
	if docs < len(s.docs) {
		s.sifted++
	}
	if !maps.Equal(got, want) {
		s.Errorf("%s\nof %d documents %d came and %d of them were kept", filter, len(want), docs, len(got))
	}
}
