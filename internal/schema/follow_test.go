package schema

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"

	"github.com/millrace/millrace/workshop/lab"
)

// ddlCase is a piece of life of a database: what was there before the copy,
// and what happens after it.
type ddlCase struct {
	name          string
	major, minor  int
	before, after []string
}

const seed = `{"insert":"c","documents":[{"_id":1,"a":1,"s":"x"},{"_id":2,"a":2,"s":"y"}]}`

func ddlCases() []ddlCase {
	some := []string{seed,
		`{"createIndexes":"c","indexes":[{"key":{"a":1},"name":"a"},{"key":{"b":1},"name":"b"},{"key":{"u":1},"name":"u","unique":true,"sparse":true},{"key":{"t":1},"name":"t","expireAfterSeconds":3600}]}`}
	return []ddlCase{
		{name: "create and insert", after: []string{seed, `{"create":"e","capped":true,"size":1000,"max":5}`,
			`{"create":"f","collation":{"locale":"fr"}}`}},
		{name: "drop", before: some, after: []string{`{"drop":"c"}`}},
		{name: "drop and create again", before: some, after: []string{`{"drop":"c"}`,
			`{"create":"c","capped":true,"size":4096}`, seed}},
		{name: "drop a database", before: append(some, `{"create":"v","viewOn":"c","pipeline":[]}`,
			`other {"create":"stays"}`), after: []string{`{"dropDatabase":1}`}},
		{name: "drop a database and begin anew", before: some,
			after: []string{`{"dropDatabase":1}`, seed, `{"create":"v","viewOn":"c","pipeline":[]}`}},
		{name: "rename", before: some, after: []string{`admin {"renameCollection":"@.c","to":"@.d.e"}`}},
		{name: "rename over", before: append(some, `{"insert":"d","documents":[{"_id":9}]}`,
			`{"createIndexes":"d","indexes":[{"key":{"t":1},"name":"t","expireAfterSeconds":7},{"key":{"z":1},"name":"z","unique":true}]}`),
			after: []string{`admin {"renameCollection":"@.c","to":"@.d","dropTarget":true}`}},
		{name: "rename in a ring", before: append(some, `{"insert":"d","documents":[{"_id":9}]}`),
			after: []string{`admin {"renameCollection":"@.c","to":"@.tmp"}`, `admin {"renameCollection":"@.d","to":"@.c"}`,
				`admin {"renameCollection":"@.tmp","to":"@.d"}`}},
		{name: "rename between databases", before: some, after: []string{`admin {"renameCollection":"@.c","to":"@x.c2"}`}},
		{name: "rename between databases over", before: append(some, `other {"insert":"c2","documents":[{"_id":9}]}`),
			after: []string{`admin {"renameCollection":"@.c","to":"@x.c2","dropTarget":true}`}},
		{name: "create indexes", before: []string{seed}, after: []string{
			`{"createIndexes":"c","indexes":[{"key":{"a":1},"name":"a"},{"key":{"s":"text"},"name":"txt","weights":{"s":4}},{"key":{"g":"2dsphere"},"name":"g"}]}`,
			`{"createIndexes":"c","indexes":[{"key":{"a":-1},"name":"au","unique":true},{"key":{"t":1},"name":"t","expireAfterSeconds":30}]}`,
			`{"createIndexes":"new","indexes":[{"key":{"a":1},"name":"a","unique":true,"expireAfterSeconds":5}]}`}},
		{name: "index build that fails", before: []string{`{"insert":"c","documents":[{"_id":1,"a":1},{"_id":2,"a":1}]}`},
			after: []string{`!{"createIndexes":"c","indexes":[{"key":{"a":1},"name":"au","unique":true}]}`}},
		{name: "indexes of a collated collection", before: []string{`{"create":"c","collation":{"locale":"fr"}}`},
			after: []string{
				seed,
				`{"createIndexes":"c","indexes":[{"key":{"a":1},"name":"inherits"},{"key":{"b":1},"name":"simple","collation":{"locale":"simple"}}]}`}},
		{name: "drop indexes", before: some, after: []string{`{"dropIndexes":"c","index":"a"}`,
			`{"dropIndexes":"c","index":{"u":1}}`, `{"dropIndexes":"c","index":"t"}`}},
		{name: "drop several indexes", before: some, after: []string{`{"dropIndexes":"c","index":["a","u","t"]}`}},
		{name: "drop all indexes", before: some, after: []string{`{"dropIndexes":"c","index":"*"}`}},
		{name: "drop an index and make another of that name", before: some,
			after: []string{`{"dropIndexes":"c","index":"u"}`,
				`{"createIndexes":"c","indexes":[{"key":{"w":1},"name":"u","expireAfterSeconds":8}]}`}},
		{name: "collMod expiry", before: some, after: []string{`{"collMod":"c","index":{"name":"t","expireAfterSeconds":20}}`,
			`{"collMod":"c","index":{"keyPattern":{"t":1},"expireAfterSeconds":25}}`}},
		{name: "collMod makes an index expire", major: 6, before: some,
			after: []string{`{"collMod":"c","index":{"name":"a","expireAfterSeconds":20}}`}},
		{name: "collMod hides", major: 4, minor: 4, before: some, after: []string{
			`{"collMod":"c","index":{"name":"a","hidden":true}}`, `{"collMod":"c","index":{"name":"u","hidden":true}}`,
			`{"collMod":"c","index":{"name":"t","hidden":true}}`,
			`{"collMod":"c","index":{"name":"b","hidden":true}}`, `{"collMod":"c","index":{"name":"b","hidden":true}}`,
			`{"collMod":"c","index":{"name":"b","hidden":false}}`}},
		{name: "collMod makes unique", major: 6, before: some, after: []string{
			`{"collMod":"c","index":{"name":"a","prepareUnique":true}}`, `{"collMod":"c","index":{"name":"a","unique":true}}`,
			`{"collMod":"c","index":{"name":"t","prepareUnique":true}}`,
			`{"collMod":"c","index":{"name":"t","prepareUnique":false}}`}},
		{name: "collMod prepares unique", major: 6, before: some,
			after: []string{`{"collMod":"c","index":{"name":"a","prepareUnique":true}}`,
				`{"collMod":"c","index":{"name":"a","expireAfterSeconds":9}}`}},
		{name: "collMod of the validator", before: some, after: []string{
			`{"collMod":"c","validator":{"b":1},"validationLevel":"moderate","validationAction":"warn"}`,
			`{"collMod":"c","validationLevel":"off"}`}},
		{name: "collMod removes the validator",
			before: []string{`{"create":"c","validator":{"a":1},"validationAction":"warn"}`},
			after:  []string{`{"collMod":"c","validator":{}}`}},
		{name: "pre-images", major: 4, minor: 4, before: some,
			after: []string{`{"collMod":"c","recordPreImages":true}`, `{"create":"d","recordPreImages":true}`,
				`{"collMod":"d","recordPreImages":false}`}},
		{name: "change stream images", major: 6, before: append(some,
			`{"create":"d","changeStreamPreAndPostImages":{"enabled":true}}`), after: []string{
			`{"collMod":"c","changeStreamPreAndPostImages":{"enabled":true}}`,
			`{"collMod":"d","changeStreamPreAndPostImages":{"enabled":false}}`,
			`{"create":"e","changeStreamPreAndPostImages":{"enabled":true}}`}},
		{name: "resize a capped collection", major: 6, before: []string{`{"create":"c","capped":true,"size":4096,"max":10}`},
			after: []string{`{"collMod":"c","cappedSize":8192}`, `{"collMod":"c","cappedMax":20}`}},
		{name: "a capped collection has no most any more", major: 6,
			before: []string{`{"create":"c","capped":true,"size":4096,"max":10}`},
			after:  []string{`{"collMod":"c","cappedMax":0}`}},
		{name: "create, resize and rename a capped collection", major: 6, before: some,
			after: []string{`{"create":"d","capped":true,"size":4096,"max":10}`,
				`{"collMod":"d","cappedSize":5000,"cappedMax":3}`,
				`admin {"renameCollection":"@.d","to":"@.c","dropTarget":true}`}},
		{name: "drop all indexes of a capped collection", before: []string{`{"create":"c","capped":true,"size":4096}`,
			`{"createIndexes":"c","indexes":[{"key":{"a":1},"name":"a"}]}`}, after: []string{`{"dropIndexes":"c","index":"*"}`}},
		{name: "a capped collection is dropped", before: []string{`{"create":"c","capped":true,"size":4096}`},
			after: []string{`{"drop":"c"}`, `{"create":"c"}`}},
		{name: "clustered", major: 6,
			before: []string{`{"create":"c","clusteredIndex":{"key":{"_id":1},"unique":true},"expireAfterSeconds":70}`},
			after: []string{
				`{"collMod":"c","expireAfterSeconds":50}`,
				`{"create":"d","clusteredIndex":{"key":{"_id":1},"unique":true,"name":"x"},"expireAfterSeconds":71}`,
				`{"create":"e","clusteredIndex":{"key":{"_id":1},"unique":true}}`,
				`{"collMod":"e","expireAfterSeconds":9}`}},
		{name: "time series", major: 5,
			before: []string{`{"create":"m","timeseries":{"timeField":"t","metaField":"m","granularity":"seconds"},"expireAfterSeconds":700}`, `{"create":"n","timeseries":{"timeField":"t"}}`, `{"create":"v","viewOn":"n","pipeline":[]}`}, after: []string{
				`{"collMod":"m","timeseries":{"granularity":"hours"}}`, `{"collMod":"m","expireAfterSeconds":800}`,
				`{"createIndexes":"m","indexes":[{"key":{"m":1,"t":1},"name":"m_1_t_1"},{"key":{"t":1},"name":"t"}]}`,
				`{"insert":"m","documents":[{"t":{"$date":"2026-01-01T00:00:00Z"},"m":1,"x":5}]}`,
				`{"collMod":"m","index":{"name":"m_1_t_1","hidden":true}}`, `{"dropIndexes":"m","index":"t"}`,
				`{"create":"o","timeseries":{"timeField":"t"},"collation":{"locale":"fr"},"expireAfterSeconds":9}`,
				`{"collMod":"o","expireAfterSeconds":"off"}`, `{"drop":"n"}`, `{"create":"n","viewOn":"m","pipeline":[]}`}},
		{name: "time series metric indexes", major: 6,
			before: []string{`{"create":"m","timeseries":{"timeField":"t","metaField":"m"}}`}, after: []string{
				`{"createIndexes":"m","indexes":[{"key":{"x":1},"name":"x"},{"key":{"g":"2dsphere"},"name":"g"},{"key":{"y":1},"name":"y","partialFilterExpression":{"y":{"$gt":1}}}]}`, `{"dropIndexes":"m","index":"*"}`, `{"createIndexes":"m","indexes":[{"key":{"x":-1},"name":"x"}]}`}},
		{name: "time series whose buckets expire", major: 7,
			before: []string{`{"create":"m","timeseries":{"timeField":"t","metaField":"m"}}`,
				`{"createIndexes":"m","indexes":[{"key":{"t":1},"name":"copied","expireAfterSeconds":60,"partialFilterExpression":{"m":"x"}}]}`}, after: []string{
				`{"createIndexes":"m","indexes":[{"key":{"t":-1},"name":"followed","expireAfterSeconds":70,"partialFilterExpression":{"m":"y"}}]}`, `{"collMod":"m","index":{"name":"copied","hidden":true}}`,
				`{"create":"n","timeseries":{"timeField":"t","metaField":"m"}}`,
				`{"createIndexes":"n","indexes":[{"key":{"t":1},"name":"t","expireAfterSeconds":80,"partialFilterExpression":{"m":"x"}}]}`, `{"dropIndexes":"n","index":"t"}`}},
		{name: "views", before: append(some, `{"create":"v","viewOn":"c","pipeline":[]}`), after: []string{
			`{"create":"w","viewOn":"v","pipeline":[{"$match":{"a":1}}]}`,
			`{"collMod":"v","viewOn":"c","pipeline":[{"$project":{"a":1}}]}`, `{"drop":"v"}`, `{"drop":"w"}`,
			`{"create":"v","viewOn":"c","pipeline":[],"collation":{"locale":"de"}}`,
			`{"create":"z","viewOn":"nothing","pipeline":[{"$lookup":{"from":"c","localField":"a","foreignField":"b","as":"c"}}]}`}},
		{name: "view becomes collection", before: append(some, `{"create":"v","viewOn":"c","pipeline":[]}`),
			after: []string{`{"drop":"v"}`, `{"create":"v"}`, `{"drop":"c"}`, `{"create":"c","viewOn":"v","pipeline":[]}`}},
		{name: "all views dropped", before: append(some, `{"create":"v","viewOn":"c","pipeline":[]}`),
			after: []string{`{"drop":"system.views"}`}},
		{name: "convertToCapped", before: some, after: []string{`{"convertToCapped":"c","size":100000}`}},
		{name: "cloneCollectionAsCapped", before: some,
			after: []string{`{"cloneCollectionAsCapped":"c","toCollection":"d","size":100000}`}},
		{name: "$out", before: append(some, `{"insert":"o","documents":[{"_id":5}]}`,
			`{"createIndexes":"o","indexes":[{"key":{"k":1},"name":"k","unique":true,"sparse":true},{"key":{"t":1},"name":"t","expireAfterSeconds":3}]}`), after: []string{
			`{"aggregate":"c","pipeline":[{"$out":"o"}],"cursor":{}}`,
			`{"aggregate":"c","pipeline":[{"$out":"new"}],"cursor":{}}`}},
		{name: "mapReduce", before: some,
			after: []string{`{"mapReduce":"c","map":"function(){emit(this._id,1)}","reduce":"function(k,v){return 1}","out":{"replace":"o"}}`, `{"mapReduce":"c","map":"function(){emit(this._id,1)}","reduce":"function(k,v){return 1}","out":{"replace":"o"}}`}},
		{name: "applyOps", before: some, after: []string{`{"applyOps":[{"op":"c","ns":"@.$cmd","o":{"create":"d"}}]}`,
			`{"applyOps":[{"op":"i","ns":"@.c","o":{"_id":7}},{"op":"i","ns":"@.c","o":{"_id":8}}]}`}},
	}
}

