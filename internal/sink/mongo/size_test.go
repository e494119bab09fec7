package mongosink_test

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	mongosink "github.com/millrace/millrace/internal/sink/mongo"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/workshop/lab"
)

// TestStatementsBeyondLimits: what is sent is larger than the change, and what
// is asked for is as large as the _ids.
func TestStatementsBeyondLimits(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	p := newPair(t)
	path := strings.Repeat("p", 200<<10)
	fields := func(path string, from, n int) bson.D {
		var d bson.D
		for i := range n {
			d = append(d, bson.E{Key: fmt.Sprintf("%s.f%03d", path, from+i), Value: i})
		}
		return d
	}
	long := func(n int) string { return strings.Repeat("x", n) }
	// A shorter array with another element has no statement: the document is read.
	shorter := bson.A{bson.D{{Key: "$set", Value: bson.D{{Key: "a", Value: bson.A{long(200), 5}}}}}}
	cases := []struct {
		name   string
		insert func(run func(cmd bson.D))
		change func(run func(cmd bson.D))
	}{
		{"paths", func(run func(bson.D)) { // 60 new fields: 12 MB a statement, of 0.2 MB
			for id := range 5 {
				run(insertOf(bson.D{{Key: "_id", Value: id}, {Key: path, Value: bson.D{{Key: "old", Value: 1}}}}))
			}
		}, func(run func(bson.D)) {
			for id := range 5 {
				run(updateOf(id, bson.D{{Key: "$set", Value: fields(path, 0, 60)}}))
			}
		}},
		{"one_path", func(run func(bson.D)) { // 100 fields: folded, 20 MB in one statement
			run(insertOf(bson.D{{Key: "_id", Value: 1}, {Key: path, Value: bson.D{{Key: "old", Value: 1}}}}))
		}, func(run func(bson.D)) {
			run(updateOf(1, bson.D{{Key: "$set", Value: fields(path, 0, 50)}}))
			run(updateOf(1, bson.D{{Key: "$set", Value: fields(path, 50, 50)}}))
		}},
		{"many_paths", func(run func(bson.D)) { // of some length, in many documents: 52 MB in all
			var docs bson.A
			for id := range 260 {
				docs = append(docs, bson.D{{Key: "_id", Value: id},
					{Key: strings.Repeat("q", 1000), Value: bson.D{{Key: "old", Value: 1}}}})
			}
			run(insertOf(docs...))
		}, func(run func(bson.D)) {
			for id := range 260 {
				run(updateOf(id, bson.D{{Key: "$set", Value: fields(strings.Repeat("q", 1000), 0, 200)}}))
			}
		}},
		{"many_statements", func(run func(bson.D)) { // 15 KB each, 60 MB in all
			var docs bson.A
			for id := range 4000 {
				docs = append(docs, bson.D{{Key: "_id", Value: id},
					{Key: strings.Repeat("r", 370), Value: bson.D{{Key: "old", Value: 1}}}})
			}
			run(insertOf(docs...))
		}, func(run func(bson.D)) {
			run(bson.D{{Key: "update", Value: "c"}, {Key: "updates", Value: bson.A{
				bson.D{{Key: "q", Value: bson.D{}}, {Key: "u", Value: bson.D{{Key: "$set", Value: fields(strings.Repeat("r", 370),
					0, 40)}}}, {Key: "multi", Value: true}}}}})
		}},
		{"ids", func(run func(bson.D)) { // in one $in they are beyond 16 MB
			for id := range 28 {
				run(insertOf(bson.D{{Key: "_id", Value: fmt.Sprint("u", id, long(600<<10))},
					{Key: "a", Value: bson.A{long(200), 2, 3}}}))
				run(insertOf(bson.D{{Key: "_id", Value: fmt.Sprint("d", id, long(600<<10))}}))
			}
		}, func(run func(bson.D)) {
			for id := range 28 {
				run(updateOf(fmt.Sprint("u", id, long(600<<10)), shorter))
				run(bson.D{{Key: "delete", Value: "c"}, {Key: "deletes", Value: bson.A{
					bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: fmt.Sprint("d", id, long(600<<10))}}},
						{Key: "limit", Value: 1}}}}})
			}
		}},
		{"documents", func(run func(bson.D)) { // read by several replies
			for id := range 5 {
				run(insertOf(bson.D{{Key: "_id", Value: id}, {Key: "a", Value: bson.A{long(200), 2, 3}},
					{Key: "pad", Value: long(4 << 20)}}))
			}
		}, func(run func(bson.D)) {
			for id := range 5 {
				run(updateOf(id, shorter))
			}
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p := p
			p.batch = 16 << 20
			db := p.src.Client.Database("limits_" + c.name)
			run := func(cmd bson.D) {
				if err := db.RunCommand(t.Context(), cmd).Err(); err != nil {
					t.Fatalf("%.300v", err)
				}
			}
			from := p.position(t)
			c.insert(run)
			mid := p.position(t)
			c.change(run)
			to := p.position(t)
			o := mongosink.Options{Sizes: mongosink.Sizes{Partitions: 1, BatchBytes: 64 << 20, InFlight: 256 << 20}}
			p.rules = transform.Config{Include: []string{db.Name() + ".c"}}
			for _, part := range [][2]mongo.OpTime{{from, mid}, {mid, to}} {
				st, err := p.replay(t, part[0], part[1], o)
				t.Logf("%+v", st)
				if err != nil {
					t.Fatalf("%.300v", err)
				}
			}
			p.same(t, db.Name(), "c")
			o.Overlap.End = to // once more with the target ahead
			if _, err := p.replay(t, from, to, o); err != nil {
				t.Fatalf("%.300v", err)
			}
			p.same(t, db.Name(), "c")
		})
	}
}

