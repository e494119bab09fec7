package seed

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// elsewhere moves a part of a data directory and leaves a link in its place.
func elsewhere(t *testing.T, dir, name string) {
	t.Helper()
	from, to := filepath.Join(dir, name), filepath.Join(t.TempDir(), filepath.Base(name))
	out, err := exec.CommandContext(t.Context(), "cp", "-a", from, to).CombinedOutput() // perhaps to another file system
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	must(t, relink(dir, name, to))
}

// agentOf is an agent of one of the ways.
func agentOf(t *testing.T, way Way, dir string) *Agent {
	t.Helper()
	switch way {
	case WayCursor:
		return pinningAgent(t, newStub(t, dir), dir, AgentOptions{})
	case WayLock:
		return fakeAgent(t, dir, AgentOptions{Way: way, Freezer: &changingFreezer{}})
	}
	return fakeAgent(t, dir, AgentOptions{})
}

// What is behind links is copied, as a directory or a file of the copy's own.
func TestLinksAreFollowed(t *testing.T) {
	for _, way := range []Way{WayStopped, WayLock, WayCursor} {
		plain := fakeMember(t)
		dir := fakeMember(t)
		for _, part := range []string{"journal", "db/collection-1.wt", "db", "index-2.wt", storageFile} {
			elsewhere(t, dir, part)
		}
		link := filepath.Join(t.TempDir(), "dbpath")
		must(t, os.Symlink(dir, link))
		to := filepath.Join(t.TempDir(), "to")
		_, err := Pull(t.Context(), agentOf(t, way, link), PullOptions{DBPath: to})
		must(t, err)
		sameFiles(t, plain, to)
		for _, part := range []string{"journal", "db", "index-2.wt"} {
			if info, err := os.Lstat(filepath.Join(to, part)); err != nil || info.Mode()&os.ModeSymlink != 0 {
				t.Errorf("%s, %s: %v, %v", way, part, info, err)
			}
		}
	}
}

// What cannot be followed to a file is refused, whatever its name.
func TestWhatCannotBeFollowedIsRefused(t *testing.T) {
	for name, put := range map[string]func(dir string) error{
		"a link to nowhere": func(
			dir string) error {
			return os.Symlink(filepath.Join(dir, "gone"), filepath.Join(dir, "c"))
		},
		"a journal that is not there": func(dir string) error { return relink(dir, "journal", "/nonexistent/journal") },
		"a table that is not there": func(
			dir string) error {
			return relink(dir, "index-2.wt", "/nonexistent/index-2.wt")
		},
		"a device": func(dir string) error { return os.Symlink("/dev/null", filepath.Join(dir, "c.wt")) },
		"a FIFO":   func(dir string) error { return syscall.Mkfifo(filepath.Join(dir, "c.wt"), 0o600) },
		"a FIFO of an unknown purpose": func(
			dir string) error {
			return syscall.Mkfifo(filepath.Join(dir, "db", "c"), 0o600)
		},
		"a FIFO behind a link": func(dir string) error {
			fifo := filepath.Join(t.TempDir(), "fifo")
			if err := syscall.Mkfifo(fifo, 0o600); err != nil {
				return err
			}
			return os.Symlink(fifo, filepath.Join(dir, "c.wt"))
		},
		"a socket": func(dir string) error {
			l, err := net.Listen("unix", filepath.Join(dir, "s"))
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			return err
		},
		"a loop of links": func(dir string) error { return os.Symlink("loop", filepath.Join(dir, "loop")) },
		"a link upwards":  func(dir string) error { return os.Symlink("..", filepath.Join(dir, "db", "up")) },
		"a tower":         func(dir string) error { return os.MkdirAll(filepath.Join(dir, strings.Repeat("d/", 20)), 0o700) },
		"an unknown file of the engine": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "WiredTiger.novelty"), nil, 0o600)
		},
		"another user's file": func(dir string) error {
			if os.Geteuid() != 0 {
				return os.Symlink("/etc/passwd", filepath.Join(dir, "c.wt"))
			}
			other := filepath.Join(t.TempDir(), "other")
			if err := os.WriteFile(other, nil, 0o644); err != nil {
				return err
			}
			if err := os.Chown(other, 12345, 12345); err != nil {
				return err
			}
			return os.Symlink(other, filepath.Join(dir, "c.wt"))
		},
	} {
		for _, way := range []Way{WayStopped, WayLock, WayCursor} {
			dir := fakeMember(t)
			engine(t, dir)
			a := agentOf(t, way, dir)
			must(t, put(dir))
			if _, err := a.Join(t.Context()); err == nil || mongo.HintOf(err) == "" {
				t.Errorf("%s, %s: %v", way, name, err)
			}
			if _, err := Inspect(t.Context(), SourceOptions{DBPath: dir}); err == nil || mongo.HintOf(err) == "" {
				t.Errorf("the plan, %s, %s: %v", way, name, err)
			}
		}
	}
}

