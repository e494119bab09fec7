package operate

import (
	"context"
	"errors"
	"fmt"
	"strings"
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

// TestManyChanges: one caller's changes do not push those of others out of the audit trail.
func TestManyChanges(t *testing.T) {
	r := start(t)
	r.job("shop")
	for range maxChanges {
		r.changes.fits("ada", r.now, time.Hour, maxChanges)
	}
	_, err := r.Pause(t.Context(), caller(service.Operator), "shop")
	refusedAs(t, err, TooMany, "changes in an hour")
	_, _, err = r.Create(t.Context(), caller(service.Admin), service.Definition{Name: "new", Settings: someSettings})
	refusedAs(t, err, TooMany, "changes in an hour")
	if e := r.trail(); e.Who != "ada" || e.Refused == "" {
		t.Errorf("the refusal is not in the trail: %+v", e)
	}
	d := r.View.Job("shop").Definition
	r.follows(d)
	_, _, err = r.Verify(t.Context(), caller(service.Operator), "shop", "", service.VerifyOptions{})
	refusedAs(t, err, TooMany, "changes in an hour")
	_, made, err := r.Create(t.Context(), caller(service.Admin), service.Definition{Name: "shop", Settings: d.Settings})
	if made || err != nil {
		t.Errorf("what changes nothing is refused: %v", err)
	}
	bob := caller(service.Operator)
	bob.Name = "bob"
	if _, err := r.Pause(t.Context(), bob, "shop"); err != nil {
		t.Errorf("another caller: %v", err)
	}
	before := r.trail().Seq
	if _, err := r.Pause(t.Context(), bob, "shop"); err != nil || r.trail().Seq != before {
		t.Errorf("what changes nothing fills the audit trail: %+v %v", r.trail(), err)
	}
	r.now = r.now.Add(time.Hour)
	if _, err := r.Resume(t.Context(), caller(service.Operator), "shop"); err != nil || r.trail().Seq == before {
		t.Errorf("an hour later: %v", err)
	}
}

// TestRoomForChanges: definitions of one caller leave others room, and the store room for changes.
func TestRoomForChanges(t *testing.T) {
	r := start(t)
	ctx, ada, bob := t.Context(), caller(service.Admin), caller(service.Admin)
	bob.Name = "bob"
	const size = 1_000_000
	text := strings.Repeat("#", size)
	for i := range maxDefined/2/size + 1 {
		r.must(r.Hub.Jobs.Create(ctx, &service.Definition{Name: fmt.Sprint("big", i), Settings: text, CreatedBy: "ada"}))
	}
	r.until(func() bool { return len(r.View.Jobs()) > maxDefined/2/size })
	_, _, err := r.Create(ctx, ada, service.Definition{Name: "more", Settings: someSettings})
	refusedAs(t, err, Conflict, "of ada would take")
	if _, _, err := r.Create(ctx, bob, service.Definition{Name: "more", Settings: someSettings}); err != nil {
		t.Errorf("another caller: %v", err)
	}
	if _, err := r.Pause(ctx, ada, "big0"); err != nil {
		t.Errorf("a change: %v", err)
	}
}

// TestTurns: one large check of a caller runs at a time. Others wait while their requests last.
func TestTurns(t *testing.T) {
	var all turns
	end, err := all.take(t.Context(), "ada")
	if err != nil {
		t.Fatal(err)
	}
	late, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := all.take(late, "ada"); !errors.Is(err, context.Canceled) {
		t.Errorf("a second check: %v", err)
	}
	endBob, err := all.take(late, "bob")
	if err != nil {
		t.Fatalf("another caller: %v", err)
	}
	endBob()
	next := make(chan error)
	go func() {
		end, err := all.take(t.Context(), "ada")
		if err == nil {
			end()
		}
		next <- err
	}()
	end()
	if err := <-next; err != nil || len(all.by) != 0 {
		t.Errorf("the next check: %v, %d are left", err, len(all.by))
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
