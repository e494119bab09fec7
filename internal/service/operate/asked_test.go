package operate

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
	"github.com/millrace/millrace/internal/state/deadletter"
)

// TestLettersAsked: the worker that runs the job is asked, or else the one with the fewest
// jobs of those that may run it.
func TestLettersAsked(t *testing.T) {
	r := start(t)
	ctx, c := t.Context(), caller(service.Viewer)
	d := r.job("shop")
	_, err := r.Letters(ctx, c, "shop", service.LetterFilter{})
	refusedAs(t, err, Conflict, "no worker can look")
	asked := make(chan string, 1)
	for _, w := range []service.Worker{{Name: "w1", Jobs: []string{"a"}}, {Name: "w2"}, {Name: "w3"}} {
		r.answers(w.Name, func(q service.Question) service.Answer {
			if q.Job != "shop" || q.UID != d.UID || q.What != service.AskLetters || q.Letters.NS != "shop.orders" {
				t.Errorf("%+v", q)
			}
			asked <- w.Name
			return body(service.Letters{Letters: []deadletter.Listed{{ID: "l1", Reason: "ada has it"}}, Next: "l1"})
		})
		r.worker(w)
	}
	_, err = r.Drain(ctx, caller(service.Admin), "w2", true)
	r.must(err)
	r.until(func() bool { return r.Workers()[1].Draining })
	filter := service.LetterFilter{NS: "shop.orders"}
	list, err := r.Letters(ctx, c, "shop", filter)
	if err != nil || len(list.Letters) != 1 || list.Letters[0].Reason != "" || list.Next != "l1" {
		t.Errorf("%+v %v", list, err)
	}
	if got := <-asked; got != "w3" {
		t.Errorf("%s was asked", got)
	}
	r.follows(d)
	list, err = r.Letters(ctx, caller(service.Operator), "shop", filter)
	if err != nil || list.Letters[0].Reason == "" {
		t.Errorf("%+v %v", list, err)
	}
	if got := <-asked; got != "w1" {
		t.Errorf("%s was asked, which does not run the job", got)
	}
}

// TestLettersRefused: what cannot be asked is refused, and what a worker refuses is told.
func TestLettersRefused(t *testing.T) {
	r := start(t)
	ctx, c := t.Context(), caller(service.Operator)
	r.follows(r.job("shop"))
	for text, f := range map[string]service.LetterFilter{"not a state": {State: "lost"},
		"up to": {NS: strings.Repeat("x", maxLetterText+1)}, "no NUL": {NS: "shop.\x00"}} {
		_, err := r.Letters(ctx, c, "shop", f)
		refusedAs(t, err, Invalid, text)
	}
	_, err := r.Letters(ctx, c, "none", service.LetterFilter{State: LetterStates()[0]})
	refusedAs(t, err, NotFound, "none")
	_, err = r.Letter(ctx, c, "shop", "")
	refusedAs(t, err, Invalid, "no dead letter is named")
	_, err = r.Letter(ctx, caller(service.Viewer), "shop", "l1")
	refusedAs(t, err, Forbidden, "viewer")
	_, err = r.Letter(ctx, c, "shop", "l1")
	refusedAs(t, err, Conflict, `no answer from worker w1`)
	codes := map[string]service.Answer{
		"gone":  {Code: service.NoSuchLetter, Error: "no such letter"},
		"busy":  {Code: service.NotNow, Error: "not now", Hint: "wait"},
		"there": body(service.WholeLetter{Listed: deadletter.Listed{ID: "there"}}), "odd": {Body: []byte(`[]`)},
	}
	r.answers("w1", func(q service.Question) service.Answer { return codes[q.Letters.ID] })
	_, err = r.Letter(ctx, c, "shop", "gone")
	refusedAs(t, err, NotFound, "no such letter")
	_, err = r.Letter(ctx, c, "shop", "busy")
	refusedAs(t, err, Conflict, "not now")
	if e, ok := errors.AsType[*Error](err); !ok || e.Hint != "wait" {
		t.Errorf("%v", err)
	}
	if l, err := r.Letter(ctx, c, "shop", "there"); err != nil || l.ID != "there" {
		t.Errorf("%+v %v", l, err)
	}
	if _, err := r.Letter(ctx, c, "shop", "odd"); err == nil ||
		!strings.Contains(err.Error(), "read the answer of worker w1") {
		t.Error(err)
	}
}

