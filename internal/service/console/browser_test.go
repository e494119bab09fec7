package console

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
	"github.com/millrace/millrace/workshop/lab"
)

// tab is a page of a real browser.
type tab struct {
	t    *testing.T
	ctx  context.Context
	base string

	mu   sync.Mutex
	said []string // errors and warnings of the browser's console
}

// chromium is the browser's program; a test without one is skipped.
func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{os.Getenv("MILLRACE_TEST_CHROMIUM"), "chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); name != "" && err == nil {
			return path
		}
	}
	t.Skip("no chromium on PATH, nor by MILLRACE_TEST_CHROMIUM")
	return ""
}

func newTab(t *testing.T, base string) *tab {
	t.Helper()
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(chromium(t)),
		chromedp.UserDataDir(userData(t)), chromedp.Flag("headless", "new"), chromedp.DisableGPU,
		chromedp.Flag("host-resolver-rules", "MAP console.example 127.0.0.1"))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	b := &tab{t: t, ctx: ctx, base: base}
	messages := chromedp.Console(ctx)
	go func() {
		for m, err := range messages {
			if err != nil {
				return
			}
			if m.Type == chromedp.ConsoleError || m.Type == chromedp.ConsoleWarning || m.IsException() {
				b.mu.Lock()
				b.said = append(b.said, m.String()+" "+m.URL)
				b.mu.Unlock()
			}
		}
	}()
	return b
}

// userData is a directory for the browser, whose processes write there a moment longer
// than it lives.
func userData(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "millrace-chromium-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 100 {
			if os.RemoveAll(dir) == nil {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
	return dir
}

func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, steps...); err != nil {
		b.t.Fatal(err)
	}
}

func (b *tab) open(path string) {
	b.t.Helper()
	b.do(chromedp.Navigate(b.base + path))
}

// ask is the value of an expression in the page.
func ask[T any](b *tab, expression string, o ...chromedp.EvaluateOption) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, o...))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// until waits for an expression to be true, in a page that is there whole.
func (b *tab) until(expression string) {
	b.t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		// A page that is being left answers nothing.
		if ok, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](`document.readyState === "complete" && (`+expression+
			`)`)); err == nil && ok {
			return
		} else if time.Now().After(end) {
			b.t.Fatalf("never true: %s (%v); the page: %s", expression, err,
				ask[string](b, "document.body.innerText.slice(0,2000)"))
		}
	}
}

func (b *tab) size(width, height int64) {
	b.t.Helper()
	b.do(chromedp.EmulateViewport(width, height))
}

func (b *tab) scheme(name string) {
	b.t.Helper()
	media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme",
		Value: name}}}
	if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, media); err != nil {
		b.t.Fatal(err)
	}
}

// quiet fails the test for what the browser has complained of: errors, exceptions, what
// the content policy forbids.
func (b *tab) quiet() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.said {
		b.t.Errorf("the browser says %s", s)
	}
}

// login logs in with the keyboard alone: the field has the focus.
func (b *tab) login(token string) {
	b.t.Helper()
	b.open("/jobs")
	b.until(`document.activeElement.id === "token"`)
	b.do(chromedp.KeyEvent(token + kb.Enter))
	b.until(`location.pathname === "/jobs"`)
}

// fleet makes n jobs of all states, as operators have them.
func (r *rig) fleet(n int) {
	r.t.Helper()
	var group sync.WaitGroup
	names := make(chan int)
	for range 8 {
		group.Go(func() {
			for i := range names {
				if err := r.one(i); err != nil {
					r.t.Error(err)
				}
			}
		})
	}
	for i := range n {
		names <- i
	}
	close(names)
	group.Wait()
	for i := range n {
		r.await(fleetName(i), func(j *service.Job) bool {
			return i%20 == 7 || j.Report != nil && (j.Lease != nil || j.Report.State == service.Failed)
		})
	}
}

func fleetName(i int) string {
	return fmt.Sprintf("shop-%03d.%s", i, []string{"berlin", "dublin", "lagos", "lima", "osaka", "oslo", "quito",
		"turin"}[i%8])
}

