package api

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/operate"
)

func itoa(n int) string { return strconv.Itoa(n) }

// TestRolesByRoute: each route has the least role that is written here, and refuses
// those below it. A route that is not here fails.
func TestRolesByRoute(t *testing.T) {
	r := newRig(t)
	want := map[string]service.Role{
		"GET /livez": "", "GET /readyz": "", "GET /metrics": service.Viewer, "GET /api/v1/openapi.json": service.Viewer,
		"GET /api/v1/jobs": service.Viewer, "POST /api/v1/jobs": service.Admin, "GET /api/v1/jobs/{name}": service.Viewer,
		"DELETE /api/v1/jobs/{name}": service.Admin, "PUT /api/v1/jobs/{name}": service.Admin,
		"POST /api/v1/jobs/{name}/pause": service.Operator, "POST /api/v1/jobs/{name}/resume": service.Operator,
		"POST /api/v1/jobs/{name}/finalize": service.Operator, "DELETE /api/v1/jobs/{name}/finalize": service.Operator,
		"PATCH /api/v1/jobs/{name}/limits":  service.Operator,
		"POST /api/v1/workers/{name}/drain": service.Admin, "DELETE /api/v1/workers/{name}/drain": service.Admin,
		"GET /api/v1/jobs/{name}/points": service.Viewer, "GET /api/v1/jobs/{name}/log": service.Viewer,
		"POST /api/v1/drafts/inspect": service.Admin, "POST /api/v1/drafts/precheck": service.Admin,
		"POST /api/v1/drafts/sample": service.Admin, "POST /api/v1/jobs/{name}/reverse": service.Admin,
		"GET /api/v1/workers": service.Viewer, "GET /api/v1/alerts": service.Viewer,
		"GET /api/v1/audit":                      service.Admin,
		"GET /api/v1/events":                     service.Viewer,
		"POST /api/v1/jobs/{name}/verifications": service.Operator, "GET /api/v1/jobs/{name}/verifications": service.Viewer,
		"GET /api/v1/jobs/{name}/verifications/{id}":         service.Viewer,
		"DELETE /api/v1/jobs/{name}/verifications/{id}":      service.Operator,
		"POST /api/v1/jobs/{name}/verifications/{id}/repair": service.Operator,
		"PUT /api/v1/jobs/{name}/verify-schedule":            service.Operator,
		"DELETE /api/v1/jobs/{name}/verify-schedule":         service.Operator,
		"GET /api/v1/jobs/{name}/deadletters":                service.Viewer,
		"GET /api/v1/jobs/{name}/deadletters/letter":         service.Operator,
		"GET /api/v1/jobs/{name}/deadletters/export":         service.Operator,
		"POST /api/v1/jobs/{name}/deadletters/retry":         service.Operator,
	}
	for _, rt := range r.api.routes() {
		needed, known := want[rt.method+" "+rt.path]
		if delete(want, rt.method+" "+rt.path); !known {
			t.Errorf("%s %s: no role is written down for it", rt.method, rt.path)
			continue
		}
		if rt.role != needed {
			t.Errorf("%s %s: it asks for %q, not %q", rt.method, rt.path, rt.role, needed)
		}
		at := strings.NewReplacer("{name}", "none", "{id}", "none").Replace(rt.path)
		for _, who := range []string{"", "viewer", "operator", "admin"} {
			if rt.path == PathEvents && service.Role(who).May(needed) && who != "" {
				continue // it does not end
			}
			a := r.ask(who, rt.method, at, "")
			switch {
			case needed == "":
				if a.code != http.StatusOK {
					t.Errorf("%s %s by nobody: %d", rt.method, rt.path, a.code)
				}
			case who == "":
				if a.code != http.StatusUnauthorized || a.failure(t).Code != CodeNoToken || a.header.Get("WWW-Authenticate") == "" {
					t.Errorf("%s %s without a token: %d", rt.method, rt.path, a.code)
				}
			case service.Role(who).May(needed) == (a.code == http.StatusForbidden) || a.code == http.StatusUnauthorized:
				t.Errorf("%s %s by %s: %d %s", rt.method, rt.path, who, a.code, a.body)
			}
		}
	}
	for left := range want {
		t.Errorf("there is no route %s", left)
	}
}