// TestExportLetters: pieces follow each other as the worker says, the trail has it, and
// nothing is sent before the first.
func TestExportLetters(t *testing.T) {
	r := start(t)
	ctx, c := t.Context(), caller(service.Operator)
	r.follows(r.job("shop"))
	pieces := map[string]service.LettersPiece{
		"":  {Lines: []byte("one\n"), Next: &service.LetterFilter{After: "1"}},
		"1": {Lines: []byte("two\n"), Next: &service.LetterFilter{After: "2"}},
		"2": {}, "stuck": {Next: &service.LetterFilter{After: "stuck"}},
	}
	r.answers("w1", func(q service.Question) service.Answer { return body(pieces[q.Letters.After]) })
	var out bytes.Buffer
	begun := 0
	begin := func() io.Writer { begun++; return &out }
	r.must(r.ExportLetters(ctx, c, "shop", service.LetterFilter{}, begin))
	if out.String() != "one\ntwo\n" || begun != 1 {
		t.Errorf("%q, begun %d times", out.String(), begun)
	}
	if e := r.trail(); e.What != "export dead letters" || e.Refused != "" {
		t.Errorf("%+v", e)
	}
	if err := r.ExportLetters(ctx, c, "shop", service.LetterFilter{After: "stuck"}, begin); err == nil ||
		!strings.Contains(err.Error(), "not the end") {
		t.Error(err)
	}
	err := r.ExportLetters(ctx, c, "shop", service.LetterFilter{State: "lost"},
		func() io.Writer { t.Error("begun"); return &out })
	refusedAs(t, err, Invalid, "lost")
	if e := r.trail(); e.Refused == "" {
		t.Errorf("%+v", e)
	}
}

// TestRetryLetters: the worker says what has come of it.
func TestRetryLetters(t *testing.T) {
	r := start(t)
	r.follows(r.job("shop"))
	r.answers("w1", func(q service.Question) service.Answer {
		if q.What != service.AskLettersRetry || q.Letters.ID != "l1" {
			t.Errorf("%+v", q)
		}
		return body(service.LettersRetried{Tried: 3, Written: 2, Open: 1})
	})
	out, err := r.RetryLetters(t.Context(), caller(service.Operator), "shop", "l1")
	if err != nil || *out != (service.LettersRetried{Tried: 3, Written: 2, Open: 1}) {
		t.Errorf("%+v %v", out, err)
	}
	if e := r.trail(); e.What != "retry dead letters" || e.Job != "shop" || e.Refused != "" {
		t.Errorf("%+v", e)
	}
}

// TestDrafts: workers that could run the job are asked, the next one where one does not
// answer.
func TestDrafts(t *testing.T) {
	r := start(t)
	ctx, admin := t.Context(), caller(service.Admin)
	draft := service.Definition{Name: "shop", Settings: someSettings, Labels: map[string]string{"zone": "a"}}
	_, err := r.PrecheckDraft(ctx, admin, draft)
	refusedAs(t, err, Conflict, "no worker with the labels")
	r.worker(service.Worker{Name: "w1", Labels: draft.Labels})
	r.worker(service.Worker{Name: "w2"})
	_, err = r.PrecheckDraft(ctx, admin, draft)
	refusedAs(t, err, Conflict, "no answer from worker")
	var asked []service.QuestionKind
	r.answers("w3", func(q service.Question) service.Answer {
		if asked = append(asked, q.What); q.Job != "shop" || q.UID != "" || q.Draft.Settings != someSettings {
			t.Errorf("%+v", q)
		}
		switch q.What {
		case service.AskPrecheck:
			return body(service.DraftPlan{Worker: "w3", Ready: true})
		case service.AskInspect:
			return body(service.Inspection{Worker: "w3", Next: q.Draft.Inspect.After})
		}
		return body(service.DraftSample{Worker: "w3", NS: q.Draft.Sample.NS})
	})
	r.worker(service.Worker{Name: "w3", Labels: draft.Labels, Jobs: []string{"x"}})
	if plan, err := r.PrecheckDraft(ctx, admin, draft); err != nil || !plan.Ready {
		t.Errorf("%+v %v", plan, err)
	}
	if found, err := r.InspectDraft(ctx, admin, draft, service.InspectAsk{After: "a.b"}); err != nil ||
		found.Next != "a.b" {
		t.Errorf("%+v %v", found, err)
	}
	if sample, err := r.SampleDraft(ctx, admin, draft, service.SampleAsk{NS: "shop.orders"}); err != nil ||
		sample.NS != "shop.orders" {
		t.Errorf("%+v %v", sample, err)
	}
	if e := r.trail(); e.What != "sample documents of shop.orders" || e.Job != "shop" || e.Refused != "" {
		t.Errorf("%+v", e)
	}
	if want := []service.QuestionKind{service.AskPrecheck, service.AskInspect, service.AskSample}; !slices.Equal(asked,
		want) {
		t.Error(asked)
	}
}