func relink(dir, name, to string) error {
	if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
		return err
	}
	return os.Symlink(to, filepath.Join(dir, name))
}

// What the server has beside its data, and what is not the server's, is not copied;
// of the latter the operator is told, unless the way to tell is to refuse.
func TestOtherFilesAreTold(t *testing.T) {
	reported := func(name string) (message string, refused bool) {
		dir := fakeMember(t)
		engine(t, dir)
		must(t, os.Remove(filepath.Join(dir, "secret.pem")))
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
		plan, err := Inspect(t.Context(), SourceOptions{DBPath: dir})
		must(t, err)
		for _, c := range plan.Checks {
			message += c.Message
			if c.Hint == "" {
				t.Errorf("%s: no hint", name)
			}
		}
		return message, plan.Checks.Err() != nil
	}
	for _, name := range []string{"diagnostic.data/metrics.1", "_tmp/extsort.1", "rollback/a.b/removed.bson",
		"WiredTiger.lock", "WiredTigerStat.1", "journal/WiredTigerPreplog.0000000001", "_tmp/spilldb/WiredTiger.wt",
		"lost+found/x.wt"} {
		if message, _ := reported(name); message != "" {
			t.Errorf("%s: %s", name, message)
		}
	}
	for _, name := range []string{"key", ".hidden", "mongod.log", "db/x", "journal/x", "journal/x.wt",
		"sub/WiredTiger.turtle"} {
		if message, refused := reported(name); refused || !strings.Contains(message, name) {
			t.Errorf("%s: %s", name, message)
		}
	}
	for _, name := range []string{"key.store/local", "key.db/key.wt", "_repair_incomplete", newSetMark} {
		if message, refused := reported(name); !refused || strings.Contains(message, "not copied: ") &&
			!strings.HasPrefix(name, "key") && !strings.Contains(message, name) {
			t.Errorf("%s: %s", name, message)
		}
	}
}

func TestEngineSettingsAreLookedAt(t *testing.T) {
	for config, refused := range map[string]bool{
		"": false, "log=(prealloc=false,file_max=10MB)": false,
		"cache_size=1G,log=( prealloc=false, path=/fast/journal )": true,
		"statistics_log=(path=/var/log)":                           false,
		"direct_io=[data]":                                         true, "log=(enabled),direct_io=(data)": true,
		"direct_io=()": false,
	} {
		p := &Plan{}
		p.inspectEngine(config)
		if err := p.Checks.Err(); (err != nil) != refused || refused && mongo.HintOf(err) == "" {
			t.Errorf("%q: %v", config, err)
		}
	}
}

// A member that was killed, and whose journal is not there, has lost what came after
// its last checkpoint.
func TestMissingJournalIsRefused(t *testing.T) {
	for _, killed := range []bool{false, true} {
		dir := fakeMember(t)
		engine(t, dir)
		must(t, os.RemoveAll(filepath.Join(dir, "journal")))
		if killed {
			must(t, os.WriteFile(filepath.Join(dir, "mongod.lock"), []byte("4711\n"), 0o600))
		}
		plan, err := Inspect(t.Context(), SourceOptions{DBPath: dir})
		must(t, err)
		if err := plan.Checks.Err(); (err != nil) != killed {
			t.Errorf("killed %v: %v", killed, err)
		}
	}
}

// privately runs fn on a standalone mongod on a copy.
func privately(t *testing.T, dir string, s Storage, params []string, fn func(ctx context.Context, c *driver.Client)) {
	t.Helper()
	o := Options{Pull: PullOptions{DBPath: dir},
		Member: MemberOptions{Mongod: mongod(t, "6.0"), Guardian: privateCommand()}}
	must(t, withPrivateMongod(t.Context(), o, s, params, func(ctx context.Context, c *driver.Client) error {
		fn(ctx, c)
		return nil
	}))
}

// A member that was killed has what it acknowledged in its journal.
func TestJournalBehindALink(t *testing.T) {
	c := lab.ForTest(t, lab.Options{})
	m := c.Members()[0]
	must(t, m.Stop())
	elsewhere(t, m.DBPath, "journal")
	must(t, m.Start(t.Context()))
	source := connect(t, c.URI())
	coll := source.Database("x").Collection("c", options.Collection().SetWriteConcern(writeconcern.Majority()))
	kit.Until(t, "the member is primary", func() bool {
		_, err := coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: -1}})
		return err == nil
	})
	var docs []any
	for i := range 1000 {
		docs = append(docs, bson.D{{Key: "_id", Value: i}})
	}
	_, err := coll.InsertMany(t.Context(), docs)
	must(t, err)
	must(t, source.Disconnect(t.Context())) // else its end waits for a server
	must(t, m.Kill())
	to := filepath.Join(t.TempDir(), "to")
	_, err = Pull(t.Context(), openAgent(t, ServeOptions{SourceOptions: SourceOptions{DBPath: m.DBPath}}),
		PullOptions{DBPath: to})
	must(t, err)
	privately(t, to, Storage{}, []string{"recoverFromOplogAsStandalone=true"},
		func(ctx context.Context, c *driver.Client) {
			if n, err := c.Database("x").Collection("c").CountDocuments(ctx, bson.D{}); n != 1001 || err != nil {
				t.Errorf("the copy has %d of 1001 documents, %v", n, err)
			}
		})
}

