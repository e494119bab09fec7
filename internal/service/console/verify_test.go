package console

import (
	"bytes"
	"encoding/json"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/verify"
	"github.com/millrace/millrace/test/hubtest"
)

const hostile = "<script>alert(1)</script>\u202e\x1b[2J"

func following() *job.Status {
	return &job.Status{Phase: job.PhaseFollowing, Follow: job.FollowStatus{WindowSeconds: 3600}}
}

// reports has a worker report how a verification stands.
func (r *rig) reports(name, id string, report service.VerifyReport, f *service.Findings) {
	r.t.Helper()
	report.Run, report.Worker, report.At, report.StartedAt = "r1", "w1", time.Now(), time.Now()
	if f != nil {
		if err := r.hub.Verifications.PutFindings(r.t.Context(), name, id, f); err != nil {
			r.t.Fatal(err)
		}
	}
	if err := r.hub.Verifications.Report(r.t.Context(), name, id, &report); err != nil {
		r.t.Fatal(err)
	}
	r.await(name, func(*service.Job) bool {
		v := r.view.Verification(name, id)
		return v.Report != nil && v.Report.State == report.State
	})
}

// TestVerificationPages: a verification is asked for, watched, called off, and shows both
// sides to operators alone; no text of a document acts on a page.
func TestVerificationPages(t *testing.T) {
	r := newRig(t)
	r.running("shop.a", following())
	op, viewer := r.browser("t-op"), r.browser("t-view")
	_, page := op.get("/jobs/shop.a")
	want(t, page, `href="/jobs/shop.a/verification"`, `href="/jobs/shop.a/deadletters"`)
	_, page = viewer.get("/jobs/shop.a/verification")
	if want(t, page, "None yet."); strings.Contains(page, "Verify now") {
		t.Error("a viewer may ask")
	}
	for path, form := range map[string]url.Values{"/jobs/shop.a/verification": nil,
		"/jobs/shop.a/verify-schedule": {"every": {"5"}, "sample": {"5"}}} {
		if code, _ := viewer.act(path, form); code != 403 {
			t.Errorf("a viewer: %s %d", path, code)
		}
		if code, _ := op.send(path, url.Values{"form": {"guess"}}); code != 403 {
			t.Errorf("a form without the word: %s %d", path, code)
		}
	}
	if code, page := op.act("/jobs/shop.a/verification", url.Values{"sample": {"lots"}}); code != 422 ||
		!strings.Contains(page, "not a percentage") {
		t.Errorf("no number: %d %s", code, page)
	}
	if code, _ := op.act("/jobs/shop.a/verification", url.Values{"sample": {"300"}}); code != 422 {
		t.Errorf("too much: %d", code)
	}
	code, page := op.act("/jobs/shop.a/verification",
		url.Values{"sample": {"5"}, "include": {"a.* <b>.c"}, "rate": {"10MB"}, "patience": {"7"}, "values": {"1"}})
	if want(t, page, "queued", "5% of a.*, &lt;b&gt;.c", "Cancel"); code != 200 {
		t.Fatalf("%d %s", code, page)
	}
	v := r.view.Verifications("shop.a")[0]
	if o := v.Request.Options; o.SamplePercent != 5 || o.BytesPerSecond != 10e6 || o.PatienceSeconds != 7 || o.NoValues ||
		len(o.Include) != 2 {
		t.Errorf("%+v", o)
	}
	at := "/jobs/shop.a/verification/" + v.Request.ID
	r.reports("shop.a", v.Request.ID, service.VerifyReport{State: service.VerifyRunning, Attempt: 2, Waits: "the job is " +
		hostile, Progress: service.VerifyProgress{Docs: 10, DocsTotal: 100, Rechecking: 3}}, nil)
	_, page = op.get(at)
	want(t, page, "2 attempts", "Rechecks wait", "&lt;script&gt;", "<progress")
	if code, _ := viewer.act(at+"/cancel", nil); code != 403 {
		t.Errorf("a viewer cancels: %d", code)
	}
	_, page = op.act(at+"/cancel", nil)
	want(t, page, "canceled", "Canceled by <bdi>otto</bdi>")

	_, page = op.act("/jobs/shop.a/verification", url.Values{"values": {"1"}})
	id := regexp.MustCompile(`/verification/([0-9A-Z]+)/cancel`).FindStringSubmatch(page)[1]
	r.reports("shop.a", id, service.VerifyReport{State: service.VerifyDifferent, Schema: 1,
		Progress: service.VerifyProgress{Differences: 3}}, &service.Findings{
		Collections: []service.VerifiedCollection{{NS: "a." + hostile, TargetNS: "a.b", Differences: 3}}, WithValues: true,
		Notes:  []string{hostile},
		Schema: []verify.SchemaDifference{{NS: hostile, What: hostile, Detail: hostile}},
		Differences: []service.DocumentDifference{{RepairDocument: service.RepairDocument{NS: hostile,
			TargetNS: hostile, ID: hostile, Kind: "content"},
			Fields: []string{hostile}, Source: "source " + hostile, Target: "target " + hostile, Cut: true}}})
	_, page = op.get("/jobs/shop.a/verification/" + id)
	want(t, page, "source &lt;script&gt;", "target &lt;script&gt;", "2 more documents differ", "Shown in part")
	harmless(t, page)
	_, page = viewer.get("/jobs/shop.a/verification/" + id)
	if want(t, page, "they are for operators", "Fields:"); strings.Contains(page, "target &lt;script&gt;") {
		t.Error("a viewer sees values")
	}
	if code, _ := viewer.get("/jobs/bank.a/verification/" + id); code != 404 {
		t.Errorf("a job that is not the viewer's: %d", code)
	}
	if code, _ := op.get("/jobs/shop.a/verification/none"); code != 404 {
		t.Errorf("none: %d", code)
	}

	r.repairPages(op, viewer)

	_, page = op.act("/jobs/shop.a/verify-schedule", url.Values{"every": {"6"}, "sample": {"2.5"}, "rate": {"1MB"}})
	want(t, page, "Every 6 hours a sample of 2.5 percent, at 1000000 bytes per second", "Saved.")
	if code, _ := op.act("/jobs/shop.a/verify-schedule", url.Values{"every": {"6"}, "sample": {"0"}}); code != 422 {
		t.Errorf("a sample of nothing: %d", code)
	}
	op.act("/jobs/shop.a/verify-schedule", url.Values{"every": {"0"}})
	if s := r.view.Job("shop.a").Definition.Desired.Verify; s != nil {
		t.Errorf("the schedule stays: %+v", s)
	}
	_, page = r.browser("t-admin").get("/audit?job=shop.a")
	want(t, page, "verify "+id, "cancel verification", "verified every 6 hours", "verified on request only",
		"refused")
}