// TestDraftsRefused: what no job can be is refused as Create does.
func TestDraftsRefused(t *testing.T) {
	r := start(t)
	ctx, admin := t.Context(), caller(service.Admin)
	draft := service.Definition{Name: "shop", Settings: someSettings}
	_, err := r.InspectDraft(ctx, admin, draft, service.InspectAsk{Search: strings.Repeat("x", maxDraftText+1)})
	refusedAs(t, err, Invalid, "up to")
	for _, ns := range []string{"", "shop", "shop.", "shop.a\x00", "shop." + strings.Repeat("x", maxDraftText)} {
		_, err := r.SampleDraft(ctx, admin, draft, service.SampleAsk{NS: ns})
		refusedAs(t, err, Invalid, "names no collection")
	}
	_, err = r.SampleDraft(ctx, caller(service.Operator), draft, service.SampleAsk{NS: "shop.orders"})
	refusedAs(t, err, Forbidden, "operator")
	if e := r.trail(); e.What != "sample documents of shop.orders" || e.Refused == "" {
		t.Errorf("%+v", e)
	}
	before := r.trail()
	_, err = r.SampleDraft(ctx, admin, service.Definition{Name: "a b", Settings: someSettings},
		service.SampleAsk{NS: "shop.orders"})
	refusedAs(t, err, Invalid, "a b")
	if e := r.trail(); e.Seq != before.Seq || strings.Contains(err.Error(), "audit trail") {
		t.Errorf("what is not a name of a job is in the trail: %+v", e)
	}
	for settings, text := range map[string]string{"source: env:A\n": "cannot be used", someSettings + "#" +
		strings.Repeat("<", service.MaxSettings): "settings take"} {
		_, err := r.PrecheckDraft(ctx, admin, service.Definition{Name: "shop", Settings: settings})
		refusedAs(t, err, Invalid, text)
	}
	_, err = r.PrecheckDraft(ctx, caller(service.Admin, "till"), draft)
	refusedAs(t, err, NotFound, "shop")
}

// verified has a verification end with findings.
func (r *rig) verified(job, id string, f *service.Findings) {
	r.t.Helper()
	report := service.VerifyReport{Run: "v", State: service.VerifyDifferent, At: r.now, Error: `_id "ada"`}
	r.must(r.Hub.Verifications.PutFindings(r.t.Context(), job, id, f))
	r.must(r.Hub.Verifications.Report(r.t.Context(), job, id, &report))
	r.until(func() bool { v := r.View.Verification(job, id); return v != nil && v.Report != nil && !v.Open() })
}

// TestVerify: a verification is asked for once, one at a time, of a job that follows.
func TestVerify(t *testing.T) {
	r := start(t)
	ctx, c := t.Context(), caller(service.Operator)
	d := r.job("shop")
	verify := func(id string, o service.VerifyOptions) (*service.Verification, bool,
		error) {
		return r.Verify(ctx, c, "shop", id, o)
	}
	_, _, err := verify("v1", service.VerifyOptions{})
	refusedAs(t, err, Conflict, "everything would differ")
	r.follows(d)
	for text, o := range map[string]service.VerifyOptions{"percent": {SamplePercent: 101},
		"pattern": {Include: []string{"a.b.*\\"}}} {
		_, _, err := verify("v1", o)
		refusedAs(t, err, Invalid, text)
	}
	_, _, err = verify("../v", service.VerifyOptions{})
	refusedAs(t, err, Invalid, "../v")
	v, made, err := verify("v1", service.VerifyOptions{SamplePercent: 5, Include: []string{}})
	if err != nil || !made || v.Request.UID != d.UID || v.Request.CreatedBy != "ada" || v.State() != service.VerifyQueued {
		t.Errorf("%+v %v %v", v, made, err)
	}
	if e := r.trail(); e.What != "verify v1" || e.Job != "shop" {
		t.Errorf("%+v", e)
	}
	if v, made, err = verify("v1", service.VerifyOptions{SamplePercent: 5}); err != nil || made || v.Request.ID != "v1" {
		t.Errorf("%+v %v %v", v, made, err)
	}
	_, _, err = verify("v1", service.VerifyOptions{})
	refusedAs(t, err, Exists, "v1")
	_, _, err = verify("", service.VerifyOptions{})
	refusedAs(t, err, Conflict, `verification "v1" of job "shop" is queued already`)
	r.verified("shop", "v1", &service.Findings{})
	if v, made, err = verify("", service.VerifyOptions{}); err != nil || !made ||
		service.CheckVerifyID(v.Request.ID) != nil {
		t.Errorf("%+v %v %v", v, made, err)
	}
	_, _, err = r.Verify(ctx, c, "none", "v1", service.VerifyOptions{})
	refusedAs(t, err, NotFound, "none")
}

