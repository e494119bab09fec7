package console

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/service"
)

// failed makes a job that failed before it wrote anything.
func (r *rig) failed(name, settings string) {
	r.t.Helper()
	d := &service.Definition{Name: name, UID: "u-" + name, Settings: settings, Labels: map[string]string{"zone": "a"},
		CreatedBy: "ada", CreatedAt: time.Now()}
	if err := r.hub.Jobs.Create(r.t.Context(), d); err != nil {
		r.t.Fatal(err)
	}
	r.tell(name, &service.Report{UID: d.UID, Run: "r1", State: service.Failed, At: time.Now(),
		Error: "2 exist already", Hint: "drop them, or choose --on-existing merge or --on-existing drop"})
}

const fullSettings = "source: env:A\ntarget: file:b\ninclude: [shop, 'bank.*']\nrename: {shop: store}\n" +
	"filter:\n  shop.orders: {state: open}\non-conflict: skip\nallow-missing: true\nmax-rate-docs: 7\n" +
	"on-existing: fail\nshard: ['shop.a={\"x\": 1}', 'shop.b={\"y\": 1}']\n"

// TestCopy: a copy has all settings of its job, with references and no secrets.
func TestCopy(t *testing.T) {
	r := newRig(t)
	r.failed("shop.f", fullSettings)
	r.running("shop.a", status())
	b := r.browser("t-admin")
	_, page := b.get("/jobs/shop.a")
	if want(t, page, "Copy as new job"); strings.Contains(page, "Edit and restart") {
		t.Error("a running job can be edited")
	}
	_, page = r.browser("t-op").get("/jobs/shop.f")
	if strings.Contains(page, "Copy as new job") || strings.Contains(page, "Edit and restart") {
		t.Error("an operator can make jobs")
	}
	if code, _ := r.browser("t-op").get("/new?copy=shop.f"); code != http.StatusForbidden {
		t.Errorf("an operator copies: %d", code)
	}
	if code, _ := b.get("/new?copy=none"); code != http.StatusNotFound {
		t.Errorf("a copy of nothing: %d", code)
	}
	_, page = b.get("/new?copy=shop.f")
	form := fields(t, page)
	if form.Get("name") != "shop.f-copy" || form.Get("labels") != "zone=a" || form.Get("source") != "env:A" ||
		form.Get("target") != "file:b" || strings.Contains(page, "<details open>") {
		t.Errorf("%v", form)
	}
	form.Set("do", "download")
	_, text := b.send("/new/draft", form)
	byName := func(text string) (list []string) {
		for _, s := range config.ReadSettings(text) {
			if s.Name != "on-existing" { // it is the default
				list = append(list, s.Name+" "+strings.Join(s.Values, "|"))
			}
		}
		slices.Sort(list)
		return list
	}
	if got, want := byName(text), byName(fullSettings); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	// Rules with line breaks do not fit into the steps: the form of the text has them.
	odd := "source: env:A\ntarget: env:B\nfilter: [\"a.b={\\\"x\\\":\\n1}\"]\n"
	r.failed("shop.odd", odd)
	_, page = b.get("/new?copy=shop.odd")
	want(t, page, "<details open>", `&#34;a.b={\&#34;x\&#34;:\n1}&#34;`)
}

// TestEdit: settings of a job that failed before it wrote are replaced, and it starts again; others stay.
func TestEdit(t *testing.T) {
	r := newRig(t)
	r.failed("shop.f", "source: env:A\ntarget: env:B\n")
	r.running("shop.a", status())
	b := r.browser("t-admin")
	_, page := b.get("/jobs/shop.f")
	want(t, page, "Edit and restart", "choose on-existing: merge or on-existing: drop")
	_, page = b.get("/new?edit=shop.f")
	form := fields(t, page)
	form.Set("target", "env:C")
	form.Set("do", "create")
	if code, page := b.send("/new/draft", form); code != http.StatusOK || !strings.Contains(page, "waiting") {
		t.Fatalf("%d %s", code, page)
	}
	if d := r.view.Job("shop.f").Definition; !strings.Contains(d.Settings, "env:C") || d.Desired.Try != 1 ||
		d.UID != "u-shop.f" {
		t.Errorf("%+v", d)
	}
	r.tell("shop.f", &service.Report{UID: "u-shop.f", Run: "r2", Try: 1, State: service.Failed, Wrote: true,
		At: time.Now()})
	for name, form := range map[string]url.Values{"/new/draft": form,
		"/new": {"edit": {"1"}, "name": {"shop.a"}, "settings": {"source: env:X\ntarget: env:Y\n"}}} {
		if code, page := b.act(name, form); code != http.StatusConflict || !strings.Contains(page, "its settings stay") {
			t.Errorf("%s: %d", name, code)
		}
	}
	if code, _ := b.get("/new?edit=shop.a"); code != http.StatusConflict {
		t.Errorf("a running job is edited: %d", code)
	}
	if code, _ := r.browser("t-op").act("/new", url.Values{"edit": {"1"}, "name": {"shop.f"},
		"settings": {"source: env:X\ntarget: env:Y\n"}}); code != http.StatusForbidden {
		t.Errorf("an operator edits: %d", code)
	}
	_, page = b.get("/audit?job=shop.f&what=edit")
	want(t, page, "<bdi>edit</bdi>", "try: 0 → 1", "refused")
}