// TestDocumentHasTheRoutes: all of them, and no others.
func TestDocumentHasTheRoutes(t *testing.T) {
	r := newRig(t)
	has := map[string]bool{}
	paths, _ := r.schemas.at("paths")
	for path, item := range paths.(map[string]any) {
		for method := range item.(map[string]any) {
			if method != "parameters" {
				has[strings.ToUpper(method)+" "+path] = true
			}
		}
	}
	for _, rt := range r.api.routes() {
		if !has[rt.method+" "+rt.path] {
			t.Errorf("the document lacks %s %s", rt.method, rt.path)
		}
		delete(has, rt.method+" "+rt.path)
	}
	for left := range has {
		t.Errorf("the document has %s, which is no route", left)
	}
	codes, _ := r.schemas.at("components", "schemas", "Failure", "properties", "code", "enum")
	for _, c := range []operate.Code{operate.NotFound, operate.Exists, operate.Invalid, operate.Forbidden,
		operate.Conflict, CodeNoToken, CodeTooMany, CodeForeign, CodeMethod,
		CodeTooLarge, CodeMediaType, CodeUnavailable, CodeInternal} {
		if !slices.Contains(codes.([]any), any(string(c))) {
			t.Errorf("the document lacks code %s", c)
		}
	}
}

// TestCreate: once more is the same job; what cannot be used is told with its place.
func TestCreate(t *testing.T) {
	r := newRig(t)
	made := r.make("shop-a")
	for _, c := range []struct {
		name, body, kind, query string
		code                    int
		want                    operate.Code
	}{
		{"the same", `{"name": "shop-a", "settings": ` + someSettings + `}`, "application/json", "", 200, ""},
		{"another", `{"name": "shop-a", "settings": ` + otherSettings + `}`, "application/json", "", 409, operate.Exists},
		{"other labels", `{"name": "shop-a", "settings": ` + someSettings + `, "labels": {"a": "b"}}`, "application/json", "",
			409, operate.Exists},
		{"YAML", "source: env:A\ntarget: env:B\n", "application/yaml", "?name=shop-y&label=dc%3Deast&paused=true", 201, ""},
		{"YAML without a name", "source: env:A\n", "application/yaml", "", 400, operate.Invalid},
		{"a query that means nothing", "source: env:A\n", "application/yaml", "?nane=x", 400, operate.Invalid},
		{"a text", `{"name": "shop-t", "settings": "source: env:A\ntarget: env:B\n"}`, "application/json", "", 201, ""},
		{"a number", `{"name": "shop-n", "settings": 5}`, "application/json", "", 400, operate.Invalid},
		{"no settings", `{"name": "shop-n"}`, "application/json", "", 400, operate.Invalid},
		{"settings of null", `{"name": "shop-n", "settings": null}`, "application/json", "", 400, operate.Invalid},
		{"labels of null", `{"name": "shop-n", "settings": ` + someSettings + `, "labels": null}`, "application/json", "",
			400, operate.Invalid},
		{"a query beside JSON", `{"name": "shop-q", "settings": ` + someSettings + `}`, "application/json", "?paused=true",
			400, operate.Invalid},
		{"a list", `[]`, "application/json", "", 400, operate.Invalid},
		{"null", `null`, "application/json", "", 400, operate.Invalid},
		{"two objects", `{"name": "x", "settings": ` + someSettings + `}{}`, "application/json", "", 400, operate.Invalid},
		{"an unknown field", `{"name": "x", "settings": ` + someSettings + `, "wish": {}}`, "application/json", "", 400,
			operate.Invalid},
		{"a form", `a=b`, "application/x-www-form-urlencoded", "", 415, CodeMediaType},
		{"a name that leads elsewhere", `{"name": "../x", "settings": ` + someSettings + `}`, "application/json", "", 400,
			operate.Invalid},
		{"a long name", `{"name": "` + strings.Repeat("x", 5000) + `", "settings": ` + someSettings + `}`, "application/json",
			"", 400, operate.Invalid},
		{"too large", `{"name": "x", "settings": "` + strings.Repeat("x", maxBody) + `"}`, "application/json", "", 413,
			CodeTooLarge},
		{"large settings", `{"name": "x", "settings": "` + strings.Repeat("x", service.MaxSettings+1) + `"}`,
			"application/json", "", 400, operate.Invalid},
		{"a label without a key", `{"name": "x", "settings": ` + someSettings + `, "labels": {"": "b"}}`, "application/json",
			"", 400, operate.Invalid},
		{"a hostile label", `{"name": "x", "settings": ` + someSettings + `, "labels": {"a\u001b": "b"}}`, "application/json",
			"", 400, operate.Invalid},
		{"no UTF-8", "{\"name\": \"x\", \"settings\": \"\xff\"}", "application/json", "", 400, operate.Invalid},
	} {
		a := r.ask("admin", "POST", PathJobs+c.query, c.body, "Content-Type", c.kind)
		if a.code != c.code || c.want != "" && a.failure(t).Code != c.want {
			t.Errorf("%s: %d %.300s", c.name, a.code, a.body)
		}
		if len(a.body) > 4000 {
			t.Errorf("%s: a reply of %d bytes", c.name, len(a.body))
		}
	}
	if again := into[Job](t, r.ask("viewer", "GET", PathJobs+"/shop-a", "")); again.UID != made.UID ||
		again.State != service.Waiting {
		t.Errorf("%+v", again)
	}
	f := r.ask("admin", "POST", PathJobs, `{"name": "x", "settings": "source: mongodb://u:hidden@h/\nmoed: all\n"}`).
		failure(t)
	if len(f.Problems) < 2 || !slices.ContainsFunc(f.Problems,
		func(p config.Problem) bool { return strings.Contains(p.Where, "line 2") && p.How != "" }) ||
		strings.Contains(fmt.Sprint(f), "hidden") {
		t.Errorf("%+v", f)
	}
	if j := into[Job](t, r.ask("viewer", "GET", PathJobs+"/shop-y", "")); j.State != service.Paused ||
		j.Labels["dc"] != "east" {
		t.Errorf("%+v", j)
	}
}

