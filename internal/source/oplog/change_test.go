package oplog

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

func js(t testing.TB, text string) bson.Raw {
	t.Helper()
	var d bson.D
	ok(t, bson.UnmarshalExtJSON([]byte(text), false, &d))
	return kit.Raw(d)
}

func has(doc bson.Raw, name string) bool { return field(doc, name).Type != 0 }

// TestParseChange: commands as mongod writes them.
func TestParseChange(t *testing.T) {
	for _, c := range []struct {
		o       string
		kind    stream.ChangeKind // "" for no effect
		ns      string
		err     string
		details func(ch *stream.Change) bool
	}{
		{o: `{"create":"c","capped":true,"size":4096,"idIndex":{"v":2}}`, kind: stream.ChangeCreate, ns: "d.c",
			details: func(ch *stream.Change) bool {
				return has(ch.Options, "capped") && !has(ch.Options, "idIndex") && !has(ch.Options, "create")
			}},
		{o: `{"create":"system.buckets.m","validator":{},"clusteredIndex":true,"timeseries":{"timeField":"t"}}`,
			kind: stream.ChangeCreate, ns: "d.m",
			details: func(ch *stream.Change) bool {
				return ch.Buckets && has(ch.Options, "timeseries") && !has(ch.Options, "validator")
			}},
		{o: `{"create":"system.buckets.m"}`, err: "time-series options"},
		{o: `{"create":"system.views"}`},
		{o: `{"create":"system.profile"}`},
		{o: `{"create":"system.js"}`, kind: stream.ChangeCreate, ns: "d.system.js"},
		{o: `{"drop":"c"}`, kind: stream.ChangeDrop, ns: "d.c"},
		{o: `{"drop":"system.buckets.m"}`, kind: stream.ChangeDrop, ns: "d.m"},
		{o: `{"drop":"system.views"}`, kind: stream.ChangeDropAllViews, ns: "d"},
		{o: `{"dropDatabase":1}`, kind: stream.ChangeDropDatabase, ns: "d"},
		{o: `{"renameCollection":"d.a","to":"d.b.c","stayTemp":false,"dropTarget":{"$binary":{"base64":"gf1MfeyeTbepmYVPBcIzWQ==","subType":"04"}}}`, kind: stream.ChangeRename, ns: "d.a",
			details: func(ch *stream.Change) bool { return ch.To == "d.b.c" && ch.DropTarget }},
		{o: `{"renameCollection":"d.a","to":"d.b","stayTemp":false}`, kind: stream.ChangeRename, ns: "d.a",
			details: func(ch *stream.Change) bool { return !ch.DropTarget }},
		{o: `{"renameCollection":"d.a"}`, err: "malformed"},
		{o: `{"renameCollection":"d.system.buckets.a","to":"d.b"}`, err: "of the server"},
		{o: `{"renameCollection":"d.system.buckets.tmp.agg_out.1","to":"d.system.buckets.b","stayTemp":false}`,
			kind: stream.ChangeRename, ns: "d.tmp.agg_out.1",
			details: func(ch *stream.Change) bool { return ch.To == "d.b" && ch.Buckets && !ch.DropTarget }},
		{o: `{"createIndexes":"c","v":2,"key":{"a":1},"name":"a_1"}`, kind: stream.ChangeCreateIndexes, ns: "d.c",
			details: func(ch *stream.Change) bool {
				return ch.Indexes[0].Name == "a_1" && !has(ch.Indexes[0].Spec, "createIndexes")
			}},
		{o: `{"startIndexBuild":"c"}`}, {o: `{"abortIndexBuild":"c"}`}, {o: `{"dbCheck":"d.c"}`},
		{o: `{"commitIndexBuild":"c","indexes":[{"name":"a"},{"name":"b"}]}`, kind: stream.ChangeCreateIndexes, ns: "d.c",
			details: func(ch *stream.Change) bool { return len(ch.Indexes) == 2 && ch.Indexes[1].Name == "b" }},
		{o: `{"commitIndexBuild":"c"}`, err: "no indexes"},
		{o: `{"dropIndexes":"c","index":"a"}`, kind: stream.ChangeDropIndexes, ns: "d.c",
			details: func(ch *stream.Change) bool { return ch.Indexes[0].Name == "a" }},
		{o: `{"deleteIndexes":"c","index":["a","b"]}`, kind: stream.ChangeDropIndexes, ns: "d.c",
			details: func(ch *stream.Change) bool { return len(ch.Indexes) == 2 }},
		{o: `{"dropIndexes":"c"}`, err: "no index name"},
		{o: `{"collMod":"c","validator":{}}`, kind: stream.ChangeCollMod, ns: "d.c",
			details: func(ch *stream.Change) bool { return has(ch.Options, "validator") && !has(ch.Options, "collMod") }},
		{o: `{"emptycapped":"c"}`, err: "emptycapped"},
		{o: `{"frobnicate":1}`, err: "frobnicate"},
		{o: `{"applyOps":[]}`, err: "applyOps"},
		{o: `{}`, err: "no command"},
	} {
		ch, err := parseChange("d", nil, js(t, c.o))
		switch {
		case c.err != "":
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v, want %q", c.o, err, c.err)
			}
		case err != nil || (ch != nil) != (c.kind != "") || ch != nil && (ch.Kind != c.kind || ch.NS != c.ns):
			t.Errorf("%s: %+v, %v", c.o, ch, err)
		case c.details != nil && !c.details(ch):
			t.Errorf("%s: %+v", c.o, ch)
		}
	}
	a := offline(discard, Options{})
	ok(t, a.entry(t.Context(), oplogEntry(t, 2, "c", "config.$cmd", bson.D{{Key: "frobnicate", Value: 1}})))
	if len(a.events) > 0 {
		t.Errorf("internal database: %+v", a.events)
	}
}

