package seed

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	files "github.com/millrace/millrace/internal/seed"
	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
)

// ballastFile is a table that no catalog names: servers leave it alone.
const ballastFile = "ballast.wt"

// ballast adds to the source's files what takes a moment to copy and cannot be compressed.
func (m *migration) ballast(mb int) {
	m.t.Helper()
	name := filepath.Join(m.member.DBPath, ballastFile)
	m.t.Cleanup(func() { _ = os.Remove(name) }) // later tests may use the server
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], testseed.Of(m.t))
	f, err := os.Create(name)
	must(m.t, err)
	_, err = io.CopyN(f, rand.NewChaCha8(seed), int64(mb)<<20)
	must(m.t, err)
	must(m.t, f.Close())
}

// sameBallast compares a file of each new member with the source's, byte by byte.
func (m *migration) sameBallast() {
	m.t.Helper()
	sum := func(dir string) string {
		f, err := os.Open(filepath.Join(dir, ballastFile))
		must(m.t, err)
		defer f.Close()
		h := sha256.New()
		_, err = io.Copy(h, f)
		must(m.t, err)
		return string(h.Sum(nil))
	}
	want := sum(m.member.DBPath)
	for _, h := range m.hosts {
		if dir := h.seen(); sum(dir) != want {
			m.t.Errorf("%s differs in %s", ballastFile, dir)
		}
	}
}

// loaded is a migration of a set of two to two members, under writes to a database and with ballast.
func loaded(t *testing.T, database string, mb int) (m *migration, stop func()) {
	t.Helper()
	m = newMigration(t, "6.0", "rs:2", 2)
	db := kit.Client(t, m.set.URI()).Database(database)
	fill(t, db)
	stop = write(t, db)
	m.ballast(mb)
	return m, stop
}

// equal cuts over, and compares both sides, the members and the ballast.
func (m *migration) equal(database string) {
	m.t.Helper()
	m.finalized(test.CompareOptions{})
	m.everywhere(database)
	m.sameBallast()
}

// seen is a host's directory as this process reaches it.
func (h *targetHost) seen() string {
	if h.disk != nil {
		return filepath.Join(h.disk.Path(), filepath.Base(h.dir))
	}
	return h.dir
}

// state is what an agent says of itself, without the link before it; nothing while it does not answer.
func (m *migration) state(h *targetHost) files.HostState {
	m.t.Helper()
	c, err := files.NewClient(files.ClientOptions{URL: "https://127.0.0.1:" + h.port, TokenFile: m.token, CA: m.pem,
		RetryFor: time.Nanosecond})
	must(m.t, err)
	defer c.Close()
	s, err := c.State(m.t.Context())
	if err != nil {
		return files.HostState{}
	}
	return *s
}

// await waits until something holds of an agent's state, while the sync runs.
func (m *migration) await(h *targetHost, what string, holds func(files.HostState) bool) (s files.HostState) {
	m.t.Helper()
	kit.Until(m.t, what, func() bool {
		select {
		case <-m.sync.Done():
			m.t.Fatalf("the sync ended before %s: %s", what, m.sync.Output())
		default:
		}
		s = m.state(h)
		return holds(s)
	})
	return s
}

// copied waits until an agent has so much of the files, and not yet all.
func (m *migration) copied(h *targetHost, bytes int64) {
	m.t.Helper()
	s := m.await(h, fmt.Sprintf("%d bytes are copied", bytes), func(s files.HostState) bool {
		return s.Done >= bytes || s.Stage.Reached(files.StageCopied)
	})
	if s.Stage != files.StageCopying || s.Doing != files.PhaseCopy {
		m.t.Fatalf("the copy was over too soon: %+v", s)
	}
}

// waiting waits until the status says what the sync waits for.
func (m *migration) waiting(what string) {
	m.t.Helper()
	kit.Until(m.t, "the sync waits for "+what, func() bool {
		return strings.Contains(m.sync.Status(m.t.Context()).Waiting, what)
	})
}

