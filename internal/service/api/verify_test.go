package api

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/verify"
	"github.com/millrace/millrace/test/hubtest"
)

// TestVerifications: each reply is as the document has it; what is asked for once more is
// the same, and viewers get no values.
func TestVerifications(t *testing.T) {
	r := newRig(t)
	j := r.make("shop-a")
	const list = "/api/v1/jobs/shop-a/verifications"
	r.run(j, &job.Status{Phase: job.PhaseCopying})
	if a := r.ask("operator", "POST", list, ""); a.code != 409 {
		t.Errorf("a job that copies: %d %s", a.code, a.body)
	}
	r.report(j, &job.Status{Phase: job.PhaseFollowing})
	for body, code := range map[string]int{`{"samplePercent": -1}`: 400, `{"samplePercent": 101}`: 400,
		`{"id": "../x"}`: 400, `{"include": ["a.b.*", "a.\\"]}`: 400, `{"include": [""]}`: 400,
		`{"bytesPerSecond": 5}`: 400, `{"patienceSeconds": 99999}`: 400, `{"whole": true}`: 400, `[]`: 400} {
		if a := r.ask("operator", "POST", list, body); a.code != code {
			t.Errorf("%s: %d %s", body, a.code, a.body)
		}
	}
	if a := r.ask("some", "POST", "/api/v1/jobs/bank-a/verifications", "{}"); a.code != 404 {
		t.Errorf("a job of others: %d", a.code)
	}
	body := `{"id": "first", "samplePercent": 5, "include": ["shop.*"], "bytesPerSecond": 1000000, "patienceSeconds": 3}`
	a := r.ask("operator", "POST", list, body)
	if v := into[Verification](t, a); a.code != 201 || v.State != service.VerifyQueued || a.header.Get("Location") != list+
		"/first" {
		t.Errorf("%d %+v", a.code, v)
	}
	if a := r.ask("operator", "POST", list, body); a.code != 200 {
		t.Errorf("once more: %d %s", a.code, a.body)
	}
	if a := r.ask("operator", "POST", list, `{"id": "first"}`); a.code != 409 {
		t.Errorf("another of the id: %d", a.code)
	}
	if a := r.ask("operator", "POST", list, ""); a.code != 409 {
		t.Errorf("a second one: %d", a.code)
	}
	if v := into[Verification](t, r.ask("operator", "DELETE", list+"/first", "")); v.State != service.VerifyCanceled ||
		v.CanceledBy != "operator" {
		t.Errorf("%+v", v)
	}
	if a := r.ask("operator", "DELETE", list+"/first", ""); a.code != 200 {
		t.Errorf("called off twice: %d", a.code)
	}
	made := into[Verification](t, r.ask("operator", "POST", list, ""))
	now := time.Now().UTC()
	found := &service.Findings{Collections: []service.VerifiedCollection{{NS: "a.b", TargetNS: "a.b", Differences: 1}},
		Schema: []verify.SchemaDifference{{NS: "a.b", What: "index", Detail: "gone"}}, WithValues: true,
		Differences: []service.DocumentDifference{{RepairDocument: service.RepairDocument{NS: "a.b",
			TargetNS: "a.b", ID: "1", Key: "EAEAAAA", Kind: "content"},
			Fields: []string{"x"}, Source: `{"x":"seen"}`, Target: `{"x":"seen"}`}}}
	if err := r.hub.Verifications.PutFindings(t.Context(), "shop-a", made.ID, found); err != nil {
		t.Fatal(err)
	}
	if err := r.hub.Verifications.Report(t.Context(), "shop-a", made.ID, &service.VerifyReport{Run: "r", Worker: "w1",
		State: service.VerifyDifferent, StartedAt: now, EndedAt: &now, Schema: 1,
		Progress: service.VerifyProgress{Differences: 1}}); err != nil {
		t.Fatal(err)
	}
	r.until("shop-a", func(*service.Job) bool { return !r.view.Verification("shop-a", made.ID).Open() })
	for who, seen := range map[string]bool{"viewer": false, "operator": true} {
		a := r.ask(who, "GET", list+"/"+made.ID, "")
		v := into[Verification](t, a)
		if v.State != service.VerifyDifferent || v.Differences != 1 || v.SchemaDifferences != 1 || v.Findings == nil ||
			v.Findings.WithValues != seen || strings.Contains(string(a.body), "seen") != seen {
			t.Errorf("%s: %s", who, a.body)
		}
	}
	if a := r.ask("operator", "DELETE", list+"/"+made.ID, ""); a.code != 409 {
		t.Errorf("called off after its end: %d", a.code)
	}
	if a := r.ask("viewer", "GET", list+"/none", ""); a.code != 404 {
		t.Errorf("none: %d", a.code)
	}
	r.repairs(list + "/" + made.ID)
	const schedule = "/api/v1/jobs/shop-a/verify-schedule"
	for _, bad := range []string{`{}`, `{"everyHours": 0, "samplePercent": 5, "bytesPerSecond": 0}`,
		`{"everyHours": 1, "samplePercent": 0, "bytesPerSecond": 0}`,
		`{"everyHours": 1, "samplePercent": 5, "bytesPerSecond": 7}`} {
		if a := r.ask("operator", "PUT", schedule, bad); a.code != 400 {
			t.Errorf("%s: %d %s", bad, a.code, a.body)
		}
	}
	if j := into[Job](t, r.ask("operator", "PUT", schedule,
		`{"everyHours": 6, "samplePercent": 2.5, "bytesPerSecond": 1000000}`)); j.Desired.Verify == nil ||
		j.Desired.Verify.EveryHours != 6 {
		t.Errorf("%+v", j.Desired)
	}
	if l := into[Verifications](t, r.ask("viewer", "GET", list, "")); len(l.Verifications) != 3 ||
		l.Verifications[1].ID != made.ID || l.Verifications[0].Repair == nil || l.Schedule == nil {
		t.Errorf("%+v", l)
	}
	if j := into[Job](t, r.ask("operator", "DELETE", schedule, "")); j.Desired.Verify != nil {
		t.Errorf("%+v", j.Desired)
	}
	trail := string(r.ask("admin", "GET", PathAudit+"?job=shop-a", "").body)
	for _, what := range []string{`"verify first"`, `"cancel verification first"`, `"verify schedule"`,
		`"refused":"verification`} {
		if !strings.Contains(trail, what) {
			t.Errorf("the trail lacks %s", what)
		}
	}
}

