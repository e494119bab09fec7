package schema

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// since marks a command that the source must be new enough for; the target
// always is.
type since struct {
	major, minor int
	cmd          string
}

func runnable(c since) bool {
	if src.Info.Version.AtLeast(7, 0) && strings.Contains(c.cmd, "recordPreImages") {
		return false // which 7.0 knows under its new name only
	}
	return src.Info.Version.AtLeast(c.major, c.minor) && dst.Info.Version.AtLeast(c.major, c.minor)
}

// everyKind makes every kind of collection, option and index there is.
func everyKind() []since {
	return []since{
		{0, 0, `{"create":"plain"}`},
		{0, 0, `{"insert":"plain","documents":[{"_id":1,"a":1,"loc":[1,2],"txt":"hello world"},{"_id":2,"a":2,"u":7}]}`},
		{0, 0, `{"create":"empty"}`},
		{0, 0, `{"create":"capped","capped":true,"size":8192,"max":17}`},
		{0, 0,
			`{"create":"valid","validator":{"a":{"$type":"int"},"$expr":{"$gt":["$b",1]}},"validationLevel":"moderate","validationAction":"warn"}`},
		{0, 0,
			`{"create":"validstrict","validator":{"$jsonSchema":{"required":["x"],"properties":{"x":{"bsonType":"int"}}}},"validationLevel":"off"}`},
		{0, 0, `{"create":"french","collation":{"locale":"fr","strength":2,"backwards":true}}`},
		{0, 0,
			`{"createIndexes":"french","indexes":[{"key":{"a":1},"name":"inherited"},{"key":{"b":1},"name":"simple","collation":{"locale":"simple"}},{"key":{"c":1},"name":"german","collation":{"locale":"de"}},{"key":{"d":"text"},"name":"text","collation":{"locale":"simple"}},{"key":{"e":"2d"},"name":"flat","collation":{"locale":"simple"}}]}`},
		{0, 0,
			`{"create":"zlib","storageEngine":{"wiredTiger":{"configString":"block_compressor=zlib"}},"indexOptionDefaults":{"storageEngine":{"wiredTiger":{"configString":"prefix_compression=false"}}}}`},
		{0, 0, `{"create":"idv1","idIndex":{"key":{"_id":1},"name":"_id_","v":1}}`},
		{0, 0, `{"insert":"fs.chunks","documents":[{"_id":1,"files_id":1,"n":0}]}`},
		{0, 0,
			`{"createIndexes":"fs.chunks","indexes":[{"key":{"files_id":1,"n":1},"name":"files_id_1_n_1","unique":true}]}`},
		{0, 0, `{"insert":"system.js","documents":[{"_id":"f","value":1}]}`},
		{0, 0, `{"insert":"dotted.name.x","documents":[{"_id":1}]}`},
		{0, 0, `{"createIndexes":"plain","indexes":[
			{"key":{"a":1},"name":"a_1"},{"key":{"a":-1,"b":1},"name":"compound","background":true},
			{"key":{"u":1},"name":"unique","unique":true,"sparse":true},
			{"key":{"p":1},"name":"partial","partialFilterExpression":{"p":{"$gt":5}},"unique":true},
			{"key":{"t":1},"name":"ttl","expireAfterSeconds":3600},{"key":{"t0":1},"name":"ttl0","expireAfterSeconds":0},
			{"key":{"ut":1},"name":"uniquettl","unique":true,"sparse":true,"expireAfterSeconds":99},
			{"key":{"tf":1},"name":"ttlfraction","expireAfterSeconds":1.5},
			{"key":{"txt":"text","x":"text"},"name":"text","weights":{"txt":3},"default_language":"french","language_override":"lang"},
			{"key":{"loc":"2d"},"name":"flat","bits":20,"min":-100,"max":100},
			{"key":{"g":"2dsphere"},"name":"sphere"},{"key":{"g":"2dsphere","a":1},"name":"sphere2","2dsphereIndexVersion":2},
			{"key":{"h":"hashed"},"name":"hashed"},{"key":{"$**":1},"name":"wild","wildcardProjection":{"a":1,"b.c":1}},{"key":{"sub.$**":1},"name":"wildsub"},
			{"key":{"c":1},"name":"collated","collation":{"locale":"de","strength":1}},
			{"key":{"v1":1},"name":"version1","v":1},
			{"key":{"st":1},"name":"engine","storageEngine":{"wiredTiger":{"configString":"prefix_compression=false"}}},
			{"key":{"d.e f":1},"name":"name with $ and \" in it"}]}`},
		{4, 4,
			`{"createIndexes":"plain","indexes":[{"key":{"hid":1},"name":"hidden","hidden":true},{"key":{"h":"hashed","a":1},"name":"compoundhashed"}]}`},
		{4, 4, `{"create":"preimages","recordPreImages":true}`},
		{5, 0,
			`{"create":"measure","timeseries":{"timeField":"t","metaField":"m","granularity":"minutes"},"expireAfterSeconds":7200}`},
		{5, 0,
			`{"insert":"measure","documents":[{"t":{"$date":"2026-01-01T00:00:00Z"},"m":1,"x":5},{"t":{"$date":"2026-01-01T00:01:00Z"},"m":2,"x":6}]}`},
		{7, 0, `{"dropIndexes":"measure","index":"m_1_t_1"}`}, // made with the collection
		{5, 0, `{"createIndexes":"measure","indexes":[{"key":{"m":1,"t":1},"name":"mt"},{"key":{"t":-1},"name":"t"}]}`},
		{5, 0, `{"create":"measureplain","timeseries":{"timeField":"t"}}`},
		{5, 0, `{"create":"overmeasure","viewOn":"measure","pipeline":[{"$match":{"x":5}}]}`},
		{6, 0,
			`{"create":"clustered","clusteredIndex":{"key":{"_id":1},"unique":true,"name":"by id"},"expireAfterSeconds":3600}`},
		{6, 0, `{"create":"ring of clustered","clusteredIndex":{"key":{"_id":1},"unique":true},"expireAfterSeconds":60}`},
		{6, 0, `{"convertToCapped":"ring of clustered","size":5000}`},
		{6, 0, `{"createIndexes":"clustered","indexes":[{"key":{"a":1},"name":"a"}]}`},
		{6, 0, `{"create":"images","changeStreamPreAndPostImages":{"enabled":true}}`},
		{6, 0, `{"createIndexes":"plain","indexes":[{"key":{"pu":1},"name":"prepare","prepareUnique":true}]}`},
		{6, 0,
			`{"createIndexes":"measure","indexes":[{"key":{"x":1},"name":"metric"},{"key":{"loc":"2dsphere"},"name":"geo"},{"key":{"y":1},"name":"part","partialFilterExpression":{"y":{"$gt":5}}}]}`},
		{7, 0,
			`{"createIndexes":"plain","indexes":[{"key":{"a":1,"$**":-1},"name":"compoundwild","wildcardProjection":{"a":0}},{"key":{"sub.$**":1,"b":1},"name":"compoundwildsub"}]}`},
		{7, 0,
			`{"create":"measurespan","timeseries":{"timeField":"t","metaField":"m","bucketMaxSpanSeconds":300,"bucketRoundingSeconds":300}}`},
		{7, 0,
			`{"create":"measuregrown","timeseries":{"timeField":"t","bucketMaxSpanSeconds":300,"bucketRoundingSeconds":300}}`},
		{7, 0, `{"collMod":"measuregrown","timeseries":{"bucketMaxSpanSeconds":9000,"bucketRoundingSeconds":9000}}`},
		{7, 0, `{"create":"measurekept","timeseries":{"timeField":"t","metaField":"m"}}`},
		{7, 0,
			`{"createIndexes":"measurekept","indexes":[{"key":{"t":1},"name":"ttl","expireAfterSeconds":3600,"partialFilterExpression":{"m":"x"}},{"key":{"t":-1},"name":"ttl0","expireAfterSeconds":0,"partialFilterExpression":{"m.y":{"$gt":5}}}]}`},
		{0, 0, `{"create":"auto","autoIndexId":true}`},
		{0, 0, `{"create":"b.over","viewOn":"c.over","pipeline":[{"$match":{"a":1}}]}`},
		{0, 0,
			`{"create":"c.over","viewOn":"plain","pipeline":[{"$lookup":{"from":"a.over","localField":"a","foreignField":"a","as":"x"}}]}`},
		{0, 0, `{"create":"a.over","viewOn":"plain","pipeline":[{"$project":{"a":1}}]}`},
		{0, 0,
			`{"create":"french.over","viewOn":"french","pipeline":[],"collation":{"locale":"fr","strength":2,"backwards":true}}`},
		{4, 4,
			`{"create":"union","viewOn":"plain","pipeline":[{"$unionWith":"empty"},{"$unionWith":{"coll":"capped","pipeline":[{"$graphLookup":{"from":"valid","startWith":"$a","connectFromField":"a","connectToField":"b","as":"g"}}]}},{"$facet":{"f":[{"$lookup":{"from":"dotted.name.x","let":{},"pipeline":[{"$lookup":{"from":"empty","localField":"a","foreignField":"b","as":"c"}}],"as":"z"}}]}}]}`},
	}
}

