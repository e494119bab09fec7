package console

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/millrace/millrace/internal/precheck"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/verify"
)

//go:embed testdata/layout.js
var layoutFaults string

// fits checks the layout of the present page on a telephone and on a screen, light and dark.
func (b *tab) fits(name string) {
	b.t.Helper()
	for _, width := range []int64{390, 1280} {
		b.size(width, 900)
		for _, scheme := range []string{"light", "dark"} {
			b.scheme(scheme)
			b.straight(fmt.Sprintf("%s at %d, %s", name, width, scheme))
			look(b, fmt.Sprintf("%s-%d-%s.png", name, width, scheme))
		}
	}
	b.size(1280, 900)
}

// straight checks the layout of the present page as it is.
func (b *tab) straight(name string) {
	b.t.Helper()
	for _, fault := range ask[[]string](b, layoutFaults, chromedp.EvalAwaitPromise) {
		b.t.Errorf("%s: %s", name, fault)
	}
}

// TestLayoutFinds: each fault is found where there is one, and none where there is none.
func TestLayoutFinds(t *testing.T) {
	chromium(t)
	b := newTab(t, newRig(t).server.URL)
	b.open("/login")
	b.fits("login")
	for fault, style := range map[string]string{
		"broken: outcome": `p.style.width = "4ch"; p.style.overflowWrap = "anywhere"`,
		"scrolls: ":       `p.style.width = "200vw"`,
		"clipped: ":       `p.style.width = "4ch"; p.style.overflow = "hidden"; p.style.whiteSpace = "nowrap"`,
		"outside: ":       `p.style.position = "fixed"; p.style.left = "-2ch"`,
		"faint: ":         `p.style.color = getComputedStyle(document.documentElement).backgroundColor`,
	} {
		b.open("/login")
		ask[bool](b, `(() => { const p = document.createElement("p"); p.textContent = "the outcome"; `+style+
			`; document.querySelector("main").append(p); return true })()`)
		found := ask[[]string](b, layoutFaults, chromedp.EvalAwaitPromise)
		if !slices.ContainsFunc(found, func(s string) bool { return strings.HasPrefix(s, fault) }) {
			t.Errorf("%q is not among %q", fault, found)
		}
	}
}

const (
	longNS     = "warehouse_of_the_north.order_lines_by_customer_and_region_2026_archive"
	longWorker = "worker-17.eu-central-1.compute.internal"
	longError  = "the oplog of the source no longer has the position 1764084123.17, at which the job has to continue; " +
		"needs the privileges listCollections and changeStream on database warehouse_of_the_north"
)

// draftAnswers has a worker answer all questions about drafts and dead letters, with long names.
func (r *rig) draftAnswers() {
	r.t.Helper()
	if err := r.hub.Workers.Present(r.t.Context(), &service.Worker{Name: longWorker, Host: "db-host-7.example.com",
		PID: 4711, Version: "1.2.3", Labels: map[string]string{"datacenter": "east"}, Jobs: []string{"shop.a"},
		StartedAt: time.Now(), At: time.Now()}); err != nil {
		r.t.Fatal(err)
	}
	side := service.Side{Kind: "replica set", Version: "7.0.14", FCV: "7.0", Set: "rs0",
		Members: []string{"mongo-1.example.com:27017", "mongo-2.example.com:27017"}}
	collection := func(ns string) service.InspectedCollection {
		return service.InspectedCollection{NS: ns, Kind: "collection", Documents: 48_000_000, Bytes: 52e9,
			ShardKey: `{"customer": 1, "region": "hashed"}`}
	}
	letter := deadletter.Listed{ID: "shop.a/5f2b/1700000000:1", NS: longNS,
		Document: `{"$oid": "5f2b1f77bcf86cd799439011"}`,
		State:    "open", Cause: "duplicate key", Reason: longError, Index: "customer_1_region_1", Time: time.Now()}
	answer := func(q *service.Question) service.Answer {
		var body any
		switch q.What {
		case service.AskInspect:
			body = service.Inspection{Worker: longWorker, Source: side, Target: side, Unreadable: []string{"config"},
				Databases: []service.InspectedDatabase{{Name: "warehouse_of_the_north", Collections: []service.InspectedCollection{
					collection(longNS), collection("warehouse_of_the_north.customers")}}}, Next: longNS}
		case service.AskPrecheck:
			body = service.DraftPlan{Worker: longWorker, Collections: 7, Existing: []string{longNS, "shop.customers"},
				ExistingTotal: 2, Checks: []service.DraftCheck{
					{Name: "target collections", Level: "fail", Message: "2 exist already: " + longNS + ", shop.customers",
						Hint:  "drop them, or choose --on-existing merge or --on-existing drop",
						Skips: []string{"on-existing: merge", "on-existing: drop"}},
					{Name: "privileges", Level: "warn", Message: longError, Hint: "grant the role", Skips: []string{}}}}
		case service.AskSample:
			body = service.DraftSample{Worker: longWorker, NS: longNS, Target: longNS, Documents: []service.SampleDocument{{
				Before: json.RawMessage(`{"_id": 1, "card": "4711"}`), After: json.RawMessage(`{"_id": 1}`), Changed: true}}}
		case service.AskLetters:
			body = service.Letters{Letters: []deadletter.Listed{letter}, Next: letter.ID}
		default:
			body = service.WholeLetter{Listed: letter, Whole: json.RawMessage(`{"text": "` + strings.Repeat("x", 90) + `"}`)}
		}
		return service.Answer{Body: plainJSON(r.t, body)}
	}
	r.answers(longWorker, answer)
	r.answers("w1", answer) // which has the jobs
	for len(r.view.Workers()) == 0 {
		changed, _ := r.view.Changed()
		if len(r.view.Workers()) == 0 {
			<-changed
		}
	}
}

