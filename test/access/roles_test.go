package access

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/precheck"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/internal/verify"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// sourceRoles and targetRoles are the built-in roles that docs/reference/privileges.md
// names.
func sourceRoles() bson.A { return bson.A{"readAnyDatabase", "clusterMonitor"} }
func targetRoles() bson.A { return bson.A{"readWriteAnyDatabase", "restore", "clusterMonitor"} }

// side is one of the clusters, for those tests that treat both alike.
type side struct {
	cluster *lab.Cluster
	client  *driver.Client
}

func sourceSide() side { return side{shared.source, shared.sourceDB} }
func targetSide() side { return side{shared.target, shared.targetDB} }

// admin runs a command on database admin.
func (s side) admin(t *testing.T, cmd bson.D) {
	t.Helper()
	if err := s.client.Database("admin").RunCommand(t.Context(), cmd).Err(); err != nil {
		t.Fatal(err)
	}
}

// user makes a user with roles and returns its connection string.
func (s side) user(t *testing.T, name string, roles bson.A) string {
	t.Helper()
	a := account{name, "p@ss:w/rd% #1"}
	_ = s.client.Database("admin").RunCommand(t.Context(), bson.D{{Key: "dropUser", Value: name}}).Err()
	s.admin(t, bson.D{{Key: "createUser", Value: name}, {Key: "pwd", Value: a.password}, {Key: "roles", Value: roles}})
	return a.uri(s.cluster)
}

// userWith makes a user with one role that has the privileges.
func (s side) userWith(t *testing.T, name string, privileges []privilege, more ...any) string {
	t.Helper()
	_ = s.client.Database("admin").RunCommand(t.Context(), bson.D{{Key: "dropRole", Value: name}}).Err()
	s.admin(t, bson.D{{Key: "createRole", Value: name}, {Key: "privileges", Value: privileges},
		{Key: "roles", Value: bson.A{}}})
	return s.user(t, name, append(bson.A{name}, more...))
}

// privilege is an entry of createRole's privileges.
type privilege struct {
	Resource bson.D   `bson:"resource"`
	Actions  []string `bson:"actions"`
}

// documented reads the privileges of a role from docs/reference/privileges.md, without
// those that an older server does not know.
func documented(t *testing.T, role string) []privilege {
	t.Helper()
	text, err := os.ReadFile("../../docs/reference/privileges.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?s)db\.adminCommand\((\{"createRole": "` + role + `".*?\})\)\n`).FindSubmatch(text)
	if found == nil {
		t.Fatalf("docs/reference/privileges.md does not create role %s", role)
	}
	var cmd struct {
		Privileges []privilege `bson:"privileges"`
	}
	if err := bson.UnmarshalExtJSON(found[1], false, &cmd); err != nil {
		t.Fatalf("role %s in docs/reference/privileges.md: %v", role, err)
	}
	return slices.DeleteFunc(cmd.Privileges, func(p privilege) bool {
		return !since50() && slices.ContainsFunc(p.Resource, func(e bson.E) bool { return e.Key == "system_buckets" })
	})
}

// since50 reports whether the servers have time series.
func since50() bool {
	v := os.Getenv("MILLRACE_TEST_VERSION")
	return v == "" || v >= "5"
}

// TestBuiltInRoles runs a complete job with the documented roles.
func TestBuiltInRoles(t *testing.T) {
	log := succeeds(t, sourceSide().user(t, "reader", sourceRoles()), targetSide().user(t, "writer", targetRoles()))
	quiet(t, log)
}

// TestLeastPrivileges runs a whole job with the documented roles of one's own.
func TestLeastPrivileges(t *testing.T) {
	log := succeeds(t, sourceSide().userWith(t, "leastReader", documented(t, "millraceSource")),
		targetSide().userWith(t, "leastWriter", documented(t, "millraceTarget")))
	quiet(t, log)
}

// quiet wants a job's log without warnings.
func quiet(t *testing.T, log string) {
	t.Helper()
	for line := range strings.Lines(log) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			t.Error(line)
		}
	}
}