func (r *replica) run(db string, cmds []string) {
	r.t.Helper()
	for _, cmd := range cmds {
		if len(cmd) > 0 && cmd[0] == '!' {
			if _, err := try(r.t, src, db, cmd[1:]); err == nil {
				r.t.Errorf("%s did not fail", cmd)
			}
			continue
		}
		do(r.t, src, db, cmd)
	}
}

// TestSchemaChangesFollow does each schema change on the source and applies
// what its oplog says, each change a second time as after a restart, and all of it
// under renames and within the window too.
func TestSchemaChangesFollow(t *testing.T) {
	lab.NeedServers(t)
	t.Parallel()
	variants := []struct {
		name   string
		config func(db string) transform.Config
		window bool
		twice  bool
	}{
		{"twice", func(string) transform.Config { return transform.Config{} }, false, true},
		{"renamed, within the window, twice", func(db string) transform.Config {
			return transform.Config{Rename: []string{db + "=" + db + "to", db + ".c=" + db + "to.c.to"}}
		}, true, true},
	}
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			// All cases live side by side, each in a database of its own.
			var cases []ddlCase
			var dbs []string
			var config transform.Config
			for _, c := range ddlCases() {
				if runnable(since{c.major, c.minor, strings.Join(c.after, "")}) {
					db := newDB()
					cases, dbs = append(cases, c), append(dbs, db, db+"x")
					config.Rename = append(config.Rename, v.config(db).Rename...)
					t.Logf("%s is %q", db, c.name)
				}
			}
			r := newReplica(t, newRules(t, config), dbs...)
			for i, c := range cases {
				r.run(dbs[2*i], c.before)
			}
			r.copy()
			r.window, r.twice = v.window, v.twice
			for i, c := range cases {
				r.run(dbs[2*i], c.after)
			}
			r.follow()
			r.finish()
		})
	}
}

