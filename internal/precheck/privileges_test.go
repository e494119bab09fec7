package precheck

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/placing"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/transform"
)

// nothing are the grants of a user who may do nothing.
func nothing() (grants, error) { return grants{}, nil }

// asked are what a user lacks who may do nothing: each with the namespace.
func asked(look func(now, later *needs)) (now, later []string) {
	a, b := &needs{have: grants{}, seen: map[string]bool{}}, &needs{have: grants{}, seen: map[string]bool{}}
	look(a, b)
	return a.lacks, b.lacks
}

// copying is a planner of a job that copies one namespace of each type.
func copying(source, target mongo.Kind) *planner {
	p := between(source, target)
	p.plan.Collections = []Collection{
		{Source: "a.b", Target: "a.b", Type: schema.TypeCollection},
		{Source: "a.system.js", Target: "a.system.js", Type: schema.TypeCollection},
		{Source: "a.t", Target: "a.t", Type: schema.TypeTimeSeries},
		{Source: "a.v", Target: "a.v", Type: schema.TypeView},
	}
	p.seen.sharding = func() (sharding, error) {
		return sharding{desired: map[string]placing.Desired{"a.b": {Key: bson.Raw{5, 0, 0, 0, 0}}}}, nil
	}
	return p
}

// TestSourceNeeds: what the user of the source needs follows from the mode, and what is copied.
func TestSourceNeeds(t *testing.T) {
	p := copying(mongo.KindReplicaSet, mongo.KindReplicaSet)
	now, later := asked(access{p}.sourceNeeds)
	expect(t, now, "useUUID, listDatabases on the cluster", "find on local.oplog.rs",
		"listCollections on a.millrace-probe", "listIndexes, collStats, find on a.b",
		"listIndexes, collStats, find on a.system.js", "listIndexes, collStats, find on a.system.buckets.t")
	expect(t, later, "listIndexes, collStats, find on a.millrace-probe",
		"listIndexes, collStats, find on a.system.buckets.millrace-probe")

	// Nothing else can come where the rules name each collection.
	_, later = asked(access{p.with(t, transform.Config{Include: []string{"a.b"}})}.sourceNeeds)
	expect(t, later)

	p = copying(mongo.KindReplicaSet, mongo.KindSharded)
	p.Mode = state.ModeStructure
	now, later = asked(access{p}.sourceNeeds)
	expect(t, now, "listDatabases on the cluster", "listCollections on a.millrace-probe",
		"listIndexes, collStats, find on a.b", "listIndexes, collStats on a.system.js",
		"listIndexes, collStats on a.system.buckets.t")
	expect(t, later)

	now, _ = asked(access{copying(mongo.KindSharded, mongo.KindSharded)}.sourceNeeds)
	for _, name := range []string{"shards", "databases", "collections", "chunks", "tags"} {
		if !slices.Contains(now, "find on config."+name) {
			t.Errorf("config.%s is not asked for: %q", name, now)
		}
	}
	if slices.Contains(now, "find on local.oplog.rs") {
		t.Errorf("routers have no oplog: %q", now)
	}
}

// TestShardNeeds: documents and oplogs of a sharded source are read at its shards.
func TestShardNeeds(t *testing.T) {
	p := copying(mongo.KindSharded, mongo.KindReplicaSet)
	of := func(v mongo.Version) func(now, later *needs) {
		return func(now, later *needs) { access{p}.shardNeeds(v, now, later) }
	}
	now, later := asked(of(mongo.Version{Major: 7}))
	expect(t, now, "useUUID on the cluster", "find on local.oplog.rs", "find on config.transactions",
		"listIndexes, collStats, find on a.b", "listIndexes, collStats, find on a.system.js",
		"listIndexes, collStats, find on a.system.buckets.t")
	expect(t, later, "listIndexes, collStats, find on a.millrace-probe")
	for _, v := range []mongo.Version{{Major: 8}, {Major: 9, Minor: 1}} {
		now, _ = asked(of(v))
		expect(t, now[:2], "issueDirectShardOperations on the cluster", "useUUID on the cluster")
	}
	p.Mode = state.ModeStructure
	now, later = asked(of(mongo.Version{Major: 6}))
	expect(t, append(now, later...), "find on a.b") // to sample its keys
	now, later = asked(of(mongo.Version{Major: 8}))
	expect(t, append(now, later...), "issueDirectShardOperations on the cluster", "find on a.b")
	now, _ = asked(access{p}.configNeeds)
	expect(t, now, "find on local.oplog.rs", "find on config.databases", "find on config.collections",
		"find on config.chunks", "find on config.changelog")
}

