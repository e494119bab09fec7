package job_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/test/kit"
)

// testFinalize: a cut-over begins where the job follows, or is wished for and can be
// taken back until it has begun.
func testFinalize(t *testing.T, s servers) {
	insert(t, s.srcDB, "cut", 1000)
	refusedAs := func(code string, err error) {
		t.Helper()
		var r *job.Refusal
		if !errors.As(err, &r) || r.Code != code || mongo.HintOf(err) == "" {
			t.Errorf("%v, want it refused as %s with a hint", err, code)
		}
	}
	spec := s.spec("cut")
	spec.Until, spec.Limits = "caught-up", pace.Rates{Bytes: 1} // the copy would take days
	j := open(t, spec)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- j.Run(ctx) }()
	defer stop()
	kit.Until(t, "the copy begins", func() bool { return j.Status().Copy.DocsTotal == 1000 })

	st := j.Status()
	if st.CanFinalize || !st.FinalizeWanted || !strings.Contains(st.CannotFinalize, "0 of about 1000 documents") {
		t.Errorf("while copying: %v %v %q", st.CanFinalize, st.FinalizeWanted, st.CannotFinalize)
	}
	refusedAs(job.CodeNotFollowing, j.Finalize(ctx, false))

	// The wish of --until and an operator's are taken back at once.
	wished := make(chan error, 1)
	go func() { wished <- j.Finalize(ctx, true) }()
	time.Sleep(50 * time.Millisecond)
	if err := j.CancelFinalize(ctx); err != nil {
		t.Fatal(err)
	}
	refusedAs(job.CodeWithdrawn, <-wished)
	refusedAs(job.CodeNotWanted, j.CancelFinalize(ctx))
	unlimited := func(r pace.Rates) {
		t.Helper()
		if err := j.SetLimits(ctx, r); err != nil {
			t.Fatal(err)
		}
	}
	unlimited(pace.Rates{})
	kit.Until(t, "the job follows", func() bool { return j.Status().Phase == job.PhaseFollowing })
	insert(t, s.srcDB, "cut", 10)
	kit.Until(t, "it goes on", func() bool { return count(t, s.targetC, "cut") == 1010 })
	if st := j.Status(); !st.CanFinalize || st.CannotFinalize != "" || st.FinalizeWanted {
		t.Errorf("while following: %v %v %q", st.CanFinalize, st.FinalizeWanted, st.CannotFinalize)
	}
	if err := j.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	refusedAs(job.CodePaused, j.Finalize(ctx, false))
	if err := j.Resume(ctx); err != nil {
		t.Fatal(err)
	}

	// What has begun is not taken back, also not after a restart.
	unlimited(pace.Rates{Docs: 1})
	insert(t, s.srcDB, "cut", 1000)
	go func() { wished <- j.Finalize(ctx, false) }()
	kit.Until(t, "it drains", func() bool { return j.Status().Phase == job.PhaseFinalizing })
	refusedAs(job.CodeDraining, j.CancelFinalize(ctx))
	stop()
	<-ended
	<-wished
	spec.Until, spec.Limits = "never", pace.Rates{Docs: 1}
	j = open(t, spec)
	ctx = t.Context()
	go func() { ended <- j.Run(ctx) }()
	kit.Until(t, "it drains again", func() bool {
		return j.Status().Phase == job.PhaseFinalizing &&
			j.Status().FinalizeWanted
	})
	refusedAs(job.CodeDraining, j.CancelFinalize(ctx))
	unlimited(pace.Rates{})
	if err := j.Finalize(ctx, false); err != nil { // it joins
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := count(t, s.targetC, "cut"); n != 2010 {
		t.Errorf("%d documents, want 2010", n)
	}
}
