package seed

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	files "github.com/millrace/millrace/internal/seed"
	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/kit"
)

// TestMigrationByFilesOfFunctions: the functions of a database arrive by the rules, also where it has nothing else.
func TestMigrationByFilesOfFunctions(t *testing.T) {
	t.Parallel()
	m := newMigration(t, "6.0", "rs:2", 1, "--exclude", "some.system.js")
	sc := kit.Client(t, m.set.URI())
	for _, ns := range [][2]string{{"functions", "system.js"}, {"some", "system.js"}, {"some", "c"}} {
		_, err := sc.Database(ns[0]).Collection(ns[1]).InsertOne(t.Context(), bson.D{{Key: "_id", Value: "f"},
			{Key: "value", Value: bson.JavaScript("function() { return 1 }")}})
		must(t, err)
	}
	m.start("1GB")
	m.begin()
	m.following()
	dc := m.finalized(test.CompareOptions{Source: func(ns string) bool { return ns != "some.system.js" }})
	for db, want := range map[string]int64{"functions": 1, "some": 0} {
		if n, err := dc.Database(db).Collection("system.js").CountDocuments(t.Context(), bson.D{}); err != nil || n != want {
			t.Errorf("%s.system.js on the target: %d documents, %v, want %d", db, n, err, want)
		}
	}
}

// TestMigrationByFilesOtherRules: the sync is killed when the new set has been made and before its job is stored. With
// other rules or users it does not go on: the set has not what they name, or more. With the same ones it does.
func TestMigrationByFilesOtherRules(t *testing.T) {
	t.Parallel()
	m := newMigration(t, "6.0", "rs:2", 1, "--exclude", "left.*")
	sc := kit.Client(t, m.set.URI())
	for _, db := range []string{"left", "kept"} {
		_, err := sc.Database(db).Collection("c").InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}})
		must(t, err)
	}
	m.start("1GB")
	m.begin()
	m.await(m.hosts[0], "the member is to start", func(s files.HostState) bool { return s.Stage == files.StageRunning })
	m.sync.Kill()
	same := m.options
	for _, other := range [][]string{nil, {"--exclude", "left.*", "--users=false"}} {
		m.options = other
		m.begin()
		err := m.sync.Wait(time.Minute)
		if out := m.sync.Output(); err == nil || !strings.Contains(out, "made with other rules or users") {
			t.Fatalf("with %q: %v, exit code %d\n%s", other, err, m.sync.ExitCode(), out)
		}
	}
	m.options = same
	m.begin()
	m.following()
	m.finalized(test.CompareOptions{Source: func(ns string) bool { return !strings.HasPrefix(ns, "left.") }})
}

// TestMigrationByFilesTwoSyncs: two syncs began at once, and each gave its order to another agent. Their members would
// never find each other, so the sync ends.
func TestMigrationByFilesTwoSyncs(t *testing.T) {
	t.Parallel()
	m := newMigration(t, "6.0", "rs:2", 2)
	m.start("1GB")
	m.begin()
	done := func(s files.HostState) bool { return s.Order != nil }
	order := *m.await(m.hosts[0], "the first agent has an order", done).Order
	m.await(m.hosts[1], "the last agent has an order", done)
	m.sync.Kill()
	h := m.hosts[1]
	h.agent.Kill()
	must(t, removeHost(h.dir))
	m.startAgent(h)
	c, err := files.NewClient(files.ClientOptions{URL: "https://127.0.0.1:" + h.port, TokenFile: m.token, CA: m.pem})
	must(t, err)
	defer c.Close()
	order.From, order.Formation.ID = "https://127.0.0.1:"+m.hosts[0].port, bson.NewObjectID()
	must(t, c.Order(t.Context(), order))
	m.begin()
	if err := m.sync.Wait(time.Minute); err == nil || !strings.Contains(m.sync.Output(), "two syncs began at once") {
		t.Errorf("%v, exit code %d\n%s", err, m.sync.ExitCode(), m.sync.Output())
	}
}

// TestMigrationByFilesToUsedHosts: the mongod of an earlier migration, with the same set and job, still listens at the
// address of the new member. The sync does not take it for the new one, which would be finalized already.
func TestMigrationByFilesToUsedHosts(t *testing.T) {
	t.Parallel()
	m := newMigration(t, "6.0", "rs:2", 1)
	coll := kit.Client(t, m.set.URI()).Database("used").Collection("c")
	_, err := coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}})
	must(t, err)
	m.start("1GB")
	m.begin()
	m.following()
	m.cutOver()
	_, err = coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 2}})
	must(t, err)
	was := m.hosts[0]
	must(t, was.agent.Wait(time.Minute))
	h := &targetHost{dir: filepath.Join(t.TempDir(), "db"), host: was.host, port: freePort(t)}
	m.hosts = []*targetHost{h}
	t.Cleanup(func() { m.killMember(was); m.killMember(h) })
	m.startAgent(h)
	m.begin()
	err = m.sync.Wait(time.Minute)
	if err == nil || !strings.Contains(m.sync.Output(), "another mongod listens") {
		t.Fatalf("%v, exit code %d\n%s", err, m.sync.ExitCode(), m.sync.Output())
	}
	m.killMember(was)
	m.begin()
	m.following()
	m.finalized(test.CompareOptions{})
}

// removeHost removes what an agent has on disk.
func removeHost(dir string) error { return errors.Join(os.RemoveAll(dir), os.Remove(dir+".millrace")) }
