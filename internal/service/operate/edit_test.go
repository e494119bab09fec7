package operate

import (
	"testing"

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
	if err != nil || j.Definition.Settings != wanted.Settings || j.Definition.Wish.Try != 1 {
		t.Errorf("after the lease: %v %+v", err, j)
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
	if r.View.Job(d.Name).Definition.Wish.Paused {
		t.Error("the refused pause is stored")
	}
}
