package api

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
	"github.com/millrace/millrace/internal/service/operate"
	"github.com/millrace/millrace/test/hubtest"
)

// The settings of the jobs of the tests.
const (
	someSettings  = `{"source": "env:A", "target": "env:B"}`
	otherSettings = `{"source": "env:A", "target": "env:C"}`
)

// rig is a service with tokens of each role, and of an operator of some jobs.
type rig struct {
	t    testing.TB
	api  *API
	hub  *hub.Hub
	view *hub.View
	url  string
	file string // of tokens
	log  *lockedBuffer

	tokens  map[string]string // by name
	schemas *schemas
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{t: t, log: &lockedBuffer{}, tokens: map[string]string{}}
	log := slog.New(slog.NewTextHandler(r.log, nil))
	r.hub, r.view = hubtest.Start(t, time.Minute)

	r.file = filepath.Join(t.TempDir(), "tokens.yaml")
	text := "tokens:\n"
	for _, who := range []struct{ name, role, more string }{{"viewer", "viewer", ""}, {"operator", "operator", ""},
		{"admin", "admin", ""},
		{"some", "admin", ", jobs: [shop-*]"}} {
		token, sum := newToken()
		r.tokens[who.name] = token
		text += "  - {name: " + who.name + ", role: " + who.role + ", sha256: " + sum + who.more + "}\n"
	}
	write(t, r.file, text)
	tokens, err := OpenTokens(r.file, log)
	if err != nil {
		t.Fatal(err)
	}
	r.tokens["elsewhere"], r.tokens["nowhere"] = "head.body.good", "head.body.bad"
	elsewhere := func(_ context.Context, token string) *service.Caller {
		if token != r.tokens["elsewhere"] {
			return nil
		}
		return &service.Caller{Name: "ada@example.org", Role: service.Operator, Jobs: []string{"shop-*"}}
	}
	r.api, err = New(Options{Desk: &operate.Desk{Hub: r.hub, View: r.view, Now: time.Now}, Tokens: tokens,
		Elsewhere: elsewhere, Log: log, Loopback: true, Ready: r.hub.Ready, Version: "v1", Revision: "abc"})
	if err != nil {
		t.Fatal(err)
	}
	r.schemas = newSchemas(t, r.api.openapi)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := r.api.Server()
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() { _ = s.Close(); serving.Wait() })
	r.url = "http://" + l.Addr().String()
	return r
}

func write(t testing.TB, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// answer is a reply, read.
type answer struct {
	code   int
	header http.Header
	body   []byte
}

func (a answer) failure(t testing.TB) (f Failure) {
	t.Helper()
	if err := json.Unmarshal(a.body, &f); err != nil {
		t.Fatalf("%d %s: %v", a.code, a.body, err)
	}
	return f
}

func into[T any](t testing.TB, a answer) (v T) {
	t.Helper()
	if err := json.Unmarshal(a.body, &v); err != nil || a.code >= 300 {
		t.Fatalf("%d %s: %v", a.code, a.body, err)
	}
	return v
}

// ask sends a request, and holds the reply against the OpenAPI document.
func (r *rig) ask(who, method, path, body string, header ...string) answer {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.url+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if token := r.tokens[who]; token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		if req.Header.Set(header[i], header[i+1]); header[i] == "Host" {
			req.Host = header[i+1]
		}
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		r.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	a := answer{res.StatusCode, res.Header, raw}
	if h := a.header; h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Cache-Control") != "no-store" {
		r.t.Errorf("%s %s: header %v", method, path, h)
	}
	r.schemas.check(r.t, r.pattern(req), method, a)
	return a
}

// pattern is the path of the route that a request comes to, "" for none.
func (r *rig) pattern(req *http.Request) string {
	mux := http.NewServeMux()
	for _, rt := range r.api.routes() {
		mux.HandleFunc(rt.method+" "+rt.path, func(http.ResponseWriter, *http.Request) {})
	}
	_, pattern := mux.Handler(req)
	if strings.Contains(req.URL.Path, "//") || strings.Contains(req.URL.Path, "..") {
		return "" // the mux would send it elsewhere
	}
	_, path, _ := strings.Cut(pattern, " ")
	return path
}

