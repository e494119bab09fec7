package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/operate"
	"github.com/millrace/millrace/internal/service/worker"
)

func draftOf(more string) service.Definition {
	return service.Definition{Name: "draft", Settings: "source: env:SOURCE\ntarget: env:TARGET\n" + more}
}

// TestDrafts: a worker tells what there is, what a job would do, and what becomes of
// documents, of a job that is not made; nothing is written.
func TestDrafts(t *testing.T) {
	b := newBed(t)
	hostile := "<i>\u202e\x1b[31m*?=;\\"
	b.insert("drafts", 0, 100)
	db := b.source.Database("drafts")
	b.ok(db.CreateCollection(t.Context(), "log", options.CreateCollection().SetCapped(true).SetSizeInBytes(1<<20)))
	b.ok(db.CreateCollection(t.Context(), hostile))
	b.ok(db.CreateView(t.Context(), "seen", "c", bson.A{}))
	b.ok(db.CreateCollection(t.Context(), "series",
		options.CreateCollection().SetTimeSeriesOptions(options.TimeSeries().SetTimeField("t"))))
	if _, err := b.desk.InspectDraft(t.Context(), b.admin, draftOf(""),
		service.InspectAsk{}); code(err) != operate.Conflict || !strings.Contains(err.Error(), "no worker") {
		t.Errorf("without a worker: %v", err)
	}
	b.worker(b.nats.Address(), worker.Options{Name: "w1"})
	b.worker(b.nats.Address(), worker.Options{Name: "w2", Labels: map[string]string{"dc": "east"}})
	b.present(2)

	labelled := draftOf("rename: [drafts.c=drafts.d]\nexclude: [drafts.log]\n")
	labelled.Labels = map[string]string{"dc": "east"}
	got, err := b.desk.InspectDraft(t.Context(), b.admin, labelled, service.InspectAsk{Search: "DRAFTS.", Limit: 100})
	for code(err) == operate.Conflict && t.Context().Err() == nil { // until it listens
		got, err = b.desk.InspectDraft(t.Context(), b.admin, labelled, service.InspectAsk{Search: "DRAFTS.", Limit: 100})
	}
	b.ok(err)
	if got.Worker != "w2" || got.Source.Error != "" || got.Target.Error != "" || got.Source.Version == "" ||
		len(got.Source.Members) != 1 || len(got.Databases) != 1 || got.Next != "" || got.Trouble != "" {
		t.Fatalf("%+v", got)
	}
	kinds := map[string]string{}
	for _, c := range got.Databases[0].Collections {
		kinds[strings.TrimPrefix(c.NS, "drafts.")] = fmt.Sprintf("%s %v %v %s", c.Kind, c.Capped, c.Kept, c.Target)
		if c.NS == "drafts.c" && (c.Documents != 100 || c.Bytes < 10_000) {
			t.Errorf("%+v", c)
		}
	}
	for name, want := range map[string]string{"c": "collection false true drafts.d", "log": "collection true false ",
		hostile: "collection false true drafts." + hostile,
		"seen":  "view false true drafts.seen", "series": "timeseries false true drafts.series"} {
		if kinds[name] != want {
			t.Errorf("%q: %q, want %q", name, kinds[name], want)
		}
	}
	var names []string
	for after := ""; ; {
		page, err := b.desk.InspectDraft(t.Context(), b.admin, draftOf(""),
			service.InspectAsk{After: after, Search: "drafts.", Limit: 2})
		b.ok(err)
		for _, d := range page.Databases {
			for _, c := range d.Collections {
				names = append(names, c.NS)
			}
		}
		if after = page.Next; after == "" {
			break
		}
	}
	if len(names) != 5 {
		t.Errorf("by pages: %q", names)
	}
	away := service.Definition{Name: "draft", Settings: "source: env:SOURCE\ntarget: env:WRONG\n"}
	found, err := b.desk.InspectDraft(t.Context(), b.admin, away, service.InspectAsk{Limit: 1})
	b.ok(err)
	_, planErr := b.desk.PrecheckDraft(t.Context(), b.admin, away)
	_, brokenErr := b.desk.InspectDraft(t.Context(), b.admin,
		service.Definition{Name: "draft", Settings: "source: env:SOURCE\ntarget: env:BROKEN\n"}, service.InspectAsk{})
	said := fmt.Sprintf("%+v %v %v", found, planErr, brokenErr)
	if found.Target.Error == "" || found.Source.Error != "" || len(found.Databases) != 1 ||
		code(planErr) != operate.Conflict || code(brokenErr) != operate.Conflict || strings.Contains(said, "geheimnis") {
		t.Errorf("a target that is not there: %s", said)
	}
	if _, err := b.desk.InspectDraft(t.Context(), b.admin,
		service.Definition{Name: "draft", Settings: "source: env:NONE\ntarget: env:TARGET\n"},
		service.InspectAsk{}); code(err) != operate.Conflict || !strings.Contains(err.Error(), "NONE") {
		t.Errorf("a secret that the worker lacks: %v", err)
	}

	plan := func(more string) *service.DraftPlan {
		t.Helper()
		p, err := b.desk.PrecheckDraft(t.Context(), b.admin, draftOf("include: ['drafts.*']\n"+more))
		b.ok(err)
		return p
	}
	if p := plan(""); !p.Ready || p.Collections != 5 || p.Documents < 100 || p.Resumes {
		t.Errorf("%+v", p)
	}
	_, err = b.onTarget("drafts").InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}})
	b.ok(err)
	p := plan("")
	if p.Ready || len(p.Checks) == 0 || p.Checks[0].Level != "fail" ||
		strings.Join(p.Checks[0].Skips, ",") != "on-existing: merge,on-existing: drop" {
		t.Fatalf("%+v", p)
	}
	for _, skip := range p.Checks[0].Skips {
		if p := plan(skip + "\n"); !p.Ready {
			t.Errorf("%s: %+v", skip, p.Checks)
		}
	}
	p = plan("filter: ['nothing.here={\"a\": 1}']\non-existing: merge\n")
	if p.Ready || strings.Join(p.Checks[0].Skips, ",") != "allow-missing: true" {
		t.Errorf("%+v", p.Checks)
	}

	mapped := draftOf(`fields: ['drafts.c={"rename": {"text": "body"}}']` + "\n" +
		`filter: ['drafts.c={"_id": {"$gte": 0}}']` + "\n")
	s, err := b.desk.SampleDraft(t.Context(), b.admin, mapped, service.SampleAsk{NS: "drafts.c", Docs: 3})
	b.ok(err)
	if len(s.Documents) != 3 || !s.Documents[0].Changed || !json.Valid(s.Documents[0].After) ||
		!strings.Contains(string(s.Documents[0].Before), `"text"`) ||
		!strings.Contains(string(s.Documents[0].After), `"body"`) {
		t.Errorf("%+v", s)
	}
	left, err := b.desk.SampleDraft(t.Context(), b.admin, draftOf(`filter: ['drafts.c={"_id": {"$lt": 0}}']`+"\n"),
		service.SampleAsk{NS: "drafts.c", Docs: 1})
	if b.ok(err); string(left.Documents[0].After) != "null" || left.Target == "" {
		t.Errorf("left out: %+v", left)
	}
	for range 20 {
		_, err := db.Collection("large").InsertOne(t.Context(),
			bson.D{{Key: "pad", Value: strings.Repeat("<\u202e", 12_000)}})
		b.ok(err)
	}
	large, err := b.desk.SampleDraft(t.Context(), b.admin, draftOf(""), service.SampleAsk{NS: "drafts.large", Docs: 20})
	if b.ok(err); !large.Cut || len(large.Documents) == 0 {
		t.Errorf("large documents: %d, cut %v", len(large.Documents), large.Cut)
	}
	for _, bad := range []string{"", "drafts", ".c", "drafts.", "a.b\x00", "admin.system.users", "local.oplog.rs",
		"config.chunks", "millrace.jobs"} {
		if _, err := b.desk.SampleDraft(t.Context(), b.admin, draftOf(""),
			service.SampleAsk{NS: bad}); code(err) != operate.Invalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, err := b.desk.SampleDraft(t.Context(), &service.Caller{Name: "otto", Role: service.Operator}, draftOf(""),
		service.SampleAsk{NS: "drafts.c"}); code(err) != operate.Forbidden {
		t.Errorf("an operator: %v", err)
	}
	if _, err := b.desk.PrecheckDraft(t.Context(), &service.Caller{Name: "some", Role: service.Admin,
		Jobs: []string{"shop-*"}}, draftOf("")); code(err) != operate.NotFound {
		t.Errorf("a name of others: %v", err)
	}
	trail, err := b.desk.Trail(t.Context(), b.admin, "draft", service.Page{Limit: 100})
	b.ok(err)
	refused := 0
	for _, e := range trail {
		if !strings.HasPrefix(e.What, "sample documents of drafts.") {
			t.Errorf("the trail has %+v", e)
		}
		if e.Refused != "" {
			refused++
		}
	}
	if len(trail) != 4 || refused != 1 {
		t.Errorf("%d entries, %d refused", len(trail), refused)
	}
	dbs, err := b.onTarget("drafts").Database().Client().
		ListDatabaseNames(context.Background(), bson.D{{Key: "name", Value: "millrace"}})
	if b.ok(err); len(dbs) != 0 {
		t.Errorf("the target has %v", dbs)
	}
}

// present waits until so many workers are seen.
func (b *bed) present(n int) {
	b.Helper()
	for {
		changed, _ := b.desk.View.Changed()
		if len(b.desk.Workers()) >= n {
			return
		}
		select {
		case <-changed:
		case <-b.Context().Done():
			b.Fatalf("no %d workers", n)
		}
	}
}
