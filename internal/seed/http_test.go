package seed

import (
	"context"
	"encoding/pem"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/mongo"
)

// fakeMember is a directory that looks like a stopped member's.
func fakeMember(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name string, b []byte) {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		must(t, os.WriteFile(filepath.Join(dir, name), b, 0o600))
	}
	noise := make([]byte, 3*smallestBlock+77)
	for i := range noise {
		noise[i] = byte(i * i >> 7)
	}
	write(storageFile, []byte("storage"))
	write("WiredTiger.wt", []byte("turtles"))
	write("empty.wt", nil)
	write("db/collection-1.wt", noise)
	write("index-2.wt", append(make([]byte, 20*smallestBlock), noise...))
	write("journal/WiredTigerLog.0000000001", append(noise[:5000:5000], make([]byte, 4*smallestBlock)...))
	write("mongod.lock", nil)
	write("secret.pem", []byte("not for you"))
	write("diagnostic.data/metrics", []byte("no"))
	return dir
}

func fakeAgent(t *testing.T, dir string, o AgentOptions) *Agent {
	t.Helper()
	o.DBPath, o.SpoolDir = dir, t.TempDir()
	if o.Way == "" {
		o.Way = WayStopped
	}
	a, err := NewAgent(o)
	must(t, err)
	t.Cleanup(func() { must(t, a.Close()) })
	return a
}

// serve serves an agent with TLS.
func serve(t *testing.T, a *Agent, token string, wrap func(http.Handler) http.Handler) ClientOptions {
	t.Helper()
	h, err := NewHandler(a, token, true)
	must(t, err)
	if wrap != nil {
		h = wrap(h)
	}
	return serveHandler(t, h, token)
}

func serveHandler(t *testing.T, h http.Handler, token string) ClientOptions {
	t.Helper()
	srv := httptest.NewTLSServer(h)
	t.Cleanup(srv.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	must(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600))
	return ClientOptions{URL: srv.URL, TokenFile: tokenFile(t, token), CA: ca, RetryFor: 10 * time.Second}
}

func tokenFile(t *testing.T, token string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(name, []byte(token), 0o600))
	return name
}

func client(t *testing.T, o ClientOptions) *Client {
	t.Helper()
	c, err := NewClient(o)
	must(t, err)
	t.Cleanup(c.Close)
	return c
}

// sameFiles compares what a copy needs.
func sameFiles(t *testing.T, want, got string) {
	t.Helper()
	read := func(dir string) map[string]string {
		root, err := os.OpenRoot(dir)
		must(t, err)
		defer root.Close()
		list, err := listCopy(root)
		must(t, err)
		out := map[string]string{}
		for _, f := range list {
			b, err := root.ReadFile(f.Path)
			must(t, err)
			out[f.Path] = string(b)
		}
		return out
	}
	a, b := read(want), read(got)
	for name, content := range a {
		if b[name] != content {
			t.Errorf("%s differs: %d bytes, want %d", name, len(b[name]), len(content))
		}
	}
	if len(a) != len(b) {
		t.Errorf("%d files, want %d", len(b), len(a))
	}
}

