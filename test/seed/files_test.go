package seed

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
)

// migration is a set made of another one's files by processes.
type migration struct {
	*ground
	hosts   []*targetHost
	source  *test.Process // seed serve
	via     string        // port by which the others know it, if that is not its own
	sync    *test.Process
	options []string // of the sync
}

// targetHost is an agent with its member.
type targetHost struct {
	dir, host, port string    // port of the agent
	via             string    // port by which the others know it, if that is not its own
	disk            *lab.Disk // that has dir, if it is a small one
	enter           []string  // command that runs the agent there
	agent           *test.Process
}

func newMigration(t *testing.T, version, topology string, members int, more ...string) *migration {
	t.Helper()
	return newMigrationOf(newGround(t, version, topology), members, more...)
}

func newMigrationOf(g *ground, members int, more ...string) *migration {
	t := g.t
	t.Helper()
	m := &migration{ground: g, options: more}
	for range members {
		m.hosts = append(m.hosts, &targetHost{dir: filepath.Join(t.TempDir(), "db"), host: "127.0.0.1:" + freePort(t),
			port: freePort(t)})
	}
	t.Cleanup(func() {
		for _, h := range m.hosts {
			m.killMember(h)
		}
	})
	return m
}

// start starts all agents, with a rate of the source for a copy that takes a moment.
func (m *migration) start(rate string) {
	m.t.Helper()
	m.source = m.serve("--max-rate-bytes", rate)
	for _, h := range m.hosts {
		m.startAgent(h)
	}
}

func (m *migration) startAgent(h *targetHost) {
	m.t.Helper()
	port := h.host[strings.Index(h.host, ":")+1:]
	command := slices.Concat(h.enter, []string{m.bin, "seed", "agent", "--dbpath", h.dir, "--member", h.host,
		"--listen", "127.0.0.1:" + h.port, "--listen-tls-cert", m.pem, "--ca-file", m.pem, "--token-file", m.token, "--",
		m.program}, memberFlags("moved", h.dir, port))
	h.agent = test.Start(m.t, command[0], command[1:]...)
	kit.Until(m.t, "the agent listens", func() bool {
		select {
		case <-h.agent.Done():
			m.t.Fatalf("the agent ended: %s", h.agent.Output())
		default:
		}
		return strings.Contains(h.agent.Output(), "msg=serving")
	})
}

// killMember kills whatever mongod runs on a directory, and reports whether one did.
func (m *migration) killMember(h *targetHost) bool {
	pid := mongodOn(h.dir)
	return pid != 0 && syscall.Kill(pid, syscall.SIGKILL) == nil
}

func (m *migration) target() string {
	var hosts []string
	for _, h := range m.hosts {
		hosts = append(hosts, h.host)
	}
	return "mongodb://" + strings.Join(hosts, ",") + "/?replicaSet=moved"
}

func (m *migration) args(more ...string) []string {
	args := []string{"sync", "--source", m.set.URI(), "--target", m.target(), "--copy", "files", "--source-agent",
		"https://127.0.0.1:" + cmp.Or(m.via, m.port), "--token-file", m.token, "--ca-file", m.pem}
	for _, h := range m.hosts {
		args = append(args, "--target-agents", "https://127.0.0.1:"+cmp.Or(h.via, h.port))
	}
	return append(append(args, m.options...), more...)
}

func (m *migration) begin() { m.t.Helper(); m.sync = test.Start(m.t, m.bin, m.args()...) }

// following waits until the job follows.
func (m *migration) following() {
	m.t.Helper()
	kit.Until(m.t, "the job follows", func() bool {
		select {
		case <-m.sync.Done():
			m.t.Fatalf("the sync ended: %s\n", m.sync.Output())
		default:
		}
		return m.sync.Status(m.t.Context()).Phase == job.PhaseFollowing
	})
}

func (m *migration) cutOver() {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), 5*time.Minute)
	defer cancel()
	if err := m.sync.Finalize(ctx); err != nil {
		m.t.Fatalf("finalize: %v\n%s", err, m.sync.Output())
	}
	m.ended()
}

func (m *migration) ended() {
	m.t.Helper()
	if err := m.sync.Wait(time.Minute); err != nil {
		m.t.Fatalf("sync: %v\n%s", err, m.sync.Output())
	}
}

// finalized cuts over, and compares both sides.
func (m *migration) finalized(o test.CompareOptions) *driver.Client {
	m.t.Helper()
	m.cutOver()
	return m.compared(o)
}