func makeEveryKind(t *testing.T, db string) {
	for _, c := range everyKind() {
		if runnable(c) {
			do(t, src, db, c.cmd)
		}
	}
}

func TestEveryKindRoundTrips(t *testing.T) {
	t.Parallel()
	for _, rename := range []bool{false, true} {
		db := newDB()
		var c transform.Config
		if rename {
			c.Rename = []string{db + "=" + db + "moved", db + ".plain=" + db + "moved.renamed",
				db + ".empty=" + db + "moved.dotted.empty"}
		}
		rules := newRules(t, c)
		r := newReplica(t, rules, db)
		makeEveryKind(t, db)
		r.copy()
		// Before the end nothing but what is held back differs.
		later, err := AllDeferred(t.Context(), dst)
		if err != nil {
			t.Fatal(err)
		}
		diffs, err := Diff(t.Context(), src, dst, rules, DiffOptions{Keep: only(rules, db), Deferred: later})
		if err != nil {
			t.Fatal(err)
		}
		limits := 0
		for _, d := range diffs {
			if d.What == "option size" || d.What == "option max" {
				limits++
			}
			if !d.Deferred {
				t.Errorf("not held back, but different: %v", d)
			}
		}
		if limits > 0 != TellsRollOff(src, dst) {
			t.Errorf("%d limits are held back", limits)
		}
		r.finish()
	}
}

