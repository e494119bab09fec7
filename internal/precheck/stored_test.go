package precheck

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// TestResume: a stored job goes on with the mode, the rules and the clusters that it began with.
func TestResume(t *testing.T) {
	set := mongo.KindReplicaSet
	at := mongo.OpTime{TS: bson.Timestamp{T: 1700000000, I: 1}, Term: 1}
	ended := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	begun := func(p *planner) state.Job {
		return state.Job{ID: "j", Mode: state.ModeAll, Rules: p.Rules.String(), SourceSet: p.Source.Info.SetID,
			TargetSet: p.Target.Info.SetID, Phase: state.PhaseFollowing, Applied: at}
	}
	for _, c := range []struct {
		name   string
		change func(*planner, *state.Job)
		want   string
	}{
		{"goes on", func(*planner, *state.Job) {}, "ok resume: continues job j in phase following at 1700000000:1"},
		{"structure", func(p *planner, _ *state.Job) { p.Mode = state.ModeStructure },
			"fail mode: job j started with --mode all"},
		{"other rules", func(_ *planner, j *state.Job) { j.Rules = "include a" },
			"fail rules: job j started with other rules"},
		{"other source", func(_ *planner, j *state.Job) { j.SourceSet = bson.ObjectID{9} },
			"fail job: job j started between other clusters"},
		{"other target", func(_ *planner, j *state.Job) { j.TargetSet = bson.ObjectID{9} },
			"fail job: job j started between other clusters"},
		{"other key", func(p *planner, j *state.Job) { p.Keys, j.Keys = &transform.Keys{}, "token:another" },
			"fail rules: job j started with another key for masks"},
		{"drops what it kept", func(p *planner, j *state.Job) {
			p.OnExisting, j.OnExisting, j.Phase = state.ExistingDrop, state.ExistingMerge, state.PhaseCreating
		}, "fail target collections: job j started with --on-existing merge"},
		{"drops still", func(p *planner, j *state.Job) {
			p.OnExisting, j.OnExisting = state.ExistingDrop, state.ExistingDrop
		}, "ok resume: continues job j in phase following at 1700000000:1"},
		{"files", func(p *planner, j *state.Job) { p.Files, j.Files = true, true },
			"ok resume: continues job j in phase following at 1700000000:1"},
		{"files as documents", func(_ *planner, j *state.Job) { j.Files = true },
			"fail copy: job j copied files and continues only with --copy files"},
		{"copied only", func(_ *planner, j *state.Job) { j.Phase, j.Ended = state.PhaseFinalized, state.ModeFull },
			"fail mode: job j ended with --mode full at 1700000000:1"},
		{"copied again", func(p *planner, j *state.Job) {
			p.Mode, j.Phase, j.Ended, j.FinalizedAt = state.ModeFull, state.PhaseFinalized, state.ModeFull, ended
		}, "ok resume: job j is finalized already, at 2026-05-01T12:00:00Z"},
		{"finalized", func(_ *planner, j *state.Job) { j.Phase, j.FinalizedAt = state.PhaseFinalized, ended },
			"ok resume: job j is finalized already, at 2026-05-01T12:00:00Z"},
	} {
		p := between(set, set)
		job := begun(p)
		c.change(p, &job)
		p.seen.job = func() (state.Job, bool, error) { return job, true, nil }
		if err := (stored{p}).resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Run(c.name, func(t *testing.T) { expect(t, p.lines(), c.want) })
		if finalized := strings.Contains(c.want, "finalized already"); (p.plan.Finalized != nil) != finalized {
			t.Errorf("%s: finalized at %v", c.name, p.plan.Finalized)
		}
		if !p.plan.Resumes || p.plan.ResumePhase != job.Phase || p.job.ID != "j" {
			t.Errorf("%s: %+v", c.name, p.plan)
		}
	}
}

// TestRestartOfARunningJob: a process that runs the job keeps it from beginning anew.
func TestRestartOfARunningJob(t *testing.T) {
	for life, want := range map[state.Life][]string{state.Running: {"fail job: cannot restart job j: db1/7 runs it"},
		state.Silent: nil, state.Finalized: nil} {
		p := between(mongo.KindReplicaSet, mongo.KindReplicaSet)
		p.Restart = true
		p.seen.job = func() (state.Job, bool, error) {
			return state.Job{ID: "j", Owner: state.Owner{Host: "db1", PID: 7}}, true, nil
		}
		p.seen.life = func() (state.Life, error) { return life, nil }
		if err := (stored{p}).resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		expect(t, p.lines(), want...)
	}
}

// TestNewJob: a job that is not stored, or begins anew, needs a position where it copies nothing.
func TestNewJob(t *testing.T) {
	for _, c := range []struct {
		mode    state.Mode
		startAt string
		fails   bool
	}{{state.ModeAll, "", false}, {state.ModeIncremental, "", true}, {state.ModeIncremental, "now", true},
		{state.ModeIncremental, "1700000000:1", false}} {
		for _, restart := range []bool{false, true} {
			p := between(mongo.KindReplicaSet, mongo.KindReplicaSet)
			p.Mode, p.StartAt, p.Restart = c.mode, c.startAt, restart
			p.seen.job = func() (state.Job, bool, error) { return state.Job{ID: "j"}, restart, nil }
			p.seen.life = func() (state.Life, error) { return state.Stopped, nil }
			if err := (stored{p}).resume(t.Context()); err != nil || p.plan.Resumes || p.plan.Checks.Failed() != c.fails {
				t.Errorf("%+v, restart %t: %v, %v", c, restart, p.lines(), err)
			}
		}
	}
}

