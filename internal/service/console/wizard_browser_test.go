package console

import (
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/workshop/lab"
)

// TestBrowserNewJob makes a job in a real browser: connections, a choice with a new name,
// rules, precheck, start; and it follows.
func TestBrowserNewJob(t *testing.T) {
	chromium(t)
	lab.Nightly(t)
	r := newRig(t)
	source := r.clusters()
	hostile := "<img src=x onerror=alert(1)>\u202e\n" + strings.Repeat("long", 25)
	for _, ns := range [][2]string{{"shop", "orders"}, {"shop", hostile}, {"shop", "log"}, {"bank", "accounts"}} {
		if _, err := source.Database(ns[0]).Collection(ns[1]).
			InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}, {Key: "card", Value: "4711"}}); err != nil {
			t.Fatal(err)
		}
	}
	b := newTab(t, r.server.URL)
	b.size(1280, 900)
	b.scheme("light")
	b.login("t-admin")
	b.do(chromedp.Click(`nav a[href="/new"]`))
	b.until(`document.querySelector("#wname") !== null`)
	b.do(chromedp.SendKeys("#wname", "shop.new"), chromedp.SendKeys("#wsource", "env:SOURCE"),
		chromedp.SendKeys("#wtarget", "env:TARGET"+kb.Enter))
	b.until(`document.querySelectorAll("#found h3").length === 2 && !document.querySelector("#found .failed")`)
	narrow(t, b, "connect")

	step := func(key string) {
		t.Helper()
		b.do(chromedp.Click(`.steps button[value="` + key + `"]`))
		b.until(`document.querySelector("[name=step]").value === "` + key + `"`)
	}
	step("choose")
	b.do(chromedp.Click(`button[value="none"]`))
	b.until(
		`document.querySelectorAll("#tree [name=keep]").length === 4 && !document.querySelector("#tree [type=checkbox]:checked")`)
	b.do(chromedp.Click(`#tree [name=keep][value="shop.orders"]`))
	ask[bool](b, `[...document.querySelectorAll("#tree [name=keep]")].find(e => e.value.includes("img")).click(), true`)
	b.do(chromedp.SendKeys(`tr:has([value="shop.orders"]) [name=to]`, "sold"), chromedp.SendKeys("#wq", "ord"+kb.Enter))
	b.until(
		`document.querySelectorAll("#tree [name=keep]").length === 1 && document.querySelector("#tree [name=to]").value === "shop.sold"`)
	if n := ask[int](b, `document.querySelectorAll("#patterns [name=include]").length`); n != 2 {
		t.Errorf("%d patterns", n)
	}
	ask[bool](b, `document.querySelector("#wq").value = "", true`)
	step("choose")
	narrow(t, b, "choose")

	step("rules")
	b.do(chromedp.SendKeys("#w-fields", `shop.orders={"mask": {"card": {"last": 2}}}`),
		chromedp.SendKeys("#wsample", "shop.orders"+kb.Enter))
	b.until(`document.querySelectorAll("#documents pre").length === 2`)
	if text := ask[string](b, `document.querySelectorAll("#documents pre")[1].textContent`); !strings.Contains(text,
		"11") || strings.Contains(text, "4711") {
		t.Errorf("after: %s", text)
	}
	narrow(t, b, "rules")

	step("check")
	b.do(chromedp.SendKeys("#wmore", "skip: ['nothing.here=delete']"))
	b.do(chromedp.Click(`#wizard > .stack button[value="check"]`))
	b.until(`document.querySelector("#checks button") !== null`)
	narrow(t, b, "check")
	b.do(chromedp.Click(`#checks button`))
	b.until(`document.querySelector("#checks > p").className === "running"`)

	step("start")
	yaml := ask[string](b, `document.querySelector("#yaml").textContent`)
	for _, part := range []string{"source: env:SOURCE", "- shop.orders", "shop.orders=shop.sold", "allow-missing: true",
		`"card"`} {
		if !strings.Contains(yaml, part) {
			t.Errorf("no %q in %s", part, yaml)
		}
	}
	narrow(t, b, "start")
	b.do(chromedp.Click(`button[value="create"]`))
	b.until(`location.pathname === "/jobs/shop.new"`)
	r.await("shop.new", func(j *service.Job) bool {
		return j.State() == service.Running && j.Report.Status != nil && j.Report.Status.Phase == job.PhaseFollowing
	})
	var got []string
	for _, c := range r.view.Job("shop.new").Report.Status.Copy.Collections {
		got = append(got, c.Target)
	}
	if slices.Sort(got); !slices.Equal(got, []string{"shop." + hostile, "shop.sold"}) {
		t.Errorf("it has %q", got)
	}
	b.quiet()
}

// narrow has a step fit a telephone, with a label for each input.
func narrow(t *testing.T, b *tab, step string) {
	t.Helper()
	b.fits("new-job-" + step)
	if got := ask[string](b,
		`[...document.querySelectorAll("#wizard input:not([type=hidden]), #wizard select, #wizard textarea:not([hidden])")].filter(e => !e.labels.length || !e.labels[0].textContent.trim()).map(e => e.name).join()`); got != "" {
		t.Errorf("%s: without a label: %s", step, got)
	}
}