// A mongod empties the directory _tmp when it starts, also where that is a
// database's: no copy of it can be had.
func TestDatabaseTmpIsRefused(t *testing.T) {
	c := lab.ForTest(t, lab.Options{Topology: "standalone", Args: []string{"--directoryperdb"}})
	m := c.Members()[0]
	source := connect(t, c.URI())
	_, err := source.Database("_tmp").Collection("c").InsertOne(t.Context(), bson.D{})
	must(t, err)
	must(t, source.Disconnect(t.Context()))
	must(t, m.Stop())
	plan, err := Inspect(t.Context(), SourceOptions{DBPath: m.DBPath})
	must(t, err)
	if err := plan.Checks.Err(); err == nil || !strings.Contains(err.Error(), "_tmp") {
		t.Error(err)
	}
	privately(t, m.DBPath, plan.Origin.Storage, nil, func(context.Context, *driver.Client) {})
	if files, err := filepath.Glob(filepath.Join(m.DBPath, "_tmp", "*.wt")); err != nil || len(files) > 0 {
		t.Errorf("a mongod left %v: it need not be refused, %v", files, err)
	}
}

// With directories of databases a name may be that of one of the server's own
// directories; and one of them may be behind a link.
func TestDatabasesWithNamesOfTheServer(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	for _, indexes := range []bool{false, true} {
		s := Storage{DirectoryPerDB: true, DirectoryForIndexes: indexes}
		args := []string{"--directoryperdb"}
		if indexes {
			args = append(args, "--wiredTigerDirectoryForIndexes")
		}
		c := lab.ForTest(t, lab.Options{Args: args})
		m := c.Members()[0]
		names := []string{"journal", "rollback", "collection", "index", "diagnostic-data", "ö-lost+found", "linked"}
		source := connect(t, c.URI())
		for i, db := range append(names, "local") {
			must(t, source.Database(db).
				RunCommand(t.Context(), bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{
					bson.D{{Key: "_id", Value: i}, {Key: "a", Value: i}}, bson.D{{Key: "_id", Value: "x"}}}}}).Err())
			_, err := source.Database(db).Collection("c").Indexes().
				CreateOne(t.Context(), driver.IndexModel{Keys: bson.D{{Key: "a", Value: 1}}})
			must(t, err)
		}
		must(t, source.Disconnect(t.Context()))
		must(t, m.Stop())
		elsewhere(t, m.DBPath, "linked")
		must(t, m.Start(t.Context()))
		source = connect(t, c.URI())
		kit.Until(t, "the member is primary", func() bool {
			_, err := source.Database("linked").Collection("c").InsertOne(t.Context(), bson.D{})
			return err == nil
		})
		want := map[string]string{}
		for _, db := range names {
			want[db] = hashes(t, source, db)
		}
		for _, way := range []Way{WayLock, WayStopped} {
			o := SourceOptions{URI: c.DirectURI(0), DBPath: m.DBPath, AllowPrimary: true, YesBlockAllWrites: true}
			if way == WayStopped {
				must(t, source.Disconnect(t.Context())) // else its end waits for a server
				must(t, m.Kill())
				o = SourceOptions{DBPath: m.DBPath}
			}
			to := filepath.Join(t.TempDir(), "to")
			report, err := Pull(t.Context(), openAgent(t, ServeOptions{SourceOptions: o}), PullOptions{DBPath: to})
			must(t, err)
			if report.Way != way {
				t.Errorf("%s instead of %s", report.Way, way)
			}
			privately(t, to, s, []string{"recoverFromOplogAsStandalone=true"}, func(ctx context.Context, c *driver.Client) {
				for _, db := range names {
					if got := hashes(t, c, db); got != want[db] || !strings.Contains(got, `"c"`) {
						t.Errorf("%s, indexes in directories %v: %s is %s, want %s", way, indexes, db, got, want[db])
					}
				}
				if n, err := c.Database("local").Collection("c").CountDocuments(ctx, bson.D{}); n != 2 || err != nil {
					t.Errorf("local: %d documents, %v", n, err)
				}
			})
		}
	}
}