// TestManyClientsAtOnce: of those who make one job one has made it, and of changes at
// the same time none is lost.
func TestManyClientsAtOnce(t *testing.T) {
	r := newRig(t)
	var wg sync.WaitGroup
	codes := make([]int, 8)
	for i := range codes {
		wg.Go(func() {
			codes[i] = r.ask("admin", "POST", PathJobs, `{"name": "a", "settings": `+someSettings+`}`).code
		})
	}
	wg.Wait()
	slices.Sort(codes)
	if codes[0] != 200 || codes[6] != 200 || codes[7] != 201 {
		t.Errorf("codes %v", codes)
	}
	for _, body := range []string{`{"docsPerSecond": 7}`, `{"bytesPerSecond": 8}`, `{"sourceLoad": "low"}`,
		`{"targetLoad": "max"}`} {
		wg.Go(func() {
			if a := r.ask("operator", "PATCH", PathJobs+"/a/limits", body); a.code != 200 {
				t.Errorf("%d %s", a.code, a.body)
			}
		})
	}
	wg.Wait()
	d, err := r.hub.Jobs.Definition(t.Context(), "a")
	if err != nil || d.Desired.Limits == nil || d.Desired.Loads == nil || d.Desired.Limits.Docs != 7 ||
		d.Desired.Limits.Bytes != 8 ||
		d.Desired.Loads.Source != "low" || d.Desired.Loads.Target != "max" {
		t.Errorf("%+v %v", d, err)
	}
	for _, bad := range []string{`{}`, `{"docsPerSecond": -1}`, `{"sourceLoad": "lots"}`, `{"docs": 1}`, ``} {
		if a := r.ask("operator", "PATCH", PathJobs+"/a/limits", bad, "Content-Type", "application/json"); a.code != 400 {
			t.Errorf("%s: %d %s", bad, a.code, a.body)
		}
	}
}

