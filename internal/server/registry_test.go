package server

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/mongo"
)

func registry(t *testing.T) Registry {
	t.Helper()
	r, err := NewRegistry(func(name string) (string, bool) {
		return filepath.Join(t.TempDir(), name),
			name == "XDG_STATE_HOME"
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// syncing answers as one of this process does.
type syncing struct{ *httptest.Server }

func (s syncing) URL() string   { return s.Server.URL }
func (s syncing) Token() string { return "token of " + s.URL() }

func running(t *testing.T) (s syncing, stop func()) {
	t.Helper()
	s = syncing{httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != PathHealth || r.Header.Get("Authorization") != "" {
			w.WriteHeader(http.StatusNotFound)
		}
		_ = json.NewEncoder(w).Encode(Health{PID: os.Getpid()})
	}))}
	t.Cleanup(s.Close)
	return s, s.Close
}

// add records a server of this process as the sync of a job.
func add(t *testing.T, r Registry, job string, s syncing) func() error {
	t.Helper()
	end, err := r.Add(Record{Job: job, PID: os.Getpid(), Address: s.URL(), Token: s.Token(), StartedAt: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	return func() error { return end(nil) }
}

// TestRegistryKeepsHowASyncEnded: commands after its end, and those that watched it, can tell how it went.
func TestRegistryKeepsHowASyncEnded(t *testing.T) {
	r := registry(t)
	s, _ := running(t)
	end, err := r.Add(Record{Job: "orders", PID: os.Getpid(), Address: s.URL(), Token: s.Token(), StartedAt: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	if err := end(map[string]string{"phase": "finalized"}); err != nil {
		t.Fatal(err)
	}
	if rec, err := r.Find(t.Context(), Wanted{}); err == nil {
		t.Errorf("it runs: %+v", rec)
	}
	rec, ok := r.Gone(Wanted{Job: "orders"})
	if !ok || rec.EndedAt == nil || string(rec.Last) != `{"phase":"finalized"}` || rec.Token != "" {
		t.Errorf("%+v, %t", rec, ok)
	}
	again := add(t, r, "orders", s)
	if rec, ok := r.Gone(Wanted{Job: "orders"}); ok {
		t.Errorf("the end of the sync before: %+v", rec)
	}
	if err := again(); err != nil {
		t.Fatal(err)
	}
}

// TestRegistryFindsByTarget: a command that names a target never controls a sync to another.
func TestRegistryFindsByTarget(t *testing.T) {
	r := registry(t)
	s, _ := running(t)
	if _, err := r.Add(Record{Job: "orders", PID: os.Getpid(), Address: s.URL(), Target: "mongodb://a:27017,b:27018",
		StartedAt: time.Now()}); err != nil {
		t.Fatal(err)
	}
	for target, found := range map[string]bool{"mongodb://u:secret@A/?replicaSet=x": true, "mongodb://b:27018,c": true,
		"mongodb://b:27017": false, "mongodb://c": false, "": true} {
		if _, err := r.Find(t.Context(), Wanted{Target: target}); (err == nil) != found {
			t.Errorf("%s: %v", target, err)
		}
	}
}

func TestRegistryFinds(t *testing.T) {
	r := registry(t)
	if _, err := r.Find(t.Context(), Wanted{}); err == nil || mongo.HintOf(err) == "" {
		t.Fatalf("empty: %v", err)
	}
	a, _ := running(t)
	b, _ := running(t)
	removeA := add(t, r, "orders", a)
	if rec, err := r.Find(t.Context(), Wanted{}); err != nil || rec.Token != a.Token() || rec.Address != a.URL() {
		t.Fatalf("the only one: %+v, %v", rec, err)
	}
	add(t, r, "users/../x", b)
	if _, err := r.Find(t.Context(), Wanted{}); err == nil || !errors.Is(err, ErrSeveral) {
		t.Errorf("one of two: %v", err)
	}
	if rec, err := r.Find(t.Context(), Wanted{Job: "orders"}); err != nil || rec.Address != a.URL() {
		t.Errorf("by job: %+v, %v", rec, err)
	}
	if rec, err := r.Find(t.Context(), Wanted{Address: HostPort(b.URL())}); err != nil || rec.Token != b.Token() {
		t.Errorf("by address: %+v, %v", rec, err)
	}
	if _, err := r.Find(t.Context(), Wanted{Job: "other"}); err == nil || !strings.Contains(mongo.HintOf(err), "orders") {
		t.Errorf("no such job: %v", err)
	}
	if err := removeA(); err != nil {
		t.Fatal(err)
	}
	if err := removeA(); err != nil {
		t.Errorf("removed twice: %v", err)
	}
	if rec, err := r.Find(t.Context(), Wanted{}); err != nil || rec.Address != b.URL() {
		t.Errorf("the one left: %+v, %v", rec, err)
	}
}

func TestRegistryKeepsTheTokenSecret(t *testing.T) {
	r := registry(t)
	s, _ := running(t)
	add(t, r, "orders", s)
	entries, err := os.ReadDir(r.Dir)
	if err != nil || len(entries) != 1 {
		t.Fatalf("%v, %v", entries, err)
	}
	file, err := entries[0].Info()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.Stat(r.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if file.Mode().Perm() != 0o600 || dir.Mode().Perm() != 0o700 {
		t.Errorf("file %v, directory %v", file.Mode(), dir.Mode())
	}
}

func TestRegistryIgnoresTheStale(t *testing.T) {
	r := registry(t)
	ended := exec.Command(os.Args[0], "-test.run=^$")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	s, stop := running(t)
	for _, rec := range []Record{
		{Job: "dead", PID: ended.Process.Pid, Address: s.URL(), StartedAt: time.Now()},
		{Job: "number-taken-over", PID: os.Getppid(), Address: s.URL()},
		{Job: "elsewhere", PID: os.Getpid(), Address: s.URL(), Host: "another-machine"},
	} {
		if _, err := r.Add(rec); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"broken-1.json": "{", "empty-2.json": "", "note.txt": "x"} {
		if err := os.WriteFile(filepath.Join(r.Dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if recs, err := r.Running(t.Context()); err != nil || len(recs) != 0 {
		t.Fatalf("%+v, %v", recs, err)
	}
	if rec, ok := r.Gone(Wanted{}); !ok || rec.Job != "dead" {
		t.Errorf("gone: %+v, %t", rec, ok)
	}
	if rec, ok := r.Gone(Wanted{Job: "elsewhere"}); ok {
		t.Errorf("gone, as far as this machine knows: %+v", rec)
	}
	removeOther := add(t, r, "other", s)
	if _, ok := r.Gone(Wanted{Job: "dead"}); !ok {
		t.Error("the record of the dead is forgotten when another job starts")
	}
	for _, remove := range []func() error{removeOther, add(t, r, "dead", s)} {
		if err := remove(); err != nil {
			t.Fatal(err)
		}
	}
	if rec, ok := r.Gone(Wanted{}); ok {
		t.Errorf("the record of the dead stays when its job starts again: %+v", rec)
	}
	add(t, r, "silent", s)
	if recs, err := r.Running(t.Context()); err != nil || len(recs) != 1 {
		t.Fatalf("%+v, %v", recs, err)
	}
	stop()
	if recs, err := r.Running(t.Context()); err != nil || len(recs) != 0 {
		t.Fatalf("one that no longer answers: %+v, %v", recs, err)
	}
}

func TestRegistryDir(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"XDG_STATE_HOME": "/s", "HOME": "/h"}, "/s/millrace/run"},
		{map[string]string{"XDG_STATE_HOME": "relative", "HOME": "/h"}, "/h/.local/state/millrace/run"},
		{map[string]string{"HOME": "/h"}, "/h/.local/state/millrace/run"},
	} {
		r, err := NewRegistry(func(n string) (string, bool) { v, ok := c.env[n]; return v, ok })
		if err != nil || r.Dir != c.want {
			t.Errorf("%q, want %q (%v)", r.Dir, c.want, err)
		}
	}
}

func TestFileNameStaysInItsDirectory(t *testing.T) {
	for _, job := range []string{"../../etc/x", "a/b", ".hidden", "ä b", strings.Repeat("x", 500), ""} {
		name := fileName(Record{Job: job, PID: 7})
		if filepath.Base(name) != name || strings.HasPrefix(name, ".") || len(name) > 255 ||
			!strings.HasSuffix(name, "-7.json") {
			t.Errorf("%q gives %q", job, name)
		}
	}
}

func TestRecordIsWholeJSON(t *testing.T) {
	r := registry(t)
	s, _ := running(t)
	add(t, r, "orders", s)
	raw, err := os.ReadFile(filepath.Join(r.Dir, fileName(Record{Job: "orders", PID: os.Getpid()})))
	if err != nil {
		t.Fatal(err)
	}
	var rec Record
	if err := json.Unmarshal(raw, &rec); err != nil || rec.Host == "" || rec.Token != s.Token() {
		t.Errorf("%+v, %v", rec, err)
	}
}