func TestCreateIsIdempotent(t *testing.T) {
	t.Parallel()
	db := newDB()
	rules := newRules(t, transform.Config{})
	r := newReplica(t, rules, db)
	makeEveryKind(t, db)
	snap, err := TakeSnapshot(t.Context(), src, scopeOf(rules, db), oplog.Changes(src))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for _, c := range snap.Collections {
			if err := r.target.Collections.Create(t.Context(), c, c.NS, rules); err != nil {
				t.Fatal(err)
			}
			if err := r.target.Indexes.Build(t.Context(), c.NS, c.Indexes, BeforeConsistent); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 2 {
		if err := r.target.Indexes.BuildDeferred(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	r.finish()
	do(t, dst, db, `{"drop":"capped"}`)
	do(t, dst, db, `{"create":"capped","capped":true,"size":4096}`)
	err = r.target.Collections.Create(t.Context(), Collection{NS: db + ".capped", Type: TypeCollection,
		Options: js(t, `{"capped":true,"size":8192}`)}, db+".capped", rules)
	if err == nil || mongo.HintOf(err) == "" || !strings.Contains(err.Error(), "option size") {
		t.Errorf("different options: %v", err)
	}
}

// TestQueryableEncryption: its options are carried, and what the target's server would
// keep in another form is refused before anything of it is there.
func TestQueryableEncryption(t *testing.T) {
	t.Parallel()
	db := newDB()
	rules := newRules(t, transform.Config{})
	r := newReplica(t, rules, db)
	if !src.Info.Version.AtLeast(6, 0) || !dst.Info.Version.AtLeast(6, 0) {
		t.Skip("needs a source and a target of 6.0")
	}
	do(t, src, db,
		`{"create":"secret","encryptedFields":{"fields":[{"keyId":{"$binary":{"base64":"AAAAAAAAAAAAAAAAAAAAAA==","subType":"04"}},"path":"ssn","bsonType":"string","queries":{"queryType":"equality"}}]}}`)
	do(t, src, db, `{"create":"enxcol_.secret.esc","clusteredIndex":{"key":{"_id":1},"unique":true}}`)
	do(t, src, db, `{"create":"enxcol_.secret.ecoc","clusteredIndex":{"key":{"_id":1},"unique":true}}`)
	colls, err := List(t.Context(), src, scopeOf(rules, db))
	if err != nil {
		t.Fatal(err)
	}
	same := src.Info.Version.AtLeast(7, 0) == dst.Info.Version.AtLeast(7, 0)
	for _, c := range colls {
		err := r.target.Collections.Create(t.Context(), c, c.NS, rules)
		refused := err != nil && strings.Contains(err.Error(), db+".secret: queryable encryption of 6.0") &&
			mongo.HintOf(err) != ""
		if want := !same && c.NS == db+".secret"; refused != want || err != nil != want {
			t.Errorf("%s: %v", c.NS, err)
		}
	}
	if same {
		r.same(DiffOptions{})
	}
}

// Servers before 6.3 take such an index of the buckets, though they have none of a time series.
func TestExpiryOfBucketsNeedsVersion(t *testing.T) {
	t.Parallel()
	expires := stream.Index{Name: "t",
		Spec: js(t,
			`{"key":{"control.min.t":1},"name":"t","partialFilterExpression":{"meta":{"$eq":"x"}},"expireAfterSeconds":60,"originalSpec":{"key":{"t":1},"name":"t","expireAfterSeconds":60}}`)}
	stays := stream.Index{Name: "t",
		Spec: js(t,
			`{"key":{"control.min.t":1,"control.max.t":1},"name":"t","partialFilterExpression":{"meta":{"$eq":"x"}},"originalSpec":{"key":{"t":1},"name":"t"}}`)}
	plain := stream.Index{Name: "t", Spec: js(t, `{"key":{"control.min.t":1},"name":"t","expireAfterSeconds":60}`)}
	for major, refused := range map[int]bool{6: true, 7: false} {
		for i, ix := range []stream.Index{expires, stays, plain} {
			got := Unsupported(Collection{NS: "d.c", Indexes: []stream.Index{ix}}, mongo.Version{Major: major})
			if len(got) > 0 != (refused && i == 0) {
				t.Errorf("%v to %d.0: %v", ix.Spec, major, got)
			}
		}
	}
}

// Of a collection with queryable encryption it is told by its options which form it has.
func TestQueryableEncryptionBetweenVersions(t *testing.T) {
	t.Parallel()
	of := func(names ...string) bson.Raw {
		fields := bson.D{{Key: "fields", Value: bson.A{}}}
		for _, n := range names {
			fields = append(fields, bson.E{Key: n, Value: "enxcol_.c"})
		}
		raw, err := bson.Marshal(bson.D{{Key: "encryptedFields", Value: fields}})
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	old, now := of("escCollection", "eccCollection", "ecocCollection"), of("escCollection", "ecocCollection")
	for _, c := range []struct {
		options bson.Raw
		target  string
		refused bool
	}{{old, "6.0.5", false}, {old, "7.0.28", true}, {old, "8.0.1", true}, {now, "6.0.5", true}, {now, "7.0.28", false},
		{now, "8.0.1", false}} {
		v, err := mongo.ParseVersion(c.target)
		if err != nil {
			t.Fatal(err)
		}
		if got := Unsupported(Collection{NS: "d.c", Type: TypeCollection, Options: c.options}, v); len(got) > 0 != c.refused {
			t.Errorf("%v to %s: %v", c.options, c.target, got)
		}
	}
}

func TestListOrderAndEstimates(t *testing.T) {
	t.Parallel()
	db := newDB()
	rules := newRules(t, transform.Config{})
	newReplica(t, rules, db)
	makeEveryKind(t, db)
	colls, err := List(t.Context(), src, scopeOf(rules, db))
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]int{}
	for i, c := range colls {
		at[strings.TrimPrefix(c.NS, db+".")] = i
		if strings.Contains(c.NS, "system.") && !strings.HasSuffix(c.NS, "system.js") {
			t.Errorf("%s is listed", c.NS)
		}
		if c.Type != TypeView && len(c.UUID.Data) != 16 {
			t.Errorf("%s has no UUID", c.NS)
		}
		if c.Type == TypeView {
			continue
		}
		one, ok, err := ListOne(t.Context(), src, db, c.UUID)
		if err != nil || !ok || one.NS != c.NS || one.Type != c.Type || len(one.Indexes) != len(c.Indexes) {
			t.Errorf("ListOne of %s: %+v, %v, %v", c.NS, one, ok, err)
		}
	}
	if at["a.over"] > at["c.over"] || at["c.over"] > at["b.over"] || at["plain"] > at["a.over"] {
		t.Errorf("order: %v", at)
	}
	if c := colls[at["plain"]]; c.Count != 2 || c.Bytes == 0 || !c.IDIndex {
		t.Errorf("plain: %+v", c)
	}
	if src.Info.Version.AtLeast(5, 0) {
		if c := colls[at["measure"]]; c.Count != 2 || c.Type != TypeTimeSeries || c.DataNS() != db+".system.buckets.measure" {
			t.Errorf("measure: %+v", c)
		}
	}
	u := colls[0].UUID
	u.Data = append([]byte(nil), u.Data...)
	u.Data[0] ^= 0xff
	if _, ok, err := ListOne(t.Context(), src, db, u); ok || err != nil {
		t.Errorf("ListOne of nothing: %v, %v", ok, err)
	}
}

func TestDiffFindsPlantedDifferences(t *testing.T) {
	t.Parallel()
	db := newDB()
	rules := newRules(t, transform.Config{})
	r := newReplica(t, rules, db)
	makeEveryKind(t, db)
	r.copy()
	r.finish()
	for _, c := range []struct{ plant, what, undo string }{
		{`{"create":"extra"}`, "collection", `{"drop":"extra"}`},
		{`{"drop":"empty"}`, "collection", `{"create":"empty"}`},
		{`{"drop":"a.over"}`, "view", `{"create":"a.over","viewOn":"plain","pipeline":[{"$project":{"a":1}}]}`},
		{`{"collMod":"a.over","viewOn":"plain","pipeline":[]}`, "option pipeline",
			`{"collMod":"a.over","viewOn":"plain","pipeline":[{"$project":{"a":1}}]}`},
		{`{"collMod":"valid","validationAction":"error"}`, "option validationAction",
			`{"collMod":"valid","validationAction":"warn"}`},
		{`{"collMod":"valid","validator":{}}`, "option validator",
			`{"collMod":"valid","validator":{"a":{"$type":"int"},"$expr":{"$gt":["$b",1]}}}`},
		{`{"dropIndexes":"plain","index":"a_1"}`, "index a_1",
			`{"createIndexes":"plain","indexes":[{"key":{"a":1},"name":"a_1"}]}`},
		{`{"createIndexes":"plain","indexes":[{"key":{"zz":1},"name":"zz"}]}`, "index zz",
			`{"dropIndexes":"plain","index":"zz"}`},
		{`{"collMod":"plain","index":{"name":"ttl","expireAfterSeconds":4}}`, "index ttl, expireAfterSeconds",
			`{"collMod":"plain","index":{"name":"ttl","expireAfterSeconds":3600}}`},
	} {
		do(t, dst, db, c.plant)
		diffs, err := Diff(t.Context(), src, dst, rules, DiffOptions{Keep: only(rules, db)})
		if err != nil {
			t.Fatal(err)
		}
		if len(diffs) != 1 || diffs[0].What != c.what {
			t.Errorf("%s: %v, want %s", c.plant, diffs, c.what)
		}
		do(t, dst, db, c.undo)
	}
	r.same(DiffOptions{})
}