// TestTargetNeeds: the user of the target makes what there is, and what may come later.
func TestTargetNeeds(t *testing.T) {
	p := copying(mongo.KindReplicaSet, mongo.KindReplicaSet)
	now, later := asked(access{p}.targetNeeds)
	expect(t, now, "find, insert, update, remove on millrace.jobs", "listCollections on a.millrace-probe",
		"insert, update, remove, bypassDocumentValidation, find, createCollection, convertToCapped, collMod, dropCollection",
		"insert, update, remove, bypassDocumentValidation, find, listIndexes, collStats on a.system.js",
		"createCollection, collMod, dropCollection, dropIndex on a.t",
		"insert, update, remove, bypassDocumentValidation, find, createIndex, listIndexes, collStats on a.system.buckets.t",
		"createCollection, collMod, dropCollection on a.v")
	if len(later) != 2 {
		t.Errorf("%q", later)
	}
	p.Mode = state.ModeStructure
	now, later = asked(access{p}.targetNeeds)
	if text := strings.Join(now, "\n"); strings.Contains(text, "bypassDocumentValidation") || len(later) != 0 {
		t.Errorf("no documents are copied: %s\n%q", text, later)
	}

	now, _ = asked(access{copying(mongo.KindReplicaSet, mongo.KindSharded)}.targetNeeds)
	for _, want := range []string{"find on config.chunks", "find, update on config.collections",
		"enableSharding, splitChunk, moveChunk on a.b"} {
		if !slices.Contains(now, want) {
			t.Errorf("%s is not asked for: %q", want, now)
		}
	}
}

// TestPrivileges: what is missing for what there is fails, for what may come it is a warning.
func TestPrivileges(t *testing.T) {
	grant := func(resource, actions string) privilege {
		var p privilege
		if err := bson.Unmarshal(doc(t, `{"resource":`+resource+`}`), &p); err != nil {
			t.Fatal(err)
		}
		p.Actions = strings.Fields(actions)
		return p
	}
	p := copying(mongo.KindReplicaSet, mongo.KindReplicaSet)
	p.plan.Collections = p.plan.Collections[:1]
	p.seen.targetGrants = func() (grants, error) { return nil, nil } // which asks for none
	enough := grants{grant(`{"cluster":true}`, "useUUID listDatabases"),
		grant(`{"db":"local","collection":"oplog.rs"}`, "find"),
		grant(`{"db":"a","collection":""}`, "listCollections"),
		grant(`{"db":"a","collection":"b"}`, "find listIndexes collStats")}
	for _, c := range []struct {
		name string
		have func() (grants, error)
		want string
	}{
		{"nothing", nothing, "fail source privileges: the user lacks useUUID, listDatabases on the cluster; find on " +
			"local.oplog.rs"},
		{"what there is", func() (grants, error) { return enough, nil },
			"warn source privileges: enough for what there is; a collection created later could stop the job: the user lacks"},
		{"all", func() (grants, error) { return grants{grant(`{"anyResource":true}`, "anyAction")}, nil },
			"ok source privileges: sufficient"},
	} {
		p.plan.Checks, p.seen.sourceGrants = nil, c.have
		if err := (access{p}).privileges(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Run(c.name, func(t *testing.T) { expect(t, p.lines(), c.want, "ok target privileges: sufficient") })
	}
	p.plan.Checks, p.seen.configGrants = nil, nothing
	if err := (access{p}).privileges(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect(t, p.lines(Fail), "fail config servers privileges: the user lacks find on local.oplog.rs")
}

// TestNeedsText: of many missing rights some are named.
func TestNeedsText(t *testing.T) {
	n := &needs{have: grants{}, seen: map[string]bool{}}
	for _, ns := range []string{"a.a", "a.b", "a.a", "a.c", "a.d", "a.e", "a.f"} {
		n.on(ns, "find")
	}
	want := "the user lacks find on a.a; find on a.b; find on a.c; find on a.d; and more on 2 others"
	if n.text() != want {
		t.Errorf("%s", n.text())
	}
}

// TestUnauthorized: a side that refuses to be looked at is named, with the roles that it takes.
func TestUnauthorized(t *testing.T) {
	p := between(mongo.KindReplicaSet, mongo.KindSharded)
	for text, want := range map[string]string{
		"load job j: not authorized on millrace to execute command {...}": "fail target privileges: load job j: not " +
			"authorized on millrace",
	} {
		p.plan.Checks = nil
		access{p}.unauthorized(errors.New(text))
		expect(t, p.lines(), want)
		if hint := p.plan.Checks[0].Hint; !strings.Contains(hint, "clusterManager") {
			t.Errorf("%s", hint)
		}
	}
	p.plan.Checks = nil
	access{p}.unauthorized(errors.New("load job j: (Unauthorized) command find requires authentication"))
	if hint := p.plan.Checks[0].Hint; !strings.Contains(hint, "names no user") {
		t.Errorf("without a user: %s", hint)
	}
	p.plan.Checks = nil
	access{p}.unauthorized(driver.CommandError{Code: mongo.CodeUnauthorized, Name: "Unauthorized",
		Message: "You are connecting to a sharded cluster improperly by connecting directly to a shard. Please connect to " +
			"the cluster via a router (mongos). Command: listDatabases, Namespace: admin"})
	if hint := p.plan.Checks[0].Hint; !strings.Contains(hint, "directShardOperations") ||
		!strings.Contains(hint, "--via routers") {
		t.Errorf("refused by a shard: %s", hint)
	}
	for side, roles := range map[string]string{"source": "readAnyDatabase and clusterMonitor",
		"shard s0": "readAnyDatabase"} {
		if hint := (access{p}).rolesHint(side); !strings.Contains(hint, roles) || strings.Contains(hint, "restore") {
			t.Errorf("%s: %s", side, hint)
		}
	}
}