// control runs a command that controls the sync.
func (m *migration) control(args ...string) string {
	m.t.Helper()
	out, err := m.sync.Command(m.t.Context(), args...)
	must(m.t, err)
	return string(out)
}

// link is the network before an agent.
type link struct {
	*lab.Proxy
	sent atomic.Int64 // bytes that came from the agent
}

// links puts one before each agent, that of the source first.
func (m *migration) links() (all []*link) {
	m.t.Helper()
	add := func(port string) (via string) {
		l := &link{Proxy: lab.ProxyForTest(m.t, "127.0.0.1:"+port)}
		l.Tap(func() (sent, received func([]byte)) {
			return func([]byte) {}, func(b []byte) { l.sent.Add(int64(len(b))) }
		})
		all = append(all, l)
		return l.Addr()[strings.LastIndex(l.Addr(), ":")+1:]
	}
	m.via = add(m.port)
	for _, h := range m.hosts {
		h.via = add(h.port)
	}
	return all
}

// Rates of a link in kilobytes a second: one at which a copy takes seconds, and one at which it is not over before the
// next fault.
const (
	slow  = 20_000
	crawl = 300
)

// creep lets the copy go on until an agent has so much, and then hardly.
func (m *migration) creep(l *link, h *targetHost, bytes int64) {
	m.t.Helper()
	l.Link(slow)
	m.copied(h, bytes)
	l.Link(crawl)
}

// sentOnce checks that a link has carried the files once, but for what was under way at some faults.
func (m *migration) sentOnce(l *link, from string) {
	m.t.Helper()
	const apart = 4 << 20 // blocks that changed, frames, TLS, states, and what was under way when the link was cut
	var size int64        // without holes
	must(m.t, filepath.WalkDir(m.member.DBPath, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(d.Name(), ".wt") && !strings.HasPrefix(d.Name(), "WiredTigerLog.") {
			return err
		}
		info, err := d.Info()
		if err == nil {
			size += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return err
	}))
	m.t.Logf("%s has sent %s for %s of files", from, test.Megabytes(l.sent.Load()), test.Megabytes(size))
	if l.sent.Load() > size+apart {
		m.t.Errorf("%s has sent %d bytes for %d bytes of files", from, l.sent.Load(), size)
	}
}

// TestMigrationByFilesPaused: a pause stops all agents that can be reached, and lasts when the sync and the agents are
// killed. A throttle holds the first agent to its rate. A pause before the members start does not hang the sync.
func TestMigrationByFilesPaused(t *testing.T) {
	t.Parallel()
	m, stop := loaded(t, "paused", 40)
	links := m.links()
	links[0].Link(slow)
	m.start("1GB")
	m.begin()
	m.creep(links[0], m.hosts[0], 8<<20)
	m.throttled(m.pausedThroughout(links))
	m.pausedBeforeTheStart(links[2])
	m.control("resume")
	m.following()
	stop()
	m.sentOnce(links[0], "the source")
	m.sentOnce(links[1], "the first agent")
	m.equal("paused")
}

// pausedThroughout pauses the copy, and kills the sync and the agents meanwhile. It returns how much the first one has.
func (m *migration) pausedThroughout(links []*link) (done int64) {
	t := m.t
	t.Helper()
	paused := func(s files.HostState) bool { return s.Paused }
	links[2].Cut() // no order reaches the last agent
	m.control("pause")
	m.await(m.hosts[0], "the first agent is paused", paused)
	links[2].Restore()
	m.await(m.hosts[1], "the last agent is paused", paused)
	const waits = "the operator to resume"
	m.waiting(waits)
	if out := m.control("status"); !strings.Contains(out, waits) || strings.Contains(out, "documents") {
		t.Errorf("the status of a paused copy:\n%s", out)
	}
	done = m.state(m.hosts[0]).Done
	m.sync.Kill()
	m.hosts[0].agent.Kill()
	m.startAgent(m.hosts[0])
	m.begin()
	m.waiting(waits)
	sent := links[0].sent.Load()
	for _, h := range m.hosts {
		h.agent.Kill()
		m.startAgent(h)
		m.await(h, "a started agent is paused", paused)
	}
	m.waiting(waits)
	if more := links[0].sent.Load() - sent; more != 0 {
		t.Errorf("the source has sent %d bytes in a pause", more)
	}
	links[0].Restore()
	return done
}