// TestGivenShards: a job whose source has shards says which given address is of none.
func TestGivenShards(t *testing.T) {
	p := between(mongo.KindReplicaSet, mongo.KindReplicaSet)
	for _, check := range []func(stream.Position) error{nil, func(stream.Position) error { return nil }} {
		p.CheckShards = check
		if err := (stored{p}).givenShards(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	expect(t, p.lines())
	p.job.Mark = "j"
	p.CheckShards = func(at stream.Position) error {
		return mongo.WithHint(fmt.Errorf("no shard of %s", at.Mark), "leave it out")
	}
	if err := (stored{p}).givenShards(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect(t, p.lines(), "fail shards: no shard of j")
	if hint := p.plan.Checks[0].Hint; hint != "leave it out" {
		t.Errorf("%q", hint)
	}
}

// TestHistory: histories need replica sets, a copy, a target of the job's own, and no skipped conflicts.
func TestHistory(t *testing.T) {
	const set, sharded = mongo.KindReplicaSet, mongo.KindSharded
	for _, c := range []struct {
		name     string
		src, dst mongo.Kind
		change   func(*planner)
		want     []string
	}{
		{"sets", set, set, func(*planner) {}, nil},
		{"none", sharded, sharded, func(p *planner) { p.Rules, p.Skips = nil, true }, nil},
		{"sharded source", sharded, set, func(*planner) {}, []string{"fail history: the source is a sharded cluster"}},
		{"sharded target", set, sharded, func(*planner) {}, []string{"fail history: the target is a sharded cluster"}},
		{"old target", set, set, func(p *planner) { p.Target.Info.Version = mongo.Version{Major: 4, Minor: 2} },
			[]string{"fail history: the target is MongoDB 4.2.0"}},
		{"all else", set, set, func(p *planner) {
			p.Mode, p.job.OnExisting, p.Skips = state.ModeIncremental, state.ExistingMerge, true
		}, []string{"fail history: in incremental mode", "fail history: with --on-existing merge",
			"fail history: with --on-conflict skip or overwrite"}},
	} {
		p := between(c.src, c.dst).with(t, transform.Config{History: []string{"a.*"}})
		c.change(p)
		if err := (stored{p}).history(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Run(c.name, func(t *testing.T) { expect(t, p.lines(), c.want...) })
	}
}

// TestRivals: another job that leads to the same names of the target is in the way of one that begins.
func TestRivals(t *testing.T) {
	other := func(id, rules string, on state.OnExisting) state.Job {
		return state.Job{ID: id, Rules: rules, Phase: state.PhaseCopying, OnExisting: on}
	}
	text := func(include string) string {
		return between("", "").with(t, transform.Config{Include: []string{include}}).Rules.String()
	}
	shop := other("shop", text("shop.*"), "")
	for _, c := range []struct {
		name   string
		others []state.Job
		change func(*planner)
		want   []string
	}{
		{"none", nil, nil, nil},
		{"apart", []state.Job{other("crm", text("crm.*"), "")}, nil, nil},
		{"beside", []state.Job{shop}, nil,
			[]string{"fail other jobs: job shop (phase copying, stopped) has shop.* of this target too"}},
		{"unknown rules", []state.Job{other("new", "lead nowhere: x", "")}, nil, []string{"fail other jobs: job new"}},
		{"allowed", []state.Job{shop}, func(p *planner) { p.AllowOverlap = true }, []string{"warn other jobs: job shop"}},
		{"drops", []state.Job{shop}, func(p *planner) { p.AllowOverlap, p.OnExisting = true, state.ExistingDrop },
			[]string{"fail other jobs: job shop"}},
		{"is dropped", []state.Job{other("shop", text("shop.*"), state.ExistingDrop)},
			func(p *planner) { p.AllowOverlap = true }, []string{"fail other jobs: job shop"}},
		{"has begun", []state.Job{shop}, func(p *planner) { p.resumes(state.PhaseCopying) },
			[]string{"warn other jobs: job shop"}},
		{"many", []state.Job{shop, shop, shop, shop, shop}, nil, []string{"fail other jobs: job shop"}},
	} {
		p := between(mongo.KindReplicaSet, mongo.KindReplicaSet).with(t,
			transform.Config{Include: []string{"shop.*", "hr.*"}})
		p.seen.others = func() ([]state.Job, error) { return c.others, nil }
		if c.change != nil {
			c.change(p)
		}
		if err := (stored{p}).rivals(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Run(c.name, func(t *testing.T) { expect(t, p.lines(), c.want...) })
		if c.name == "many" && !strings.HasSuffix(p.lines()[0], "and 2 jobs more") {
			t.Errorf("%s", p.lines()[0])
		}
	}
}

// TestRestartOfAReversal: a job that leads back begins anew only where its loss is accepted.
func TestRestartOfAReversal(t *testing.T) {
	for _, c := range []struct {
		phase  state.Phase
		accept []string
		want   string
	}{
		{state.PhaseFollowing, nil, "fail loss: target-changes: job j has begun to lead back already (phase following)"},
		{state.PhaseFinalized, nil, "fail loss: target-changes: job j was finalized at 2026-05-01T12:00:00Z"},
		{state.PhaseFinalized, []string{"target-changes"}, "warn loss: target-changes: job j was finalized at"},
	} {
		p := between(mongo.KindReplicaSet, mongo.KindReplicaSet)
		p.Restart, p.Mode, p.StartAt, p.AcceptLoss = true, state.ModeIncremental, "job:first", c.accept
		p.seen.job = func() (state.Job, bool, error) {
			return state.Job{ID: "j", Phase: c.phase, FinalizedAt: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)}, true, nil
		}
		p.seen.life = func() (state.Life, error) { return state.Stopped, nil }
		if err := (stored{p}).resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		expect(t, p.lines(), c.want)
	}
}
