package schema

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// commandSeeds are commands as oplogs hold them, and damaged ones.
func commandSeeds(t testing.TB) [][]byte {
	t.Helper()
	var out [][]byte
	for _, s := range []string{
		`{"create":"c","capped":true,"size":4096,"idIndex":{"v":2,"key":{"_id":1},"name":"_id_"}}`,
		`{"create":"v","viewOn":"c","pipeline":[{"$lookup":{"from":"x","pipeline":[{"$unionWith":"y"}]}},{"$facet":{"a":[{"$graphLookup":{"from":{"db":"d","coll":"z"}}}]}}]}`,
		`{"create":"system.buckets.m","validator":{},"clusteredIndex":true,"timeseries":{"timeField":"t"},"expireAfterSeconds":{"$numberLong":"60"}}`,
		`{"create":"c","collation":{"locale":"en","version":"57.1"},"storageEngine":{"wiredTiger":{"configString":"block_compressor=zlib"}},"validator":{"a":1}}`,
		`{"drop":"c"}`, `{"dropDatabase":1}`, `{"drop":"system.views"}`,
		`{"renameCollection":"d.a","to":"d.b.c","stayTemp":false,"dropTarget":{"$binary":{"base64":"gf1MfeyeTbepmYVPBcIzWQ==","subType":"04"}}}`,
		`{"createIndexes":"c","v":2,"key":{"a":1,"b":-1.5,"c":"text"},"name":"a_1","unique":true,"expireAfterSeconds":5.5,"weights":{"a":1},"wildcardProjection":{"a":0}}`,
		`{"commitIndexBuild":"c","indexes":[{"name":"a","key":{"a":1}},{"name":"b","key":{"$**":1}}]}`,
		`{"dropIndexes":"c","index":["a","b"]}`, `{"deleteIndexes":"c","index":"a"}`,
		`{"collMod":"c","index":{"name":"a_1","expireAfterSeconds":5,"hidden":true},"validator":{}}`,
		`{"_id":"d.v","viewOn":"c","pipeline":[]}`, `{}`,
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
	return append(out, nil, []byte{5, 0, 0, 0, 0}, []byte{0xff, 0xff, 0xff, 0x7f, 0}, []byte{4, 0, 0, 0},
		[]byte("\x0d\x00\x00\x00\x02\x00\xff\xff\xff\x7f\x00\x00\x00")) // a string of 2 GB
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

// FuzzParseChange: no command makes the reader panic; an error names the
// database, and a change names a collection of it.
func FuzzParseChange(f *testing.F) {
	for _, o := range commandSeeds(f) {
		f.Add("d.$cmd", o)
	}
	f.Fuzz(func(t *testing.T, ns string, o []byte) {
		if o = bytes.Clone(o); len(o) > 4 { // past the first check
			binary.LittleEndian.PutUint32(o, uint32(len(o)))
			o[len(o)-1] = 0
		}
		ch, effect, err := ParseChange(ns, nil, o)
		db, _ := mongo.SplitNS(ns)
		if err != nil {
			if !strings.Contains(err.Error(), db) {
				t.Errorf("the error names no database: %v", err)
			}
			return
		}
		if !effect || db == "" {
			return
		}
		if ch.Kind == "" || ch.NS == "" || ch.Kind != stream.ChangeRename && !strings.HasPrefix(ch.NS, db) {
			t.Errorf("command on %q: %+v", ns, ch)
		}
		use(t, ch)
	})
}

// FuzzParseViewWrite: the same for writes to system.views.
func FuzzParseViewWrite(f *testing.F) {
	for _, o := range commandSeeds(f) {
		f.Add(byte('i'), o, o)
		f.Add(byte('d'), o, []byte(nil))
	}
	f.Fuzz(func(t *testing.T, op byte, o, o2 []byte) {
		ch, effect, err := ParseViewWrite(op, "d", o, o2)
		if err == nil && effect {
			use(t, ch)
		}
	})
}
