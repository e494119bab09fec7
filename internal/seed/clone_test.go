package seed

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/workshop/lab"
)

// canClone skips a test where the temporary directory's file system cannot
// clone; TMPDIR names another one.
func canClone(t *testing.T) {
	t.Helper()
	if !clones(t) {
		t.Skip("the file system of the temporary directory cannot clone files (FICLONE); set TMPDIR to one on XFS or btrfs")
	}
}

func clones(t *testing.T) bool {
	t.Helper()
	open := func(name string) *os.File {
		f, err := os.Create(filepath.Join(t.TempDir(), name))
		must(t, err)
		t.Cleanup(func() { f.Close() })
		return f
	}
	from := open("a")
	_, err := from.WriteString("something")
	must(t, err)
	err = cloneFile(open("b"), from)
	if err != nil && !errors.Is(err, errCannotClone) {
		t.Fatal(err)
	}
	return err == nil
}

// Where files cannot be cloned they are copied; else nothing is read.
func TestCloneOrCopy(t *testing.T) {
	can := clones(t)
	dir := fakeMember(t)
	for _, never := range []bool{false, true} {
		to := filepath.Join(t.TempDir(), "to")
		report, err := Pull(t.Context(), fakeAgent(t, dir, AgentOptions{Way: WayLock, Freezer: &changingFreezer{}}),
			PullOptions{DBPath: to, NoClone: never})
		must(t, err)
		sameFiles(t, dir, to)
		if cloned := can && !never; (report.ClonedBytes > 0) != cloned || (report.CopiedBytes == 0) != cloned {
			t.Errorf("can %v, never %v: %+v", can, never, report)
		}
	}
	t.Logf("the file system clones: %v", can)
}

func TestBackupCursorIsCloned(t *testing.T) {
	canClone(t)
	dir := fakeMember(t)
	s := newStub(t, dir)
	want := len(content(t, dir, "db/collection-1.wt"))
	a := pinningAgent(t, s, dir, AgentOptions{})
	s.on = func(command string) {
		if command == "$backupCursorExtend" {
			appendTo(t, dir, "journal/WiredTigerLog.0000000002", "more")
		}
	}
	s.extend = func(int, bson.Timestamp) []string { return []string{"journal/WiredTigerLog.0000000002"} }
	to := filepath.Join(t.TempDir(), "to")
	grown := &clonedSource{joinedSource{a, func() { appendTo(t, dir, "db/collection-1.wt", "a checkpoint later") }}, a}
	report, err := Pull(t.Context(), grown, PullOptions{DBPath: to})
	must(t, err)
	if got := len(content(t, to, "db/collection-1.wt")); got != want || report.ClonedBytes == 0 {
		t.Errorf("%d bytes, want %d; %+v", got, want, report)
	}
}

type clonedSource struct {
	joinedSource
	cloner
}

// A locked secondary is cloned in a moment.
func TestLockedSecondaryIsCloned(t *testing.T) {
	canClone(t)
	c := lab.ForTest(t, lab.Options{Topology: "rs:3"})
	s := secondary(t, c)
	d := fill(t, c.URI(), "cloned", 3, 2000)
	stop := writer(t, d)
	a := openAgent(t, ServeOptions{SourceOptions: SourceOptions{URI: c.DirectURI(s.Index), DBPath: s.DBPath}})
	res := seedAndCompare(t, c, a, stop, "cloned")
	if res.Way != WayLock || res.ClonedBytes == 0 || res.CopiedBytes != 0 || res.LockSeconds <= 0 {
		t.Errorf("%+v", res)
	}
	if isLocked(t, c.DirectURI(s.Index)) {
		t.Error("the source is still locked")
	}
}

// A mongod that recovers for long has its socket long before it listens on it.
func TestLongRecoveryIsWaitedFor(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	lab.NeedServers(t)
	dir := t.TempDir()
	script := filepath.Join(dir, "mongod.sh")
	stop := `for a; do case $a in */s.sock) s=$a;; esac; done
(until [ -S "$s" ]; do sleep 0.01; done; kill -STOP $$; sleep 33; kill -CONT $$) >/dev/null 2>&1 &
exec ` + mongod(t, "6.0") + ` "$@"
`
	must(t, os.WriteFile(script, []byte("#!/bin/sh\n"+stop), 0o700))
	o := Options{Pull: PullOptions{DBPath: filepath.Join(dir, "db")},
		Member: MemberOptions{Mongod: script, Guardian: privateCommand()}}
	must(t, os.Mkdir(o.Pull.DBPath, 0o700))
	began := time.Now()
	must(t, withPrivateMongod(t.Context(), o, Storage{}, nil, func(ctx context.Context, c *driver.Client) error {
		return c.Ping(ctx, nil)
	}))
	if took := time.Since(began); took < selectionWait {
		t.Errorf("nothing was waited for: %v", took)
	}
}
