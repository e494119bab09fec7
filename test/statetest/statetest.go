// Package statetest is the conformance suite of stores of package state: what
// each of them promises, one property at a time. It knows no store.
package statetest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/kit"
)

// T is what the suite needs of a testing.T, so that it can be shown to fail.
type T interface {
	Helper()
	Context() context.Context
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Setup is a kind of store, and what can happen to it.
type Setup struct {
	// Open opens the store of a job for a run, with nothing in memory.
	Open func(job, run string) state.Store
	// SetOwner puts somebody else's name into a job.
	SetOwner func(job string, o state.Owner)
	// Hold keeps writes from becoming durable until release is called.
	Hold func() (release func())
}

// Property is one promise.
type Property struct {
	Name  string
	Check func(T, Setup)
}

// Run tries all properties. Those that hold up writes come last.
func Run(t *testing.T, s Setup) {
	for _, p := range Properties() {
		t.Run(p.Name, func(t *testing.T) { p.Check(t, s) })
	}
}

// Properties are what a store promises.
func Properties() []Property {
	return []Property{
		{"a job is kept", kept},
		{"other jobs are known", others},
		{"an attempt of its own", ownAttempt},
		{"a write of another term ends the attempt", otherTerm},
		{"fences are never used again", fences},
		{"an old attempt saves nothing", oldAttempt},
		{"a run that was displaced saves nothing", displaced},
		{"a living owner is not displaced", living},
		{"a silent owner gives up before it is displaced", silent},
		{"a dead owner is displaced at once", dead},
		{"a restart resets in place", reset},
		{"what an earlier life left is cleared", cleared},
		{"slices are replaced, and dropped by prefix", slicesKept},
		{"the catalog is kept in order", catalogKept},
		{"names follow schema changes", namesKept},
		{"skipped updates are kept before the position", skippedKept},
		{"a save that breaks off loses no skipped updates", skippedBroken},
		{"what is stored was proven first", provenFirst},
	}
}

// bench is a job of its own with its store under a first attempt.
type bench struct {
	T
	Setup
	job string
	state.Store
}

func newJob() string { return "job" + state.NewRun() }

func begun(t T, s Setup) bench {
	t.Helper()
	b := bench{T: t, Setup: s, job: newJob()}
	b.Store = s.Open(b.job, state.NewRun())
	b.new(b.Store, state.Job{Phase: "first", Rules: "r"})
	b.begin(b.Store)
	return b
}

// new stores a job for the store's run.
func (b bench) new(s state.Store, job state.Job) {
	b.Helper()
	taken, err := s.TakeNew(b.Context(), job)
	if b.ok(err); !taken {
		b.Fatalf("the job exists")
	}
}

func (b bench) ok(err error) {
	b.Helper()
	if err != nil {
		b.Fatalf("%v", err)
	}
}

// begin takes the job over, at once, and begins an attempt.
func (b bench) begin(s state.Store) state.Job {
	b.Helper()
	b.take(s)
	job, err := s.Begin(b.Context())
	b.ok(err)
	return job
}

func (b bench) take(s state.Store) state.Job {
	b.Helper()
	job, err := s.TakeOver(b.Context(), func(o state.Owner) { b.Errorf("waited for %s", o) })
	b.ok(err)
	return job
}

// others: a job knows those that may have a part of the sink.
func others(t T, s Setup) {
	b, other := begun(t, s), begun(t, s)
	known := func() (phase state.Phase) {
		b.Helper()
		for _, certain := range []bool{false, true} {
			jobs, err := b.LoadOthers(b.Context(), certain)
			b.ok(err)
			phase = ""
			for _, j := range jobs {
				if j.ID == b.job {
					b.Errorf("a job is another one than itself")
				}
				if j.ID == other.job && j.Rules == "r" {
					phase = j.Phase
				}
			}
		}
		return phase
	}
	set := func(phase state.Phase) {
		b.Helper()
		other.ok(other.SaveDurably(b.Context(), bson.D{{Key: "phase", Value: phase}}))
	}
	for _, phase := range []state.Phase{state.PhaseFollowing, state.PhaseCatalog} {
		set(phase)
		if got := known(); got != phase {
			b.Errorf("one in phase %s is known as %q", phase, got)
		}
	}
	other.ok(other.Release(b.Context()))
	if got := known(); got != "" {
		b.Errorf("one that has not written and that nobody runs is known as %q", got)
	}
	other.Store = other.reopened()
	other.begin(other.Store)
	if known() == "" {
		b.Errorf("one that is about to write is not known")
	}
	set(state.PhaseFinalized)
	if got := known(); got != "" {
		b.Errorf("one that is finalized is known as %q", got)
	}
}

// reopened is the store of another process.
func (b bench) reopened() state.Store { return b.Open(b.job, state.NewRun()) }

// stored is the job as another process finds it.
func (b bench) stored() state.Job {
	b.Helper()
	job, found, err := b.reopened().Load(b.Context())
	if b.ok(err); !found {
		b.Fatalf("the job is gone")
	}
	return job
}

func phase(name string) bson.D { return bson.D{{Key: "phase", Value: name}} }

func at(sec uint32) mongo.OpTime {
	return mongo.OpTime{TS: bson.Timestamp{T: sec, I: 2}, Term: 3}
}

func doc(v any) bson.Raw { return kit.Raw(kit.D("v", v)) }

func kept(t T, s Setup) {
	unknown := s.Open(newJob(), state.NewRun())
	if _, found, err := unknown.Load(t.Context()); found || err != nil {
		t.Errorf("an unknown job: %v, %v", found, err)
	}
	if _, err := unknown.TakeOver(t.Context(), func(state.Owner) {}); err == nil {
		t.Errorf("an unknown job was taken over")
	}
	b := begun(t, s)
	if taken, err := b.reopened().TakeNew(t.Context(), state.Job{Phase: "other"}); taken || err != nil {
		t.Errorf("took what exists as new: %t, %v", taken, err)
	}
	b.ok(b.Save(t.Context(), bson.D{{Key: "applied", Value: at(7)}, {Key: "mark", Value: "m"}}))
	b.ok(b.SaveDurably(t.Context(), bson.D{{Key: "reach", Value: at(9)}}))
	b.ok(b.Note(t.Context(), bson.D{{Key: "intent", Value: at(8)}}))
	b.ok(b.Mark(t.Context(), bson.D{{Key: "paused", Value: true}}))
	job := b.stored()
	if job.ID != b.job || job.Version != state.FormatVersion || job.Phase != "first" || job.Rules != "r" ||
		job.Applied != at(7) || job.Mark != "m" ||
		job.Reach != at(9) || job.Intent != at(8) || !job.Paused {
		t.Errorf("kept as %+v", job)
	}
	beat := job.Beat
	b.ok(b.Beat(t.Context()))
	if now, found, err := b.Reload(t.Context()); err != nil || !found || now.Beat <= beat {
		t.Errorf("beat %d, then %d, %v, %v", beat, now.Beat, found, err)
	}
}

// refused wants a save to fail by itself, and nothing of it stored.
func (b bench) refused(err error, what string) {
	b.Helper()
	if err == nil || mongo.Classify(err) != mongo.ClassRetry {
		b.Errorf("%s: %v", what, err)
	}
}

func (b bench) nothingStored(when string) {
	b.Helper()
	slices, err := b.reopened().LoadSlices(b.Context())
	if job := b.stored(); err != nil || job.Phase == "untrue" || len(slices) != 0 {
		b.Errorf("stored %s: phase %q, %d slices, %v", when, job.Phase, len(slices), err)
	}
}

func ownAttempt(t T, s Setup) {
	b := bench{T: t, Setup: s, job: newJob()}
	b.Store = s.Open(b.job, state.NewRun())
	if b.Owned() == nil {
		t.Errorf("a job that nobody took is owned")
	}
	b.new(b.Store, state.Job{})
	b.take(b.Store)
	if b.Save(t.Context(), phase("untrue")) == nil || b.SameTerm(1) == nil ||
		b.SaveSlices(t.Context(), []state.Slice{{ID: "a/0", State: doc(1)}}) == nil {
		t.Errorf("saved outside of an attempt")
	}
	b.nothingStored("outside of an attempt")
	if _, err := b.Begin(t.Context()); err != nil || b.Owned() != nil || b.Save(t.Context(), phase("true")) != nil {
		t.Errorf("in an attempt: %v, %v", err, b.Owned())
	}
}

func otherTerm(t T, s Setup) {
	b := begun(t, s)
	if err := b.SameTerm(-1); err != nil {
		t.Errorf("a term that is not told: %v", err)
	}
	b.ok(b.Save(t.Context(), nil))
	b.refused(b.SameTerm(1<<40), "a write of another term")
	for range 2 { // from then on
		b.refused(b.Save(t.Context(), phase("untrue")), "save")
		b.refused(b.SaveDurably(t.Context(), phase("untrue")), "durable save")
		b.refused(b.SaveSlices(t.Context(), []state.Slice{{ID: "a/0", State: doc(1)}}), "slices")
		b.refused(b.SameTerm(-1), "the next write")
		b.nothingStored("after a write of another term")
	}
	if err := b.Beat(t.Context()); err != nil {
		t.Errorf("a beat claims nothing: %v", err)
	}
	if err := b.Mark(t.Context(), bson.D{{Key: "paused", Value: true}}); err != nil || !b.stored().Paused {
		t.Errorf("a mark says nothing of data: %v", err)
	}
	_, err := b.Begin(t.Context())
	b.ok(err)
	b.ok(b.Save(t.Context(), phase("next")))
}

func fences(t T, s Setup) {
	b := begun(t, s)
	used := []int64{b.stored().Fence}
	unused := func(what string) {
		t.Helper()
		fence := b.stored().Fence
		if fence <= slices.Max(used) {
			t.Errorf("%s: fence %d after %v", what, fence, used)
		}
		used = append(used, fence)
	}
	for range 2 {
		_, err := b.Begin(t.Context())
		b.ok(err)
		unused("the next attempt")
	}
	b.ok(b.Reset(t.Context(), state.Job{Phase: "anew"}))
	b.begin(b.Store)
	unused("the same run after a reset")
	b.ok(b.Release(t.Context()))
	b.begin(b.reopened())
	unused("another run")
}

func (b bench) fenced(s state.Store, who string) {
	b.Helper()
	for what, err := range map[string]error{"save": s.Save(b.Context(), phase("untrue")),
		"durable save": s.SaveDurably(b.Context(), phase("untrue")),
		"note":         s.Note(b.Context(), phase("untrue")),
		"slices":       s.SaveSlices(b.Context(), []state.Slice{{ID: "a/0", State: doc(1)}})} {
		if !errors.Is(err, state.ErrFenced) {
			b.Errorf("%s by %s: %v", what, who, err)
		}
	}
	b.nothingStored("by " + who)
}

func oldAttempt(t T, s Setup) {
	b := bench{T: t, Setup: s, job: newJob()}
	run := state.NewRun()
	old, now := s.Open(b.job, run), s.Open(b.job, run)
	b.new(old, state.Job{})
	b.begin(old)
	b.take(now)
	b.fenced(old, "an attempt before the job was taken over")
	_, err := now.Begin(t.Context())
	b.ok(err)
	b.fenced(old, "an old attempt")
	b.ok(now.Save(t.Context(), phase("true")))
}

func displaced(t T, s Setup) {
	b := begun(t, s)
	b.ok(b.Release(t.Context()))
	next := b.reopened()
	b.take(next)
	b.fenced(b.Store, "a displaced run")
	for what, err := range map[string]error{"beat": b.Beat(t.Context()), "mark": b.Mark(t.Context(), phase("untrue"))} {
		if !errors.Is(err, state.ErrFenced) {
			t.Errorf("%s by a displaced run: %v", what, err)
		}
	}
	if _, err := b.Begin(t.Context()); !errors.Is(err, state.ErrFenced) {
		t.Errorf("an attempt of a displaced run: %v", err)
	}
	b.nothingStored("by a displaced run")
	if err := b.Release(t.Context()); err != nil { // it has nothing to release
		t.Errorf("release: %v", err)
	}
	_, err := next.Begin(t.Context())
	b.ok(err)
	b.take(next) // once more, as after an answer that was lost
}

func living(t T, s Setup) {
	b := begun(t, s)
	owner := b.stored().Owner
	ctx, cancel := context.WithCancel(t.Context())
	beating := make(chan struct{})
	go func() {
		defer close(beating)
		for ctx.Err() == nil {
			_ = b.Beat(ctx)
			time.Sleep(20 * time.Millisecond)
		}
	}()
	waited := false
	_, err := b.reopened().TakeOver(t.Context(), func(o state.Owner) { waited = o == owner })
	if !errors.Is(err, state.ErrRunning) || !waited {
		t.Errorf("a living run of this very process: %v, waited %v", err, waited)
	}
	cancel()
	<-beating
	if err := b.Owned(); err != nil {
		t.Errorf("the owner: %v", err)
	}
	b.ok(b.Save(t.Context(), phase("true")))
}

func silent(t T, s Setup) {
	b := begun(t, s)
	waited := false
	next := b.reopened()
	if _, err := next.TakeOver(t.Context(), func(state.Owner) { waited = true }); err != nil || !waited {
		t.Fatalf("an owner without a sign of life: %v, waited %v", err, waited)
	}
	if b.Owned() == nil {
		t.Errorf("the silent owner may still write")
	}
	if err := next.Owned(); err != nil {
		t.Errorf("the taker: %v", err)
	}
	b.fenced(b.Store, "a silent owner")
}

func dead(t T, s Setup) {
	b := begun(t, s)
	gone := state.ThisProcess("gone")
	gone.Start = "1"
	s.SetOwner(b.job, gone)
	next := b.reopened()
	b.begin(next)
	if owner := b.stored().Owner; owner.Run == "gone" || owner.Run == "" {
		t.Errorf("the owner is %+v", owner)
	}
}

func reset(t T, s Setup) {
	b := begun(t, s)
	b.ok(b.Save(t.Context(), bson.D{{Key: "applied", Value: at(7)}, {Key: "mark", Value: "m"},
		{Key: "consistent", Value: at(6)}, {Key: "reach", Value: at(9)},
		{Key: "paused", Value: true},
		{Key: "refused", Value: []stream.Place{{Origin: stream.Origin{NS: "d.c"}, ID: doc(1).Lookup("v"), At: at(5)}}}}))
	b.ok(b.Note(t.Context(), bson.D{{Key: "session", Value: doc("s")}}))
	old := b.stored()
	b.ok(b.Reset(t.Context(), state.Job{Phase: "anew", Rules: "other"}))
	job := b.stored()
	if job.Phase != "anew" || job.Rules != "other" || !job.Restarted || job.Paused || len(job.Refused) != 0 ||
		job.Mark != "" ||
		!job.Applied.IsZero() || !job.Consistent.IsZero() || !job.Reach.IsZero() {
		t.Errorf("it goes on from %+v", job)
	}
	if job.Fence != old.Fence || job.Owner != old.Owner || job.Beat < old.Beat ||
		job.Session.String() != old.Session.String() {
		t.Errorf("it was another's: %+v, now %+v", old, job)
	}
	b.ok(b.Save(t.Context(), bson.D{{Key: "restarted", Value: false}}))
}

func cleared(t T, s Setup) {
	b, other := begun(t, s), begun(t, s)
	for _, one := range []bench{b, other} {
		b.ok(one.SaveSlices(t.Context(), []state.Slice{{ID: "a/0", State: doc(1)}}))
		b.ok(one.SaveCatalog(t.Context(), []state.Mapped{named("d.c", "d.c")}))
		b.ok(one.SaveSkipped(t.Context(), []stream.Place{
			{Origin: stream.Origin{NS: "d.c"}, ID: doc(1).Lookup("v"), At: at(1)}}))
	}
	b.ok(b.Clear(t.Context()))
	for _, one := range []struct {
		bench
		want int
	}{{b, 0}, {other, 1}} {
		reopened := one.reopened()
		slices, err1 := reopened.LoadSlices(t.Context())
		catalog, err2 := reopened.LoadCatalog(t.Context())
		skipped, err3 := reopened.LoadSkipped(t.Context())
		if err := errors.Join(err1, err2, err3); err != nil || len(slices) != one.want || len(catalog) != one.want ||
			len(skipped) != one.want {
			t.Errorf("%d slices, %d names, %d skipped, want %d of each, %v", len(slices), len(catalog), len(skipped), one.want,
				err)
		}
	}
}