// one makes the job number i with a lease and a report.
func (r *rig) one(i int) error {
	name, ctx := fleetName(i), r.t.Context()
	d := &service.Definition{Name: name, UID: "u-" + name,
		Settings: "source: env:SHOP\ntarget: env:NEW\ninclude: [shop]\n", CreatedBy: "ada", CreatedAt: time.Now()}
	if err := r.hub.Jobs.Create(ctx, d); err != nil {
		return err
	}
	worker := fmt.Sprintf("worker-%d", i%4+1)
	report := &service.Report{UID: d.UID, Run: "r1", Worker: worker, State: service.Running, At: time.Now(),
		Status: fleetStatus(i)}
	switch i % 20 {
	case 7:
		return nil // it waits
	case 2:
		report.State, report.Error, report.Hint = service.Failed, "the oplog of the source no longer has the position",
			"enlarge the oplog and begin anew"
		return r.hub.Jobs.Report(ctx, name, report)
	case 5:
		report.State = service.Paused
		report.Status.Copy.DocsRate, report.Status.Copy.BytesRate, report.Status.Copy.ETASeconds = 0, 0, -1
	}
	if _, err := r.hub.Leases.Take(ctx, hub.Control(name),
		service.Lease{Worker: worker, Run: "r1", Since: time.Now()}); err != nil {
		return err
	}
	return r.hub.Jobs.Report(ctx, name, report)
}

func fleetStatus(i int) *job.Status {
	s := &job.Status{Phase: job.PhaseCopying, CannotFinalize: "the copy is under way",
		Source: "mongodb://shop-1,shop-2,shop-3/?replicaSet=rs0", Target: "mongodb://new-1,new-2,new-3/?replicaSet=rs1",
		Copy: progress.Copy{DocsTotal: 48_000_000, BytesTotal: 52e9, DocsRate: float64(40_000 + i*97%30_000),
			BytesRate: float64(45e6 + i*131_071%40_000_000), ETASeconds: float64(300 + i*37%9000)},
		Follow: job.FollowStatus{LagSeconds: -1, WindowSeconds: 90_000}}
	share := float64(i*13%100) / 100
	if i%3 == 0 {
		s.Phase, share, s.CannotFinalize = job.PhaseFollowing, 1, ""
		s.Follow = job.FollowStatus{Operations: 81_231_000, OperationsRate: float64(800 + i),
			BytesRate: float64(700_000 + i*1000), LagSeconds: float64(i%10) / 4, WindowSeconds: 90_000,
			Applied: "1764084123.17", Source: "1764084124.2"}
	}
	s.Copy.Docs, s.Copy.Bytes = int64(share*float64(s.Copy.DocsTotal)), int64(share*float64(s.Copy.BytesTotal))
	for k, c := range []string{"orders", "customers", "carts", "events", "invoices.archive"} {
		total := int64(1_000_000 * (k + 1))
		s.Copy.Collections = append(s.Copy.Collections,
			progress.Collection{Source: "shop." + c, Target: "shop." + c, Docs: int64(share * float64(total)), DocsTotal: total,
				Bytes: int64(share * float64(total) * 1100), BytesTotal: total * 1100, Done: share == 1})
	}
	return s
}

// focused says what has the focus, and what is wrong with how it is shown.
const focused = `(() => {
  const e = document.activeElement, r = e.getBoundingClientRect(), s = getComputedStyle(e), wrong = [];
  if (e === document.body) return "body";
  if (s.outlineStyle === "none" || parseFloat(s.outlineWidth) < 2) wrong.push("no outline");
  if (r.left < 0 || r.top < 0 || r.right > innerWidth + 1 || r.bottom > innerHeight + 1) wrong.push("outside of the window");
  else {
    const top = document.elementFromPoint(r.left + Math.min(r.width / 2, 8), r.top + r.height / 2);
    if (!top || !(e.contains(top) || top.contains(e))) wrong.push("covered by " + (top && top.outerHTML.slice(0, 80)));
  }
  return (e.textContent.trim() || e.getAttribute("aria-label") || e.name) + (wrong.length ? ": " + wrong.join(", ") : "");
})()`