// TestVerifyOfAnother: an id that a job of the same name had before is taken.
func TestVerifyOfAnother(t *testing.T) {
	r := start(t)
	r.must(r.Hub.Verifications.Create(t.Context(), &service.VerifyRequest{ID: "v1", Job: "shop", UID: "earlier"}))
	r.follows(r.job("shop"))
	_, _, err := r.Verify(t.Context(), caller(service.Operator), "shop", "v1", service.VerifyOptions{})
	refusedAs(t, err, Exists, "an earlier job")
}

// TestCancelVerification: one that has not ended is called off, once.
func TestCancelVerification(t *testing.T) {
	r := start(t)
	ctx, c := t.Context(), caller(service.Operator)
	r.follows(r.job("shop"))
	cancel := func(id string) (*service.Verification, error) { return r.CancelVerification(ctx, c, "shop", id) }
	_, err := cancel("v1")
	refusedAs(t, err, NotFound, "v1")
	for _, id := range []string{"v1", "v2"} {
		_, _, err := r.Verify(ctx, c, "shop", id, service.VerifyOptions{})
		r.must(err)
		if id == "v2" {
			r.verified("shop", id, &service.Findings{})
			_, err = cancel(id)
			refusedAs(t, err, Conflict, "has ended: different")
			continue
		}
		for range 2 {
			if v, err := cancel(id); err != nil || v.State() != service.VerifyCanceled || v.Request.CanceledBy != "ada" {
				t.Errorf("%+v %v", v, err)
			}
		}
		if e := r.trail(); e.What != "cancel verification v1" {
			t.Errorf("%+v", e)
		}
	}
	_, err = r.CancelVerification(ctx, caller(service.Viewer), "shop", "v1")
	refusedAs(t, err, Forbidden, "viewer")
}

// TestSchedule: a schedule is wanted until it is taken back.
func TestSchedule(t *testing.T) {
	r := start(t)
	ctx, c := t.Context(), caller(service.Operator)
	r.job("shop")
	_, err := r.ScheduleVerifications(ctx, c, "shop", &service.VerifySchedule{EveryHours: 0, SamplePercent: 5})
	refusedAs(t, err, Invalid, "every 0 hours")
	s := service.VerifySchedule{EveryHours: 24, SamplePercent: 5}
	for _, want := range []*service.VerifySchedule{&s, nil} {
		j, err := r.ScheduleVerifications(ctx, c, "shop", want)
		if err != nil || (want == nil) != (j.Definition.Desired.Verify == nil) {
			t.Errorf("%+v %v", j, err)
		}
	}
}

// differing are findings of two documents, of which one can be named.
func differing() *service.Findings {
	return &service.Findings{WithValues: true, Differences: []service.DocumentDifference{
		{RepairDocument: service.RepairDocument{NS: "shop.a", TargetNS: "shop.b", ID: "1", Key: "k1", Kind: "content"},
			Source: "ada", Target: "ada"},
		{RepairDocument: service.RepairDocument{NS: "shop.a", TargetNS: "shop.b", ID: "2", Kind: "missing"},
			Source: "ada"}},
		Repaired: []service.RepairedDocument{{ID: "1", Why: "ada"}}}
}

// TestFound: viewers see what a verification has found without values of documents.
func TestFound(t *testing.T) {
	r := start(t)
	ctx := t.Context()
	r.follows(r.job("shop"))
	_, _, err := r.Verify(ctx, caller(service.Operator), "shop", "v1", service.VerifyOptions{})
	r.must(err)
	if _, f, err := r.Verification(ctx, caller(service.Operator), "shop", "v1"); f != nil || err != nil {
		t.Errorf("before its end: %+v %v", f, err)
	}
	r.verified("shop", "v1", differing())
	for role, redacted := range map[service.Role]bool{service.Viewer: true, service.Operator: false} {
		v, f, err := r.Verification(ctx, caller(role), "shop", "v1")
		r.must(err)
		list, err := r.Verifications(caller(role), "shop")
		r.must(err)
		for _, text := range []string{v.Report.Error, list[0].Report.Error, f.Differences[0].Source, f.Differences[0].Target,
			f.Repaired[0].Why} {
			if strings.Contains(text, "ada") == redacted {
				t.Errorf("%s: %q", role, text)
			}
		}
		if f.WithValues == redacted || len(f.Differences) != 2 || f.Differences[0].ID != "1" {
			t.Errorf("%s: %+v", role, f)
		}
	}
	_, _, err = r.Verification(ctx, caller(service.Viewer), "shop", "v2")
	refusedAs(t, err, NotFound, "v2")
	_, err = r.Verifications(caller(service.Viewer, "till"), "shop")
	refusedAs(t, err, NotFound, "shop")
}