// TestAheadBeyondTheLimit: an update is replayed on a document that has at another place
// what the source set later, so that it would be larger than any may be, for a moment.
func TestAheadBeyondTheLimit(t *testing.T) {
	lab.NeedServers(t)
	t.Parallel()
	p := newPair(t)
	p.batch = 16 << 20
	db := p.src.Client.Database("beyond")
	run := func(cmd bson.D) {
		if err := db.RunCommand(t.Context(), cmd).Err(); err != nil {
			t.Fatalf("%.300v", err)
		}
	}
	from := p.position(t)
	for id := range 2 {
		run(insertOf(bson.D{{Key: "_id", Value: id}, {Key: "a", Value: bson.A{strings.Repeat("x", 200), 2, 3}}}))
	}
	mid := p.position(t)
	draft := strings.Repeat("x", 9<<20)
	run(updateOf(0, bson.D{{Key: "$set", Value: bson.D{{Key: "draft", Value: draft}}}}))
	// A shorter array with another element has no statement: the document is read.
	run(updateOf(1, bson.A{bson.D{{Key: "$set", Value: bson.D{{Key: "draft", Value: draft},
		{Key: "a", Value: bson.A{strings.Repeat("x", 200), 5}}}}}}))
	for id := range 2 {
		run(updateOf(id, bson.D{{Key: "$rename", Value: bson.D{{Key: "draft", Value: "published"}}}}))
	}
	to := p.position(t)
	p.rules = transform.Config{Include: []string{"beyond.c"}}
	o := mongosink.Options{Sizes: mongosink.Sizes{Partitions: 1, BatchOps: 1, InFlight: 256 << 20}}
	if _, err := p.replay(t, from, to, o); err != nil {
		t.Fatalf("%.300v", err)
	}
	o.Overlap.End = to
	if _, err := p.replay(t, mid, to, o); err != nil {
		t.Fatalf("%.300v", err)
	}
	p.same(t, "beyond", "c")
}

func insertOf(docs ...any) bson.D {
	return bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A(docs)}}
}

func updateOf(id, u any) bson.D {
	return bson.D{{Key: "update", Value: "c"}, {Key: "updates",
		Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: id}}}, {Key: "u", Value: u}}}}}
}