// throttled resumes the copy at a rate at which no block passes, then at one that the report shows.
func (m *migration) throttled(had int64) {
	t := m.t
	t.Helper()
	first, last := m.hosts[0], m.hosts[1]
	m.control("throttle", "--max-rate-bytes", "1B")
	m.control("resume")
	m.await(first, "the first agent passes what it has", func(s files.HostState) bool { return s.Done > had-4<<20 })
	m.sync.Kill() // which takes a moment in which blocks might pass
	m.options = append(m.options, "--max-rate-bytes", "1B")
	m.begin()
	kit.Until(t, "the sync throttles", func() bool { return m.sync.Status(t.Context()).Limits.Bytes == 1 })
	s := m.state(first)
	if s.MaxBytes != 1 || s.Stage != files.StageCopying || s.Done > had+4<<20 || m.state(last).MaxBytes != 0 {
		t.Errorf("throttled: %+v\nbefore: %d\nthe last one: %+v", s, had, m.state(last))
	}
	const rate = 10_000_000
	m.control("throttle", "--max-rate-bytes", "10MB")
	r := m.await(first, "the first agent has all files", func(s files.HostState) bool { return s.Copy != nil }).Copy
	if most := rate * (r.CopySeconds + 1); float64(r.CopiedBytes) > most+1<<20 {
		t.Errorf("%d bytes in %.1f s", r.CopiedBytes, r.CopySeconds)
	}
}

// pausedBeforeTheStart pauses when both copies are members of the new set, and none is started.
func (m *migration) pausedBeforeTheStart(beforeLast *link) {
	t := m.t
	t.Helper()
	first, last := m.hosts[0], m.hosts[1]
	m.await(last, "the last member is formed", func(s files.HostState) bool { return s.Stage.Reached(files.StageForming) })
	beforeLast.Cut()
	formed := func(s files.HostState) bool { return s.Stage.Reached(files.StageFormed) }
	m.await(last, "the last agent is done", formed)
	m.await(first, "the first agent is done", formed)
	m.control("pause")
	beforeLast.Restore()
	for _, h := range m.hosts {
		s := m.await(h, "the agent is paused", func(s files.HostState) bool { return s.Paused })
		if s.Stage != files.StageFormed {
			t.Errorf("it went on in a pause: %+v", s)
		}
	}
}

// TestMigrationByFilesOverBadLinks: the links from the source to the first agent, from there to the last one and from
// the sync to both are cut, and slow. The copy goes on, and each link carries the files once.
func TestMigrationByFilesOverBadLinks(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	m, stop := loaded(t, "links", 64)
	links := m.links()
	first, last := m.hosts[0], m.hosts[1]
	links[0].Link(slow)
	m.start("1GB")
	m.begin()
	silent := func(p *test.Process, times int) {
		t.Helper()
		kit.Until(t, "the puller notices", func() bool {
			return strings.Count(p.Output(), "cannot reach the agent") >= times
		})
	}
	for n := range 3 {
		m.creep(links[0], first, int64(n+1)*(8<<20))
		links[0].Cut()
		silent(first.agent, n+1)
		links[0].Restore()
	}
	m.creep(links[0], last, 28<<20)
	links[1].Cut()
	silent(last.agent, 1)
	m.waiting(links[1].Addr())
	links[1].Restore()
	links[2].Cut()
	m.waiting(links[2].Addr())
	links[2].Restore()
	m.creep(links[0], first, 40<<20)
	links[0].Stall()
	links[1].Stall()
	m.waiting(links[1].Addr())
	links[0].Restore()
	links[1].Restore()
	links[1].Link(slow)
	m.following()
	stop()
	m.sentOnce(links[0], "the source")
	m.sentOnce(links[1], "the first agent")
	// The sync cannot end the agents. The same command does later.
	links[1].Cut()
	links[2].Cut()
	m.cutOver()
	links[1].Restore()
	links[2].Restore()
	m.begin()
	m.ended()
	m.compared(test.CompareOptions{})
	m.everywhere("links")
	m.sameBallast()
}

