package service

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/assign"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/progress"
)

// TestRedact: a viewer's entries have no values of documents, and say what happened all the same.
func TestRedact(t *testing.T) {
	e := Entry{Kind: KindLog, Text: "failed: insert in shop.orders, _id \"ada@example.org, at 1: x\", at 1700000000:1: " +
		"E11000 duplicate key error dup key: { mail: \"ada\" }", Fields: []Field{
		{"ns", "shop.orders"}, {"documentId", "\"ada@example.org\""}, {"reason", "ada has no place"},
		{"of.error", "Document failed validation: {mail: \"ada\"}"},
		{"error", "the document with _id 4711 on the target holds its key"}, {"retryIn", "1s"},
		{"cause", "E11000 duplicate key error: ada"}}}
	was := fmt.Sprint(e)
	v := e.Redact()
	if text := fmt.Sprint(v); strings.Contains(text, "ada") || strings.Contains(text, "4711") {
		t.Errorf("%s", text)
	}
	if !strings.HasPrefix(v.Text, "failed: insert in shop.orders, "+Redacted) || v.Fields[0].Value != "shop.orders" ||
		v.Fields[5].Value != "1s" || !strings.HasPrefix(v.Fields[3].Value, "Document failed validation: ") {
		t.Errorf("%+v", v)
	}
	if fmt.Sprint(e) != was {
		t.Errorf("the entry itself has changed: %+v", e)
	}
	plain := Entry{Text: "taken by worker w", Fields: []Field{{"error", "connection reset"}}}
	if got := plain.Redact(); fmt.Sprint(got) != fmt.Sprint(plain) {
		t.Errorf("%+v", got)
	}
}

// TestVeilJob: a viewer learns that a job has failed, and of no document, at each place that
// has the error.
func TestVeilJob(t *testing.T) {
	const text = "insert into shop.orders, _id \"ada\": E11000 dup key: { mail: \"ada\" }"
	j := &Job{Report: &Report{Error: text, Unmet: text, Hint: "look", Status: &job.Status{Error: text, Waiting: text}}}
	j.Report.Status.Copy.Workers = []assign.Figures{{Worker: "one"}, {Worker: "two", Why: text}}
	was := *j.Report.Status
	v := j.Redact()
	for _, got := range []string{v.Report.Error, v.Report.Unmet, v.Report.Status.Error, v.Report.Status.Waiting,
		v.Report.Status.Copy.Workers[1].Why, (&Verification{Report: &VerifyReport{Error: text}}).Redact().Report.Error,
		Alert{Text: text}.Redact().Text} {
		if got != "insert into shop.orders, "+Redacted {
			t.Error(got)
		}
	}
	if v.Report.Hint != "look" || v.Report.Status.Copy.Workers[0].Worker != "one" || j.Report.Error != text ||
		j.Report.Status.Error != was.Error || j.Report.Status.Copy.Workers[1].Why != text {
		t.Errorf("%+v", j.Report)
	}
	for _, plain := range []*Job{{}, {Report: &Report{Error: "connection reset",
		Status: &job.Status{Waiting: "the source",
			Copy: progress.Copy{Workers: []assign.Figures{{Why: "it is slow"}}}}}}} {
		if got := plain.Redact(); !reflect.DeepEqual(got, *plain) {
			t.Errorf("%+v has become %+v", plain, got)
		}
	}
}