// TestDeadLetters: questions go to the worker that has the job, and its answers are as
// the document has them.
func TestDeadLetters(t *testing.T) {
	r := newRig(t)
	j := r.make("shop-a")
	const list = "/api/v1/jobs/shop-a/deadletters"
	if a := r.ask("viewer", "GET", list, ""); a.code != 409 || !strings.Contains(string(a.body), "no worker") {
		t.Errorf("without a worker: %d %s", a.code, a.body)
	}
	r.run(j, &job.Status{Phase: job.PhaseFollowing})
	if a := r.ask("viewer", "GET", list, ""); a.code != 409 || !strings.Contains(string(a.body), "no answer") {
		t.Errorf("a worker that is gone: %d %s", a.code, a.body)
	}
	one := deadletter.Listed{ID: "shop-a/1", NS: "shop.c", Document: "<b>", State: "open", Cause: "key",
		Reason: "dup key: secret", Time: time.Now(), Updated: time.Now()}
	broken := false
	answer := func(q *service.Question) (any, service.Answer) {
		if q.UID != j.UID {
			t.Errorf("asked about %+v", q)
		}
		switch q.What {
		case service.AskLetters:
			return service.Letters{Letters: []deadletter.Listed{one}}, service.Answer{}
		case service.AskLetter:
			return service.WholeLetter{Listed: one, Whole: json.RawMessage(`{"a":"<b>"}`), SameID: json.RawMessage("null"),
				Other: json.RawMessage(`"a document of 5 bytes"`)}, service.Answer{}
		case service.AskLettersExport:
			if q.Letters.Offset > 0 && broken {
				return nil, service.Answer{Code: service.NotNow, Error: "it has changed"}
			}
			if q.Letters.Offset > 0 {
				return service.LettersPiece{Lines: []byte("1}\n")}, service.Answer{}
			}
			return service.LettersPiece{Lines: []byte(`{"a":`), Next: &service.LetterFilter{Offset: 5, NS: q.Letters.NS}},
				service.Answer{}
		case service.AskLettersRetry:
			if q.Letters.ID == "none" {
				return nil, service.Answer{Code: service.NoSuchLetter, Error: "there is none"}
			}
			return service.LettersRetried{Tried: 2, Written: 1, Open: 1, Done: q.Letters.ID == ""}, service.Answer{}
		}
		return nil, service.Answer{Code: service.Trouble, Error: "what?"}
	}
	hubtest.Answer(t, r.hub, "w1", func(raw []byte) []byte {
		var q service.Question
		_ = json.Unmarshal(raw, &q)
		body, a := answer(&q)
		if body != nil {
			a.Body, _ = json.Marshal(body)
		}
		out, _ := json.Marshal(a)
		return out
	})
	if l := into[service.Letters](t, r.ask("viewer", "GET", list+"?state=open&ns=shop&limit=5", "")); len(
		l.Letters) != 1 || l.Letters[0].Reason != "" {
		t.Errorf("a viewer: %+v", l)
	}
	if l := into[service.Letters](t, r.ask("operator", "GET", list, "")); l.Letters[0].Reason == "" {
		t.Errorf("%+v", l)
	}
	for _, bad := range []string{"?state=new", "?limit=0", "?sort=x", "?ns=" + strings.Repeat("x", 2000)} {
		if a := r.ask("viewer", "GET", list+bad, ""); a.code != 400 {
			t.Errorf("%s: %d", bad, a.code)
		}
	}
	if a := r.ask("operator", "GET", list+"/letter", ""); a.code != 400 {
		t.Errorf("no letter: %d", a.code)
	}
	if l := into[service.WholeLetter](t, r.ask("operator", "GET", list+"/letter?id=shop-a/1", "")); !strings.Contains(
		string(l.Whole), "b") {
		t.Errorf("%+v", l)
	}
	if a := r.ask("operator", "GET", list+"/export?state=open", ""); string(a.body) != "{\"a\":1}\n" ||
		a.header.Get("Content-Type") != MediaLines {
		t.Errorf("%s %v", a.body, a.header)
	}
	for body, code := range map[string]int{"": 200, `{"id": "shop-a/1"}`: 202, `{"id": "none"}`: 404, `{"ids": []}`: 400} {
		if a := r.ask("operator", "POST", list+"/retry", body); a.code != code {
			t.Errorf("retry %s: %d %s", body, a.code, a.body)
		}
	}
	broken = true
	client := NewClient(r.url, r.tokens["operator"])
	defer client.Close()
	var out strings.Builder
	if err := client.ExportLetters(t.Context(), "shop-a", service.LetterFilter{}, &out); err == nil ||
		!strings.Contains(err.Error(), "broken off") {
		t.Errorf("an export that breaks off: %v, %q", err, out.String())
	}
	viewer := NewClient(r.url, r.tokens["viewer"])
	defer viewer.Close()
	if err := viewer.ExportLetters(t.Context(), "shop-a", service.LetterFilter{}, &out); !IsRefusal(err) {
		t.Errorf("a viewer exports: %v", err)
	}
	trail := string(r.ask("admin", "GET", PathAudit+"?job=shop-a", "").body)
	for _, what := range []string{`"retry dead letters"`, `"export dead letters"`} {
		if !strings.Contains(trail, what) {
			t.Errorf("the trail lacks %s", what)
		}
	}
	if a := r.ask("some", "GET", "/api/v1/jobs/bank-a/deadletters", ""); a.code != http.StatusNotFound {
		t.Errorf("a job of others: %d", a.code)
	}
}
