package console

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/precheck"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
	"github.com/millrace/millrace/internal/service/operate"
	"github.com/millrace/millrace/test/hubtest"
)

// rig is a console over a store of its own.
type rig struct {
	t      *testing.T
	hub    *hub.Hub
	view   *hub.View
	server *httptest.Server
	// options are those of the server.
	options Options

	mu    sync.Mutex
	users map[string]*service.Caller
}

func newRig(t *testing.T) *rig {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	h, v := hubtest.Start(t, time.Hour)
	r := &rig{t: t, hub: h, view: v, users: map[string]*service.Caller{
		"t-admin": {Name: "ada", Role: service.Admin}, "t-op": {Name: "otto", Role: service.Operator},
		"t-view": {Name: "vera", Role: service.Viewer, Jobs: []string{"shop.*"}}}}
	r.options = Options{Desk: &operate.Desk{Hub: h, View: r.view, Now: time.Now}, Log: log,
		Login: func(token string) *service.Caller {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.users[token]
		}}
	r.options.Enter = func(token, _ string) (*service.Caller, error) {
		if c := r.options.Login(token); c != nil {
			return c, nil
		}
		return nil, errors.New("this token is not known")
	}
	r.server = httptest.NewServer(New(r.options))
	t.Cleanup(r.server.Close)
	return r
}

// running makes a job that a worker runs, and waits until the view has it.
func (r *rig) running(name string, s *job.Status) {
	r.t.Helper()
	d := &service.Definition{Name: name, UID: "u-" + name, Settings: "source: env:A\ntarget: env:B\n", CreatedBy: "ada",
		CreatedAt: time.Now()}
	if err := r.hub.Jobs.Create(r.t.Context(), d); err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.hub.Leases.Take(r.t.Context(), hub.Control(name),
		service.Lease{Worker: "w1", Run: "r1", Since: time.Now()}); err != nil {
		r.t.Fatal(err)
	}
	r.tell(name, &service.Report{UID: d.UID, Run: "r1", Worker: "w1", State: service.Running, At: time.Now(), Status: s})
	r.await(name, func(j *service.Job) bool { return j.Lease != nil }) // it comes by a way of its own
}

func (r *rig) tell(name string, report *service.Report) {
	r.t.Helper()
	if err := r.hub.Jobs.Report(r.t.Context(), name, report); err != nil {
		r.t.Fatal(err)
	}
	r.await(name, func(j *service.Job) bool { return j.Report != nil && j.Report.State == report.State })
}

func (r *rig) await(name string, ok func(*service.Job) bool) {
	r.t.Helper()
	for {
		changed, _ := r.view.Changed()
		if j := r.view.Job(name); j != nil && ok(j) {
			return
		}
		select {
		case <-changed:
		case <-time.After(2 * time.Minute):
			r.t.Fatal("the view does not get there")
		}
	}
}

func status() *job.Status {
	return &job.Status{Phase: job.PhaseCopying, CannotFinalize: "the copy is under way",
		Copy: progress.Copy{Docs: 50, DocsTotal: 100, Bytes: 500, BytesTotal: 1000, DocsRate: 1234, BytesRate: 5e6,
			ETASeconds: 65,
			Collections: []progress.Collection{{Source: "shop.<i>orders\u202e\x1b[31m", Target: "shop.orders", Docs: 50,
				DocsTotal: 100}}}, Follow: job.FollowStatus{LagSeconds: -1, WindowSeconds: 3600}}
}

// browser is a client with cookies of its own, logged in with a token, "" with none.
type browser struct {
	r *rig
	*http.Client
}

func (r *rig) browser(token string) *browser {
	r.t.Helper()
	jar, _ := cookiejar.New(nil)
	b := &browser{r, &http.Client{Jar: jar}}
	if token != "" {
		if code, page := b.send("/login", url.Values{"token": {token}}); code != 200 {
			r.t.Fatalf("login: %d %s", code, page)
		}
	}
	return b
}

func (b *browser) get(path string) (int, string) { return b.do(http.MethodGet, path, nil, nil) }

func (b *browser) send(path string, form url.Values) (int, string) {
	return b.do(http.MethodPost, path, form,
		map[string]string{"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin"})
}