// compared waits for the agents' ends, and compares both sides.
func (m *migration) compared(o test.CompareOptions) *driver.Client {
	t := m.t
	t.Helper()
	for _, h := range m.hosts {
		if err := h.agent.Wait(time.Minute); err != nil {
			t.Errorf("agent: %v\n%s", err, h.agent.Output())
		}
	}
	sc, dc := kit.Client(t, m.set.URI()), kit.Client(t, m.target())
	diffs, err := test.Compare(t.Context(), sc, dc, o)
	must(t, err)
	for _, d := range diffs {
		t.Error(d)
	}
	unlike(t, sc, dc)
	return dc
}

// everywhere compares the members of the new set, and that none made an initial sync.
func (m *migration) everywhere(db string) {
	t := m.t
	t.Helper()
	want := hash(t, kit.Client(t, m.target()), db)
	for _, h := range m.hosts {
		c := kit.Client(t, "mongodb://"+h.host+"/?directConnection=true")
		kit.Until(t, "each member has the same content", func() bool { return hash(t, c, db) == want })
		raw, err := c.Database("admin").RunCommand(t.Context(), bson.D{{Key: "serverStatus", Value: 1}}).Raw()
		must(t, err)
		if v, err := raw.LookupErr("metrics", "repl", "initialSync", "completed"); err != nil || v.AsInt64() != 0 {
			t.Errorf("%s made an initial sync: %v, %v", h.host, v, err)
		}
		raw, err = c.Database("admin").
			RunCommand(t.Context(), bson.D{{Key: "getParameter", Value: 1}, {Key: "ttlMonitorEnabled", Value: 1}}).Raw()
		must(t, err)
		if on, _ := raw.Lookup("ttlMonitorEnabled").BooleanOK(); !on {
			t.Errorf("%s expires no documents", h.host)
		}
	}
}

// onlyByFiles resumes the job without its agents, which alone let the target expire documents: that is rejected.
func (m *migration) onlyByFiles() {
	m.t.Helper()
	p := test.Start(m.t, m.bin, append([]string{"sync", "--source", m.set.URI(), "--target", m.target(), "--mode",
		"incremental", "--start-at", "checkpoint", "--job", m.sync.Status(m.t.Context()).Job}, m.options...)...)
	if err := p.Wait(time.Minute); err == nil || p.ExitCode() != 2 ||
		!strings.Contains(p.Output(), "continues only with --copy files") {
		m.t.Errorf("resumed without --copy files: exit code %d\n%s", p.ExitCode(), p.Output())
	}
}

// TestMigrationByFiles: a set under writes becomes one of three new members by one sync.
func TestMigrationByFiles(t *testing.T) {
	t.Parallel()
	for _, version := range lab.Versions("4.2", "4.4", "5.0") {
		t.Run(version, func(t *testing.T) {
			m := newMigration(t, version, "rs:3", 3, "--exclude", "left.*,moved.out")
			sc := kit.Client(t, m.set.URI())
			db := sc.Database("moved")
			test.LoadChurn(t, db)
			for _, ns := range [][2]string{{"left", "c"}, {"moved", "out"}, {"millrace", "jobs"}} {
				_, err := sc.Database(ns[0]).Collection(ns[1]).InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}})
				must(t, err)
			}
			must(t, sc.Database("moved").RunCommand(t.Context(), bson.D{{Key: "createUser", Value: "ada"},
				{Key: "pwd", Value: "a password"}, {Key: "roles", Value: bson.A{"readWrite"}}}).Err())
			// Six servers and five processes share the machine. Four times the writes took a third more of its processors.
			churn := test.StartChurn(t, db, test.ChurnOptions{Seed: testseed.Of(t), SchemaEvery: time.Second,
				Pause: 20 * time.Millisecond, Expected: elected})
			m.start("100MB")
			m.begin()
			m.following()
			m.onlyByFiles()
			must(t, db.RunCommand(t.Context(), bson.D{{Key: "updateUser", Value: "ada"},
				{Key: "roles", Value: bson.A{"read"}}}).Err())
			churn.Stop()
			dc := m.finalized(test.CompareOptions{Source: func(ns string) bool {
				return !strings.HasPrefix(ns, "left.") && ns != "moved.out"
			}})
			m.everywhere("moved")
			raw, err := dc.Database("moved").RunCommand(t.Context(), bson.D{{Key: "usersInfo", Value: "ada"}}).Raw()
			must(t, err)
			if text := raw.Lookup("users").String(); !strings.Contains(text, `"read"`) || strings.Contains(text, "readWrite") {
				t.Errorf("the user on the target: %s", text)
			}
			for _, ns := range [][2]string{{"left", "c"}, {"moved", "out"}} {
				if n, err := dc.Database(ns[0]).Collection(ns[1]).CountDocuments(t.Context(), bson.D{}); err != nil || n != 0 {
					t.Errorf("%v on the target: %d documents, %v", ns, n, err)
				}
			}
			if n := strings.Count(m.source.Output(), "was locked and works again"); n != 1 {
				t.Errorf("the source was locked %d times\n%s", n, m.source.Output())
			}
		})
	}
}

