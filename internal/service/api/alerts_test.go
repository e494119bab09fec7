package api

import (
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/service"
)

// TestAlerts: each token has those of its jobs, the past ones the newest first, and what
// others wrote in them acts on nobody.
func TestAlerts(t *testing.T) {
	r := newRig(t)
	const evil = "<script>\x1b[2J\u202e"
	begin := time.Now().UTC().Truncate(time.Second)
	for _, a := range []*service.Alert{{ID: "1", Kind: service.AlertLag, Job: "shop-a"},
		{ID: "2", Kind: service.AlertFailed, Job: "other", Text: evil, Hint: evil},
		{ID: "3", Kind: service.AlertFailed, Job: "shop-a", ResolvedAt: &begin}} {
		a.FiredAt = begin
		if err := r.hub.Alerts.Set(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	for i, id := range []string{"4", "5", "6"} {
		at := begin.Add(time.Duration(i) * time.Minute)
		if err := r.hub.Alerts.KeepPast(t.Context(), r.view, &service.Alert{ID: id, Kind: service.AlertConflict,
			Job: "shop-b", FiredAt: begin, ResolvedAt: &at, Ending: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	for len(r.view.Alerts()) < 3 || len(r.view.PastAlerts()) < 3 {
		changed, _ := r.view.Changed()
		if len(r.view.Alerts()) < 3 || len(r.view.PastAlerts()) < 3 {
			<-changed
		}
	}
	ids := func(list []service.Alert) (all string) {
		for _, a := range list {
			all += a.ID
		}
		return all
	}
	a := r.ask("viewer", "GET", PathAlerts, "")
	if all := into[Alerts](t, a); ids(all.Present) != "21" || ids(all.Past) != "654" || all.Present[0].Text != evil {
		t.Errorf("%s", a.body)
	}
	if strings.ContainsAny(string(a.body), "<\x1b\u202e") {
		t.Errorf("%q", a.body)
	}
	if some := into[Alerts](t, r.ask("some", "GET", PathAlerts+"?limit=2", "")); ids(some.Present) != "1" ||
		ids(some.Past) != "65" {
		t.Errorf("%+v", some)
	}
	if a := r.ask("viewer", "GET", PathAlerts+"?limit=0", ""); a.code != 400 {
		t.Errorf("%d %s", a.code, a.body)
	}
}
