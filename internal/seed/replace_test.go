package seed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
)

// TestOwnDirectory: files are removed only where everything says that they are the
// member's.
func TestOwnDirectory(t *testing.T) {
	id := bson.NewObjectID()
	for _, c := range []struct {
		name string
		make func(t *testing.T, dir string) // what else is there
		conf string                         // of the command, with the directory; "" is the member's own
		none bool                           // no mongod is to be seen in the command
		says string                         // "" is accepted
	}{
		{name: "its own"},
		{name: "with files of others", make: write("keyfile")},
		{name: "another port", conf: "net: {port: 27020}\nstorage: {dbPath: %s}", says: "port 27020"},
		{name: "the default port", conf: "storage: {dbPath: %s}", says: "port 27017"},
		{name: "another directory", conf: "net: {port: 27019}\nstorage: {dbPath: %s/x}", says: "/x"},
		{name: "a service", none: true, says: "no mongod is to be seen"},
		{name: "another set", make: func(t *testing.T, dir string) { writeConfig(t, dir, bson.NewObjectID()) },
			says: "no configuration of this set"},
		{name: "a link", make: func(t *testing.T, dir string) { must(t, os.Symlink("/tmp", filepath.Join(dir, "journal"))) },
			says: "journal, a link"},
		{name: "keys", make: write("key.store"), says: "key.store"},
		{name: "an unknown file of the engine", make: write("WiredTigerNew.x"), says: "WiredTigerNew.x"},
		{name: "a clone", make: write(newSetMark), says: newSetMark},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			writeConfig(t, dir, id)
			if c.make != nil {
				c.make(t, dir)
			}
			conf := c.conf
			if conf == "" {
				conf = "net: {port: 27019}\nstorage: {dbPath: %s}"
			}
			o := MemberOptions{Replace: "db3:27019", Command: []string{saying(t, "6.0.5", fmt.Sprintf(conf, dir))}}
			if c.none {
				o.Command = []string{"/etc/init.d/db", "start"}
			}
			root, err := os.OpenRoot(dir)
			must(t, err)
			defer root.Close()
			err = o.owns(t.Context(), root, dir, id)
			switch {
			case c.says == "" && err != nil:
				t.Error(err)
			case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says) || mongo.HintOf(err) == ""):
				t.Errorf("%v, want %q and a hint", err, c.says)
			}
		})
	}
}

// writeConfig makes a table of a set's configuration, as far as it is looked at.
func writeConfig(t *testing.T, dir string, id bson.ObjectID) {
	t.Helper()
	doc, err := bson.Marshal(bson.D{{Key: "settings", Value: bson.D{{Key: "replicaSetId", Value: id}}}})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "collection-7.wt"), append(make([]byte, 5000), doc...), 0o600))
}

// write makes a file that is there besides.
func write(name string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		must(t, os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600))
	}
}

// What stands in the way is found before anything in the directory is touched, and
// what is not of the copy goes before the copy needs its room.
func TestReplacedFilesGoFirst(t *testing.T) {
	to := t.TempDir()
	for _, name := range []string{storageFile, "collection-old.wt", "journal/WiredTigerLog.0000000009", "mongod.lock",
		"keyfile"} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(to, name)), 0o700))
		must(t, os.WriteFile(filepath.Join(to, name), []byte("old"), 0o600))
	}
	old := func(name string) bool {
		raw, err := os.ReadFile(filepath.Join(to, name))
		return err == nil && string(raw) == "old"
	}
	a := fakeAgent(t, fakeMember(t), AgentOptions{Way: WayLock, Freezer: &changingFreezer{}})
	allow := func(context.Context, *os.Root) error { return nil }
	refused := errors.New("refused")
	_, err := Pull(t.Context(), a,
		PullOptions{DBPath: to, Replace: allow, Check: func(*Manifest) error { return refused }})
	if !errors.Is(err, refused) || !old(storageFile) || !old("collection-old.wt") || !old("mongod.lock") {
		t.Fatalf("%v: something was touched", err)
	}
	if _, err := Pull(t.Context(), a, PullOptions{DBPath: to}); !errors.Is(err, errNotEmpty) {
		t.Fatalf("without leave: %v", err)
	}
	report, err := Pull(t.Context(), a, PullOptions{DBPath: to, Replace: allow})
	must(t, err)
	if report.Resumed || old(storageFile) || old("collection-old.wt") || old("journal/WiredTigerLog.0000000009") ||
		old("mongod.lock") || !old("keyfile") {
		t.Errorf("%+v, or something is left", report)
	}
}

// TestOthersHoldWhatItHeld: while the only other secondary applies nothing, what the
// stopped member held may be held by the primary alone.
func TestOthersHoldWhatItHeld(t *testing.T) {
	c := threeMembers(t)
	s := secondary(t, c)
	p, err := c.Primary(t.Context())
	must(t, err)
	lost := c.Members()[3-p-s.Index]
	must(t, lost.Stop())
	defer func() { must(t, lost.Start(t.Context())) }()
	admin := connect(t, c.DirectURI(s.Index)).Database("admin")
	must(t, admin.RunCommand(t.Context(), bson.D{{Key: "fsync", Value: 1}, {Key: "lock", Value: true}}).Err())
	set := connect(t, c.URI())
	err = provenByOthers(t.Context(), set, lost.Host(), time.Second)
	must(t, admin.RunCommand(t.Context(), bson.D{{Key: "fsyncUnlock", Value: 1}}).Err())
	if err == nil || mongo.HintOf(err) == "" {
		t.Errorf("with one member: %v", err)
	}
	if err := provenByOthers(t.Context(), set, lost.Host(), time.Minute); err != nil {
		t.Errorf("with two: %v", err)
	}
}
