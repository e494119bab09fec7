package seed

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// holdEnv makes the test binary a program that locks a member and stays.
const holdEnv = "MILLRACE_SEED_TEST_HOLD"

// hold is that program.
func hold(uri string) {
	g := &Guardian{Command: guardCommand(), Request: GuardRequest{URI: uri, LimitSeconds: 60}}
	if _, err := g.Freeze(context.Background()); err != nil {
		os.Exit(1)
	}
	_, _ = os.Stdout.WriteString("locked\n")
	select {}
}

func guardian(uri string, limit float64) *Guardian {
	return &Guardian{Command: guardCommand(), Request: GuardRequest{URI: uri, LimitSeconds: limit}}
}

// The holder is killed in one blow: the guardian lets go.
func TestLockEndsWithItsHolder(t *testing.T) {
	c := threeMembers(t)
	uri := c.DirectURI(secondary(t, c).Index)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), holdEnv+"="+uri)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	buf := make([]byte, 16)
	n, _ := out.Read(buf)
	if string(buf[:n]) != "locked\n" || !isLocked(t, uri) {
		t.Errorf("no lock: %q", buf[:n])
	}
	must(t, cmd.Process.Signal(syscall.SIGKILL))
	_ = cmd.Wait() // it was killed, and says so
	kit.Until(t, "the member is let go", func() bool { return !isLocked(t, uri) })
}

// The guardian is killed: its parent lets go, and does not trust the lock.
func TestLockEndsWithItsGuardian(t *testing.T) {
	c := threeMembers(t)
	uri := c.DirectURI(secondary(t, c).Index)
	thaw, err := guardian(uri, 60).Freeze(t.Context())
	must(t, err)
	lock := thaw.(*guardedLock)
	must(t, lock.cmd.Process.Signal(syscall.SIGKILL))
	<-thaw.Lost()
	if err := thaw.Release(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("release: %v", err)
	}
	if isLocked(t, uri) {
		t.Error("the member is still locked")
	}
}

func TestLockHasALimit(t *testing.T) {
	c := threeMembers(t)
	uri := c.DirectURI(secondary(t, c).Index)
	thaw, err := guardian(uri, 0.2).Freeze(t.Context())
	must(t, err)
	<-thaw.Lost()
	if err := thaw.Release(); err == nil || !strings.Contains(mongo.HintOf(err), "--lock-limit") {
		t.Errorf("release: %v", err)
	}
	if isLocked(t, uri) {
		t.Error("the member is still locked")
	}
}

func TestWhatMustNotBeLocked(t *testing.T) {
	c := threeMembers(t)
	p, err := c.Primary(t.Context())
	must(t, err)
	if _, err := guardian(c.DirectURI(p), 5).Freeze(t.Context()); err == nil || !strings.Contains(err.Error(), "primary") {
		t.Errorf("a primary: %v", err)
	}
	if isLocked(t, c.DirectURI(p)) {
		t.Error("the primary is locked")
	}
	uri := c.DirectURI(secondary(t, c).Index)
	first, err := guardian(uri, 60).Freeze(t.Context())
	must(t, err)
	if _, err := guardian(uri, 60).Freeze(t.Context()); err == nil || !strings.Contains(err.Error(), "locked already") {
		t.Errorf("a second lock: %v", err)
	}
	if !isLocked(t, uri) {
		t.Error("the refused one let the first one's lock go")
	}
	must(t, first.Release())
	if isLocked(t, uri) {
		t.Error("the member is still locked")
	}
}

// A lock that was refused leaves nothing to let go, and the guardian has to
// see that: its end depends on it.
func TestNothingToLetGo(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"4.2", "4.4", "5.0", "6.0"} {
		c := lab.ForTest(t, lab.Options{Topology: "rs:1", Version: version})
		m, err := connectMember(t.Context(), c.DirectURI(0), "millrace-seed-test")
		must(t, err)
		defer m.close()
		if done, err := m.tryUnlock(); !done || err != nil {
			t.Errorf("%s: %v, %v", version, done, err)
		}
	}
}