// spared are the actions without which a job runs all the same.
func spared(role string, p privilege, action string) bool {
	switch action {
	case "replSetGetConfig", "getParameter", "inprog", "dropDatabase":
		return true
	case "find": // finalize goes without the collections of the way back
		return strings.HasSuffix(role, "Target") && slices.Contains(p.Resource, bson.E{Key: "db", Value: "local"})
	case "listDatabases":
		return strings.HasSuffix(role, "Target")
	case "collStats":
		return slices.Contains(p.Resource, bson.E{Key: "collection", Value: "oplog.rs"})
	}
	return false
}

// TestWithoutComfort runs a whole job without the actions that it can spare. A
// comparison is not made by a user who is not shown all there is.
func TestWithoutComfort(t *testing.T) {
	reduced := func(role string) []privilege {
		all := documented(t, role)
		for i, p := range all {
			all[i].Actions = slices.DeleteFunc(p.Actions, func(a string) bool { return spared(role, p, a) })
		}
		return slices.DeleteFunc(all, func(p privilege) bool { return len(p.Actions) == 0 })
	}
	source := sourceSide().userWith(t, "leastReader", reduced("millraceSource"))
	target := targetSide().userWith(t, "leastWriter", reduced("millraceTarget"))
	finishes(t, source, target)
	for _, s := range []verify.Spec{
		{Source: source, Target: target},
		{Source: sourceSide().user(t, "narrow", bson.A{bson.D{{Key: "role", Value: "read"}, {Key: "db", Value: "other"}}}),
			Target: shared.target.URI()},
	} {
		if r, err := verify.Clusters(t.Context(), s); err == nil || !strings.Contains(err.Error(), "listDatabases") ||
			mongo.HintOf(err) == "" {
			t.Errorf("verify by users who may not list all databases: %+v, %v", r, err)
		}
	}
}

// TestEachActionIsChecked takes away every other action and wants the precheck
// to refuse the job.
func TestEachActionIsChecked(t *testing.T) {
	load(t)
	for _, s := range []struct {
		side
		role string
		spec func(uri string) job.Spec
	}{
		{sourceSide(), "millraceSource", func(uri string) job.Spec { return spec(uri, shared.target.URI(), t.Output()) }},
		{targetSide(), "millraceTarget", func(uri string) job.Spec { return spec(shared.source.URI(), uri, t.Output()) }},
		{sourceSide(), "millraceStructureSource",
			func(uri string) job.Spec { return structure(spec(uri, shared.target.URI(), t.Output())) }},
		{targetSide(), "millraceStructureTarget",
			func(uri string) job.Spec { return structure(spec(shared.source.URI(), uri, t.Output())) }},
	} {
		all := documented(t, s.role)
		for i, p := range all {
			for k, action := range p.Actions {
				if spared(s.role, p, action) {
					continue
				}
				less := slices.Clone(all)
				less[i].Actions = slices.Delete(slices.Clone(p.Actions), k, k+1)
				what := action + " on " + kit.Raw(p.Resource).String()
				checks := refusal(t, s.spec(s.userWith(t, "less", less)), what)
				if !strings.Contains(checks, action) && !strings.Contains(checks, "not authorized") {
					t.Errorf("without %s the precheck says: %s", what, checks)
				}
			}
		}
	}
	untouched(t)
}

// refusal plans a job that must fail for want of privileges, and returns what
// is said to whom wants to run it.
func refusal(t *testing.T, s job.Spec, what string) string {
	t.Helper()
	j, err := job.Open(t.Context(), s)
	if err != nil {
		t.Errorf("without %s: %v", what, err)
		return ""
	}
	defer j.Close()
	plan, err := j.Plan(t.Context())
	if err != nil {
		t.Errorf("without %s the plan fails: %v", what, err)
		return ""
	}
	var found []string
	for _, c := range plan.Checks {
		if c.Level == precheck.Fail && (strings.HasSuffix(c.Name, " privileges") || c.Name == "oplog") {
			found = append(found, c.Message)
			if c.Hint == "" {
				t.Errorf("without %s there is no hint", what)
			}
		}
	}
	if len(found) == 0 {
		t.Errorf("without %s the precheck passes: %v", what, plan.Checks)
	}
	return strings.Join(found, "; ")
}