// TestFilterEdges: changes that cross the edge of what is kept.
func TestFilterEdges(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name          string
		before, after []string
		resync        int
	}{
		{"rename out", []string{seed}, []string{`admin {"renameCollection":"@.c","to":"@.out"}`}, 0},
		{"rename out and back", []string{seed}, []string{`admin {"renameCollection":"@.c","to":"@.out"}`,
			`admin {"renameCollection":"@.out","to":"@.in"}`}, 1},
		{"rename in", []string{`{"insert":"out","documents":[{"_id":1}]}`,
			`{"createIndexes":"out","indexes":[{"key":{"a":1},"name":"a","unique":true},{"key":{"t":1},"name":"t","expireAfterSeconds":4}]}`}, []string{`admin {"renameCollection":"@.out","to":"@.in"}`}, 1},
		{"rename in over", []string{seed, `{"insert":"out","documents":[{"_id":7}]}`},
			[]string{`admin {"renameCollection":"@.out","to":"@.c","dropTarget":true}`}, 1},
		{"rename within the excluded", []string{`{"insert":"out","documents":[{"_id":7}]}`},
			[]string{`admin {"renameCollection":"@.out","to":"@.out2"}`, `{"drop":"out2"}`}, 0},
		{"from another database", []string{`other {"insert":"q","documents":[{"_id":7}]}`},
			[]string{`admin {"renameCollection":"@x.q","to":"@.in"}`}, 1},
		{"to another database", []string{seed}, []string{`admin {"renameCollection":"@.c","to":"@x.q"}`}, 0},
		{"convertToCapped", []string{seed}, []string{`{"convertToCapped":"c","size":10000}`}, 1},
		{"$out", []string{seed}, []string{`{"aggregate":"c","pipeline":[{"$out":"in"}],"cursor":{}}`,
			`{"aggregate":"c","pipeline":[{"$out":"out"}],"cursor":{}}`}, 1},
		{"changes of the excluded", []string{`{"create":"out"}`},
			[]string{`{"createIndexes":"out","indexes":[{"key":{"a":1},"name":"a"}]}`, `{"collMod":"out","validator":{"a":1}}`,
				`{"create":"out3","viewOn":"out","pipeline":[]}`, `{"drop":"out3"}`}, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			db := newDB()
			r := newReplica(t, newRules(t, transform.Config{Include: []string{db + ".c", db + ".in"},
				Rename: []string{db + ".in=" + db + "z.in2"}}), db, db+"x")
			r.run(db, c.before)
			r.copy()
			r.window = true // a copy by UUID is ahead of the change
			r.run(db, c.after)
			r.follow()
			if len(r.resync) != c.resync {
				t.Errorf("collections to copy again: %v, want %d", r.resync, c.resync)
			}
			r.finish()
		})
	}
}

