package console

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/worker"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/workshop/lab"
)

// TestChoice: what is chosen in the tree becomes the rules that have just that.
func TestChoice(t *testing.T) {
	all := []string{"a.x", "a.y", "b.x", "b.*?=;\\\n\u202e"}
	do := func(c *choice, steps ...string) string {
		for _, s := range steps {
			name, on := strings.CutPrefix(s, "+")
			if name = strings.TrimPrefix(name, "-"); strings.Contains(name, ".") {
				if err := c.toggle(name, on); err != nil {
					return err.Error()
				}
			} else if err := c.toggleDB(name, on); err != nil {
				return err.Error()
			}
		}
		kept := ""
		for i, ns := range append(slices.Clone(all), "a."+later, "b."+later) {
			if c.kept(ns) {
				kept += fmt.Sprint(i)
			}
		}
		return kept
	}
	for _, c := range []struct {
		some  bool
		steps string
		want  string
	}{
		{false, "", "012345"}, {true, "", ""},
		{false, "-a.x", "12345"}, {false, "-a.x,+a.x", "012345"}, {true, "+a.x", "0"}, {true, "+a.x,-a.x", ""},
		{false, "-a", "235"}, {false, "-a,+a", "012345"}, {true, "+a", "014"}, {true, "+a,-a.y", "04"},
		{true, "+a,-a.y,-a", ""}, {true, "+a.x,+a,+b.x", "0124"},
		{false, "-" + all[3], "01245"}, {true, "+" + all[3], "3"},
		{false, "-a,+a.x", "a.x stays out: a pattern of exclude matches it"},
	} {
		ch := choice{Some: c.some}
		var steps []string
		if c.steps != "" {
			steps = strings.Split(c.steps, ",")
		}
		if got := do(&ch, steps...); got != c.want {
			t.Errorf("%v %q: %q, want %q (%+v)", c.some, c.steps, got, c.want, ch)
		}
	}
	clean := choice{Some: true}
	if do(&clean, "+a.x", "-a.x", "+b", "-b"); len(clean.Include)+len(clean.Exclude) > 0 {
		t.Errorf("what was taken back is left: %+v", clean)
	}
	c := choice{}
	for from, to := range map[string]string{"a": "c", "a.x": "y2", all[3]: "d." + all[3]} {
		if err := c.rename(from, to); err != nil {
			t.Error(err)
		}
	}
	for ns, want := range map[string]string{"a.y": "c.y", all[3]: "d." + all[3], "b.x": "b.x"} {
		if got := c.target(ns); got != want {
			t.Errorf("%q: %q, want %q", ns, got, want)
		}
	}
	before := len(c.Rename)
	if err := c.rename("b.x", "admin.x"); err == nil || len(c.Rename) != before {
		t.Errorf("a name that cannot be: %v %q", err, c.Rename)
	}
	if err := c.rename("a.x", ""); err != nil || c.target("a.x") != "c.x" {
		t.Errorf("taken back: %v %q", err, c.Rename)
	}
}