// The look for the lock command fails while that waits in the server, which says that
// nothing is locked: the lock may come yet, so the guardian goes on.
func TestLockCommandIsNotSeen(t *testing.T) {
	t.Parallel()
	c := lab.ForTest(t, lab.Options{Topology: "rs:1", Auth: true, TestCommands: true})
	admin := connect(t, c.DirectURI(0)).Database("admin")
	run := func(name string, value any, more ...bson.E) bson.Raw {
		t.Helper()
		raw, err := admin.RunCommand(t.Context(), append(bson.D{{Key: name, Value: value}}, more...)).Raw()
		must(t, err)
		return raw
	}
	looks := bson.E{Key: "roles", Value: bson.A{"clusterMonitor"}}
	run("createUser", "guardian", bson.E{Key: "pwd", Value: "guardian"},
		bson.E{Key: "roles", Value: bson.A{"hostManager", "clusterMonitor"}})
	m, err := connectMember(t.Context(), "mongodb://guardian:guardian@"+c.Members()[0].Host()+"/", "millrace-seed-test")
	must(t, err)
	defer m.close()
	waits := func() bool {
		return len(must1(run("currentOp", 1, bson.E{Key: "command.fsync", Value: 1}).Lookup("inprog").Array().Values())) > 0
	}
	run("configureFailPoint", "failCommand", bson.E{Key: "mode", Value: bson.D{{Key: "times", Value: 1}}},
		bson.E{Key: "data", Value: bson.D{
			{Key: "failCommands", Value: bson.A{"fsync"}}, {Key: "blockConnection", Value: true},
			{Key: "blockTimeMS", Value: time.Hour.Milliseconds()}}})
	gone, failed := make(chan struct{}), make(chan error)
	go func() { failed <- m.lock(t.Context(), gone) }()
	kit.Until(t, "the lock command waits", waits)
	close(gone)
	if <-failed == nil {
		t.Error("locked")
	}
	run("revokeRolesFromUser", "guardian", looks)
	if done, err := m.tryUnlock(); done || !mongo.IsCode(err, mongo.CodeUnauthorized) {
		t.Errorf("unseen: %v, %v", done, err)
	}
	run("grantRolesToUser", "guardian", looks)
	must(t, m.unlock())
	if waits() {
		t.Error("the guardian has ended, and its lock command waits yet")
	}
}

// A member that does not list its operations may have the lock command among them.
func TestOperationsAreNotListed(t *testing.T) {
	s := newStub(t, fakeMember(t))
	m, err := connectMember(t.Context(), s.uri(), "millrace-seed-test")
	must(t, err)
	defer m.close()
	s.fail["fsyncUnlock"] = failure(codeNotLocked, "IllegalOperation", notLockedText)
	for _, inprog := range []any{nil, "none", bson.A{}} {
		s.fail["currentOp"] = ok(bson.E{Key: "inprog", Value: inprog})
		_, listed := inprog.(bson.A)
		if done, err := m.tryUnlock(); done != listed || (err == nil) != listed {
			t.Errorf("%v: %v, %v", inprog, done, err)
		}
	}
}

// The member is killed while it is locked.
func TestLockedMemberIsKilled(t *testing.T) {
	t.Parallel()
	c := lab.ForTest(t, lab.Options{Topology: "rs:1"})
	g := guardian(c.DirectURI(0), 60)
	g.Request.Primary = true // as if asked for twice
	thaw, err := g.Freeze(t.Context())
	must(t, err)
	must(t, c.Members()[0].Kill())
	if err := thaw.Release(); err == nil || !strings.Contains(err.Error(), "ended") {
		t.Errorf("release: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	must(t, c.Members()[0].Start(ctx))
	if isLocked(t, c.DirectURI(0)) {
		t.Error("the member is locked after its restart")
	}
}