// untouched wants nothing on the target.
func untouched(t *testing.T) {
	t.Helper()
	dbs, err := shared.targetDB.ListDatabaseNames(t.Context(), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	for _, db := range dbs {
		if db == "millrace" || strings.HasPrefix(db, "acc") {
			t.Errorf("the precheck left database %s on the target", db)
		}
	}
}

// TestEachRoleIsChecked takes away each of the built-in roles.
func TestEachRoleIsChecked(t *testing.T) {
	load(t)
	refused := func(what, source, target string) {
		t.Helper()
		refusal(t, spec(source, target, t.Output()), "role "+what)
		j, err := job.Open(t.Context(), spec(source, target, t.Output()))
		if err != nil {
			t.Fatal(err)
		}
		defer j.Close()
		var precheck *job.PrecheckError
		if err := j.Run(t.Context()); !errors.As(err, &precheck) {
			t.Errorf("without role %s the job ended with: %v", what, err)
		}
	}
	for i, role := range sourceRoles() {
		refused(role.(string), sourceSide().user(t, "less", slices.Delete(sourceRoles(), i, i+1)), shared.target.URI())
	}
	for i, role := range targetRoles()[:2] { // clusterMonitor can be spared
		refused(role.(string), shared.source.URI(), targetSide().user(t, "less", slices.Delete(targetRoles(), i, i+1)))
	}
	// Enough for plain collections, not for system.js and time series.
	refused("restore", shared.source.URI(),
		targetSide().user(t, "less", bson.A{"readWriteAnyDatabase", "dbAdminAnyDatabase"}))
	untouched(t)
}

// TestSomeDatabases runs a job between users that may see and write some
// databases only, while there are others.
func TestSomeDatabases(t *testing.T) {
	on := func(role, db string) bson.D { return bson.D{{Key: "role", Value: role}, {Key: "db", Value: db}} }
	source, target := bson.A{"clusterMonitor"}, bson.A{"clusterMonitor", on("readWrite", "millrace")}
	for _, db := range []string{"acc", "acc_2", "acc_3", "acc_4"} {
		source = append(source, on("read", db))
		target = append(target, on("readWrite", db), on("dbAdmin", db))
	}
	var log strings.Builder
	s := spec(sourceSide().user(t, "reader", source), targetSide().user(t, "writer", target), &log)
	s.Rules = transform.Config{Include: []string{"acc*"}, Exclude: []string{"acc.out*", "*.system.js", "acc.series*"}}
	if err := wholeJob(t, s); err != nil {
		t.Fatalf("%v\n%s", err, log.String())
	}
	same(t, func(ns string) bool {
		return !strings.HasSuffix(ns, ".system.js") && !strings.Contains(ns, "series")
	})
}

// TestChangeStreamPrivileges runs a whole job of a user who may open change streams and not read the oplog: it
// captures by them without being asked to.
func TestChangeStreamPrivileges(t *testing.T) {
	if !since60() {
		t.Skip("before 6.0 nothing captures by change streams unasked")
	}
	all := documented(t, "millraceSource")
	for i, p := range all {
		if slices.Contains(p.Resource, bson.E{Key: "collection", Value: "oplog.rs"}) {
			all[i] = privilege{bson.D{{Key: "db", Value: ""}, {Key: "collection", Value: ""}}, []string{"changeStream"}}
		}
	}
	log := finishes(t, sourceSide().userWith(t, "streamReader", all), targetSide().user(t, "writer", targetRoles()))
	if !strings.Contains(log, "what change streams do not report") {
		t.Errorf("finalize names nothing as left out:\n%s", log)
	}
}

// since60 reports whether the servers' change streams report schema changes.
func since60() bool {
	v := os.Getenv("MILLRACE_TEST_VERSION")
	return v == "" || v >= "6"
}