// TestRepair: documents that a verification has found are repaired by another one, once.
func TestRepair(t *testing.T) {
	r := start(t)
	ctx, c := t.Context(), caller(service.Operator)
	d := r.job("shop")
	r.follows(d)
	_, _, err := r.Verify(ctx, c, "shop", "v1", service.VerifyOptions{NoValues: true})
	r.must(err)
	repair := func(id string, what RepairWhat) (*service.Verification, bool, error) {
		return r.Repair(ctx, c, "shop", id, what.In("v1"))
	}
	one := RepairWhat{Documents: []RepairDocument{{"shop.a", "k1"}}}
	_, _, err = repair("r1", one)
	refusedAs(t, err, Conflict, "has not ended")
	r.verified("shop", "v1", differing())
	for text, what := range map[string]RepairWhat{"no documents are chosen": {},
		"not among those": {Documents: []RepairDocument{{"shop.a", "k2"}}},
		"more than":       {Documents: make([]RepairDocument, service.MaxRepair+1)}} {
		_, _, err := repair("r1", what)
		refusedAs(t, err, Invalid, text)
	}
	v, made, err := repair("r1", RepairWhat{All: true})
	if err != nil || !made || *v.Request.Repair != (service.RepairRequest{Of: "v1", Documents: 1}) ||
		!v.Request.Options.NoValues ||
		v.Request.UID != d.UID {
		t.Errorf("%+v %v %v", v, made, err)
	}
	if e := r.trail(); e.What != "repair 1 documents of verification v1 as r1" {
		t.Errorf("%+v", e)
	}
	docs, err := r.Hub.Verifications.Repair(ctx, "shop", "r1")
	if want := (service.RepairDocument{NS: "shop.a", TargetNS: "shop.b", ID: "1", Key: "k1",
		Kind: "content"}); err != nil || len(docs) != 1 || docs[0] != want {
		t.Errorf("%+v %v", docs, err)
	}
	if v, made, err = repair("r1", one); err != nil || made || v.Request.ID != "r1" {
		t.Errorf("once more: %+v %v %v", v, made, err)
	}
	_, _, err = repair("v1", one)
	refusedAs(t, err, Exists, "v1")
	_, _, err = r.Verify(ctx, c, "shop", "r1", service.VerifyOptions{NoValues: true})
	refusedAs(t, err, Exists, "r1")
	_, _, err = repair("r2", one)
	refusedAs(t, err, Conflict, "queued already")
	if _, err := r.Hub.Verifications.Repair(ctx, "shop", "r2"); !errors.Is(err, hub.ErrNotFound) {
		t.Errorf("what was refused is stored: %v", err)
	}
}

// TestRepairable: a job that does not follow, or is to end, repairs nothing.
func TestRepairable(t *testing.T) {
	r := start(t)
	ctx, c := t.Context(), caller(service.Operator)
	d := r.job("shop")
	r.follows(d)
	_, _, err := r.Verify(ctx, c, "shop", "v1", service.VerifyOptions{})
	r.must(err)
	r.verified("shop", "v1", differing())
	for _, step := range []struct {
		report service.Report
		before func() error
		want   string
	}{
		{report: service.Report{State: service.Paused, Status: statusIn("following")}, want: "is paused"},
		{report: service.Report{State: service.Running, Status: statusIn("overlap")}, want: "is in phase overlap"},
		{report: service.Report{State: service.Running, Status: statusIn("following")}, want: "is to be finalized",
			before: func() error { _, err := r.Finalize(ctx, c, "shop", true); return err }},
		{report: service.Report{State: service.Finished, Status: statusIn("finalized")}, want: "is finalized"},
	} {
		r.stands(d, step.report)
		if step.before != nil {
			r.must(step.before())
		}
		_, _, err := r.Repair(ctx, c, "shop", "r1", RepairWhat{Of: "v1", All: true})
		refusedAs(t, err, Conflict, step.want)
		if e := r.trail(); e.What != "repair" || e.Refused == "" {
			t.Errorf("%+v", e)
		}
	}
}
