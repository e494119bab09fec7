package schema

import (
	"bytes"
	"encoding/binary"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// specSeeds are options and index specifications, and damaged ones.
func specSeeds(t testing.TB) (out [][]byte) {
	t.Helper()
	for _, s := range []string{
		`{"capped":true,"size":4096}`,
		`{"viewOn":"c","pipeline":[{"$lookup":{"from":"x","pipeline":[{"$unionWith":"y"}]}},{"$facet":{"a":[{"$graphLookup":{"from":{"db":"d","coll":"z"}}}]}}]}`,
		`{"timeseries":{"timeField":"t"},"expireAfterSeconds":{"$numberLong":"60"}}`,
		`{"collation":{"locale":"en","version":"57.1"},"storageEngine":{"wiredTiger":{"configString":"block_compressor=zlib"}},"validator":{"a":1}}`,
		`{"v":2,"key":{"a":1,"b":-1.5,"c":"text"},"name":"a_1","unique":true,"expireAfterSeconds":5.5,"weights":{"a":1},"wildcardProjection":{"a":0}}`,
		`{"name":"b","key":{"$**":1}}`, `{"index":{"name":"a_1","expireAfterSeconds":5,"hidden":true},"validator":{}}`, `{}`,
	} {
		var d bson.D
		if err := bson.UnmarshalExtJSON([]byte(s), false, &d); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
		b, err := bson.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, b)
	}
	return append(out, nil)
}

// use does with a change what applying and comparing it does before a server
// is asked.
func use(t *testing.T, ch stream.Change) {
	t.Helper()
	for _, ix := range ch.Indexes {
		_, _, _ = cleanIndex(ix)
		_, _ = comparableIndex(ix, DiffOptions{})
		uniqueLike(ix.Spec)
		indexKind(ix.Spec)
		isIDIndex(ix.Spec)
	}
	for _, typ := range []Type{TypeCollection, TypeTimeSeries, TypeView} {
		c := Collection{NS: ch.NS, Type: typ, Options: ch.Options}
		_, _ = comparableOptions(c, DiffOptions{})
		Unsupported(c, mongo.Version{Major: 4, Minor: 2})
		c.Capped()
		c.Collated()
		c.Clustered()
		c.DataNS()
	}
	_, _, _ = createOptions(ch.Options, mongo.Version{Major: 6})
	_, _, _ = createOptions(ch.Options, mongo.Version{Major: 4, Minor: 2})
	rules, err := transform.New(transform.Config{Rename: []string{"d=e", "d.c=e.x"}})
	if err != nil {
		t.Fatal(err)
	}
	_, _ = viewRefs(ch.NS, ch.Options)
	_, _ = MapView(ch.NS, ch.Options, rules)
}

// FuzzChange: no options and no specification make anything panic.
func FuzzChange(f *testing.F) {
	for _, o := range specSeeds(f) {
		f.Add(o)
	}
	f.Fuzz(func(t *testing.T, o []byte) {
		if o = bytes.Clone(o); len(o) > 4 { // past the first check
			binary.LittleEndian.PutUint32(o, uint32(len(o)))
			o[len(o)-1] = 0
		}
		if len(o) > 0 && !bsonraw.Valid(o, bsonraw.MaxDepth) {
			return // a source hands on no other
		}
		use(t, stream.Change{Kind: stream.ChangeCreate, NS: "d.c", Options: o,
			Indexes: []stream.Index{{Name: str(o, "name"), Spec: o}}})
	})
}