// TestSettings: the YAML of the form is read as what the form has, whatever the names
// are, by a definition and by millrace sync.
func TestSettings(t *testing.T) {
	f := newWizard()
	f.Name, f.Source, f.Target = "n", "env:A", "mongodb://h:1/?replicaSet=x&tls=true"
	f.Choice.Some = true
	names := []string{"a.true", "a.b", "no.x", "a.x: y", "a.'q'\"", "a.#", "a.\u202e\x1b\n\u2028\U000e0001 \\", "a. lead",
		"ä.ö", "a.%00", "a.- b", "a.\ufeff"}
	for _, n := range names {
		if err := f.Choice.toggle(n, true); err != nil {
			t.Errorf("%q: %v", n, err)
		}
		if err := f.Choice.rename(n, "to."+strings.TrimSpace(strings.TrimPrefix(n, "a."))); err != nil {
			t.Errorf("%q: %v", n, err)
		}
	}
	f.Texts[0].Value = "a.b={\"x\": {\"$ne\": \"it's\"}}\n\n"
	f.pass("on-existing: merge")
	f.pass("allow-missing: true")
	f.pass("mode: sideways")
	f.More = "max-rate-docs: 7"
	text := f.settings()
	s, problems := config.CheckDefinition("n", text)
	if len(problems) > 0 {
		t.Fatalf("%v in\n%s", problems, text)
	}
	if !slices.Equal(s.Rules.Include, f.Choice.Include) || !slices.Equal(s.Rules.Rename, f.Choice.Rename) ||
		len(s.Rules.Filter) != 1 || s.OnExisting != job.ExistingMerge || !s.AllowMissing || s.Limits.Docs != 7 {
		t.Errorf("%+v of\n%s", s, text)
	}
	rules, err := transform.New(s.Rules)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if !rules.Match(n) {
			t.Errorf("%q is not kept", n)
		}
	}
	var sync config.Sync
	fs := pflag.NewFlagSet("sync", pflag.ContinueOnError)
	sync.Bind(fs, config.CommandSync)
	if err := fs.Parse([]string{"--config", "n.yaml"}); err != nil {
		t.Fatal(err)
	}
	from, problems := config.Load(fs, config.CommandSync,
		config.Inputs{ReadFile: func(string) ([]byte, error) { return []byte(text), nil },
			LookupEnv: func(name string) (string, bool) {
				uri, ok := map[string]string{"MILLRACE_SOURCE": "mongodb://a:1/"}[name]
				return uri, ok
			}})
	if problems = append(problems, sync.Validate(from, nil)...); len(problems) > 0 || sync.Source != "mongodb://a:1/" ||
		!slices.Equal(sync.Rules.Rename, f.Choice.Rename) {
		t.Errorf("millrace sync: %v", problems)
	}
}

// clusters gives a rig two clusters and a worker that reaches them.
func (r *rig) clusters() (source *driver.Client) {
	r.t.Helper()
	src, dst := lab.ForTest(r.t, lab.Options{}), lab.ForTest(r.t, lab.Options{})
	source, err := driver.Connect(options.Client().ApplyURI(src.URI()))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = source.Disconnect(context.Background()) })
	w := worker.New(worker.Options{Name: "w1", Hub: r.hub, View: r.view, SpoolDir: r.t.TempDir(),
		Log: slog.New(slog.NewTextHandler(r.t.Output(), nil)),
		Access: config.Access{Secret: func(_, ref string) (string, error) {
			uri, ok := map[string]string{"env:SOURCE": src.URI(), "env:TARGET": dst.URI()}[ref]
			if !ok {
				return "", fmt.Errorf("there is no %s", ref)
			}
			return uri, nil
		}}})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = w.Run(ctx) })
	r.t.Cleanup(func() { cancel(); wg.Wait() })
	for end := time.Now().Add(time.Minute); len(r.view.Workers()) == 0 && time.Now().Before(end); {
		changed, _ := r.view.Changed()
		select {
		case <-changed:
		case <-time.After(time.Second):
		}
	}
	return source
}

// fields are what a browser would send of the form of a page, without its buttons.
func fields(t *testing.T, page string) url.Values {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(page))
	d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	out, in, text, selected := url.Values{}, false, "", ""
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v in %s", err, page)
		}
		switch e := token.(type) {
		case xml.StartElement:
			a := map[string]string{}
			for _, one := range e.Attr {
				a[one.Name.Local] = one.Value
			}
			_, checked := a["checked"]
			switch _, chosen := a["selected"]; {
			case e.Name.Local == "form":
				in = a["id"] == "wizard"
			case !in:
			case e.Name.Local == "input" && a["name"] != "" && (a["type"] != "checkbox" || checked):
				out.Add(a["name"], a["value"])
			case e.Name.Local == "textarea":
				text = a["name"]
			case e.Name.Local == "select":
				selected = a["name"]
			case e.Name.Local == "option" && chosen:
				text = selected
			}
		case xml.CharData:
			if in && text != "" {
				out.Add(text, strings.TrimPrefix(string(e), "\n"))
				text = ""
			}
		}
	}
	if out.Get("form") == "" {
		t.Fatalf("no form in %s", page)
	}
	return out
}