// TestWishes: what may be done to a job as it stands.
func TestWishes(t *testing.T) {
	r := newRig(t)
	j := r.make("a")
	for _, c := range []struct {
		method, path, body string
		code               int
	}{
		{"POST", "/a/pause", "", 200}, {"POST", "/a/pause", "", 200}, {"POST", "/a/resume", "", 200},
		{"POST", "/b/pause", "", 404},
		{"DELETE", "/a/finalize", "", 409}, {"POST", "/a/finalize", "", 409},
		{"POST", "/a/finalize", `{"whenCaughtUp": 1}`, 400}, {"POST", "/a/finalize", `{"whenCaughtUp": true}`, 200},
		{"DELETE", "/a/finalize", "", 200}, {"POST", "/../a/pause", "", 404}, {"POST", "/a%2Fpause", "", 405},
		{"POST", "/%2e%2e/pause", "", 404}, {"POST", "/a/paus", "", 404},
		{"POST", "/%C2%84/pause", "", 404}, {"POST", "/*/pause", "", 404}, {"POST", "/%3E/resume", "", 404},
		{"POST", "/a%20b/pause", "", 404}, {"DELETE", "/a..b/finalize", "", 404},
	} {
		if a := r.ask("operator", c.method, PathJobs+c.path, c.body); a.code != c.code {
			t.Errorf("%s %s %s: %d %s", c.method, c.path, c.body, a.code, a.body)
		}
	}
	r.run(j, &job.Status{Job: "a", Phase: job.PhaseFollowing, CanFinalize: true})
	if a := into[Job](t, r.ask("operator", "POST", PathJobs+"/a/finalize", "")); !a.Desired.Finalize ||
		a.State != service.Running || a.Worker != "w1" || a.CopyPercent != 100 {
		t.Errorf("%+v", a)
	}
	r.report(j, &job.Status{Job: "a", Phase: job.PhaseFinalizing})
	if a := r.ask("operator", "DELETE", PathJobs+"/a/finalize", ""); a.code != 409 {
		t.Errorf("%d %s", a.code, a.body)
	}
	if a := r.ask("admin", "DELETE", PathJobs+"/a", ""); a.code != 202 || !into[Job](t, a).Removed {
		t.Errorf("%d %s", a.code, a.body)
	}
	trail := into[Audit](t, r.ask("admin", "GET", PathAudit+"?job=a&limit=3", ""))
	if len(trail.Changes) != 3 || trail.Changes[0].What != "remove" || trail.Changes[0].Who != "admin" ||
		trail.Changes[0].From != "127.0.0.1" || trail.Changes[1].Refused == "" || trail.Next == 0 {
		t.Errorf("%+v", trail)
	}
	more := into[Audit](t, r.ask("admin", "GET", PathAudit+"?limit=1000&before="+itoa(int(trail.Next)), ""))
	if len(more.Changes) < 5 || more.Changes[len(more.Changes)-1].What != "create" || more.Next != 0 {
		t.Errorf("%+v", more)
	}
}

// TestList: page by page, by state and by name.
// TestEdit: a job that failed before it wrote gets other settings; others keep theirs.
func TestEdit(t *testing.T) {
	r := newRig(t)
	j := r.make("a")
	const body = `{"settings": {"source": "env:OTHER", "target": "env:TARGET"}}`
	if a := r.ask("admin", "PUT", PathJobs+"/a", body); a.code != 409 {
		t.Errorf("a job that has not failed: %d %s", a.code, a.body)
	}
	if err := r.hub.Jobs.Report(t.Context(), "a",
		&service.Report{UID: j.UID, Run: "r1", State: service.Failed, At: time.Now()}); err != nil {
		t.Fatal(err)
	}
	r.until("a", func(j *service.Job) bool { return j.State() == service.Failed })
	for body, code := range map[string]int{`{"name": "b", "settings": {}}`: 400, `{"settings": 1}`: 400, `{}`: 400,
		`{"settings": {"source": "env:A"}}`: 400} {
		if a := r.ask("admin", "PUT", PathJobs+"/a", body); a.code != code {
			t.Errorf("%s: %d %s", body, a.code, a.body)
		}
	}
	if a := r.ask("admin", "PUT", PathJobs+"/b", body); a.code != 404 {
		t.Errorf("no such job: %d %s", a.code, a.body)
	}
	a := r.ask("admin", "PUT", PathJobs+"/a", body)
	if now := into[Job](t, a); a.code != 200 || now.UID != j.UID || !strings.Contains(now.Settings, "env:OTHER") ||
		now.Desired.Try != 1 {
		t.Errorf("%d %s", a.code, a.body)
	}
}