// furnish makes jobs, a verification, alerts and entries of the audit trail, with long names and texts.
func (r *rig) furnish() {
	r.t.Helper()
	r.draftAnswers()
	st := splitStatus("shard-0000-of-the-east", "shard-0001", "shard-0002")
	st.Copy.Collections = append(st.Copy.Collections, progress.Collection{Source: longNS, Target: longNS,
		Docs: 48_000_000, DocsTotal: 48_000_000, Bytes: 52e9, Done: true})
	st.Source = "mongodb://mongo-1.example.com,mongo-2.example.com/?replicaSet=rs0"
	st.Target = "mongodb://router.example.com/"
	r.running("shop.a", st)
	r.split("u-shop.a", "shard-0000-of-the-east", "shard-0001", "shard-0002")
	r.past("u-shop.a")
	r.running("warehouse-of-the-north.migration-of-the-archive", nil)
	r.tell("warehouse-of-the-north.migration-of-the-archive", &service.Report{
		UID: "u-warehouse-of-the-north.migration-of-the-archive", Run: "r1", Worker: longWorker, State: service.Failed,
		Error: longError, Hint: "begin anew with --restart and --on-existing drop", At: time.Now(),
		Checks: []precheck.Check{{Name: "privileges", Level: precheck.Fail, Message: longError,
			Hint: "grant the role restore"}}})
	for _, name := range []string{"ada-lovelace@example.com", "otto"} {
		if _, err := r.options.Desk.Pause(r.t.Context(), &service.Caller{Name: name, Role: service.Operator,
			From: "2001:db8:85a3::8a2e:370:7334"}, "shop.a"); err != nil {
			r.t.Fatal(err)
		}
	}
	now := time.Now()
	for i, kind := range service.AlertKinds() {
		a := &service.Alert{ID: fmt.Sprint(i), Kind: kind, Job: "warehouse-of-the-north.migration-of-the-archive",
			Text: longError, Hint: "enlarge the oplog", FiredAt: now}
		if err := r.hub.Alerts.Set(r.t.Context(), a); err != nil {
			r.t.Fatal(err)
		}
	}
	if err := r.hub.Alerts.KeepPast(r.t.Context(), r.view, &service.Alert{ID: "past", Kind: service.AlertWindow,
		Job: "shop.a", Text: longError, FiredAt: now, ResolvedAt: &now, Ending: "the oplog grew"}); err != nil {
		r.t.Fatal(err)
	}
}