// shownRow is the place of a collection among the rows of the tree.
func shownRow(t *testing.T, form url.Values, ns string) int {
	t.Helper()
	i := slices.IndexFunc(form["shown"], func(s string) bool { return strings.Split(s, " ")[1] == coded(ns) })
	if i < 0 {
		t.Fatalf("%q is not in the tree: %q", ns, form["shown"])
	}
	return i
}

// TestNewJob: a new job goes from its connections over the choice of collections, rules
// and precheck to its start, by forms alone, and follows with what was chosen.
func TestNewJob(t *testing.T) {
	r := newRig(t)
	source := r.clusters()
	hostile := "<img src=x>\u202e\x1b[31m*?=;\\'\"%41+"
	for _, ns := range [][2]string{{"shop", "orders"}, {"shop", hostile}, {"shop", "log"}, {"bank", "accounts"}} {
		for i := range 3 {
			if _, err := source.Database(ns[0]).Collection(ns[1]).
				InsertOne(t.Context(), bson.D{{Key: "_id", Value: i}, {Key: "card", Value: "<b>4711\u202e"}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	b := r.browser("t-admin")
	_, page := b.get("/new")
	form := fields(t, page)
	press := func(button, value string, parts ...string) {
		t.Helper()
		form.Set(button, value)
		var code int
		code, page = b.send("/new/draft", form)
		if want(t, page, parts...); code != 200 {
			t.Fatalf("%s %s: %d %s", button, value, code, page)
		}
		if strings.Contains(page, "<img") || strings.Contains(page, "<b>47") || strings.Contains(page, "\x1b") {
			t.Errorf("%s: what acts is on the page", value)
		}
		if value != "create" {
			form = fields(t, page)
		}
	}
	form.Set("name", "shop.job")
	form.Set("source", "env:SOURCE")
	form.Set("target", "env:TARGET")
	for { // until the worker listens
		form.Set("do", "test")
		code, now := b.send("/new/draft", form)
		if code != 409 {
			break
		}
		if t.Context().Err() != nil {
			t.Fatal(now)
		}
	}
	press("do", "test", "Worker <bdi>w1</bdi> has tested them", "replica set", "MongoDB <bdi>")

	press("do", "choose", "The job copies everything", "orders", `<mark>\u202e</mark>`)
	press("do", "none", "The job copies what is checked.")
	if len(form["keep"])+len(form["keepdb"]) > 0 {
		t.Errorf("begun with nothing: %v %v", form["keep"], form["keepdb"])
	}
	form["keep"] = []string{coded("shop.orders"), coded("shop." + hostile)}
	form["to"][shownRow(t, form, "shop.orders")] = "sold"
	form["to"][shownRow(t, form, "shop."+hostile)] = "new" + hostile
	form.Set("q", "SHOP.")
	press("do", "choose", "rename <bdi>shop.orders=shop.sold</bdi>")
	if strings.Contains(page, "accounts") || form["to"][shownRow(t, form, "shop.orders")] != "shop.sold" ||
		len(form["keep"]) != 2 {
		t.Errorf("the search: %v", form)
	}
	form.Set("addexclude", "shop.\\")
	if code, now := b.send("/new/draft", form); code != 422 || !strings.Contains(now, "backslash") ||
		!strings.Contains(now, "rename <bdi>shop.orders=shop.sold</bdi>") {
		t.Errorf("a pattern that is none: %d", code)
	}
	form.Del("addexclude")

	press("do", "rules")
	form.Set("fields", `shop.orders={"mask": {"card": {"last": 2}}}`)
	form.Set("sample", "shop.orders")
	press("do", "sample", "after</figcaption>", "&lt;b&gt;4711", "shop.sold")
	form.Set("fields", `shop.orders={"mask": `)
	form.Set("do", "sample")
	if code, now := b.send("/new/draft", form); code != 422 || !strings.Contains(now, `id="problems"`) {
		t.Errorf("a rule that is none: %d %s", code, now)
	}
	form.Set("fields", "")
	form.Set("filter", "nothing.here={\"a\": 1}")

	press("do", "check", "The job cannot start like this.", "Skip by allow-missing: true")
	press("pass", "allow-missing: true", "All checks pass.")
	form.Del("pass")
	press("do", "start", "allow-missing: true", "- shop.orders\n", "&#39;shop.orders=shop.sold&#39;")
	form.Set("do", "download")
	code, text := b.send("/new/draft", form)
	if s, problems := config.CheckDefinition("x", text); code != 200 || len(problems) > 0 ||
		len(s.Rules.Include) != 2 {
		t.Errorf("the file: %d %v\n%s", code, problems, text)
	}
	press("do", "edit", "Create the job", "<details open>")
	press("do", "create", "shop.job")
	r.await("shop.job", func(j *service.Job) bool {
		return j.State() == service.Running && j.Report.Status != nil && j.Report.Status.Phase == job.PhaseFollowing
	})
	var got []string
	for _, c := range r.view.Job("shop.job").Report.Status.Copy.Collections {
		got = append(got, c.Target)
	}
	if slices.Sort(got); !slices.Equal(got, []string{"shop.new" + hostile, "shop.sold"}) {
		t.Errorf("it has %q", got)
	}
}

// TestNewJobRefused: drafts are for admins, from forms of the session, and passwords do
// not come back.
func TestNewJobRefused(t *testing.T) {
	r := newRig(t)
	b, op := r.browser("t-admin"), r.browser("t-op")
	if code, _ := op.act("/new/draft", url.Values{"do": {"test"}}); code != http.StatusForbidden {
		t.Errorf("an operator: %d", code)
	}
	if code, _ := b.send("/new/draft", url.Values{"do": {"test"}, "form": {"guess"}}); code != http.StatusForbidden {
		t.Errorf("a form without the word: %d", code)
	}
	code, page := b.act("/new/draft", url.Values{"do": {"test"}, "name": {"a"}, "source": {"mongodb://u:geheim@h/"},
		"target": {"env:B"}})
	if want(t, page, "holds a password"); code != 422 || strings.Contains(page, "geheim") {
		t.Errorf("a password: %d %s", code, page)
	}
	for what, form := range map[string]url.Values{
		"no worker":               {"do": {"test"}, "name": {"a"}, "source": {"env:A"}, "target": {"env:B"}},
		"is not a name of a job":  {"do": {"test"}, "name": {"<i>"}, "source": {"env:A"}, "target": {"env:B"}},
		"no collection is chosen": {"do": {"check"}, "name": {"a"}, "source": {"env:A"}, "target": {"env:B"}, "some": {"1"}},
		"cannot be read": {"do": {"choose"}, "name": {"a"}, "source": {"env:A"}, "target": {"env:B"},
			"shown": {"1 a.b"}, "to": {""}},
		"the form cannot be read": {"do": {"choose"}, "shown": {"1 a.b a.b", "1 c.d c.d"}, "to": {""}},
		"is missing":              {"do": {"create"}, "name": {"a"}, "target": {"env:B"}},
	} {
		if code, page := b.act("/new/draft", form); code < 400 || code >= 500 || !strings.Contains(page, what) ||
			strings.Contains(page, "<i>") {
			t.Errorf("%s: %d %s", what, code, page)
		}
	}
	if names := regexp.MustCompile(`<(input|textarea|select)[^>]* id="([^"]+)"`).
		FindAllStringSubmatch(page, -1); len(names) == 0 {
		t.Error("no inputs")
	} else {
		for _, n := range names {
			if !strings.Contains(page, `for="`+n[2]+`"`) {
				t.Errorf("%s has no label", n[2])
			}
		}
	}
}