func (b *browser) do(method, path string, form url.Values, header map[string]string) (int, string) {
	b.r.t.Helper()
	req, err := http.NewRequestWithContext(b.r.t.Context(), method, b.r.server.URL+path, strings.NewReader(form.Encode()))
	if err != nil {
		b.r.t.Fatal(err)
	}
	for k, v := range header {
		if req.Header.Set(k, v); k == "Host" {
			req.Host = v
		}
	}
	reply, err := b.Do(req)
	if err != nil {
		b.r.t.Fatal(err)
	}
	defer reply.Body.Close()
	raw, _ := io.ReadAll(reply.Body)
	if got := reply.Header.Get("Content-Security-Policy"); got != policy {
		b.r.t.Errorf("%s: policy %q", path, got)
	}
	return reply.StatusCode, strings.ReplaceAll(string(raw), "<wbr>", "")
}

// act sends a form with the word of its session.
func (b *browser) act(path string, form url.Values) (int, string) {
	b.r.t.Helper()
	_, page := b.get("/jobs")
	word := regexp.MustCompile(`name="form" value="([^"]+)"`).FindStringSubmatch(page)
	if word == nil {
		b.r.t.Fatalf("no form in %s", page)
	}
	if form == nil {
		form = url.Values{}
	}
	form.Set("form", word[1])
	return b.send(path, form)
}

func want(t *testing.T, page string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(page, p) {
			t.Errorf("no %q in %s", p, page)
		}
	}
}

// TestLogin: without a good token there is nothing to see; one that is taken back ends
// the session, and a role that changes holds at once.
func TestLogin(t *testing.T) {
	r := newRig(t)
	nobody := r.browser("")
	_, page := nobody.get("/jobs?q=x")
	want(t, page, "Log in", `value="/jobs?q=x"`)
	if code, page := nobody.send("/login", url.Values{"token": {"wrong"}}); code != 401 {
		t.Errorf("a wrong token: %d %s", code, page)
	}
	if code, _ := nobody.do(http.MethodGet, "/jobs", nil, map[string]string{"X-Live": "1"}); code != 401 {
		t.Errorf("the script without a session: %d", code)
	}
	b := r.browser("t-admin")
	if code, _ := b.get("/new"); code != 200 {
		t.Errorf("admin: %d", code)
	}
	r.mu.Lock()
	r.users["t-admin"] = &service.Caller{Name: "ada", Role: service.Viewer}
	r.mu.Unlock()
	if code, _ := b.get("/new"); code != 403 {
		t.Errorf("no admin any more: %d", code)
	}
	r.mu.Lock()
	delete(r.users, "t-admin")
	r.mu.Unlock()
	_, page = b.get("/jobs")
	want(t, page, "Log in")
	o := r.browser("t-op")
	if _, page = o.act("/logout", nil); !strings.Contains(page, "Log in") {
		t.Errorf("after the logout: %s", page)
	}
	_, page = o.get("/jobs")
	want(t, page, "Log in")
	for given, to := range map[string]string{"//evil.example": "/jobs", "https://evil.example/": "/jobs",
		`/\evil.example`: "/jobs", "/jobs/a?q=1": "/jobs/a?q=1", "": "/jobs", "/logout": "/jobs"} {
		if got := next(given); got != to {
			t.Errorf("next %q: %q", given, got)
		}
	}
}

