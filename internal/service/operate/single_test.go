package operate

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/test/jobtest"
)

func statusIn(phase job.Phase) *job.Status { return &job.Status{Phase: phase} }

func single(ctx context.Context, s job.Status) (*Single, *jobtest.Job) {
	fake := jobtest.New(s)
	return NewSingle(ctx, fake, slog.New(slog.DiscardHandler)), fake
}

// TestSingleStands: the one job looks like one of a service, whatever it does.
func TestSingleStands(t *testing.T) {
	for want, s := range map[service.State]job.Status{
		service.Running: {Phase: job.PhaseFollowing}, service.Paused: {Phase: job.PhaseFollowing, Paused: true},
		service.Finished: {Phase: job.PhaseFinalized},
		service.Failed:   {Phase: job.PhaseFailed, Error: "broken", Hint: "mend"},
	} {
		one, _ := single(t.Context(), s)
		j, err := one.Job(caller(service.Viewer), "orders")
		if err != nil || j.State() != want || j.Report.Error != s.Error || !j.Live() {
			t.Errorf("%s: %+v %v", want, j, err)
		}
	}
	one, _ := single(t.Context(), job.Status{Phase: job.PhaseFailed, Error: `_id "ada"`})
	if j := one.After(caller(service.Viewer), "", 1, func(*service.Job) bool { return true }); len(j) != 1 ||
		j[0].Report.Error == `_id "ada"` {
		t.Errorf("a viewer sees values: %+v", j)
	}
	for _, c := range []struct {
		who   *service.Caller
		after string
		n     int
	}{{caller(service.Viewer, "till"), "", 1}, {caller(service.Viewer), "orders", 1}, {caller(service.Viewer), "", 0}} {
		if list := one.After(c.who, c.after, c.n, func(*service.Job) bool { return true }); len(list) != 0 {
			t.Errorf("%+v: %+v", c, list)
		}
	}
	_, err := one.Job(caller(service.Viewer), "till")
	refusedAs(t, err, NotFound, "till")
	changed, first := one.Changed()
	<-changed
	if _, second := one.Changed(); second == first {
		t.Error("the version stays")
	}
}

// TestSingleActs: the job is asked at once; who may not, or names another, does nothing.
func TestSingleActs(t *testing.T) {
	one, fake := single(t.Context(), job.Status{Phase: job.PhaseFollowing})
	ctx, c := t.Context(), caller(service.Operator)
	_, err := one.Pause(ctx, caller(service.Viewer), "orders")
	refusedAs(t, err, Forbidden, "viewer")
	_, err = one.Pause(ctx, c, "till")
	refusedAs(t, err, NotFound, "till")
	if got := fake.Asked(); len(got) != 0 {
		t.Error(got)
	}
	if j, err := one.Pause(ctx, c, "orders"); err != nil || j.State() != service.Paused {
		t.Errorf("%+v %v", j, err)
	}
	_, err = one.Pause(ctx, c, "orders")
	refusedAs(t, err, Failed, "it is so already")
	if e, ok := errors.AsType[*Error](err); !ok || e.Hint != "look first" {
		t.Error(err)
	}
	if j, err := one.Resume(ctx, c, "orders"); err != nil || j.State() != service.Running {
		t.Errorf("%+v %v", j, err)
	}
	for want, fails := range map[Code]error{
		Code(job.CodeNotWanted): &job.Refusal{Code: job.CodeNotWanted, Text: "nobody has asked"},
		Ended:                   mongo.Wrap(context.Canceled, "it ends"),
		Failed:                  errors.New("broken"),
	} {
		fake.CancelFails = fails
		_, err := one.CancelFinalize(ctx, c, "orders")
		refusedAs(t, err, want, "")
	}
}

// TestSingleLimit: only what is another is set.
func TestSingleLimit(t *testing.T) {
	one, fake := single(t.Context(), job.Status{Limits: pace.Rates{Docs: 7, Bytes: 8}})
	ctx, c := t.Context(), caller(service.Operator)
	_, err := one.Limit(ctx, c, "orders", server.Limits{})
	refusedAs(t, err, Invalid, "nothing is to be changed")
	docs, low := int64(9), pace.Low
	if j, err := one.Limit(ctx, c, "orders", server.Limits{Docs: &docs}); err != nil ||
		*j.Definition.Desired.Limits != (pace.Rates{Docs: 9, Bytes: 8}) {
		t.Errorf("%+v %v", j, err)
	}
	if j, err := one.Limit(ctx, c, "orders", server.Limits{Source: &low}); err != nil ||
		j.Definition.Desired.Loads.Source != low {
		t.Errorf("%+v %v", j, err)
	}
	if _, err := one.Limit(ctx, c, "orders", server.Limits{Docs: &docs}); err != nil {
		t.Error(err)
	}
	if got := fake.Asked(); !slices.Equal(got, []string{"limits", "loads"}) {
		t.Error(got)
	}
}

// TestSingleLetters: what was open and is not any more was written.
func TestSingleLetters(t *testing.T) {
	s := job.Status{}
	s.Conflicts.Open, s.Conflicts.Undecided = 3, 2
	one, fake := single(t.Context(), s)
	ctx, c := t.Context(), caller(service.Operator)
	_, err := one.RetryLetters(ctx, c, "orders", "l1")
	refusedAs(t, err, Invalid, "all open dead letters")
	if out, err := one.RetryLetters(ctx, c, "orders", ""); err != nil ||
		*out != (service.LettersRetried{Tried: 5, Written: 3, Open: 2, Done: true}) {
		t.Errorf("%+v %v", out, err)
	}
	fake.RetryFails = errors.New("broken")
	_, err = one.RetryLetters(ctx, c, "orders", "")
	refusedAs(t, err, Failed, "broken")
}

// TestSingleFinalize: all who ask for the same share one finalize, which goes on when they
// go, and ends with its process.
func TestSingleFinalize(t *testing.T) {
	ending, end := context.WithCancel(t.Context())
	defer end()
	one, fake := single(ending, job.Status{Phase: job.PhaseFollowing})
	c := caller(service.Operator)
	begun := make(chan struct{}, 1)
	fake.OnFinalize = func(ctx context.Context) error {
		begun <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}
	gone, goAway := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	asking.Go(func() {
		_, err := one.Finalize(gone, c, "orders", true)
		refusedAs(t, err, Ended, "the client went away, and finalize goes on")
	})
	<-begun
	goAway()
	asking.Wait()
	asking.Go(func() {
		_, err := one.Finalize(t.Context(), c, "orders", true)
		refusedAs(t, err, Ended, "")
	})
	end()
	asking.Wait()
	one.Wait()
	if got := len(fake.Asked()); got > 2 { // the second may have come once the first had ended
		t.Errorf("finalized %d times at once", got)
	}
	fake.OnFinalize = nil
	for range 2 { // the second is done already
		if j, err := one.Finalize(t.Context(), c, "orders", false); err != nil || j.State() != service.Finished {
			t.Errorf("%+v %v", j, err)
		}
	}
	if got := fake.Asked(); got[len(got)-1] != "finalize" || slices.Index(got, "finalize") != len(got)-1 {
		t.Error(got)
	}
}