// TestMigrationByFilesOnAFullDisk: the disk of a host is full in the middle of the copy. Its agent says so and retries.
// Once there is room, the copy goes on with the blocks that are there.
func TestMigrationByFilesOnAFullDisk(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	for i, name := range []string{"first", "last"} {
		t.Run(name, func(t *testing.T) {
			m, stop := loaded(t, "full", 64)
			links := m.links()
			full := m.hosts[i]
			m.onDisk(full, 1500)
			m.start("15MB")
			m.begin()
			m.copied(full, 16<<20)
			must(t, full.disk.Fill(t.Context()))
			const why = "no space left on device"
			s := m.await(full, "the agent says that its disk is full", func(s files.HostState) bool { return s.Error != "" })
			if !strings.Contains(s.Error, why) || !strings.Contains(s.Hint, "make room") {
				t.Errorf("the agent of a full disk: %q, %q", s.Error, s.Hint)
			}
			m.waiting("https://127.0.0.1:" + full.via + ": ")
			kit.Until(t, "the agent retries", func() bool {
				return strings.Count(full.agent.Output(), "a step failed; trying again") > 2
			})
			if out := full.agent.Output(); !strings.Contains(out, why) || !strings.Contains(out, "make room") {
				t.Errorf("the agent of a full disk has printed:\n%s", out)
			}
			if out := m.control("status"); !strings.Contains(out, "free") {
				t.Errorf("the status of a copy to a full disk:\n%s", out)
			}
			must(t, full.disk.Free())
			m.await(full, "the copy goes on", func(s files.HostState) bool {
				return s.Error == "" && (s.Done > 20<<20 || s.Stage.Reached(files.StageCopied))
			})
			m.following()
			stop()
			m.sentOnce(links[0], "the source")
			m.sentOnce(links[1], "the first agent")
			m.equal("full")
		})
	}
}

// onDisk gives a host a small disk, on which it also has the file beside its directory. Its processes run where the
// disk is mounted: links in /proc lead elsewhere.
func (m *migration) onDisk(h *targetHost, mb int) {
	m.t.Helper()
	dir := m.t.TempDir()
	disk, end, err := lab.NewDisk(dir, mb)
	if err != nil {
		m.t.Skip(err)
	}
	m.t.Cleanup(func() {
		m.killMember(h)
		if err := end(); err != nil {
			m.t.Error(err)
		}
	})
	h.disk, h.dir = disk, filepath.Join(dir, "db")
	h.enter = []string{"nsenter", "--preserve-credentials", "-U", "-m", "-t", strings.Split(disk.Path(), "/")[2]}
}

// TestMigrationByFilesElections: the source elects other primaries during the copy and afterwards. While the member
// that is copied is primary itself, the copy waits: its lock would block all writes.
func TestMigrationByFilesElections(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	m := newMigration(t, "6.0", "rs:3", 2)
	db := kit.Client(t, m.set.URI()).Database("elected")
	test.LoadChurn(t, db)
	m.ballast(64)
	churn := test.StartChurn(t, db, test.ChurnOptions{Seed: testseed.Of(t), SchemaEvery: 200 * time.Millisecond,
		Pause: 5 * time.Millisecond, Expected: elected})
	links := m.links()
	links[0].Link(slow)
	m.start("1GB")
	m.begin()
	m.creep(links[0], m.hosts[0], 16<<20)
	must(t, m.set.StepDown(t.Context()))
	m.creep(links[0], m.hosts[0], 32<<20)
	kit.Until(t, "the member that is copied is primary", func() bool {
		_ = m.ground.source.RunCommand(t.Context(), bson.D{{Key: "replSetStepUp", Value: 1}}) // it may be too early
		i, err := m.set.Primary(t.Context())
		must(t, err)
		return i == m.member.Index
	})
	links[0].Restore()
	m.waiting("the member is a primary")
	must(t, m.set.StepDown(t.Context()))
	m.following()
	for range 3 {
		before := m.sync.Status(t.Context()).Follow.Operations
		must(t, m.set.StepDown(t.Context()))
		kit.Until(t, "changes are applied after an election", func() bool {
			return m.sync.Status(t.Context()).Follow.Operations > before+100
		})
	}
	churn.Stop()
	t.Logf("%d operations", churn.Operations())
	m.equal("elected")
}