func TestPullOverHTTP(t *testing.T) {
	dir := fakeMember(t)
	o := serve(t, fakeAgent(t, dir, AgentOptions{}), "a token of some length", nil)
	for _, packed := range []bool{false, true} {
		o.Zstd = packed
		to := filepath.Join(t.TempDir(), "to")
		report, err := Pull(t.Context(), client(t, o), PullOptions{DBPath: to})
		must(t, err)
		sameFiles(t, dir, to)
		if report.Files != 6 || report.Resumed {
			t.Errorf("%+v", report)
		}
		for _, name := range []string{"secret.pem", "diagnostic.data", storageTemp} {
			if _, err := os.Stat(filepath.Join(to, name)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func TestStrangersAreRefused(t *testing.T) {
	dir := fakeMember(t)
	a := fakeAgent(t, dir, AgentOptions{})
	o := serve(t, a, "a token of some length", nil)
	wrong := o
	wrong.TokenFile = tokenFile(t, "another of some length")
	if _, err := client(t, wrong).Join(t.Context()); err == nil || !strings.Contains(err.Error(), "token") {
		t.Errorf("a wrong token: %v", err)
	}
	unknown := o
	unknown.CA = ""
	if _, err := client(t, unknown).Join(t.Context()); err == nil || !strings.Contains(mongo.HintOf(err), "--ca-file") {
		t.Errorf("an unknown certificate: %v", err)
	}
	c := client(t, o)
	m, err := c.Join(t.Context())
	must(t, err)
	for _, name := range []string{"secret.pem", "../secret.pem", "/etc/passwd", "db/../secret.pem", "mongod.lock",
		"diagnostic.data/metrics", ""} {
		err := c.Read(t.Context(), ReadRequest{Round: m.Round, Puller: m.Puller, Path: name, Have: make([]Sum, 1)},
			func(Block) error {
				t.Errorf("%q was served", name)
				return nil
			})
		if err == nil {
			t.Errorf("%q was accepted", name)
		}
	}
	if err := c.Read(t.Context(), ReadRequest{Round: m.Round, Puller: "nobody", Path: "WiredTiger.wt",
		Have: make([]Sum, 1)}, func(Block) error { return nil }); err == nil {
		t.Error("a puller that did not join was served")
	}
}

// A manifest is another machine's word.
func TestPathsAreChecked(t *testing.T) {
	for _, bad := range []string{"", "/a.wt", "../a.wt", "a/../../b.wt", "a//b.wt", "./a.wt", `a\b.wt`, "a.wt/",
		"a\x00.wt", "mongod.lock", "journal/x", "diagnostic.data/a.wt", "authorized_keys", "sub/WiredTiger", "_tmp/a/b.wt",
		"key.db/a.wt", "a/../b.wt", "..", strings.Repeat("a", 2000) + ".wt"} {
		if checkPath(bad) == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	for _, good := range []string{"a.wt", "db/collection/1.wt", "journal/WiredTigerLog.0000000001", "WiredTiger.turtle",
		storageFile, "_tmp/a.wt", "journal/index/a.wt", ".195.188.wt"} {
		must(t, checkPath(good))
	}
}

// A link in the new directory must not lead out of it.
func TestCopyStaysInItsDirectory(t *testing.T) {
	dir := fakeMember(t)
	to, outside := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(to, storageFile), []byte(poisonText), 0o600))
	must(t, os.Symlink(outside, filepath.Join(to, "db")))
	if _, err := Pull(t.Context(), fakeAgent(t, dir, AgentOptions{}), PullOptions{DBPath: to}); err == nil {
		t.Error("a link was followed")
	}
	if entries, _ := os.ReadDir(outside); len(entries) > 0 {
		t.Errorf("%v was written outside", entries)
	}
}

// cutter cuts connections in the middle of replies.
func cutter(every int64) func(http.Handler) http.Handler {
	var n atomic.Int64
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/read") && n.Add(1)%every == 0 {
				w = &cutWriter{ResponseWriter: w, left: 100_000}
			}
			next.ServeHTTP(w, r)
		})
	}
}

type cutWriter struct {
	http.ResponseWriter
	left int
}

func (w *cutWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *cutWriter) Write(b []byte) (int, error) {
	if w.left -= len(b); w.left < 0 {
		panic(http.ErrAbortHandler)
	}
	return w.ResponseWriter.Write(b)
}

func TestCutConnectionsAreResumed(t *testing.T) {
	dir := fakeMember(t)
	o := serve(t, fakeAgent(t, dir, AgentOptions{}), "a token of some length", cutter(2))
	to := filepath.Join(t.TempDir(), "to")
	_, err := Pull(t.Context(), client(t, o), PullOptions{DBPath: to, Workers: 1})
	must(t, err)
	sameFiles(t, dir, to)
}

// TestEveryReplyIsCut: a link that carries no reply as a whole still carries the files, each block once.
func TestEveryReplyIsCut(t *testing.T) {
	dir := fakeMember(t)
	noise := make([]byte, 200_000)
	rand.NewChaCha8([32]byte{}).Read(noise)
	must(t, os.WriteFile(filepath.Join(dir, "index-3.wt"), noise, 0o600))
	o := serve(t, fakeAgent(t, dir, AgentOptions{}), "a token of some length", cutter(1))
	to := filepath.Join(t.TempDir(), "to")
	report, err := Pull(t.Context(), client(t, o), PullOptions{DBPath: to})
	must(t, err)
	sameFiles(t, dir, to)
	if report.CopiedBytes != report.Bytes {
		t.Errorf("%d bytes were copied for files of %d", report.CopiedBytes, report.Bytes)
	}
}

