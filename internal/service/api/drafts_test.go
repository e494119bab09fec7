package api

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/test/hubtest"
)

// answers has a worker answer questions about drafts until the test ends.
func (r *rig) answers(worker string, labels map[string]string, answer func(q *service.Question) any) {
	r.t.Helper()
	if err := r.hub.Workers.Present(r.t.Context(),
		&service.Worker{Name: worker, Labels: labels, StartedAt: time.Now(), At: time.Now()}); err != nil {
		r.t.Fatal(err)
	}
	hubtest.Answer(r.t, r.hub, worker, func(raw []byte) []byte {
		var q service.Question
		_ = json.Unmarshal(raw, &q)
		var a service.Answer
		a.Body, _ = json.Marshal(answer(&q))
		out, _ := json.Marshal(a)
		return out
	})
}

// TestDrafts: questions about a job that is not made go to a worker with its labels,
// from admins alone, and the replies are as the document has them.
func TestDrafts(t *testing.T) {
	r := newRig(t)
	const body = `{"name": "shop-a", "settings": ` + someSettings + `, "labels": {"dc": "east"}`
	if a := r.ask("admin", "POST", PathInspectDraft, body+"}"); a.code != 409 ||
		!strings.Contains(string(a.body), "no worker") {
		t.Errorf("without a worker: %d %s", a.code, a.body)
	}
	if err := r.hub.Workers.Present(t.Context(), &service.Worker{Name: "gone", Labels: map[string]string{"dc": "east"},
		StartedAt: time.Now(), At: time.Now()}); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var asked service.Question
	answer := func(q *service.Question) any {
		mu.Lock()
		defer mu.Unlock()
		switch asked = *q; q.What {
		case service.AskInspect:
			side := service.Side{Kind: "replica set", Version: "6.0.5", Members: []string{"a:1"}}
			return service.Inspection{Worker: "w1", Source: side, Target: side, Unreadable: []string{"x"},
				Databases: []service.InspectedDatabase{{Name: "shop",
					Collections: []service.InspectedCollection{{NS: "shop.<b>", Kind: "collection", Documents: -1, Bytes: -1,
						Kept: true, Target: "shop.<b>"}}}}}
		case service.AskPrecheck:
			return service.DraftPlan{Worker: "w1",
				Checks: []service.DraftCheck{{Name: "versions", Level: "fail", Message: "old", Hint: "new",
					Skips: []string{"allow-downgrade: true"}}}}
		case service.AskSample:
			return service.DraftSample{Worker: "w1", NS: q.Draft.Sample.NS,
				Documents: []service.SampleDocument{{Before: json.RawMessage(`{"a":1}`), After: json.RawMessage("null")}}}
		}
		return nil
	}
	r.answers("w2", map[string]string{"dc": "west"}, answer)
	r.answers("w1", map[string]string{"dc": "east"}, answer)
	// until it listens
	for end := time.Now().Add(time.Minute); r.ask("admin", "POST", PathInspectDraft, body+"}").code == 409 &&
		time.Now().Before(end); {
	}
	if i := into[service.Inspection](t, r.ask("admin", "POST", PathInspectDraft,
		body+`, "search": "s", "after": "a.b", "limit": 7}`)); i.Source.Version != "6.0.5" || len(i.Databases) != 1 {
		t.Errorf("%+v", i)
	}
	if ask := asked.Draft.Inspect; ask != (service.InspectAsk{After: "a.b", Search: "s", Limit: 7}) ||
		asked.Job != "shop-a" || asked.Draft.Settings != strings.ReplaceAll(someSettings, " ", "") {
		t.Errorf("asked %+v", asked)
	}
	if p := into[service.DraftPlan](t, r.ask("admin", "POST", PathPrecheckDraft, body+"}")); len(p.Checks) != 1 ||
		p.Ready {
		t.Errorf("%+v", p)
	}
	if s := into[service.DraftSample](t, r.ask("some", "POST", PathSampleDraft, body+`, "ns": "shop.c"}`)); len(
		s.Documents) != 1 || asked.Draft.Sample.Docs != draftSample {
		t.Errorf("%+v", s)
	}
	for _, path := range []string{PathInspectDraft, PathPrecheckDraft, PathSampleDraft} {
		for who, code := range map[string]int{"viewer": 403, "operator": 403, "": 401} {
			if a := r.ask(who, "POST", path, body+"}"); a.code != code {
				t.Errorf("%s by %q: %d", path, who, a.code)
			}
		}
		more := ""
		if path == PathSampleDraft {
			more = `, "ns": "a.b"`
		}
		for bad, code := range map[string]int{`{"name": "shop-a"` + more + `}`: 400, `{"name": "../x", "settings": {}` +
			more + `}`: 400, body + more + `, "more": 1}`: 400, `[]`: 400, `{"name": "shop-a", "settings": {"source": "env:A"}` +
			more + `}`: 400,
			`{"name": "shop-a", "settings": {"source": "mongodb://u:password@h/", "target": "env:B"}` + more + `}`: 400} {
			a := r.ask("admin", "POST", path, bad)
			if a.code != code {
				t.Errorf("%s %s: %d %s", path, bad, a.code, a.body)
			}
			if strings.Contains(string(a.body), "u:password") {
				t.Errorf("%s: %s", path, a.body)
			}
		}
		if a := r.ask("some", "POST", path, `{"name": "bank-a", "settings": `+someSettings+more+`}`); a.code != 404 {
			t.Errorf("%s of others: %d", path, a.code)
		}
	}
	for _, bad := range []string{`, "limit": -1}`, `, "limit": 1001}`, `, "after": "` + strings.Repeat("x", 1001) + `"}`} {
		if a := r.ask("admin", "POST", PathInspectDraft, body+bad); a.code != 400 {
			t.Errorf("%s: %d", bad, a.code)
		}
	}
	trail := string(r.ask("admin", "GET", PathAudit+"?job=shop-a", "").body)
	if strings.Count(trail, `"sample documents of shop.c"`) != 1 || strings.Contains(trail, "inspect") {
		t.Errorf("the trail: %s", trail)
	}
	if a := r.ask("admin", "GET", PathJobs+"/shop-a", ""); a.code != 404 {
		t.Errorf("a draft is a job: %d", a.code)
	}
}
