package job_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/kit"
)

// TestRivals: two jobs do not write to the same names of a target unless that is
// allowed, and none drops what another has made.
func TestRivals(t *testing.T) {
	t.Parallel()
	s := start(t)
	const docs = 50
	spec := func(name string, rules transform.Config, existing job.OnExisting) job.Spec {
		spec := s.spec("")
		spec.Job, spec.Rules, spec.OnExisting, spec.Until = name, rules, existing, "never"
		return spec
	}
	in := func(pattern string) transform.Config { return transform.Config{Include: []string{pattern}} }
	whole := func(db string) {
		t.Helper()
		if n := count(t, s.targetC, db); n != docs {
			t.Errorf("the target has %d documents of %s", n, db)
		}
	}
	refused := func(name string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "of this target too") {
			t.Errorf("%s: %v", name, err)
		}
	}
	// following runs a job until it follows; the function stops it.
	following := func(j *job.Job) (stop func()) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- j.Run(ctx) }()
		kit.Until(t, j.ID()+" follows", func() bool {
			select {
			case err := <-ended:
				t.Fatalf("%s ended: %v", j.ID(), err)
			default:
			}
			return j.Status().Phase == job.PhaseFollowing
		})
		return func() { cancel(); <-ended }
	}

	t.Run("precheck", func(t *testing.T) {
		insert(t, s.srcDB, "riv", docs)
		insert(t, s.srcDB, "riw", docs)
		first := open(t, spec("first", in("riv.*"), job.ExistingFail))
		stop := following(first)
		second := func(rules transform.Config, existing job.OnExisting, allow bool) string {
			o := spec("second", rules, existing)
			o.AllowOverlap = allow
			return failing(t, open(t, o))
		}
		drop := open(t, spec("second", in("riv.c"), job.ExistingDrop)).Run(t.Context())
		var precheck *job.PrecheckError
		if !errors.As(drop, &precheck) {
			t.Errorf("%v", drop)
		}
		refused("drop", drop)
		if got := second(in("ri*"), job.ExistingMerge, false); !strings.Contains(got, "job first (phase following") {
			t.Errorf("while it runs: %q", got)
		}
		if got := second(transform.Config{Include: []string{"riw.*"}, Rename: []string{"riw=riv"}}, job.ExistingMerge,
			false); !strings.Contains(got, "riv.*") {
			t.Errorf("renamed: %q", got)
		}
		if got := second(in("riv.c"), job.ExistingMerge, true); got != "" {
			t.Errorf("a merge that is allowed: %q", got)
		}
		if got := second(in("riv.c"), job.ExistingDrop, true); !strings.Contains(got, "drops what the other has made") {
			t.Errorf("a drop that is allowed: %q", got)
		}
		if got := second(in("riw.*"), job.ExistingFail, false); got != "" {
			t.Errorf("other names: %q", got)
		}
		stop()
		if got := second(in("riv.c"), job.ExistingMerge, false); !strings.Contains(got, "stopped") {
			t.Errorf("while it is stopped: %q", got)
		}
		again := spec("first", in("riv.*"), job.ExistingFail)
		again.Until = "caught-up"
		if err := open(t, again).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		whole("riv")
		if got := second(in("riv.c"), job.ExistingMerge, false); got != "" {
			t.Errorf("when it is finalized: %q", got)
		}
	})

	// Both have passed the precheck before either can be seen.
	for _, order := range []string{"one first", "other first", "at once"} {
		t.Run(order, func(t *testing.T) {
			db := strings.ReplaceAll("rv"+order, " ", "")
			insert(t, s.srcDB, db, docs)
			jobs := []*job.Job{open(t, spec("a-"+db, in(db+".*"), job.ExistingDrop)),
				open(t, spec("b-"+db, in(db+".c"), job.ExistingDrop))}
			for _, j := range jobs {
				if got := failing(t, j); got != "" {
					t.Fatal(got)
				}
			}
			if order == "other first" {
				jobs[0], jobs[1] = jobs[1], jobs[0]
			}
			if order != "at once" {
				stop := following(jobs[0])
				refused("the second", jobs[1].Run(t.Context()))
				whole(db)
				stop()
				return
			}
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 2)
			for _, j := range jobs {
				go func() { ended <- j.Run(ctx) }()
			}
			refused("one of two", <-ended)
			kit.Until(t, "the other follows or is refused", func() bool {
				return jobs[0].Status().Phase == job.PhaseFollowing || jobs[1].Status().Phase == job.PhaseFollowing ||
					len(ended) > 0
			})
			stop()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				refused("the other", err)
				stop := following(open(t, spec("a-"+db, in(db+".*"), job.ExistingDrop))) // neither stands in the way
				stop()
			}
			whole(db)
		})
	}

	t.Run("right before the drop", func(t *testing.T) {
		insert(t, s.srcDB, "rvlate", docs)
		late := spec("late", in("rvlate.*"), job.ExistingDrop)
		following(open(t, late))()
		jobs := s.targetC.Database("millrace").Collection("jobs")
		if _, err := jobs.UpdateByID(t.Context(), "late", bson.D{{Key: "$set", Value: bson.D{{Key: "phase",
			Value: state.PhaseCreating}}}}); err != nil {
			t.Fatal(err)
		}
		rival := func(id string, phase state.Phase, of bson.ObjectID) {
			t.Helper()
			if _, err := jobs.InsertOne(t.Context(), state.Job{ID: id, Version: state.FormatVersion, Phase: phase,
				TargetSet: of, Rules: "include rvlate.c", Owner: state.Owner{Host: "elsewhere"}}); err != nil {
				t.Fatal(err)
			}
		}
		rival("rival-catalog", state.PhaseCatalog, bson.ObjectID{})
		rival("rival-copying", state.PhaseCopying, bson.ObjectID{})
		rival("rival-elsewhere", state.PhaseCopying, bson.NewObjectID()) // came with files of another target
		err := open(t, late).Run(t.Context())
		refused("late", err)
		if strings.Contains(err.Error(), "rival-catalog") || strings.Contains(err.Error(), "rival-elsewhere") {
			t.Errorf("one that has to look still, or one of another target: %v", err)
		}
		whole("rvlate")
	})
}