func TestSeveralPullersShareARound(t *testing.T) {
	dir := fakeMember(t)
	freezes := &changingFreezer{}
	a := fakeAgent(t, dir, AgentOptions{Pullers: 3, Way: WayLock, Freezer: freezes})
	freezes.change = func() { // what changed between the passes
		must(t, os.WriteFile(filepath.Join(dir, "new.wt"), []byte("new"), 0o600))
		must(t, os.Remove(filepath.Join(dir, "empty.wt")))
		f, err := os.OpenFile(filepath.Join(dir, "index-2.wt"), os.O_WRONLY, 0)
		must(t, err)
		_, err = f.WriteAt([]byte("changed"), int64(5*smallestBlock+9))
		must(t, err)
		must(t, f.Truncate(int64(21*smallestBlock+5)))
		must(t, f.Close())
	}
	o := serve(t, a, "a token of some length", nil)
	var wg sync.WaitGroup
	var to [3]string
	for i := range to {
		to[i] = filepath.Join(t.TempDir(), "to")
		wg.Go(func() {
			if _, err := Pull(t.Context(), client(t, o), PullOptions{DBPath: to[i]}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, dst := range to {
		sameFiles(t, dir, dst)
	}
	if freezes.n != 1 {
		t.Errorf("%d freezes for one round", freezes.n)
	}
}

// changingFreezer changes files just before they stand still.
type changingFreezer struct {
	n      int
	change func()
}

func (f *changingFreezer) Freeze(context.Context) (Thaw, error) {
	f.n++
	if f.change != nil {
		f.change()
	}
	return stopped{}, nil
}

// An agent that is started anew forgets its rounds; the puller begins another
// with what it has.
func TestAgentIsRestarted(t *testing.T) {
	dir := fakeMember(t)
	const token = "a token of some length"
	first := fakeAgent(t, dir, AgentOptions{Way: WayLock, Freezer: &changingFreezer{}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	var current atomic.Pointer[Agent]
	current.Store(first)
	var reads atomic.Int64
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/read") && reads.Add(1) == 4 {
			current.Store(fakeAgent(t, dir, AgentOptions{Way: WayLock, Freezer: &changingFreezer{}}))
		}
		h, err := NewHandler(current.Load(), token, true)
		if err != nil {
			t.Error(err)
			return
		}
		h.ServeHTTP(w, r)
	})}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	to := filepath.Join(t.TempDir(), "to")
	_, err = Pull(t.Context(), client(t, ClientOptions{URL: "http://" + l.Addr().String(), TokenFile: tokenFile(t, token),
		RetryFor: 10 * time.Second}), PullOptions{DBPath: to, Workers: 1})
	must(t, err)
	sameFiles(t, dir, to)
}

// An interrupted copy is marked, is not mistaken for a member's directory, and
// is completed by the next run with what is there.
func TestInterruptedCopyIsCompleted(t *testing.T) {
	dir := fakeMember(t)
	a := fakeAgent(t, dir, AgentOptions{})
	to := filepath.Join(t.TempDir(), "to")
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Pull(ctx, &endingSource{Source: a, after: 3, end: cancel}, PullOptions{DBPath: to, Workers: 1})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(to)
	must(t, err)
	defer root.Close()
	if !poisoned(root) {
		t.Error("the incomplete copy is not marked")
	}
	if _, err := NewAgent(AgentOptions{DBPath: to, SpoolDir: t.TempDir()}); err == nil {
		t.Error("an incomplete copy is taken for a member")
	}
	report, err := Pull(t.Context(), a, PullOptions{DBPath: to})
	must(t, err)
	sameFiles(t, dir, to)
	if !report.Resumed || report.CopiedBytes >= report.Bytes {
		t.Errorf("%+v", report)
	}
	if _, err := Pull(t.Context(), a, PullOptions{DBPath: to}); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("a complete copy was overwritten: %v", err)
	}
}

type endingSource struct {
	Source
	after int
	end   func()
}

func (s *endingSource) Read(ctx context.Context, r ReadRequest, fn func(Block) error) error {
	if s.after--; s.after == 0 {
		s.end()
		return ctx.Err()
	}
	return s.Source.Read(ctx, r, fn)
}

// Damage on the way is found.
func TestDamageIsFound(t *testing.T) {
	dir := fakeMember(t)
	to := filepath.Join(t.TempDir(), "to")
	if _, err := Pull(t.Context(), &damagingSource{fakeAgent(t, dir, AgentOptions{})},
		PullOptions{DBPath: to}); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Error(err)
	}
}

type damagingSource struct{ Source }

func (s *damagingSource) Read(ctx context.Context, r ReadRequest, fn func(Block) error) error {
	return s.Source.Read(ctx, r, func(b Block) error {
		if len(b.Data) > 0 {
			b.Data[0]++
		}
		return fn(b)
	})
}

// An agent without a token is none, and one on loopback answers to this machine's
// names alone.
func TestLoopbackIsNoPermission(t *testing.T) {
	a := fakeAgent(t, fakeMember(t), AgentOptions{})
	if _, err := NewHandler(a, "", true); err == nil {
		t.Error("an agent without a token")
	}
	h, err := NewHandler(a, "a token of some length", true)
	must(t, err)
	for host, want := range map[string]int{"127.0.0.1:7117": http.StatusOK, "localhost": http.StatusOK,
		"[::1]:1": http.StatusOK, "evil.example": http.StatusForbidden, "127.0.0.1.evil.example:7117": http.StatusForbidden,
		"": http.StatusForbidden} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/join", strings.NewReader("{}"))
		r.Host = host
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer a token of some length")
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != want {
			t.Errorf("host %q: status %d, want %d", host, w.Code, want)
		}
	}
}

// A token that was made is its owner's alone, and taken away with its agent, but
// not when it is another's by now.
func TestMadeToken(t *testing.T) {
	name := TokenFile(filepath.Join(t.TempDir(), "run"), "127.0.0.1:7117")
	first, removeFirst, err := WriteToken(name)
	must(t, err)
	for path, want := range map[string]os.FileMode{name: 0o600, filepath.Dir(name): 0o700} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	second, removeSecond, err := WriteToken(name)
	must(t, err)
	must(t, removeFirst())
	if got, err := ReadToken(name); err != nil || got != second || got == first {
		t.Errorf("%q, %v", got, err)
	}
	must(t, removeSecond())
	if _, err := os.Stat(name); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