// found has a verification of a job find differences, and returns its page.
func (r *rig) found(id string) {
	r.t.Helper()
	r.reports("shop.a", id, service.VerifyReport{State: service.VerifyDifferent, Schema: 1,
		Progress: service.VerifyProgress{Differences: 3}}, &service.Findings{WithValues: true,
		Collections: []service.VerifiedCollection{{NS: longNS, TargetNS: longNS, Differences: 3}},
		Schema:      []verify.SchemaDifference{{NS: longNS, What: "index customer_1_region_1", Detail: longError}},
		Differences: []service.DocumentDifference{{RepairDocument: service.RepairDocument{NS: longNS,
			TargetNS: longNS, ID: `{"$oid": "5f2b1f77bcf86cd799439011"}`, Kind: "content", Key: "k"},
			Fields: []string{"customer.address.street"}, Source: `{"a": 1}`, Target: `{"a": 2}`}}})
}

// TestLayout: no page breaks a word, cuts text off or scrolls to the side.
func TestLayout(t *testing.T) {
	chromium(t)
	r := newRig(t)
	r.furnish()
	b := newTab(t, r.server.URL)
	b.size(1280, 900)
	b.login("t-admin")
	const failed = "/jobs/warehouse-of-the-north.migration-of-the-archive"
	for _, path := range []string{"/jobs", "/jobs/shop.a", failed, failed + "/finalize", failed + "/remove", "/workers",
		"/alerts", "/audit?job=shop.a", "/new?copy=shop.a",
		"/new?edit=warehouse-of-the-north.migration-of-the-archive", "/jobs/shop.a/deadletters",
		"/jobs/shop.a/deadletters/letter?id=shop.a/5f2b/1700000000:1", "/jobs/shop.a/verification"} {
		b.open(path)
		if path == "/jobs/shop.a" {
			b.until(`document.querySelectorAll(".u-legend").length === 12`)
			ask[bool](b, `document.querySelectorAll("details").forEach(d => d.open = true), true`)
		}
		b.fits(strings.Trim(strings.NewReplacer("/", "-", "?", "-", ":", "-").Replace(path), "-"))
	}
	b.do(chromedp.Click(`form[action$="/verification"] button`))
	b.until(`location.pathname.startsWith("/jobs/shop.a/verification/")`)
	id := ask[string](b, `location.pathname.split("/").pop()`)
	b.fits("verification-open")
	r.found(id)
	b.open("/jobs/shop.a/verification/" + id)
	b.fits("verification-ended")
	b.do(chromedp.Click(`#repair button[value="all"]`))
	b.until(`document.querySelector(".lost") !== null`)
	b.fits("repair")
	layoutOfWizard(b)
	b.quiet() // the browser complains of refusals
	b.do(chromedp.Click(`button[value="create"]`))
	b.until(`document.querySelector("[role=alert]")?.innerText.includes("drops collections")`)
	for _, path := range []string{"/audit?from=yesterday", "/nowhere"} {
		b.open(path)
		b.fits(strings.Trim(path, "/"))
	}
}

// layoutOfWizard goes through the steps of a new job by Next alone, up to the confirmation of what is dropped.
func layoutOfWizard(b *tab) {
	b.t.Helper()
	b.open("/new")
	b.do(chromedp.SendKeys("#wname", "shop.new"), chromedp.SendKeys("#wsource", "env:SOURCE"),
		chromedp.SendKeys("#wtarget", "env:TARGET"), chromedp.Click(`.stack button[value="test"]`))
	b.until(`document.querySelector("#found") !== null`)
	b.fits("new-connect")
	next := func(step string) {
		b.t.Helper()
		b.do(chromedp.Click(`.ends button:not(.secondary)`))
		b.until(`document.querySelector("[name=step]").value === "` + step + `"`)
	}
	next("choose")
	b.fits("new-choose")
	next("rules")
	b.do(chromedp.SendKeys("#w-skip", "shop.log=delete"), chromedp.SendKeys("#wsample", longNS),
		chromedp.Click(`.stack button[value="sample"]`))
	b.until(`document.querySelector("#documents") !== null`)
	b.fits("new-rules")
	next("check")
	b.do(chromedp.Click(`.ends button[value="rules"]`)) // Back
	b.until(`document.querySelector("#w-skip")?.value === "shop.log=delete"`)
	next("check")
	b.fits("new-check")
	b.do(chromedp.Click(`#checks button.danger`))
	b.until(`document.querySelector("#w-on-existing").value === "drop"`)
	next("start")
	b.fits("new-start")
}