// TestNotFollowed: what cannot be followed ends a run only where it concerns what is kept.
// Who asks for all schema changes is told of it.
func TestNotFollowed(t *testing.T) {
	buckets, c := "shop.system.buckets.m", "shop.c"
	rename := func(from, to string) bson.Raw {
		return oplogEntry(t, 2, "c", "reports.$cmd", bson.D{{Key: "renameCollection", Value: from}, {Key: "to", Value: to},
			{Key: "stayTemp", Value: false}})
	}
	view := func(ns string) bson.Raw {
		db, _ := mongo.SplitNS(ns)
		return oplogEntry(t, 2, "u", db+".system.views", bson.D{{Key: "$v", Value: 2},
			{Key: "diff", Value: bson.D{{Key: "u", Value: bson.D{{Key: "pipeline", Value: bson.A{}}}}}}},
			bson.E{Key: "o2", Value: bson.D{{Key: "_id", Value: ns}}})
	}
	const elsewhere = "reports.system.buckets.m"
	for name, tc := range map[string]struct {
		entry    bson.Raw
		fails    bool
		reported stream.Change
	}{
		"buckets elsewhere": {rename(elsewhere, "reports.c"), false,
			stream.Change{Kind: stream.ChangeRename, NS: "reports.m", To: "reports.c"}},
		"buckets become wanted": {rename(elsewhere, c), true,
			stream.Change{Kind: stream.ChangeRename, NS: "reports.m", To: c}},
		"buckets that were wanted": {rename(buckets, "reports.c"), true,
			stream.Change{Kind: stream.ChangeRename, NS: "shop.m", To: "reports.c"}},
		"a collection to buckets": {rename(c, elsewhere), true,
			stream.Change{Kind: stream.ChangeRename, NS: c, To: "reports.m"}},
		"a view elsewhere":      {view("reports.v"), false, stream.Change{Kind: stream.ChangeView, NS: "reports.v"}},
		"a view that is wanted": {view("shop.v"), true, stream.Change{Kind: stream.ChangeView, NS: "shop.v"}},
		"a command not known": {oplogEntry(t, 2, "c", "reports.$cmd", bson.D{{Key: "frobnicate", Value: "c"}}), true,
			stream.Change{}},
	} {
		a := offline(discard, Options{Keep: only("shop")})
		if err := a.entry(t.Context(), tc.entry); (err != nil) != tc.fails || len(a.events) > 0 {
			t.Errorf("%s: %v, events %+v", name, err, a.events)
		}
		in := newInterpreter(&mongo.Cluster{}, Options{Keep: func(string) bool { return false }})
		in.namesAlone = true
		e, err := parseEntry(tc.entry)
		ok(t, err)
		var reported stream.Change
		err = in.each(t.Context(), &e, func(ev *stream.Event) error { reported = *ev.Change; return nil })
		if reported.Kind != tc.reported.Kind || reported.NS != tc.reported.NS || reported.To != tc.reported.To ||
			(err != nil) != (tc.reported.Kind == "") {
			t.Errorf("%s: reported %+v, %v", name, reported, err)
		}
		if reported.Kind == stream.ChangeRename && len(reported.UUID.Data) == 0 {
			t.Errorf("%s: no UUID", name)
		}
	}
}