// TestBrowser uses the console as an operator does, in a real browser.
func TestBrowser(t *testing.T) {
	chromium(t)
	lab.Nightly(t)
	r := newRig(t)
	r.fleet(1000)
	b := newTab(t, r.server.URL)
	b.size(1280, 800)
	b.scheme("light")
	b.login("t-admin")
	if n := ask[int](b, `document.querySelectorAll("tr[data-job]").length`); n != 1000 {
		t.Errorf("%d rows", n)
	}
	keyboard(t, b)
	search(t, b)
	liveChange(t, b, r)
	pause(t, b, r)
	byShard(t, b, r)
	widths(t, b)
	b.quiet()
}

// keyboard goes through the list by Tab alone.
func keyboard(t *testing.T, b *tab) {
	b.open("/jobs")
	var seen []string
	for range 40 {
		b.do(chromedp.KeyEvent(kb.Tab))
		seen = append(seen, ask[string](b, focused))
		if strings.HasPrefix(seen[len(seen)-1], "shop-") {
			break
		}
	}
	got := strings.Join(seen, " | ")
	t.Log(got)
	const head = "Skip to the content | Jobs | Workers | Alerts | Audit | New job | Log out | q | Search | all 1000"
	if !strings.HasPrefix(got, head) {
		t.Errorf("the order of Tab: %s", got)
	}
	for _, wrong := range []string{"no outline", "outside", "covered"} {
		if strings.Contains(got, wrong) {
			t.Errorf("the focus is not seen: %s", got)
		}
	}
	// Backwards up a long list, where the head of the table stays in view.
	ask[bool](b, `document.querySelectorAll("tr[data-job] a")[200].focus(), true`)
	for range 5 {
		b.do(chromedp.KeyEvent(kb.Tab, chromedp.KeyModifiers(chromedp.ModifierShift)))
		// The rows that come into view get their true height with the next frames.
		ask[bool](b, `new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))`,
			chromedp.EvalAwaitPromise)
		if at := ask[string](b, focused); strings.Contains(at, ": ") {
			t.Errorf("backwards: %s", at)
		}
	}
	b.open("/jobs")
	b.do(chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent(kb.Enter))
	b.until(`document.activeElement.id === "main"`)
}

// search finds by name, and by state.
func search(t *testing.T, b *tab) {
	b.open("/jobs")
	b.do(chromedp.SendKeys("#q", "OSLO"+kb.Enter))
	b.until(`location.search.includes("q=OSLO")`)
	if rows, other := ask[int](b, `document.querySelectorAll("tr[data-job]").length`),
		ask[int](b, `document.querySelectorAll("tr[data-job]:not([data-job*=oslo])").length`); rows != 125 || other != 0 {
		t.Errorf("%d rows, %d of them of another name", rows, other)
	}
	b.do(chromedp.Click(`#counts a[href*="state=paused"]`))
	b.until(`location.search.includes("state=paused")`)
	if rows, other := ask[int](b, `document.querySelectorAll("tr[data-job]").length`),
		ask[int](b, `document.querySelectorAll("tr[data-job]:not(:has(.state.paused))").length`); rows == 0 || other != 0 {
		t.Errorf("%d rows, %d of them not paused", rows, other)
	}
	if q := ask[string](b, `document.querySelector("#q").value`); q != "OSLO" {
		t.Errorf("the filter forgets the search: %q", q)
	}
}

