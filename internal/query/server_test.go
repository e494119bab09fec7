package query

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/lab"
)

// server is a real mongod that says what is right.
type server struct {
	*testing.T
	db      *mongo.Database
	version string
}

// TestServer holds everything that asks a real server.
func TestServer(t *testing.T) {
	for _, version := range lab.Versions("4.2", "4.4", "5.0") {
		t.Run(version, func(t *testing.T) {
			c := lab.ForTest(t, lab.Options{CacheGB: 0.25, Version: version})
			client, err := mongo.Connect(options.Client().ApplyURI(c.URI()))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = client.Disconnect(context.Background()) })
			db := client.Database("query")
			t.Run("tables", func(t *testing.T) { testTables(server{t, db, version}) })
			t.Run("regexes", func(t *testing.T) { testRegexes(server{t, db, version}) })
			t.Run("filters", func(t *testing.T) { testFilters(server{t, db, version}) })
		})
	}
}

// fill makes a collection of the documents.
func (s server) fill(name string, docs []bson.Raw) *mongo.Collection {
	s.Helper()
	coll := s.db.Collection(name)
	if err := coll.Drop(s.Context()); err != nil {
		s.Fatal(err)
	}
	if _, err := coll.InsertMany(s.Context(), docs); err != nil {
		s.Fatal(err)
	}
	return coll
}

// find are the ids, int32s all of them, that the server returns for a filter.
func (s server) find(coll string, filter bson.Raw) (map[int32]bool, error) {
	var reply struct {
		Cursor struct {
			ID         int64 `bson:"id"`
			FirstBatch []struct {
				ID int32 `bson:"_id"`
			} `bson:"firstBatch"`
		} `bson:"cursor"`
	}
	cmd := d("find", coll, "filter", filter, "projection", d("_id", 1), "batchSize", 10000)
	if err := s.db.RunCommand(s.Context(), cmd).Decode(&reply); err != nil {
		return nil, err
	}
	ids := map[int32]bool{}
	for _, doc := range reply.Cursor.FirstBatch {
		ids[doc.ID] = true
	}
	return ids, nil
}

func matches(q *Query, docs []bson.Raw) map[int32]bool {
	ids := map[int32]bool{}
	for _, doc := range docs {
		if q.Match(doc) {
			ids[doc.Lookup("_id").Int32()] = true
		}
	}
	return ids
}

// outcomes counts what became of filters.
type outcomes struct{ some, none, all, bothRefuse, weRefuse, serverRefuses int }

// compare holds what a server finds against what Match keeps.
func (o *outcomes) compare(s server, coll string, docs []bson.Raw, filter bson.Raw) {
	q, err := Parse(filter)
	if err == nil && q.HasMod() && s.version < "5" {
		return // see HasMod
	}
	want, serverErr := s.find(coll, filter)
	switch {
	case err != nil && serverErr != nil:
		o.bothRefuse++
		return
	case err != nil:
		o.weRefuse++
		if testing.Verbose() {
			s.Logf("only we refuse: %v", err)
		}
		return
	case serverErr != nil:
		o.serverRefuses++
		s.Errorf("%s\nwe take it, the server says %v", filter, serverErr)
		return
	}
	switch len(want) {
	case 0:
		o.none++
	case len(docs):
		o.all++
	default:
		o.some++
	}
	if got := matches(q, docs); !maps.Equal(got, want) {
		s.Error(difference(filter, docs, got, want))
	}
}

func difference(filter bson.Raw, docs []bson.Raw, got, want map[int32]bool) string {
	out, shown := fmt.Sprintf("%s\n", filter), 0
	for _, doc := range docs {
		id := doc.Lookup("_id").Int32()
		if got[id] != want[id] && shown < 3 {
			shown++
			out += fmt.Sprintf("the server %v, we %v: %s\n", want[id], got[id], doc)
		}
	}
	return out
}

// testFilters: wild filters on wild documents find the same on the server and here.
func testFilters(s server) {
	g := newGen(seedOf(s.T))
	var o outcomes
	for range roundsOf(s.T, 3) {
		g.docs = nil
		var docs []bson.Raw
		for i := range 80 {
			docs = append(docs, raw(s, g.document(i)))
		}
		s.fill("wild", docs)
		for range 400 {
			o.compare(s, "wild", docs, raw(s, g.filter(2)))
		}
		if s.Failed() {
			break
		}
	}
	s.Logf("%+v", o)
	if total := o.some + o.none + o.all; o.some*3 < total || o.weRefuse*10 > total {
		s.Errorf("the filters find too little: %+v", o)
	}
}

// testTables asks the server the cases of the tables.
func testTables(s server) {
	for i, c := range tableCases {
		var docs []bson.Raw
		want := map[int32]bool{}
		for j, text := range slices.Concat(c.yes, c.no) {
			docs = append(docs, raw(s, append(d("_id", int32(j)), parseDoc(s, text)...)))
			want[int32(j)] = j < len(c.yes)
		}
		s.fill("tables", docs)
		got, err := s.find("tables", raw(s, parseDoc(s, c.filter)))
		if err != nil {
			s.Errorf("%d %s: %v", i, c.filter, err)
			continue
		}
		for j, doc := range docs {
			if got[int32(j)] != want[int32(j)] {
				s.Errorf("%s: the server says %v of %s", c.filter, got[int32(j)], doc)
			}
		}
	}
}

// testRegexes asks the server the cases of the table of regexes.
func testRegexes(s server) {
	for _, c := range regexCases {
		var docs []bson.Raw
		for i, text := range slices.Concat(c.yes, c.no) {
			docs = append(docs, raw(s, d("_id", int32(i), "a", text)))
		}
		if len(docs) == 0 {
			continue
		}
		s.fill("regexes", docs)
		got, err := s.find("regexes", raw(s, d("a", bson.Regex{Pattern: c.pattern, Options: c.options})))
		if err != nil {
			s.Errorf("/%s/%s: %v", c.pattern, c.options, err)
			continue
		}
		for i, doc := range docs {
			if want := i < len(c.yes); got[int32(i)] != want {
				s.Errorf("/%s/%s: the server says %v of %s", c.pattern, c.options, !want, doc)
			}
		}
	}
}
