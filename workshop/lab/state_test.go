package lab

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// testStore is a store whose clusters the test's end ends.
func testStore(t *testing.T) *Store {
	t.Helper()
	s, err := NewStore(filepath.Join(t.TempDir(), "store"))
	must(t, err)
	t.Cleanup(func() {
		states, err := s.List()
		if err != nil {
			t.Error(err)
		}
		for _, state := range states {
			if err := s.Down(t.Context(), state.Name); err != nil && t.Context().Err() == nil {
				t.Error(err)
			}
		}
	})
	return s
}

func TestUpAndDown(t *testing.T) {
	t.Parallel()
	NeedServers(t)
	s := testStore(t)
	state, err := s.Up(t.Context(), Options{Name: "one"})
	must(t, err)
	mustInsert(t, connect(t, state.URI), 1)
	states, err := s.List()
	if err != nil || len(states) != 1 || states[0].Name != "one" || states[0].URI != state.URI ||
		states[0].Running() != 1 {
		t.Errorf("List = %+v, %v", states, err)
	}
	if _, err := s.Up(t.Context(), Options{Name: "one"}); err == nil || !strings.Contains(err.Error(), "up already") {
		t.Errorf("the same again: %v", err)
	}
	must(t, s.Down(t.Context(), "one"))
	if !isGone(state.Members[0].Process.Pid) {
		t.Error("mongod is still there")
	}
	if _, err := os.Stat(state.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the data are still there: %v", err)
	}
	if err := s.Down(t.Context(), "one"); err == nil || !strings.Contains(err.Error(), "lab list") {
		t.Errorf("down of nothing: %v", err)
	}
}

// After a reboot the pid in the state may be another process's.
func TestDownSparesStrangers(t *testing.T) {
	s := testStore(t)
	id, err := identify(os.Getpid(), os.Args[0])
	must(t, err)
	id.Mark = "/another/db"
	must(t, s.write(&State{Name: "old", Members: []MemberState{{Process: id}}}))
	must(t, s.Down(t.Context(), "old")) // or this test would end here
	states, err := s.List()
	if err != nil || len(states) != 0 {
		t.Errorf("List = %+v, %v", states, err)
	}
}

func TestUpAfterCrashAndKeptDirectory(t *testing.T) {
	Nightly(t)
	t.Parallel()
	NeedServers(t)
	s := testStore(t)
	o := Options{Name: "kept", Dir: t.TempDir()}
	state, err := s.Up(t.Context(), o)
	must(t, err)
	mustInsert(t, connect(t, state.URI), 1)
	must(t, state.Members[0].Process.end(t.Context(), 0)) // as a crash does
	if l, err := net.Listen("tcp", state.Members[0].Host); err != nil {
		t.Errorf("the port is not free right after the end: %v", err)
	} else {
		must(t, l.Close())
	}
	again, err := s.Up(t.Context(), o)
	must(t, err)
	if again.URI != state.URI {
		t.Errorf("URI is %s, was %s", again.URI, state.URI)
	}
	must(t, s.Down(t.Context(), "kept"))
	if _, err := os.Stat(filepath.Join(o.Dir, layoutFile)); err != nil {
		t.Errorf("the directory was not kept: %v", err)
	}
}

func TestFailedUpLeavesNothing(t *testing.T) {
	t.Parallel()
	s := testStore(t)
	if _, err := s.Up(t.Context(), Options{Name: "bad", Args: []string{"--noSuchOption"}}); err == nil {
		t.Error("Up takes any option")
	}
	if _, err := s.Up(t.Context(), Options{Name: "bad", Proxy: true}); err == nil {
		t.Error("Up takes Proxy")
	}
	left, err := filepath.Glob(filepath.Join(s.dir, "bad.[^l]*")) // all but the lock
	if err != nil || len(left) != 0 {
		t.Errorf("left over: %q, %v", left, err)
	}
}

func TestGuardEndsInTime(t *testing.T) {
	t.Parallel()
	NeedServers(t)
	s := testStore(t)
	state, err := s.Up(t.Context(), Options{Name: "guarded"})
	must(t, err)
	must(t, s.SetGuard(state, time.Hour, "/bin/sh", "-c", "while :; do sleep 1; done; : guarded", "guarded"))
	if state.Guard == nil || !state.Guard.Running() {
		t.Fatalf("guard is %+v", state.Guard)
	}
	must(t, s.Guard(t.Context(), "guarded", time.Millisecond))
	if state.Running() != 0 || state.Guard.Running() {
		t.Error("the cluster or its guard runs still")
	}
}
