package operate

import (
	"testing"
	"time"

	"github.com/millrace/millrace/internal/service"
)

// TestEditWaitsForTheLease: while a worker has the lease of a failed job, its settings stay.
func TestEditWaitsForTheLease(t *testing.T) {
	r := start(t)
	d := r.job("shop")
	r.stands(d, service.Report{State: service.Failed, Error: "why"})
	wanted := service.Definition{Name: d.Name, Settings: "source: env:OTHER\ntarget: env:TARGET\n"}
	_, err := r.Edit(t.Context(), caller(service.Admin), wanted)
	refusedAs(t, err, Conflict, "worker w1 has not released it yet")
	r.released()
	j, err := r.Edit(t.Context(), caller(service.Admin), wanted)
	if err != nil || j.Definition.Settings != wanted.Settings || j.Definition.Desired.Try != 1 {
		t.Errorf("after the lease: %v %+v", err, j)
	}
}

// TestManyRefusals: one caller's refusals do not fill the audit trail, and leave room for others'.
func TestManyRefusals(t *testing.T) {
	r := start(t)
	r.job("shop")
	for range maxRefusals + 20 {
		_, err := r.Pause(t.Context(), caller(service.Operator, "other-*"), "shop")
		refusedAs(t, err, NotFound, "shop")
	}
	list, err := r.Trail(t.Context(), caller(service.Admin), "shop", service.Page{Limit: 1000})
	if err != nil || len(list) != maxRefusals+1 {
		t.Errorf("%d entries, %v", len(list), err)
	}
	eve := caller(service.Viewer)
	eve.Name = "eve"
	_, err = r.Pause(t.Context(), eve, "shop")
	refusedAs(t, err, Forbidden, "viewer")
	if e := r.trail(); e.Who != "eve" {
		t.Errorf("the refusal of another caller is missing: %+v", e)
	}
	r.now = r.now.Add(time.Minute)
	_, err = r.Pause(t.Context(), caller(service.Operator, "other-*"), "shop")
	refusedAs(t, err, NotFound, "shop")
	if e := r.trail(); e.Who != "ada" || e.Refused == "" {
		t.Errorf("a minute later: %+v", e)
	}
}

// TestInternalSamples: documents of servers, such as users with their credentials, are shown to nobody.
func TestInternalSamples(t *testing.T) {
	r := start(t)
	for _, ns := range []string{"admin.system.users", "local.oplog.rs", "config.chunks", "millrace.jobs"} {
		_, err := r.SampleDraft(t.Context(), caller(service.Admin), service.Definition{Name: "shop", Settings: someSettings},
			service.SampleAsk{NS: ns})
		refusedAs(t, err, Invalid, "no job copies it")
	}
}

// TestFinishedJobs: what has no effect on a finished job is refused, not stored.
func TestFinishedJobs(t *testing.T) {
	r := start(t)
	d := r.job("shop")
	r.stands(d, service.Report{State: service.Finished})
	_, err := r.Pause(t.Context(), caller(service.Operator), d.Name)
	refusedAs(t, err, Conflict, "cannot pause job \"shop\": it is finished")
	_, err = r.Resume(t.Context(), caller(service.Operator), d.Name)
	refusedAs(t, err, Conflict, "it is finished")
	if r.View.Job(d.Name).Definition.Desired.Paused {
		t.Error("the refused pause is stored")
	}
}