func TestList(t *testing.T) {
	r := newRig(t)
	for _, name := range []string{"c", "a", "shop.b", "Shop-a", "b"} {
		r.make(name)
	}
	r.ask("admin", "POST", PathJobs+"/b/pause", "")
	r.until("b", func(j *service.Job) bool { return j.State() == service.Paused })
	names := func(query string) (all []string, next string) {
		l := into[Jobs](t, r.ask("viewer", "GET", PathJobs+query, ""))
		for _, j := range l.Jobs {
			all = append(all, j.Name)
		}
		return all, l.Next
	}
	var all []string
	for next, n := "", 0; n == 0 || next != ""; n++ {
		var page []string
		page, next = names("?limit=2&cursor=" + url.QueryEscape(next))
		if all = append(all, page...); len(page) > 2 || n > 3 {
			t.Fatalf("%v %s", page, next)
		}
	}
	if want := []string{"Shop-a", "a", "b", "c", "shop.b"}; !slices.Equal(all, want) {
		t.Errorf("%v", all)
	}
	for query, want := range map[string][]string{"?state=paused": {"b"}, "?q=SHOP": {"Shop-a", "shop.b"},
		"?q=<script>": nil, "?limit=5": {"Shop-a", "a", "b", "c", "shop.b"}} {
		if got, next := names(query); !slices.Equal(got, want) || next != "" {
			t.Errorf("%s: %v %q", query, got, next)
		}
	}
	for _, bad := range []string{"?limit=0", "?limit=1001", "?limit=x", "?limit=", "?state=lost", "?state=", "?page=2",
		"?limit=1&limit=2", "?cursor=" + strings.Repeat("x", 300), "?q=%ff", "?q=%zz", "?q=a;b"} {
		if a := r.ask("viewer", "GET", PathJobs+bad, ""); a.code != 400 || a.failure(t).Code != operate.Invalid {
			t.Errorf("%s: %d %s", bad, a.code, a.body)
		}
	}
}

