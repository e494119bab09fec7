package seed

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/lab"
	"github.com/millrace/millrace/internal/mongo"
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
	eventually(t, "the member is let go", func() bool { return !isLocked(t, uri) })
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

// The member is killed while it is locked.
func TestLockedMemberIsKilled(t *testing.T) {
	lab.Drawn(t, 3)
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
