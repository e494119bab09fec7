package seed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/precheck"
)

// newHost is a host whose mongod only says a version and options.
func newHost(t *testing.T, dir, version, more string) *Host {
	t.Helper()
	config := fmt.Sprintf("{storage: {dbPath: %q%s}, replication: {replSet: made}}", dir, more)
	h, err := NewHost(t.Context(), HostOptions{DBPath: dir, Command: []string{saying(t, version, config)},
		Own:  SetMember{Host: "127.0.0.1:1", Votes: 1, Priority: 1},
		Keep: func([]string, []string) (func(string) bool, error) { return func(string) bool { return true }, nil }})
	must(t, err)
	t.Cleanup(func() { must(t, h.Close()) })
	return h
}

// TestHostRejects: each reason for which a host cannot take the source's files.
func TestHostRejects(t *testing.T) {
	origin := Origin{Version: "6.0.5", FCV: "6.0", SetName: "old", State: "SECONDARY"}
	for _, c := range []struct {
		name, version, more, set, want string
		bytes                          int64
		change                         func(*Origin)
		file                           string
	}{
		{name: "an older patch level", version: "6.0.4", want: "version"},
		{name: "a newer series", version: "7.0.1", want: "version"},
		{name: "an older series", version: "5.0.31", want: "version"},
		{name: "no room", bytes: 1 << 60, want: "free space"},
		{name: "other files", file: "notes.txt", want: "target directory"},
		{name: "another layout", more: ", directoryPerDB: true", want: "start command"},
		{name: "another set", set: "other", want: "start command"},
		{name: "another engine", more: ", engine: inMemory", want: "start command"},
		{name: "a part of a cluster", change: func(o *Origin) { o.ClusterRole = "shardsvr" }, want: "cluster role"},
		{name: "nothing", version: "6.0.6"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if c.file != "" {
				must(t, os.WriteFile(filepath.Join(dir, c.file), nil, 0o600))
			}
			if c.version == "" {
				c.version = "6.0.5"
			}
			if c.set == "" {
				c.set = "made"
			}
			p := &Plan{Origin: origin, Bytes: c.bytes}
			if c.change != nil {
				c.change(&p.Origin)
			}
			var names []string
			for _, x := range newHost(t, dir, c.version, c.more).Check(t.Context(), p, c.set).Checks.Of(precheck.Fail) {
				if names = append(names, x.Name); x.Hint == "" {
					t.Errorf("no hint: %+v", x)
				}
			}
			if c.want == "" && names != nil || c.want != "" && !slices.Contains(names, c.want) {
				t.Errorf("failed checks %q, want %q", names, c.want)
			}
		})
	}
}

// TestHostKeepsItsOrder: a host that is started again has its order, follows no other one, and leaves no state early.
func TestHostKeepsItsOrder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "db")
	h := newHost(t, dir, "6.0.5", "")
	must(t, h.Obey(Order{ID: "one"}))
	must(t, h.Obey(Order{ID: "one"}))
	must(t, h.SetPace(5, true))
	again := newHost(t, dir, "6.0.5", "")
	if s := again.State(); s.Stage != StageCopying || s.Order == nil || s.Order.ID != "one" || !s.Paused {
		t.Errorf("%+v", s)
	}
	must(t, again.SetPace(0, false))
	if s := newHost(t, dir, "6.0.5", "").State(); s.Paused {
		t.Error("a resumed agent is paused when it starts again")
	}
	if err := again.Obey(Order{ID: "two"}); err == nil || !strings.Contains(err.Error(), "another migration") {
		t.Errorf("another order: %v", err)
	}
	for _, to := range []Stage{StageForming, StageRunning, StageFinished, StageIdle, "unknown"} {
		if err := again.Advance("one", to); (err == nil) != (to == StageIdle) {
			t.Errorf("advanced from copying to %s: %v", to, err)
		}
	}
	if err := again.Advance("two", StageForming); err == nil {
		t.Error("advanced by another migration")
	}
	if s := again.State(); s.Stage != StageCopying {
		t.Errorf("stage %s", s.Stage)
	}
}

// TestHostPausedBeforeItsOrder: it does not copy when the order comes.
func TestHostPausedBeforeItsOrder(t *testing.T) {
	h := newHost(t, filepath.Join(t.TempDir(), "db"), "6.0.5", "")
	must(t, h.SetPace(0, true))
	must(t, h.Obey(Order{ID: "one"}))
	if s := h.State(); !s.Paused || s.Stage != StageCopying {
		t.Errorf("%+v", s)
	}
}

// TestHostCannotStoreItsState: a copy that is complete while its state cannot be stored, as on a full disk, is served
// and stored later.
func TestHostCannotStoreItsState(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "db")
	h := newHost(t, dir, "6.0.5", "")
	o := serve(t, fakeAgent(t, fakeMember(t), AgentOptions{}), "a token of some length", nil)
	h.o.Peer = func(string) (*Client, error) { return NewClient(o) }
	must(t, h.Obey(Order{ID: "one", Formation: Formation{Set: "made"}}))
	must(t, os.Remove(h.file()))
	must(t, os.MkdirAll(filepath.Join(h.file(), "in the way"), 0o700))
	for range 3 {
		err := h.step(t.Context(), h.kept)
		if err == nil || !strings.Contains(err.Error(), "cannot store the agent's state") {
			t.Fatalf("a state that cannot be stored: %v", err)
		}
	}
	must(t, os.RemoveAll(h.file()))
	must(t, h.step(t.Context(), h.kept))
	if s := h.State(); s.Stage != StageCopied {
		t.Errorf("%+v", s)
	}
	to := filepath.Join(t.TempDir(), "to")
	handler, err := NewHostHandler(h, "a token of some length", true)
	must(t, err)
	_, err = Pull(t.Context(), client(t, serveHandler(t, handler, "a token of some length")), PullOptions{DBPath: to})
	must(t, err)
	sameFiles(t, dir, to)
}

// TestHostErrorEnds: an agent has an error until the step goes on, however long that takes then.
func TestHostErrorEnds(t *testing.T) {
	h := newHost(t, filepath.Join(t.TempDir(), "db"), "6.0.5", "")
	h.stats.enter(PhaseCopy, 10)
	h.stats.pass(5)
	h.fail(errors.New("no room"))
	if s := h.State(); s.Error != "no room" {
		t.Errorf("%+v", s)
	}
	h.stats.enter(PhaseCopy, 10)
	if s := h.State(); s.Error != "" {
		t.Errorf("%+v", s)
	}
}

// TestHostNeedsItsOperatorsCommand: the command and the agent name the same directory, and a set.
func TestHostNeedsItsOperatorsCommand(t *testing.T) {
	dir := t.TempDir()
	for config, want := range map[string]string{
		"{storage: {dbPath: /elsewhere}, replication: {replSet: made}}": "dbPath",
		fmt.Sprintf("{storage: {dbPath: %q}}", dir):                     "replica set",
	} {
		_, err := NewHost(t.Context(), HostOptions{DBPath: dir, Command: []string{saying(t, "6.0.5", config)}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", config, err)
		}
	}
}