// TestHiddenJobs: what a token does not see is nowhere.
func TestHiddenJobs(t *testing.T) {
	r := newRig(t)
	r.make("shop-a")
	hidden := r.make("bank")
	r.run(hidden, &job.Status{Job: "bank", Phase: job.PhaseFollowing})
	if err := r.hub.Workers.Present(t.Context(),
		&service.Worker{Name: "w1", Jobs: []string{"bank", "shop-a"}}); err != nil {
		t.Fatal(err)
	}
	r.until("bank", func(*service.Job) bool { return len(r.view.Workers()) == 1 })
	none := r.ask("some", "GET", PathJobs+"/nothing", "").failure(t).Error
	for _, c := range [][2]string{{"GET", ""}, {"DELETE", ""}, {"POST", "/pause"}, {"POST", "/resume"},
		{"POST", "/finalize"}, {"DELETE", "/finalize"}, {"GET", "/points"}, {"GET", "/log"}} {
		if a := r.ask("some", c[0], PathJobs+"/bank"+c[1], ""); a.code != 404 ||
			a.failure(t).Error != strings.ReplaceAll(none, "nothing", "bank") {
			t.Errorf("%v: %d %s", c, a.code, a.body)
		}
	}
	if a := r.ask("some", "PATCH", PathJobs+"/bank/limits", `{"docsPerSecond": 1}`); a.code != 404 {
		t.Errorf("%d %s", a.code, a.body)
	}
	if a := r.ask("some", "POST", PathJobs, `{"name": "bank", "settings": `+someSettings+`}`); a.code != 404 {
		t.Errorf("made: %d %s", a.code, a.body)
	}
	if a := r.ask("some", "GET", PathAudit, ""); a.code != 403 {
		t.Errorf("trail: %d %s", a.code, a.body)
	}
	for _, path := range []string{PathJobs, PathJobs + "?q=bank", PathWorkers, PathMetrics, PathAudit + "?job=shop-a"} {
		if a := r.ask("some", "GET", path, ""); a.code != 200 || strings.Contains(string(a.body), "bank") {
			t.Errorf("%s: %d %s", path, a.code, a.body)
		}
		if a := r.ask("admin", "GET", path, ""); !strings.Contains(string(a.body), "bank") &&
			!strings.Contains(path, "?job") {
			t.Errorf("%s: an administrator does not see it: %s", path, a.body)
		}
	}
	s := r.listen("some")
	if first := s.next(); first.kind != "snapshot" || strings.Contains(first.data, "bank") ||
		!strings.Contains(first.data, "shop-a") {
		t.Errorf("%+v", first)
	}
	r.report(hidden, &job.Status{Job: "bank", Phase: job.PhaseFinalizing})
	r.ask("admin", "POST", PathJobs+"/shop-a/pause", "")
	if e := s.next(); e.kind != "job" || !strings.Contains(e.data, "shop-a") {
		t.Errorf("%+v", e)
	}
}

// TestMetrics: in the format of Prometheus, of what is known.
func TestMetrics(t *testing.T) {
	r := newRig(t)
	j := r.make("shop-a")
	st := &job.Status{Job: "shop-a", Phase: job.PhaseFollowing}
	st.Follow.LagSeconds, st.Follow.WindowSeconds, st.Follow.Operations = 1.5, -1, 42
	st.Copy.Docs, st.Copy.Bytes = 10, 1000
	st.Conflicts.Open, st.Conflicts.Settled = 2, 1
	r.run(j, st)
	r.make("new")
	text := string(r.ask("viewer", "GET", PathMetrics, "").body)
	for _, want := range []string{`millrace_lag_seconds{job="shop-a"} 1.5`,
		`millrace_copied_bytes_total{job="shop-a"} 1000`, `millrace_copied_documents_total{job="shop-a"} 10`,
		`millrace_applied_operations_total{job="shop-a"} 42`, `millrace_conflicts_total{job="shop-a"} 3`,
		`millrace_phase{job="shop-a",phase="following"} 1`,
		`millrace_job_state{job="shop-a",state="running"} 1`, `millrace_job_state{job="new",state="waiting"} 1`,
		"millrace_workers 0", `millrace_build_info{revision="abc",version="v1"} 1`,
		"# TYPE millrace_lag_seconds gauge", "# TYPE millrace_copied_bytes_total counter"} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if strings.Contains(text, "window") || strings.Contains(text, `lag_seconds{job="new"`) {
		t.Errorf("what is not known is told:\n%s", text)
	}
}

// TestHostileTexts: nothing of them acts where it is shown.
func TestHostileTexts(t *testing.T) {
	r := newRig(t)
	j := r.make("a")
	const evil = "<script>alert(1)</script>\x1b[2J\u202eabc\u2028\x00"
	if err := r.hub.Jobs.Report(t.Context(), "a",
		&service.Report{UID: j.UID, Run: "r1", Worker: evil, State: service.Failed, At: time.Now(), Error: evil, Hint: evil,
			Status: &job.Status{Job: evil, Phase: job.Phase(evil), Source: evil}}); err != nil {
		t.Fatal(err)
	}
	r.until("a", func(j *service.Job) bool { return j.State() == service.Failed })
	for _, path := range []string{PathJobs, PathJobs + "/a", PathJobs + "/%3Cscript%3E%1b%E2%80%AE"} {
		a := r.ask("admin", "GET", path, "")
		if strings.ContainsAny(string(a.body), "<>\x1b\u202e\u2028\x00") {
			t.Errorf("%s: %q", path, a.body)
		}
	}
	if got := into[Job](t, r.ask("admin", "GET", PathJobs+"/a", "")); got.Error != evil {
		t.Errorf("%q", got.Error)
	}
	if a := r.ask("admin", "GET", PathMetrics, ""); a.code != 200 {
		t.Errorf("%d %s", a.code, a.body)
	}
	if a := r.ask("admin", "GET", PathJobs+"/"+strings.Repeat("x", 5000), ""); a.code != 404 || len(a.body) > 3000 {
		t.Errorf("%d, %d bytes", a.code, len(a.body))
	}
}

