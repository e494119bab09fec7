package console

import (
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/service"
)

// TestAlerts: the page has the alerts of the visitor's jobs, present and past, with
// hostile texts made harmless.
func TestAlerts(t *testing.T) {
	r := newRig(t)
	_, page := r.browser("t-view").get("/alerts")
	want(t, page, "None now", `aria-current="page">Alerts`)
	now := time.Now()
	for _, a := range []*service.Alert{{ID: "1", Kind: service.AlertLag, Job: "shop.a", Text: "behind <script>\x1b\u202e",
		Hint: "do <i>this</i>"}, {ID: "2", Kind: service.AlertFailed, Job: "other"}} {
		a.FiredAt = now
		if err := r.hub.Alerts.Set(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.hub.Alerts.KeepPast(t.Context(), r.view, &service.Alert{ID: "3", Kind: service.AlertWindow, Job: "shop.b",
		FiredAt: now, ResolvedAt: &now, Ending: "it <b>grew</b>"}); err != nil {
		t.Fatal(err)
	}
	for {
		changed, _ := r.view.Changed()
		if len(r.view.Alerts()) == 2 && len(r.view.PastAlerts()) == 1 {
			break
		}
		<-changed
	}
	_, page = r.browser("t-view").get("/alerts")
	want(t, page, "1 now", "1 past", `<a href="/jobs/shop.a">`,
		`behind &lt;script&gt;<mark>\u001b</mark><mark>\u202e</mark>`, "Remedy: <bdi>do &lt;i&gt;this",
		"Over: <bdi>it &lt;b&gt;grew")
	if strings.Contains(page, "other") || strings.ContainsAny(page, "\x1b\u202e") {
		t.Error("another's job, or a hostile text, is on the page")
	}
	for query, n := range map[string][2]int{"job=SHOP": {1, 1}, "what=failed": {1, 0}, "to=2020-01-01T00:00": {0, 0}} {
		_, page = r.browser("t-op").get("/alerts?" + query)
		present, past, _ := strings.Cut(page, `id="past"`)
		if got := [2]int{strings.Count(present, "data-alert"), strings.Count(past, "data-alert")}; got != n {
			t.Errorf("%s: %v alerts, want %v", query, got, n)
		}
	}
	if _, page = r.browser("t-op").get("/alerts"); !strings.Contains(page, "2 now") {
		t.Error("who sees all jobs does not see all alerts")
	}
}