func harmless(t *testing.T, page string) {
	t.Helper()
	if strings.ContainsAny(page, "\u202e\x1b") || strings.Contains(page, "<script>") {
		t.Error("hostile text on the page")
	}
}

// answers has a worker answer questions.
func (r *rig) answers(worker string, answer func(*service.Question) service.Answer) {
	r.t.Helper()
	hubtest.Answer(r.t, r.hub, worker, func(raw []byte) []byte {
		var q service.Question
		if err := json.Unmarshal(raw, &q); err != nil {
			r.t.Error(err)
		}
		return plainJSON(r.t, answer(&q))
	})
}

// plainJSON is JSON as workers send it.
func plainJSON(t *testing.T, v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		t.Error(err)
	}
	return b.Bytes()
}

// TestLetterPages: dead letters are listed, shown, exported and tried again by who may;
// no text of theirs acts on a page.
func TestLetterPages(t *testing.T) {
	r := newRig(t)
	r.running("shop.a", following())
	op, viewer := r.browser("t-op"), r.browser("t-view")
	code, page := op.get("/jobs/shop.a/deadletters")
	if want(t, page, "does not answer"); code != 409 {
		t.Errorf("a worker that is gone: %d", code)
	}
	var mu sync.Mutex
	var retried []string
	one := deadletter.Listed{ID: "shop.a/5f2b/1700000000:1", NS: hostile, Document: hostile, State: "open", Cause: hostile,
		Reason: "reason " + hostile, Index: hostile, Time: time.Now()}
	r.answers("w1", func(q *service.Question) service.Answer {
		var body any
		switch q.What {
		case service.AskLetters:
			body = service.Letters{Letters: []deadletter.Listed{one}, Next: one.ID}
		case service.AskLetter:
			if q.Letters.ID != one.ID {
				return service.Answer{Code: service.NoSuchLetter, Error: "there is none"}
			}
			raw := json.RawMessage(`{"text": "document ` + strings.ReplaceAll(hostile, "\x1b", `\u001b`) + `"}`)
			body = service.WholeLetter{Listed: one, Whole: raw, SameID: json.RawMessage("null"), Other: raw}
		case service.AskLettersExport:
			if q.Letters.Offset == 0 {
				body = service.LettersPiece{Lines: []byte(`{"a":`), Next: &service.LetterFilter{Offset: 5}}
			} else {
				body = service.LettersPiece{Lines: []byte("1}\n")}
			}
		case service.AskLettersRetry:
			mu.Lock()
			retried = append(retried, q.Letters.ID)
			mu.Unlock()
			if q.Letters.ID == "" {
				return service.Answer{Code: service.NotNow, Error: "the job is " + hostile, Hint: "wait"}
			}
			body = service.LettersRetried{Tried: 1, Written: 1}
		}
		return service.Answer{Body: plainJSON(t, body)}
	})
	_, page = op.get("/jobs/shop.a/deadletters?state=open&ns=shop")
	want(t, page, "reason &lt;script&gt;", "Next page", "<option selected>open</option>")
	harmless(t, page)
	_, page = viewer.get("/jobs/shop.a/deadletters")
	if harmless(t, page); strings.Contains(page, "reason ") || strings.Contains(page, "deadletters/letter") ||
		strings.Contains(page, "Retry all") {
		t.Error("a viewer sees more than ids")
	}
	at := "/jobs/shop.a/deadletters/letter?id=" + url.QueryEscape(one.ID)
	_, page = op.get(at)
	want(t, page, "document &lt;script&gt;", "On the target, with the key", "<button>Retry")
	harmless(t, page)
	if code, _ := viewer.get(at); code != 403 {
		t.Errorf("a viewer sees a document: %d", code)
	}
	if code, _ := op.get("/jobs/shop.a/deadletters/letter?id=x"); code != 404 {
		t.Errorf("a letter that is none: %d", code)
	}
	for _, path := range []string{"/jobs/shop.a/deadletters/retry", "/jobs/shop.a/deadletters/export"} {
		if code, _ := viewer.act(path, nil); code != 403 {
			t.Errorf("a viewer: %s %d", path, code)
		}
		if code, _ := op.send(path, url.Values{"form": {"guess"}}); code != 403 {
			t.Errorf("a form without the word: %s %d", path, code)
		}
	}
	if len(retried) != 0 {
		t.Errorf("tried: %v", retried)
	}
	code, page = op.act("/jobs/shop.a/deadletters/retry", nil)
	if want(t, page, "the job is &lt;script&gt;"); code != 409 {
		t.Errorf("not now: %d", code)
	}
	_, page = op.act("/jobs/shop.a/deadletters/retry", url.Values{"id": {one.ID}})
	want(t, page, "1 retried, 1 settled, 0 open. A worker still retries.")
	if _, page = op.act("/jobs/shop.a/deadletters/export", nil); page != "{\"a\":1}\n" {
		t.Errorf("exported %q", page)
	}
	_, page = r.browser("t-admin").get("/audit?job=shop.a")
	want(t, page, "retry dead letters", "export dead letters", "refused")
}