// TestForeigners: other names of this machine, pages of other origins, other methods.
func TestForeigners(t *testing.T) {
	r := newRig(t)
	r.make("a")
	for _, c := range []struct {
		method, path string
		header       []string
		code         int
		want         operate.Code
	}{
		{"GET", "/livez", []string{"Host", "evil.example"}, 403, CodeForeign},
		{"GET", "/login", []string{"Host", "evil.example"}, 403, CodeForeign},
		{"POST", "/jobs/a/pause", []string{"Sec-Fetch-Site", "cross-site"}, 403, CodeForeign},
		{"POST", PathJobs + "/a/pause", []string{"Origin", "http://evil.example"}, 403, CodeForeign},
		{"POST", PathJobs + "/a/pause", []string{"Sec-Fetch-Site", "cross-site"}, 403, CodeForeign},
		{"PUT", PathJobs, nil, 405, CodeMethod}, {"GET", PathJobs + "/a/pause", nil, 405, CodeMethod},
		{"POST", "/livez", nil, 405, CodeMethod},
		{"GET", "/", nil, 404, operate.NotFound}, {"GET", "/api/v2/jobs", nil, 404, operate.NotFound},
		{"GET", "/api/v1//jobs", nil, 404, operate.NotFound},
		{"GET", PathJobs + "/", nil, 404, operate.NotFound},
	} {
		a := r.ask("admin", c.method, c.path, "", c.header...)
		if a.code != c.code || a.failure(t).Code != c.want || c.code == 405 && a.header.Get("Allow") == "" {
			t.Errorf("%+v: %d %s", c, a.code, a.body)
		}
	}
}

// TestInternalErrorsStayInside: the log has them, under the number that is replied.
func TestInternalErrorsStayInside(t *testing.T) {
	r := newRig(t)
	r.make("a")
	r.hub.Close()
	a := r.ask("admin", "POST", PathJobs+"/a/pause", "")
	f := a.failure(t)
	if a.code < 500 || f.Code != CodeInternal && f.Code != CodeUnavailable ||
		strings.Contains(strings.ToLower(string(a.body)), "nats") {
		t.Errorf("%d %s", a.code, a.body)
	}
	if id := f.Hint[strings.LastIndex(f.Hint, " ")+1:]; !strings.Contains(r.log.String(), id) {
		t.Errorf("%s is not in the log:\n%s", id, r.log)
	}
	if a := r.ask("", "GET", PathReady, ""); a.code != 503 || a.failure(t).Code != CodeUnavailable {
		t.Errorf("%d %s", a.code, a.body)
	}
	if a := r.ask("", "GET", PathLive, ""); a.code != 200 {
		t.Errorf("%d %s", a.code, a.body)
	}
}

// TestNotLoaded: a service that has not read its store does not say that there are no jobs.
func TestNotLoaded(t *testing.T) {
	r := newRig(t)
	r.api.o.Desk = &operate.Desk{Hub: r.hub, View: r.hub.NewView(), Now: time.Now}
	for path, want := range map[string]int{PathJobs: 503, PathMetrics: 503, PathReady: 503, PathLive: 200} {
		if a := r.ask("viewer", "GET", path, ""); a.code != want {
			t.Errorf("%s: %d %s", path, a.code, a.body)
		}
	}
}