// make makes a job, and waits until it is seen.
func (r *rig) make(name string) Job {
	r.t.Helper()
	a := r.ask("admin", "POST", PathJobs, `{"name": "`+name+`", "settings": `+someSettings+`}`)
	if a.code != http.StatusCreated {
		r.t.Fatalf("%d %s", a.code, a.body)
	}
	r.until(name, func(j *service.Job) bool { return j != nil })
	return into[Job](r.t, a)
}

// until waits until what the view has of a job is as it should be.
func (r *rig) until(name string, holds func(*service.Job) bool) {
	r.t.Helper()
	for {
		changed, _ := r.view.Changed()
		if holds(r.view.Job(name)) {
			return
		}
		select {
		case <-changed:
		case <-r.t.Context().Done():
			r.t.Fatal(name)
		}
	}
}

// run has a worker run a job and say how it stands.
func (r *rig) run(j Job, st *job.Status) {
	r.t.Helper()
	if _, err := r.hub.Leases.Take(r.t.Context(), hub.Control(j.Name),
		service.Lease{Worker: "w1", Run: "r1", Since: time.Now()}); err != nil {
		r.t.Fatal(err)
	}
	r.report(j, st)
}

func (r *rig) report(j Job, st *job.Status) {
	r.t.Helper()
	at := time.Now().UTC()
	if err := r.hub.Jobs.Report(r.t.Context(), j.Name,
		&service.Report{UID: j.UID, Run: "r1", Worker: "w1", State: service.Running, At: at, Status: st}); err != nil {
		r.t.Fatal(err)
	}
	r.until(j.Name, func(j *service.Job) bool {
		return j.Report != nil && j.Report.At.Equal(at) && j.State() == service.Running
	})
}

// schemas hold replies against the OpenAPI document.
type schemas struct {
	doc      map[string]any
	compiler *jsonschema.Compiler
	mu       sync.Mutex
	made     map[string]*jsonschema.Schema
}

func newSchemas(t testing.TB, text []byte) *schemas {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat()
	if err := c.AddResource("openapi.json", doc); err != nil {
		t.Fatal(err)
	}
	return &schemas{doc: doc.(map[string]any), compiler: c, made: map[string]*jsonschema.Schema{}}
}

// at is a part of the document, references followed, and where it is.
func (s *schemas) at(steps ...string) (any, string) {
	var now any = s.doc
	where := "#"
	for _, step := range steps {
		m, ok := now.(map[string]any)
		if !ok {
			return nil, ""
		}
		now = m[step]
		where += "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(step)
		if m, ok := now.(map[string]any); ok {
			if ref, ok := m["$ref"].(string); ok && step != "schema" {
				return s.at(append(strings.Split(strings.TrimPrefix(ref, "#/"), "/"), steps[len(steps):]...)...)
			}
		}
	}
	return now, where
}

func (s *schemas) check(t testing.TB, path, method string, a answer) {
	t.Helper()
	where := "#/components/responses/NotFound/content/application~1json/schema" // of paths that are none
	if path != "" {
		part, at := s.at("paths", path, strings.ToLower(method), "responses", itoa(a.code))
		if part == nil {
			t.Errorf("%s %s: %d is not described: %s", method, path, a.code, a.body)
			return
		}
		kind, _, _ := strings.Cut(a.header.Get("Content-Type"), ";")
		if content, _ := part.(map[string]any)["content"].(map[string]any); content[kind] == nil {
			t.Errorf("%s %s: %d of %s is not described", method, path, a.code, kind)
			return
		}
		if kind != "application/json" {
			return
		}
		where = at + "/content/application~1json/schema"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.made[where] == nil {
		compiled, err := s.compiler.Compile("openapi.json" + where)
		if err != nil {
			t.Fatal(err)
		}
		s.made[where] = compiled
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(a.body))
	if err == nil {
		err = s.made[where].Validate(v)
	}
	if err != nil {
		t.Errorf("%s %s: %d is not as described: %v\n%s", method, path, a.code, err, a.body)
	}
}

// newToken makes a token, and its sum for a file of tokens.
func newToken() (token, sum string) {
	token = "mr_" + rand.Text()
	return token, sumOf(token)
}

// sumOf is what a file of tokens has of a token: the SHA-256 in hex.
func sumOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}