// TestDropDatabaseSparesOthers: what shares the target database stays.
func TestDropDatabaseSparesOthers(t *testing.T) {
	t.Parallel()
	db := newDB()
	rules := newRules(t, transform.Config{Rename: []string{db + "=" + db + "to", db + "x.a=" + db + "to.a2"}})
	r := newReplica(t, rules, db, db+"x")
	r.run(db, []string{seed, `other {"create":"a"}`, `{"create":"v","viewOn":"c","pipeline":[]}`})
	r.copy()
	r.run(db, []string{`{"dropDatabase":1}`})
	r.follow()
	r.finish()
	found, err := r.target.ListExisting(t.Context(), []string{db + "to.a2", db + "to.c", db + "to.v"})
	if err != nil || len(found) != 1 {
		t.Errorf("left on the target: %v, %v", found, err)
	}
}

// TestDropDatabaseOfOtherCase: a dropped database makes room for one whose name differs in
// case only, unless the target has something else there.
func TestDropDatabaseOfOtherCase(t *testing.T) {
	t.Parallel()
	db := newDB()
	upper := strings.ToUpper(db)
	for _, c := range []struct {
		name   string
		before []string // in the database that is dropped
		target string   // what else the target has there
		fails  bool
	}{
		{name: "collections", before: []string{seed, `{"create":"d"}`}},
		{name: "views", before: []string{seed, `{"create":"v","viewOn":"c","pipeline":[]}`}},
		{name: "a collection of others", before: []string{seed}, target: "theirs", fails: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newReplica(t, newRules(t, transform.Config{Include: []string{db, upper}}), db, upper)
			r.run(upper, c.before)
			r.copy()
			if c.target != "" {
				do(t, dst, upper, `{"create":"`+c.target+`"}`)
			}
			r.run(upper, []string{`{"dropDatabase":1}`})
			r.follow()
			if !c.fails {
				r.run(db, []string{seed})
				r.follow()
				r.finish()
				return
			}
			_, err := r.target.Changes.Apply(t.Context(), stream.Change{Kind: stream.ChangeCreate, NS: db + ".c"},
				ApplyOptions{Rules: r.rules, Names: r.names})
			if !mongo.IsCode(err, mongo.CodeDatabaseDifferCase) || !strings.Contains(mongo.HintOf(err), "differs in case only") {
				t.Errorf("%v, hint %q", err, mongo.HintOf(err))
			}
			if found, err := r.target.ListExisting(t.Context(), []string{upper + ".theirs"}); err != nil || len(found) != 1 {
				t.Errorf("left of others: %v, %v", found, err)
			}
		})
	}
}