// TestMigrationByFilesRolledBack: the files have a write that the source loses in an election. The copy waits for the
// majority to have it, and the sync then ends, each time that it is started.
func TestMigrationByFilesRolledBack(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	m := newMigrationOf(newGroundOf(t, lab.Options{Topology: "rs:4", Version: "6.0",
		SetParameters: map[string]string{"enableTestCommands": "1"}}), 2)
	primary, err := m.set.Primary(t.Context())
	must(t, err)
	client := kit.Client(t, m.set.URI())
	must(t, lab.Reconfigure(t.Context(), client, func(c *lab.SetConfig) error {
		c.Members[m.member.Index]["votes"], c.Members[m.member.Index]["priority"] = 0, 0
		c.Settings["catchUpTimeoutMillis"] = 0 // a new primary would get the writes from that member
		return nil
	}))
	docs := client.Database("lost").Collection("c")
	_, err = docs.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "kept"}})
	must(t, err)
	replicate := func(mode string) {
		t.Helper()
		for i := range m.set.Members() {
			if i != primary && i != m.member.Index {
				must(t, kit.Client(t, m.set.DirectURI(i)).Database("admin").RunCommand(t.Context(),
					bson.D{{Key: "configureFailPoint", Value: "stopReplProducer"}, {Key: "mode", Value: mode}}).Err())
			}
		}
	}
	replicate("alwaysOn")
	alone := docs.Clone(options.Collection().SetWriteConcern(writeconcern.W1()))
	for n := range 100 { // they stop after what they are fetching
		_, err = alone.InsertOne(t.Context(), bson.D{{Key: "_id", Value: n}})
		must(t, err)
	}
	has := m.ground.source.Client().Database("lost").Collection("c")
	kit.Until(t, "the member that is copied has the last write", func() bool {
		return has.FindOne(t.Context(), bson.D{{Key: "_id", Value: 99}}).Err() == nil
	})
	m.start("1GB")
	m.begin()
	m.waiting("the source's majority to reach")
	must(t, m.set.Members()[primary].Kill())
	_, err = alone.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "on the next primary"}})
	must(t, err)
	replicate("off")
	for range 2 {
		err := m.sync.Wait(time.Minute)
		if out := m.sync.Output(); m.sync.ExitCode() != 1 || !strings.Contains(out, "history differs from the one before") {
			t.Fatalf("%v, exit code %d\n%s", err, m.sync.ExitCode(), out)
		}
		m.begin()
	}
}

// TestMigrationByFilesMemory: the memory of all processes does not grow with the files.
func TestMigrationByFilesMemory(t *testing.T) {
	lab.Nightly(t)
	m, stop := loaded(t, "large", 1024)
	m.start("10GB")
	m.begin()
	m.following()
	stop()
	const most = 150 << 20
	for name, p := range map[string]*test.Process{"source agent": m.source, "first agent": m.hosts[0].agent,
		"last agent": m.hosts[1].agent, "sync": m.sync} {
		peak := p.PeakMemory()
		t.Logf("%s: %s at most, copy %+v", name, test.Megabytes(peak), m.state(m.hosts[0]).Copy.CopySeconds)
		if peak == 0 || peak > most {
			t.Errorf("%s: %s of memory, want at most %s", name, test.Megabytes(peak), test.Megabytes(most))
		}
	}
	m.finalized(test.CompareOptions{})
	m.sameBallast()
}