// TestDirectWriteToViews: the same of a real server's entries.
func TestDirectWriteToViews(t *testing.T) {
	for _, version := range lab.Versions("4.2", "4.4", "5.0") {
		t.Run(version, func(t *testing.T) {
			c := connect(t, lab.ForTest(t, testServer(version)).URI()) // of its own: runs that keep everything would fail
			start := position(t, c)
			db := c.Client.Database("reports")
			ok(t, db.CreateView(t.Context(), "v", "c", bson.A{bson.D{{Key: "$match", Value: bson.D{}}}}))
			write := func() error { // refused since 5.0, but for applyOps
				_, err := db.Collection("system.views").UpdateOne(t.Context(), doc("reports.v"),
					bson.D{{Key: "$set", Value: bson.D{{Key: "pipeline", Value: bson.A{}}}}})
				return err
			}
			if c.Info.Version.AtLeast(5, 0) {
				write = func() error {
					return c.Client.Database("admin").RunCommand(t.Context(),
						js(t,
							`{"applyOps":[{"op":"u","ns":"reports.system.views","o2":{"_id":"reports.v"},"o":{"$v":2,"diff":{"u":{"pipeline":[]}}}}]}`)).Err()
				}
			}
			ok(t, write())
			_, err := c.Client.Database("shop").Collection("c").InsertOne(t.Context(), doc(1))
			ok(t, err)
			end := position(t, c)
			kit.SameLines(t, schemaOf("shop", heads(events(read(t, c, Options{Keep: only("shop")}, from(start), end)))),
				[]string{"schema create shop.c", "insert shop.c 1"})
			if _, err := readOr(t, New(c, Options{Keep: only("reports")}), from(start), end); err == nil ||
				!strings.Contains(err.Error(), "reports.v was changed") {
				t.Errorf("a view that is kept: %v", err)
			}
			reported := 0
			ok(t, Changes(c)(t.Context(), start, end, func(ch *stream.Change, _ mongo.OpTime) error {
				if ch.Kind == stream.ChangeView && ch.NS == "reports.v" {
					reported++
				}
				return nil
			}))
			if reported != 2 {
				t.Errorf("%d changes of the view were reported", reported)
			}
		})
	}
}

func TestParseViewWrite(t *testing.T) {
	view := `{"_id":"d.v","viewOn":"c","pipeline":[]}`
	series := `{"_id":"d.m","viewOn":"system.buckets.m","pipeline":[]}`
	for _, c := range []struct {
		op    string
		o, o2 string
		kind  stream.ChangeKind
		err   bool
	}{
		{"i", view, `{}`, stream.ChangeView, false},
		{"u", view, `{"_id":"d.v"}`, stream.ChangeView, false},
		{"d", `{"_id":"d.v"}`, `{}`, stream.ChangeDropView, false},
		{"i", series, `{}`, "", false},
		{"u", series, `{"_id":"d.m"}`, "", false},
		{"i", `{"_id":"d.other","viewOn":"system.buckets.m","pipeline":[]}`, `{}`, stream.ChangeView, false},
		{"u", `{"$v":2,"diff":{"u":{"viewOn":"x"}}}`, `{"_id":"d.v"}`, "", true},
		{"d", `{"_id":5}`, `{}`, "", true},
	} {
		ch, err := parseViewWrite(c.op, "d", js(t, c.o), js(t, c.o2))
		if (err != nil) != c.err || (ch != nil) != (c.kind != "") || ch != nil && ch.Kind != c.kind {
			t.Errorf("%s %s: %+v, %v", c.op, c.o, ch, err)
		}
		if ch != nil && c.op != "d" && (has(ch.Options, "_id") || !has(ch.Options, "viewOn")) {
			t.Errorf("%s %s: options %v", c.op, c.o, ch.Options)
		}
	}
}

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

// FuzzParseChange: no command makes the reader panic; an error names the
// database, and a change names a collection of it.
func FuzzParseChange(f *testing.F) {
	for _, o := range commandSeeds(f) {
		f.Add("d", o)
	}
	f.Fuzz(func(t *testing.T, db string, o []byte) {
		if o = bytes.Clone(o); len(o) > 4 { // past the first check
			binary.LittleEndian.PutUint32(o, uint32(len(o)))
			o[len(o)-1] = 0
		}
		ch, err := parseChange(db, nil, o)
		if err != nil {
			if !strings.Contains(err.Error(), db) {
				t.Errorf("the error names no database: %v", err)
			}
			return
		}
		if ch == nil || db == "" {
			return
		}
		if ch.Kind == "" || ch.NS == "" || ch.Kind != stream.ChangeRename && !strings.HasPrefix(ch.NS, db) {
			t.Errorf("command on %q: %+v", db, ch)
		}
		checkDocs(t, ch)
	})
}

// FuzzParseViewWrite: the same for writes to system.views.
func FuzzParseViewWrite(f *testing.F) {
	for _, o := range commandSeeds(f) {
		f.Add("i", o, o)
		f.Add("d", o, []byte(nil))
	}
	f.Fuzz(func(t *testing.T, op string, o, o2 []byte) {
		if ch, err := parseViewWrite(op, "d", o, o2); err == nil && ch != nil {
			checkDocs(t, ch)
		}
	})
}

// checkDocs: what a change hands on is valid.
func checkDocs(t *testing.T, ch *stream.Change) {
	t.Helper()
	for _, doc := range append([]bson.Raw{ch.Options}, specs(ch)...) {
		if len(doc) > 0 && !bsonraw.Valid(doc, bsonraw.MaxDepth) {
			t.Errorf("%+v is not valid", ch)
		}
	}
}

func specs(ch *stream.Change) (out []bson.Raw) {
	for _, ix := range ch.Indexes {
		out = append(out, ix.Spec)
	}
	return out
}