// liveChange sees a job fail in the list, without a reload.
func liveChange(t *testing.T, b *tab, r *rig) {
	name := fleetName(0)
	b.open("/jobs?q=" + name)
	ask[bool](b, `window.kept = true`)
	if err := r.hub.Jobs.Report(t.Context(), name, &service.Report{UID: "u-" + name, Run: "r1", Worker: "worker-1",
		State: service.Failed, At: time.Now(), Error: "it <b>broke</b>", Status: fleetStatus(0)}); err != nil {
		t.Fatal(err)
	}
	b.until(`document.querySelector("tr[data-job] .state").textContent === "failed"`)
	if !ask[bool](b,
		`window.kept === true && document.querySelector("tr[data-job]").innerText.includes("it <b>broke</b>")`) {
		t.Error("the row is not brought up to date in place")
	}
	b.until(
		`document.querySelector("#counts").innerText.includes("failed 1") && document.querySelector("#said").textContent === "` + name + `: failed"`)
}

// pause pauses a job through its form, and sees the worker get there.
func pause(t *testing.T, b *tab, r *rig) {
	const i = 4
	name := fleetName(i)
	b.open("/jobs?q=" + name)
	b.do(chromedp.Click("tr[data-job] a"))
	b.until(`location.pathname === "/jobs/` + name + `"`)
	curves(t, b, r, name)
	b.do(chromedp.Click(`form[action$="/pause"] button`))
	b.until(`document.body.innerText.includes("Requested: paused.")`)
	if w := r.view.Job(name).Definition.Desired; !w.Paused {
		t.Errorf("the requested state: %+v", w)
	}
	// What somebody writes while the page is brought up to date stays, and so does the focus.
	ask[bool](b, `window.kept = true`)
	ask[bool](b, `document.querySelector("input[name=docs]").select(), true`)
	b.do(chromedp.KeyEvent("4711"))
	if err := r.hub.Jobs.Report(t.Context(), name, &service.Report{UID: "u-" + name, Run: "r1", Worker: "worker-1",
		State: service.Paused, At: time.Now(), Status: fleetStatus(i)}); err != nil {
		t.Fatal(err)
	}
	b.until(`document.querySelector("#now .state").textContent === "paused"`)
	if got := ask[string](b,
		`[window.kept, document.activeElement.name, document.activeElement.value, document.querySelector("#said").textContent].join()`); got != "true,docs,4711,now paused" {
		t.Errorf("after the change: %s", got)
	}
	b.do(chromedp.Click(`form[action$="/resume"] button`))
	b.until(`document.querySelector('form[action$="/pause"]') !== null`)
}

// curves sees the charts of a job, the figures under the pointer in their legends, and a new entry of the log without a
// reload, while a table that somebody has opened stays open.
func curves(t *testing.T, b *tab, r *rig, name string) {
	r.past("u-" + name)
	b.open("/jobs/" + name)
	b.until(`document.querySelectorAll("#curves .u-legend").length === 6`)
	at := ask[[]float64](b, `(() => { document.querySelector("#c-rate").scrollIntoView(); const r = document.querySelector("#c-rate .u-over").getBoundingClientRect(); return [r.left + r.width / 3, r.top + 20]; })()`)
	b.do(chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, at[0], at[1]))
	b.until(`[...document.querySelectorAll("#c-rate .u-series:not(.band) .u-value, #c-lag .u-value")].every(v => /\d|–/.test(v.textContent)) && ` +
		`/\d/.test(document.querySelector("#c-bytes .u-series .u-value").textContent)`)
	b.do(chromedp.Click("#curves summary"))
	ask[bool](b, `window.kept = true`)
	e := &service.Entry{At: time.Now(), Kind: service.KindEvent, Level: "info", Text: "it is new <i>here</i>",
		Worker: "worker-1"}
	if err := r.hub.Records.AddEntry(t.Context(), "u-"+name, "new", e); err != nil {
		t.Fatal(err)
	}
	b.until(`document.querySelector("#log").innerText.includes("it is new <i>here</i>")`)
	if !ask[bool](b,
		`window.kept && document.querySelector("#curves details").open && document.querySelectorAll("#curves details tbody tr").length > 5`) {
		t.Error("the table is closed, or the page was loaded anew")
	}
	b.do(chromedp.Click(`#curves a[href*="span=month"]`))
	b.until(
		`location.search.includes("span=month") && document.querySelector("#curves [aria-current]").textContent === "month"`)
	b.size(1280, 800)
	b.open("/jobs/" + name)
}