// TestMigrationByFilesKilled kills every process of a migration at random moments: the job, the agents, the mongods on
// the target, private ones too. The same commands complete it.
func TestMigrationByFilesKilled(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	r := rand.New(rand.NewPCG(testseed.Of(t), 43))
	m := newMigration(t, "6.0", "rs:3", 2)
	db := kit.Client(t, m.set.URI()).Database("killed")
	fill(t, db)
	stop := write(t, db)
	m.start("40MB")
	m.begin()
	for n := range 10 * testseed.Rounds(t, 1) {
		wait := time.Duration(100+r.IntN(1200)) * time.Millisecond
		select {
		case <-time.After(wait): // a random moment, not a condition
		case <-m.sync.Done():
			t.Fatalf("the sync ended: %s", m.sync.Output())
		}
		h := m.hosts[r.IntN(len(m.hosts))]
		was, victim := m.sync.Status(t.Context()), ""
		switch r.IntN(5) {
		case 0:
			victim = "sync"
			m.sync.Kill()
			m.begin()
		case 1:
			victim = "source agent"
			m.source.Kill()
			m.source = m.serve("--max-rate-bytes", "40MB")
		case 2, 3:
			victim = "agent " + h.port
			h.agent.Kill()
			m.startAgent(h)
		case 4:
			victim = fmt.Sprintf("mongod of %s (%t)", h.port, m.killMember(h))
		}
		t.Logf("%d: after %s in phase %s (%s): %s killed", n, wait, was.Phase, was.Waiting, victim)
	}
	m.following()
	stop()
	m.finalized(test.CompareOptions{})
	m.everywhere("killed")
}

// TestMigrationByFilesRejected: what a copy by files cannot be is rejected before anything is written.
func TestMigrationByFilesRejected(t *testing.T) {
	t.Parallel()
	m := newMigration(t, "6.0", "rs:2", 1)
	_, err := kit.Client(t, m.set.URI()).Database("some").Collection("c").
		InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}})
	must(t, err)
	begun := func(what string, more ...string) (ended func()) {
		t.Helper()
		p := test.Start(t, m.bin, m.args(append([]string{"--dry-run"}, more...)...)...)
		return func() {
			t.Helper()
			if err := p.Wait(2 * time.Minute); err == nil || p.ExitCode() != 2 || !strings.Contains(p.Output(), what) {
				t.Errorf("%s: exit code %d\n%s", what, p.ExitCode(), p.Output())
			}
		}
	}
	rejected := func(what string, more ...string) { t.Helper(); begun(what, more...)() }
	h := m.hosts[0]
	m.startAgent(h)
	noSource := begun("source agent") // which it waits for
	h.via = freePort(t)
	waits := []func(){noSource, begun("target agents"), begun("matches nothing on the source", "--include", "none.*")}
	rejected("cannot go with --copy files", "--rename", "some=other")
	rejected("cannot go with --copy files", "--filter", `some.c={"a": 1}`)
	for _, ended := range waits {
		ended()
	}
	h.via = ""
	m.source = m.serve()
	must(t, os.MkdirAll(h.dir, 0o700))
	must(t, os.WriteFile(filepath.Join(h.dir, "other"), nil, 0o600))
	rejected("give an empty directory, or empty it")
	must(t, os.Remove(filepath.Join(h.dir, "other")))
	p := test.Start(t, m.bin, m.args("--dry-run")...)
	if err := p.Wait(time.Minute); err != nil || !strings.Contains(p.Output(), "users and roles arrive") {
		t.Errorf("%v\n%s", err, p.Output())
	}
	if _, err := os.Stat(filepath.Join(h.dir, "storage.bson")); err == nil {
		t.Error("a dry run wrote")
	}
	other := lab.ForTest(t, lab.Options{Topology: "rs:1"})
	m.options = []string{"--source", other.URI()}
	rejected("not of the source's set")
	standalone := lab.ForTest(t, lab.Options{Topology: "standalone"})
	m.options = []string{"--source", standalone.URI()}
	rejected("only a replica set has an oplog")
}

// mongodOn is the process id of a mongod that runs on a directory, 0 for none.
func mongodOn(dir string) int {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range all {
		raw, err := os.ReadFile(name)
		words := strings.Split(string(raw), "\x00")
		if err != nil || filepath.Base(words[0]) != "mongod" {
			continue
		}
		for i, w := range words[:len(words)-1] {
			if w == "--dbpath" && words[i+1] == dir {
				var pid int
				_, _ = fmt.Sscan(filepath.Base(filepath.Dir(name)), &pid)
				return pid
			}
		}
	}
	return 0
}