// TestDrops: a job that drops collections is not made before somebody has confirmed which.
func TestDrops(t *testing.T) {
	r := newRig(t)
	b := r.browser("t-admin")
	form := url.Values{"name": {"shop.n"}, "settings": {"source: env:A\ntarget: env:B\non-existing: drop\n"}}
	code, page := b.act("/new", form)
	if want(t, page, "Which ones is not known", "there is no worker"); code != http.StatusConflict {
		t.Errorf("without a worker: %d", code)
	}
	r.draftAnswers()
	code, page = b.act("/new", form)
	want(t, page, "drops 2 collections of its target", longNS, "shop.customers", "Drop 2 collections, and start the job",
		`class="danger"`)
	if code != http.StatusConflict || r.view.Job("shop.n") != nil {
		t.Errorf("not confirmed: %d", code)
	}
	wizard := url.Values{"do": {"create"}, "name": {"shop.n"}, "source": {"env:A"}, "target": {"env:B"},
		"on-existing": {"drop"}}
	code, page = b.act("/new/draft", wizard)
	if want(t, page, "drops 2 collections of its target", `name="sure"`); code != http.StatusConflict ||
		r.view.Job("shop.n") != nil {
		t.Errorf("not confirmed: %d", code)
	}
	wizard.Set("do", "start")
	_, page = b.act("/new/draft", wizard)
	want(t, page, "The job cannot start like this.", "drops 2 collections of its target", "choose on-existing: merge")
	wizard.Set("do", "create")
	wizard.Set("sure", "drop")
	if code, page = b.act("/new/draft", wizard); code != http.StatusOK || r.view.Job("shop.n") == nil {
		t.Errorf("confirmed: %d %s", code, page)
	}
}

// TestAuditFilter: the audit trail is searched by who, job, action and time.
func TestAuditFilter(t *testing.T) {
	r := newRig(t)
	r.running("shop.a", status())
	r.running("shop.b", status())
	op, admin := r.browser("t-op"), r.browser("t-admin")
	op.act("/jobs/shop.a/pause", nil)
	op.act("/jobs/shop.b/pause", nil)
	admin.act("/jobs/shop.a/resume", nil)
	later := url.QueryEscape(time.Now().UTC().Add(time.Hour).Format("2006-01-02T15:04"))
	for query, rows := range map[string]int{"": 3, "who=OTTO": 2, "who=otto&job=shop.b": 1, "what=resume": 1,
		"what=none": 0, "from=" + later: 0, "to=" + later: 3} {
		_, page := admin.get("/audit?" + query)
		if got := strings.Count(page, `scope="row"`); got != rows {
			t.Errorf("%s: %d rows, want %d", query, got, rows)
		}
	}
	for query, why := range map[string]string{"from=yesterday": "is not a time", "job=a%20b": "is not a name of a job",
		"before=x": "is not valid"} {
		if code, page := admin.get("/audit?" + query); code < 400 || code > 499 || !strings.Contains(page, why) ||
			!strings.Contains(page, `name="who"`) {
			t.Errorf("%s: %d", query, code)
		}
	}
}

// TestWhereTokens: the login says where tokens come from.
func TestWhereTokens(t *testing.T) {
	_, page := newRig(t).browser("").get("/login")
	want(t, page, "Where do I get a token?", "--tokens FILE")
}