// byShard sees a line for each shard, which can be told apart on a light and on a dark page,
// with the same colour in the legend; the wait for a shard; and nothing wider than the page.
func byShard(t *testing.T, b *tab, r *rig) {
	name := fleetName(12)
	shards := []string{evilShard, "shard-0001", "shard-0002", "shard-0003", "shard-0004", "shard-0005", "shard-0006",
		"shard-0007", "shard-0008"}
	st := splitStatus(shards...)
	if err := r.hub.Jobs.Report(t.Context(), name, &service.Report{UID: "u-" + name, Run: "r1", Worker: "worker-1",
		State: service.Running, At: time.Now(), Status: st}); err != nil {
		t.Fatal(err)
	}
	r.split("u-"+name, shards...)
	b.open("/jobs/" + name)
	b.until(`document.querySelectorAll("#c-shard-lag .u-series").length === 9 && document.querySelector("#holding") !== null`)
	for _, scheme := range []string{"dark", "light"} {
		b.scheme(scheme)
		b.until(contrasts + `.length === 0`) // the charts are drawn again
		keys := ask[[]string](b,
			`[...document.querySelectorAll("#c-shard-lag .u-marker")].slice(1).map(m => getComputedStyle(m).borderTopColor)`)
		if slices.Sort(keys); len(slices.Compact(keys)) != 8 {
			t.Errorf("%s: lines look the same: %v", scheme, keys)
		}
	}
	for _, width := range []int64{360, 1280, 3840} {
		b.size(width, 900)
		ask[bool](b, `document.querySelectorAll("#curves details").forEach(d => d.open = true), true`)
		b.straight(fmt.Sprintf("charts at %d", width))
	}
	b.size(1280, 800)
}

// contrasts are lines of charts that are hard to see: below 3 to 1 against the page.
const contrasts = `(() => { const light = c => { const [r, g, b] = c.match(/\d+/g).map(v => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
	const page = light(getComputedStyle(document.documentElement).backgroundColor);
	return [...document.querySelectorAll("#c-shard-lag .u-marker")].slice(1).map(m => getComputedStyle(m).borderTopColor).filter(c => { const l = light(c); return (Math.max(l, page) + 0.05) / (Math.min(l, page) + 0.05) < 3; }); })()`

// TestBrowserName uses the console without TLS by a name that is not this machine's, as
// --listen-insecure allows: browsers then do not say which site a form comes from.
func TestBrowserName(t *testing.T) {
	chromium(t)
	r := newRig(t)
	r.fleet(1)
	server := httptest.NewServer(New(r.options))
	t.Cleanup(server.Close)
	b := newTab(t, strings.Replace(server.URL, "127.0.0.1", "console.example", 1))
	b.login("t-op")
	b.open("/jobs/" + fleetName(0))
	b.do(chromedp.Click(`form[action$="/pause"] button`))
	b.until(`document.body.innerText.includes("Requested: paused.")`)
	b.quiet()
}

// widths has each page fit windows from a telephone's to a wall's.
func widths(t *testing.T, b *tab) {
	job := "/jobs/" + fleetName(4)
	for _, page := range []string{"/jobs", job, job + "/finalize", job + "/remove", "/workers", "/alerts", "/audit",
		"/new"} {
		b.open(page)
		for _, width := range []int64{360, 1280, 3840} {
			b.size(width, 900)
			b.straight(fmt.Sprintf("%s at %d", page, width))
		}
	}
}

// look writes a picture of the page to the directory MILLRACE_TEST_PICTURES, to be
// looked at.
func look(b *tab, name string) {
	b.t.Helper()
	if dir := os.Getenv("MILLRACE_TEST_PICTURES"); dir != "" {
		picture(b, filepath.Join(dir, name))
	}
}

func picture(b *tab, path string) {
	b.t.Helper()
	raw, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(path, raw, 0o644); err != nil {
		b.t.Fatal(err)
	}
}