// TestRenameInterrupted: a crash after the rename and before what is held back
// followed.
func TestRenameInterrupted(t *testing.T) {
	t.Parallel()
	db := newDB()
	r := newReplica(t, newRules(t, transform.Config{}), db)
	r.run(db, []string{seed,
		`{"createIndexes":"c","indexes":[{"key":{"u":1},"name":"u","unique":true,"sparse":true},{"key":{"t":1},"name":"t","expireAfterSeconds":3600}]}`})
	r.copy()
	r.run(db, []string{`admin {"renameCollection":"@.c","to":"@.d"}`})
	do(t, dst, db, `admin {"renameCollection":"@.c","to":"@.d"}`)
	for range 2 {
		_, err := r.target.Changes.Apply(t.Context(), stream.Change{Kind: stream.ChangeRename, NS: db + ".c", To: db + ".d",
			DropTarget: true}, ApplyOptions{Rules: r.rules, Names: r.names, Maybe: true})
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := r.target.Changes.Apply(t.Context(), stream.Change{Kind: stream.ChangeRename, NS: db + ".c", To: db + ".d"},
		ApplyOptions{Rules: r.rules, Names: r.names})
	if !IsGone(err) || mongo.HintOf(err) == "" {
		t.Errorf("rename of what is not there: %v", err)
	}
	r.finish()
}

// TestRenameNotedByOlderVersion: older versions noted a rename before they checked that it
// can be applied, and without UUIDs. One that they refused is still refused, because the
// target has neither name.
func TestRenameNotedByOlderVersion(t *testing.T) {
	t.Parallel()
	db := newDB()
	r := newReplica(t, newRules(t, transform.Config{}), db)
	r.run(db, []string{seed})
	r.copy()
	r.run(db, []string{`admin {"renameCollection":"@.c","to":"@.d"}`})
	do(t, dst, db, `{"drop":"c"}`)
	for _, to := range []string{db + ".d", db + "x.d"} {
		_, err := r.target.Changes.Apply(t.Context(), stream.Change{Kind: stream.ChangeRename, NS: db + ".c", To: to},
			ApplyOptions{Rules: r.rules, Names: r.names, Maybe: true})
		if !IsGone(err) || mongo.HintOf(err) == "" {
			t.Errorf("rename to %s, of what is gone: %v", to, err)
		}
	}
}

// TestMixedSchema: a time series of a server before 5.2 is marked on the target as one whose
// buckets may hold mixed types, whether it is copied or made while the source is followed.
// Servers that cannot mark it have the job say so.
func TestMixedSchema(t *testing.T) {
	t.Parallel()
	db := newDB()
	r := newReplica(t, newRules(t, transform.Config{}), db)
	if !src.Info.Version.AtLeast(5, 0) || !dst.Info.Version.AtLeast(5, 2) {
		t.Skip("needs a source of 5.0 and a target that knows the mark")
	}
	var log bytes.Buffer
	r.target = NewTarget(dst, TargetOptions{Job: "job " + db, Log: slog.New(slog.NewTextHandler(&log, nil))})
	r.run(db, []string{`{"create":"copied","timeseries":{"timeField":"t"}}`})
	r.copy()
	r.run(db, []string{`{"create":"followed","timeseries":{"timeField":"t"}}`})
	r.follow()
	colls, err := List(t.Context(), dst, scopeOf(r.rules, db))
	if err != nil {
		t.Fatal(err)
	}
	if len(colls) != 2 {
		t.Fatal(colls)
	}
	for _, c := range colls {
		reported := strings.Contains(log.String(), "cannot mark") && strings.Contains(log.String(), "ns="+c.NS+" ")
		if got, want := c.MixedSchema || reported, !src.Info.Version.AtLeast(5, 2); got != want {
			t.Errorf("%s: marked %v, reported %v, want one of both: %v", c.NS, c.MixedSchema, reported, want)
		}
	}
	r.finish()
}