// TestForms: a job is paused by who may, from a form of the session and this origin alone.
func TestForms(t *testing.T) {
	r := newRig(t)
	r.running("shop.a", status())
	r.running("bank.a", status())
	op, viewer := r.browser("t-op"), r.browser("t-view")
	if code, _ := op.send("/jobs/shop.a/pause", url.Values{"form": {"guess"}}); code != 403 {
		t.Errorf("a form without the word: %d", code)
	}
	if code, _ := viewer.act("/jobs/shop.a/pause", nil); code != 403 {
		t.Errorf("a viewer: %d", code)
	}
	if code, _ := viewer.get("/jobs/bank.a"); code != 404 {
		t.Errorf("a job that is not the viewer's: %d", code)
	}
	_, page := viewer.get("/jobs")
	if want(t, page, "shop.a"); strings.Contains(page, "bank.a") {
		t.Error("the viewer's list has another's job")
	}
	if r.view.Job("shop.a").Definition.Desired.Paused {
		t.Fatal("paused by one who may not")
	}
	code, page := op.act("/jobs/shop.a/pause", nil)
	if want(t, page, "Requested: paused.", "Resume"); code != 200 {
		t.Errorf("pause: %d", code)
	}
	code, page = op.act("/jobs/shop.a/finalize", url.Values{"when": {"now"}})
	if want(t, page, "cannot be finalized now"); code != 200 && code != 409 {
		t.Errorf("finalize: %d", code)
	}
	op.act("/jobs/shop.a/finalize", url.Values{"when": {"caught-up"}})
	op.act("/jobs/shop.a/limits", url.Values{"docs": {"10"}, "bytes": {"20MB"}, "source": {"low"}, "target": {"max"}})
	w := r.view.Job("shop.a").Definition.Desired
	if !w.Finalize || w.Limits == nil || *w.Limits != (pace.Rates{Docs: 10, Bytes: 20e6}) || w.Loads == nil ||
		w.Loads.Source != pace.Low {
		t.Errorf("the requested state: %+v", w)
	}
	if code, _ := op.act("/jobs/shop.a/limits", url.Values{"docs": {"many"}}); code != 422 {
		t.Errorf("no number: %d", code)
	}
	if code, _ := op.act("/jobs/shop.a/remove", nil); code != 403 {
		t.Errorf("an operator removes: %d", code)
	}
	admin := r.browser("t-admin")
	_, page = admin.get("/jobs/shop.a/remove")
	want(t, page, "stay on the target")
	admin.act("/jobs/shop.a/remove", nil)
	r.await("shop.a", func(j *service.Job) bool { return j.Definition.Desired.Removed })
	_, page = admin.get("/audit?job=shop.a")
	want(t, page, "otto", "paused: false → true", "refused")
}

// TestCreate: what is wrong with settings is said by line.
func TestCreate(t *testing.T) {
	r := newRig(t)
	b := r.browser("t-admin")
	code, page := b.act("/new",
		url.Values{"name": {"n1"}, "settings": {"source: env:A\r\ntarget: env:B\r\nsauce: <b>\r\n"}})
	if want(t, page, "line 3", "Remedy"); code != 422 || strings.Contains(page, "<b>\n") {
		t.Errorf("bad settings: %d %s", code, page)
	}
	code, page = b.act("/new", url.Values{"name": {"n1"}, "labels": {"zone=a"},
		"settings": {"source: env:A\r\ntarget: env:B\r\n"}})
	if want(t, page, "source: env:A\ntarget: env:B", "waiting"); code != 200 {
		t.Errorf("create: %d %s", code, page)
	}
	if err := r.hub.Workers.Present(t.Context(), &service.Worker{Name: "w9", Host: "h<i>", At: time.Now()}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); len(r.view.Workers()) == 0 && time.Now().Before(end); {
		changed, _ := r.view.Changed()
		select {
		case <-changed:
		case <-time.After(time.Second):
		}
	}
	_, page = b.get("/workers")
	want(t, page, "w9", "h&lt;i&gt;")
}

// TestPages: what a job says of itself is shown, and no text of others acts on a page.
func TestPages(t *testing.T) {
	r := newRig(t)
	r.running("a", status())
	r.running("b", nil)
	r.tell("b", &service.Report{UID: "u-b", Run: "r1", State: service.Failed,
		Error: "no <script>alert(1)</script> \u202e\x1b[2J", Hint: "do <i>this</i>",
		Checks: []precheck.Check{{Name: "oplog", Level: precheck.Fail, Message: "too short", Hint: "grow it"}}})
	b := r.browser("t-op")
	_, page := b.get("/jobs")
	want(t, page, "running 1", "failed 1", "1.23k", "5.00 MB/s", "0:01:05", `value="50"`, `no &lt;script&gt;`,
		`<mark>\u202e</mark><mark>\u001b</mark>`)
	if strings.ContainsAny(page, "\u202e\x1b") || strings.Contains(page, "<script>") {
		t.Error("hostile text on the page")
	}
	_, page = b.get("/jobs/b")
	want(t, page, "oplog", "too short", "Remedy: <bdi>grow it</bdi>", "Resume")
	_, page = b.get("/jobs/a")
	want(t, page, `shop.&lt;i&gt;orders<mark>\u202e</mark>`, "Finalize…", "oplog window")
	_, page = b.get("/jobs?state=failed&sort=-name")
	if want(t, page, `data-job="b"`, `aria-sort="descending"`); strings.Contains(page, `data-job="a"`) {
		t.Error("the filter lets another state pass")
	}
	_, page = b.get("/jobs?n=a")
	if strings.Contains(page, `data-job="b"`) {
		t.Error("the script gets rows that it did not ask for")
	}
}

// TestMany: a thousand jobs are a page of less than a megabyte.
func TestMany(t *testing.T) {
	l := list{At: time.Now()}
	for i := range 2500 {
		j := service.Job{Definition: service.Definition{Name: fmt.Sprintf("warehouse.region-%04d", i), UID: "u"},
			Lease:  &service.Lease{Worker: "worker-17", Run: "r"},
			Report: &service.Report{UID: "u", Run: "r", State: service.Running, Status: status()}}
		l.Rows = append(l.Rows, rowOf(&j))
	}
	l.cut("2", func(_, v string) string { return "/jobs?page=" + v })
	if len(l.Rows) != maxRows || l.From != maxRows || len(l.Links) != 2 {
		t.Errorf("%d rows from %d, %d links", len(l.Rows), l.From, len(l.Links))
	}
	p := newPages(slog.New(slog.DiscardHandler))
	var b strings.Builder
	if err := p.byName["jobs"].Execute(&b, frame{Data: l}); err != nil {
		t.Fatal(err)
	}
	if b.Len() > 1<<20 {
		t.Errorf("%d bytes", b.Len())
	}
}

// TestAlertAbovePage: a page without a message of its own keeps that about the store.
func TestAlertAbovePage(t *testing.T) {
	w := httptest.NewRecorder()
	_ = newPages(slog.New(slog.DiscardHandler)).say(w, "audit", frame{Alert: "the store is full", Data: trail{}}, fine())
	want(t, w.Body.String(), "the store is full")
}

// TestSessions: they are bounded in number and time.
func TestSessions(t *testing.T) {
	now := time.Now()
	s := &sessions{now: func() time.Time { return now }, byID: map[string]*session{}}
	first := s.begin(nil, &service.Caller{Name: "a"})
	other := s.begin(nil, &service.Caller{Name: "b"})
	for range maxOfOne {
		now = now.Add(time.Second)
		s.begin(nil, &service.Caller{Name: "a"})
	}
	if s.find(first) != nil || s.find(other) == nil {
		t.Error("the oldest of a name makes room for its newest, and no other")
	}
	for i := range maxSessions {
		now = now.Add(time.Second)
		s.begin(nil, &service.Caller{Name: strconv.Itoa(i)})
	}
	if len(s.byID) > maxSessions {
		t.Errorf("%d sessions", len(s.byID))
	}
	last := s.begin(nil, &service.Caller{Name: "z"})
	if now = now.Add(sessionTime); s.find(last) != nil {
		t.Error("a session outlives its time")
	}
}

// TestContrast: text of the style sheet can be read, in light and in dark.
func TestContrast(t *testing.T) {
	raw, _ := fs.ReadFile(files, "assets/console.css")
	blocks := regexp.MustCompile(`(?:^|\{):root\{([^}]+)\}`).FindAllStringSubmatch(string(raw), -1)
	if len(blocks) != 2 {
		t.Fatalf("%d sets of colours", len(blocks))
	}
	for i, block := range blocks {
		colours := map[string]float64{}
		for _, m := range regexp.MustCompile(`--(\w+):#(\w+)`).FindAllStringSubmatch(block[1], -1) {
			colours[m[1]] = luminance(t, m[2])
		}
		for _, name := range []string{"quiet", "link", "good", "bad", "slow", "violet", "teal", "pink"} {
			a, b := colours[name], colours["page"]
			if ratio := (max(a, b) + 0.05) / (min(a, b) + 0.05); ratio < 4.5 || colours[name] == 0 {
				t.Errorf("set %d: %s has a contrast of %.2f", i, name, ratio)
			}
		}
	}
}

func luminance(t *testing.T, hex string) (l float64) {
	t.Helper()
	if len(hex) == 3 {
		hex = string([]byte{hex[0], hex[0], hex[1], hex[1], hex[2], hex[2]})
	}
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		n, err := strconv.ParseUint(hex[2*i:2*i+2], 16, 8)
		if err != nil {
			t.Fatal(err)
		}
		v := float64(n) / 255
		if v <= 0.04045 {
			v /= 12.92
		} else {
			v = math.Pow((v+0.055)/1.055, 2.4)
		}
		l += weight * v
	}
	return l
}
