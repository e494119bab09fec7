package operate

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
	"github.com/millrace/millrace/test/hubtest"
)

// rig is a desk over a store of its own.
type rig struct {
	*Desk
	t    *testing.T
	now  time.Time
	held *hub.Held // the lease of stands
}

// someSettings are those of a job that can be.
const someSettings = "source: env:SOURCE\ntarget: env:TARGET\nmax-rate-bytes: 5MB\n"

func start(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	h, v := hubtest.Start(t, time.Hour)
	r.Desk = &Desk{Hub: h, View: v, Now: func() time.Time { return r.now }}
	return r
}

func caller(role service.Role, jobs ...string) *service.Caller {
	return &service.Caller{Name: "ada", Role: role, Jobs: jobs, From: "192.0.2.7"}
}

// must fails the test where something was refused.
func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// until waits for what the view has late.
func (r *rig) until(has func() bool) {
	r.t.Helper()
	for ctx := r.t.Context(); ; {
		changed, _ := r.View.Changed()
		if has() {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			r.t.Fatal("the view does not get there")
		}
	}
}

// job makes one, and gives its definition.
func (r *rig) job(name string) service.Definition {
	r.t.Helper()
	j, made, err := r.Create(r.t.Context(), caller(service.Admin), service.Definition{Name: name, Settings: someSettings})
	if err != nil || !made {
		r.t.Fatalf("%v %v", made, err)
	}
	return j.Definition
}

// stands has a worker with a lease report how a job stands.
func (r *rig) stands(d service.Definition, report service.Report) {
	r.t.Helper()
	if j := r.View.Job(d.Name); j.Lease == nil {
		held, err := r.Hub.Leases.Take(r.t.Context(), hub.Control(d.Name), service.Lease{Worker: "w1", Run: "run"})
		r.must(err)
		r.held = held
	}
	report.UID, report.Run, report.Worker = d.UID, "run", "w1"
	report.At = r.now
	r.must(r.Hub.Jobs.Report(r.t.Context(), d.Name, &report))
	r.until(func() bool {
		j := r.View.Job(d.Name)
		return j.Lease != nil && j.Report != nil && j.Report.At.Equal(r.now) && j.Report.State == report.State
	})
	r.now = r.now.Add(time.Second)
}

// released has the worker release the lease.
func (r *rig) released() {
	r.t.Helper()
	r.must(r.held.Release(r.t.Context()))
}

// follows has a job follow.
func (r *rig) follows(d service.Definition) {
	r.t.Helper()
	r.stands(d, service.Report{State: service.Running, Status: &job.Status{Phase: job.PhaseFollowing}})
}

// worker announces one.
func (r *rig) worker(w service.Worker) {
	r.t.Helper()
	w.StartedAt = r.now
	r.must(r.Hub.Workers.Present(r.t.Context(), &w))
	r.until(func() bool {
		return slices.ContainsFunc(r.Workers(), func(o service.Worker) bool { return o.Name == w.Name })
	})
}

// trail is the newest entry of the audit trail.
func (r *rig) trail() service.Change {
	r.t.Helper()
	list, err := r.Trail(r.t.Context(), caller(service.Admin), "", service.Page{Limit: 1})
	if err != nil || len(list) != 1 {
		r.t.Fatalf("%v %v", list, err)
	}
	return list[0]
}

// refusedAs fails the test unless an error is a refusal with a code, whose text has a part.
func refusedAs(t *testing.T, err error, code Code, text string) {
	t.Helper()
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Code != code || !strings.Contains(e.Error(), text) {
		t.Errorf("%v, want %s with %q", err, code, text)
	}
}

// TestRoles: who has too little a role changes nothing, and the trail has it; a job that
// somebody does not see is none for them.
func TestRoles(t *testing.T) {
	r := start(t)
	ctx := t.Context()
	d := r.job("shop")
	r.follows(d)
	for what, c := range map[string]struct {
		needed service.Role
		do     func(*service.Caller) error
	}{
		"pause":  {service.Operator, func(c *service.Caller) error { _, err := r.Pause(ctx, c, "shop"); return err }},
		"resume": {service.Operator, func(c *service.Caller) error { _, err := r.Resume(ctx, c, "shop"); return err }},
		"finalize": {service.Operator, func(c *service.Caller) error {
			_, err := r.Finalize(ctx, c, "shop", true)
			return err
		}},
		"limits": {service.Operator, func(c *service.Caller) error {
			_, err := r.Limit(ctx, c, "shop", server.Limits{Docs: new(int64)})
			return err
		}},
		"verify schedule": {service.Operator, func(c *service.Caller) error {
			_, err := r.ScheduleVerifications(ctx, c, "shop", nil)
			return err
		}},
		"verify": {service.Operator, func(c *service.Caller) error {
			_, _, err := r.Verify(ctx, c, "shop", "v", service.VerifyOptions{})
			return err
		}},
		"repair": {service.Operator, func(c *service.Caller) error {
			_, _, err := r.Repair(ctx, c, "shop", "r", RepairWhat{Of: "v", All: true})
			return err
		}},
		"retry dead letters": {service.Operator, func(c *service.Caller) error {
			_, err := r.RetryLetters(ctx, c, "shop", "")
			return err
		}},
		"export dead letters": {service.Operator, func(c *service.Caller) error {
			return r.ExportLetters(ctx, c, "shop", service.LetterFilter{}, nil)
		}},
		"remove": {service.Admin, func(c *service.Caller) error { _, err := r.Remove(ctx, c, "shop"); return err }},
	} {
		for _, role := range []service.Role{service.Viewer, service.Operator} {
			if role.May(c.needed) {
				continue
			}
			refusedAs(t, c.do(caller(role)), Forbidden, "the role "+string(role))
			if e := r.trail(); e.What != what || e.Job != "shop" || e.Who != "ada" || e.From != "192.0.2.7" || e.Refused == "" {
				t.Errorf("%s by a %s: %+v", what, role, e)
			}
		}
		refusedAs(t, c.do(caller(service.Admin, "other-*")), NotFound, `no job "shop"`)
	}
	if w := r.View.Job("shop").Definition.Desired; w != (service.Desired{}) {
		t.Errorf("what was refused is wanted: %+v", w)
	}
}

// TestNames: what is no name of a job is none, and does not get into the trail.
func TestNames(t *testing.T) {
	r := start(t)
	ctx, admin := t.Context(), caller(service.Admin)
	_, err := r.Pause(ctx, admin, "no.such.*")
	refusedAs(t, err, NotFound, "no.such.*")
	_, err = r.Pause(ctx, admin, "shop")
	refusedAs(t, err, NotFound, "shop")
	_, _, err = r.Create(ctx, admin, service.Definition{Name: "a b", Settings: someSettings})
	refusedAs(t, err, Invalid, "a b")
	if list, err := r.Trail(ctx, admin, "", service.Page{Limit: 10}); err != nil || len(list) != 0 {
		t.Errorf("%v %v", list, err)
	}
}

// TestCreate: the same once more is the same job, another one of its name is refused.
func TestCreate(t *testing.T) {
	r := start(t)
	ctx, admin := t.Context(), caller(service.Admin)
	wanted := service.Definition{Name: "shop", UID: "mine", Settings: someSettings, Labels: map[string]string{"zone": "a"},
		Desired: service.Desired{Paused: true, Try: 7}}
	j, made, err := r.Create(ctx, admin, wanted)
	r.must(err)
	d := j.Definition
	if !made || d.UID == "mine" || d.UID == "" || !d.Desired.Paused || d.Desired.Try != 0 || d.CreatedBy != "ada" ||
		!d.CreatedAt.Equal(r.now) {
		t.Errorf("%v %+v", made, d)
	}
	if e := r.trail(); e.What != "create" || e.Before != nil || e.After == nil || !e.After.Paused {
		t.Errorf("%+v", e)
	}
	again, made, err := r.Create(ctx, admin, wanted)
	if err != nil || made || again.Definition.UID != d.UID {
		t.Errorf("%v %v %+v", err, made, again)
	}
	for _, other := range []service.Definition{
		{Name: "shop", Settings: someSettings + "mode: full\n", Labels: wanted.Labels},
		{Name: "shop", Settings: someSettings, Labels: map[string]string{"zone": "b"}},
	} {
		_, _, err := r.Create(ctx, admin, other)
		refusedAs(t, err, Exists, "another job")
	}
	_, err = r.Remove(ctx, admin, "shop")
	r.must(err)
	_, _, err = r.Create(ctx, admin, wanted)
	refusedAs(t, err, Exists, "another job")
	for settings, text := range map[string]string{
		strings.Repeat("#", service.MaxSettings+1): "settings take",
		"source: env:SOURCE\n":                     "target",
		someSettings + "no-such-setting: 1\n":      "no-such-setting",
	} {
		_, _, err := r.Create(ctx, admin, service.Definition{Name: "other", Settings: settings})
		refusedAs(t, err, Invalid, text)
	}
	_, _, err = r.Create(ctx, caller(service.Operator), wanted)
	refusedAs(t, err, Forbidden, "operator")
	if e := r.trail(); e.What != "create" || e.Refused == "" {
		t.Errorf("%+v", e)
	}
}

// TestWishes: what is asked for is wanted, seen at once, and noted with what it was before.
func TestWishes(t *testing.T) {
	r := start(t)
	ctx, c := t.Context(), caller(service.Operator)
	d := r.job("shop")
	j, err := r.Pause(ctx, c, "shop")
	if err != nil || !j.Definition.Desired.Paused || !r.View.Job("shop").Definition.Desired.Paused {
		t.Errorf("%v %+v", err, j)
	}
	if e := r.trail(); e.What != "pause" || e.Before.Paused || !e.After.Paused || !e.At.Equal(r.now) {
		t.Errorf("%+v", e)
	}
	j, err = r.Resume(ctx, c, "shop")
	if err != nil || j.Definition.Desired.Paused || j.Definition.Desired.Try != 0 {
		t.Errorf("%v %+v", err, j)
	}
	r.stands(d, service.Report{State: service.Failed, Error: "broken"})
	j, err = r.Resume(ctx, c, "shop")
	if err != nil || j.Definition.Desired.Try != 1 {
		t.Errorf("a job that has failed is not tried again: %v %+v", err, j)
	}
	r.stands(d, service.Report{State: service.Failed, Error: "broken", Try: 1})
	_, err = r.Edit(ctx, caller(service.Admin), service.Definition{Name: "shop", Settings: "source: env:A\nsauce: x\n"})
	refusedAs(t, err, Invalid, "sauce")
	r.released()
	j, err = r.Edit(ctx, caller(service.Admin),
		service.Definition{Name: "shop", Settings: "source: env:A\ntarget: env:A2\n"})
	if err != nil || j.Definition.Desired.Try != 2 || !strings.Contains(r.View.Job("shop").Definition.Settings, "A2") {
		t.Errorf("%v %+v", err, j)
	}
	r.stands(d, service.Report{State: service.Failed, Try: 2, Wrote: true})
	_, err = r.Edit(ctx, caller(service.Admin),
		service.Definition{Name: "shop", Settings: "source: env:A\ntarget: env:B\n"})
	refusedAs(t, err, Conflict, "its settings stay")
	_, err = r.Remove(ctx, caller(service.Admin), "shop")
	if err != nil || !r.View.Job("shop").Definition.Desired.Removed {
		t.Errorf("%v", err)
	}
}

// TestFinalize: a job that cannot be finalized now is refused, unless it is to be once it
// can; the request may be canceled until the job has begun.
func TestFinalize(t *testing.T) {
	r := start(t)
	ctx, c := t.Context(), caller(service.Operator)
	d := r.job("shop")
	finalize := func(whenCaughtUp bool) (bool, error) {
		j, err := r.Finalize(ctx, c, "shop", whenCaughtUp)
		return j != nil && j.Definition.Desired.Finalize, err
	}
	_, err := finalize(false)
	refusedAs(t, err, Conflict, "it does not run")
	r.stands(d, service.Report{State: service.Failed, Error: "broken"})
	_, err = finalize(false)
	refusedAs(t, err, Conflict, "it has failed")
	r.stands(d, service.Report{State: service.Running, Status: &job.Status{CannotFinalize: "it copies"}})
	_, err = finalize(false)
	refusedAs(t, err, Conflict, "it copies")
	if wanted, err := finalize(true); err != nil || !wanted {
		t.Errorf("%v %v", wanted, err)
	}
	j, err := r.CancelFinalize(ctx, c, "shop")
	if err != nil || j.Definition.Desired.Finalize {
		t.Errorf("%v %+v", err, j)
	}
	_, err = r.CancelFinalize(ctx, c, "shop")
	refusedAs(t, err, Conflict, "nobody has asked")
	r.follows(d)
	if wanted, err := finalize(false); err != nil || !wanted {
		t.Errorf("%v %v", wanted, err)
	}
	r.stands(d, service.Report{State: service.Running, Status: &job.Status{Phase: job.PhaseFinalizing}})
	_, err = r.CancelFinalize(ctx, c, "shop")
	refusedAs(t, err, Conflict, "has begun to finalize")
	r.stands(d, service.Report{State: service.Finished, Status: &job.Status{Phase: job.PhaseFinalized}})
	if _, err := finalize(false); err != nil {
		t.Errorf("of a finished job: %v", err)
	}
}

// TestLimit: what is left out stays as it is wished, or else as the settings have it.
func TestLimit(t *testing.T) {
	r := start(t)
	ctx, c := t.Context(), caller(service.Operator)
	r.job("shop")
	docs, negative, low, odd := int64(100), int64(-1), pace.Low, pace.Load("odd")
	j, err := r.Limit(ctx, c, "shop", server.Limits{Docs: &docs})
	r.must(err)
	if w := j.Definition.Desired; w.Limits == nil || *w.Limits != (pace.Rates{Docs: 100, Bytes: 5_000_000}) ||
		w.Loads != nil {
		t.Errorf("%+v", w.Limits)
	}
	j, err = r.Limit(ctx, c, "shop", server.Limits{Target: &low})
	r.must(err)
	if w := j.Definition.Desired; w.Limits.Docs != 100 || w.Loads == nil ||
		*w.Loads != (pace.Loads{Source: pace.Normal, Target: pace.Low}) {
		t.Errorf("%+v %+v", w.Limits, w.Loads)
	}
	for text, l := range map[string]server.Limits{"nothing is to be changed": {},
		"must not be negative": {Bytes: &negative}, "odd": {Source: &odd}} {
		_, err := r.Limit(ctx, c, "shop", l)
		refusedAs(t, err, Invalid, text)
	}
	if w := r.View.Job("shop").Definition.Desired; w.Limits.Docs != 100 || w.Loads.Source != pace.Normal {
		t.Errorf("what was refused is wanted: %+v %+v", w.Limits, w.Loads)
	}
	r.must(r.Hub.Jobs.Create(ctx, &service.Definition{Name: "long", Settings: someSettings +
		strings.Repeat("#", smallSettings)}))
	end, err := r.checking.take(ctx, c.Name)
	r.must(err)
	soon, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if _, err := r.Limit(soon, c, "long", server.Limits{Docs: &docs}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("long settings are read outside of the caller's turn: %v", err)
	}
	end()
	_, err = r.Limit(ctx, c, "long", server.Limits{Docs: &docs})
	r.must(err)
}

// TestSeen: lists have what somebody sees, and viewers learn no values of documents.
func TestSeen(t *testing.T) {
	r := start(t)
	for _, name := range []string{"shop-a", "shop-b", "till"} {
		d := r.job(name)
		r.stands(d, service.Report{State: service.Running, Error: `_id "ada": dup key`, Status: &job.Status{}})
	}
	names := func(list []service.Job) (out []string) {
		for _, j := range list {
			out = append(out, j.Definition.Name)
		}
		return out
	}
	if got := names(r.Jobs(caller(service.Viewer, "shop-*"))); !slices.Equal(got, []string{"shop-a", "shop-b"}) {
		t.Error(got)
	}
	after := r.After(caller(service.Viewer), "shop-a", 1,
		func(j *service.Job) bool { return j.Definition.Name != "shop-b" })
	if got := names(after); !slices.Equal(got, []string{"till"}) {
		t.Error(got)
	}
	for role, redacted := range map[service.Role]bool{service.Viewer: true, service.Operator: false} {
		j, err := r.Job(caller(role), "till")
		r.must(err)
		list := r.Jobs(caller(role))
		if got := j.Report.Error; strings.Contains(got, "ada") == redacted || list[2].Report.Error != got {
			t.Errorf("%s: %q %q", role, got, list[2].Report.Error)
		}
	}
	_, err := r.Job(caller(service.Viewer, "shop-*"), "till")
	refusedAs(t, err, NotFound, "till")
	_, err = r.Job(caller(service.Viewer), "none")
	refusedAs(t, err, NotFound, "none")
}

// TestTrail: the audit trail is for administrators, that of all jobs for those who see all.
func TestTrail(t *testing.T) {
	r := start(t)
	ctx := t.Context()
	r.job("shop")
	r.job("till")
	_, err := r.Trail(ctx, caller(service.Operator), "shop", service.Page{Limit: 10})
	refusedAs(t, err, Forbidden, "operator")
	_, err = r.Trail(ctx, caller(service.Admin, "shop*"), "", service.Page{Limit: 10})
	refusedAs(t, err, Forbidden, "all jobs")
	_, err = r.Trail(ctx, caller(service.Admin, "shop*"), "till", service.Page{Limit: 10})
	refusedAs(t, err, NotFound, "till")
	list, err := r.Trail(ctx, caller(service.Admin, "shop*"), "shop", service.Page{Limit: 10})
	if err != nil || len(list) != 1 || list[0].Job != "shop" || list[0].Seq == 0 {
		t.Errorf("%+v %v", list, err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := r.note(ended, caller(service.Admin), service.Change{What: "look", Job: "shop"}); err != nil ||
		r.trail().What != "look" {
		t.Errorf("what somebody did who has gone is not noted: %v", err)
	}
}

// TestDrain: administrators of all jobs drain workers that are there, and take that back.
func TestDrain(t *testing.T) {
	r := start(t)
	ctx := t.Context()
	r.worker(service.Worker{Name: "w1"})
	for _, c := range []*service.Caller{caller(service.Operator), caller(service.Admin, "shop")} {
		_, err := r.Drain(ctx, c, "w1", true)
		refusedAs(t, err, Forbidden, "")
		if e := r.trail(); e.What != "drain" || e.Worker != "w1" || e.Refused == "" {
			t.Errorf("%+v", e)
		}
	}
	_, err := r.Drain(ctx, caller(service.Admin), "w2", true)
	refusedAs(t, err, NotFound, "w2")
	for _, drain := range []bool{true, false} {
		w, err := r.Drain(ctx, caller(service.Admin), "w1", drain)
		if err != nil || w.Draining != drain {
			t.Errorf("%v %+v", err, w)
		}
		r.until(func() bool { return r.Workers()[0].Draining == drain })
		want := map[bool]string{true: "drain", false: "undrain"}[drain]
		if e := r.trail(); e.What != want || e.Worker != "w1" || e.Refused != "" {
			t.Errorf("%+v", e)
		}
	}
}

// TestPoints: a step is chosen that gives some hundred points, and one that gives too many
// is refused.
func TestPoints(t *testing.T) {
	r := start(t)
	ctx, c := t.Context(), caller(service.Viewer)
	d := r.job("shop")
	p := service.Point{From: r.now.Add(-time.Minute), To: r.now.Add(-50 * time.Second), Seconds: 10,
		Docs: service.NewAmount(50, 10)}
	r.must(r.Hub.Records.AddPoint(ctx, d.UID, "p", service.PointEvery, &p))
	curve, err := r.Points(ctx, c, "shop", service.Period{From: r.now.Add(-time.Hour), To: r.now}, 0)
	if err != nil || curve.Step != service.PointEvery || len(curve.Points) != 1 || curve.Points[0].Docs.Sum != 50 {
		t.Errorf("%+v %v", curve, err)
	}
	for text, step := range map[string]time.Duration{"whole seconds": 10500 * time.Millisecond, "at least": time.Second} {
		_, err := r.Points(ctx, c, "shop", service.Period{From: r.now.Add(-time.Hour), To: r.now}, step)
		refusedAs(t, err, Invalid, text)
	}
	_, err = r.Points(ctx, c, "shop", service.Period{From: r.now.Add(-24 * time.Hour), To: r.now}, service.PointEvery)
	refusedAs(t, err, Invalid, "more than")
	_, err = r.Points(ctx, c, "shop", service.Period{From: r.now, To: r.now}, 0)
	refusedAs(t, err, Invalid, "not before")
	for back := time.Minute; back < 20*365*24*time.Hour; back = back * 3 / 2 {
		if step := stepOf(back); back/step > MaxPoints || step%time.Second != 0 || step < service.PointEvery {
			t.Errorf("%s in steps of %s", back, step)
		}
	}
}

// TestLog: viewers have the log of a job without values of documents.
func TestLog(t *testing.T) {
	r := start(t)
	ctx := t.Context()
	d := r.job("shop")
	r.must(r.Hub.Records.AddEntry(ctx, d.UID, "e", &service.Entry{Kind: service.KindLog, Text: `refused _id "ada"`}))
	for role, redacted := range map[service.Role]bool{service.Viewer: true, service.Operator: false} {
		list, err := r.Log(ctx, caller(role), "shop", service.KindLog, service.Page{Before: 0, Limit: 10})
		if err != nil || len(list) != 1 || strings.Contains(list[0].Text, "ada") == redacted {
			t.Errorf("%s: %+v %v", role, list, err)
		}
	}
	if list, err := r.Log(ctx, caller(service.Viewer), "shop", service.KindEvent,
		service.Page{Before: 0, Limit: 10}); err != nil || len(list) != 0 {
		t.Errorf("%+v %v", list, err)
	}
	_, err := r.Log(ctx, caller(service.Viewer, "till"), "shop", "", service.Page{Before: 0, Limit: 10})
	refusedAs(t, err, NotFound, "shop")
}

// TestAlerts: those that fire, and up to a number of those that are over, of the jobs that
// somebody sees.
func TestAlerts(t *testing.T) {
	r := start(t)
	ctx := t.Context()
	for i, job := range []string{"shop", "till", "shop"} {
		a := service.Alert{ID: string('a' + rune(i)), Kind: service.AlertKinds()[i], Job: job, Text: `behind at _id "ada"`,
			FiredAt: r.now}
		r.must(r.Hub.Alerts.Set(ctx, &a))
		past := a
		at := r.now.Add(time.Duration(i) * time.Minute)
		past.ResolvedAt = &at
		r.must(r.Hub.Alerts.KeepPast(ctx, r.View, &past))
	}
	over := service.Alert{ID: "d", Kind: service.AlertNoWorker, Job: "shop", FiredAt: r.now, ResolvedAt: &r.now}
	r.must(r.Hub.Alerts.Set(ctx, &over))
	r.until(func() bool { return len(r.View.Alerts()) == 4 && len(r.View.PastAlerts()) == 3 })
	present, past := r.Alerts(caller(service.Viewer, "shop"), 1)
	if len(present) != 2 || present[0].Job != "shop" || strings.Contains(present[0].Text, "ada") || len(past) != 1 ||
		past[0].ID != "c" {
		t.Errorf("%+v %+v", present, past)
	}
	if present, past = r.Alerts(caller(service.Operator), 10); len(present) != 3 || len(past) != 3 ||
		!strings.Contains(past[0].Text, "ada") {
		t.Errorf("%+v %+v", present, past)
	}
}

// answers has a worker answer questions until the test ends.
func (r *rig) answers(worker string, answer func(service.Question) service.Answer) {
	r.t.Helper()
	hubtest.Answer(r.t, r.Hub, worker, func(question []byte) []byte {
		var q service.Question
		if err := json.Unmarshal(question, &q); err != nil {
			r.t.Error(err)
		}
		raw, err := service.PlainJSON(answer(q))
		if err != nil {
			r.t.Error(err)
		}
		return raw
	})
}

// body is an answer.
func body(v any) service.Answer {
	raw, err := json.Marshal(v)
	if err != nil {
		return service.Answer{Code: service.Trouble, Error: err.Error()}
	}
	return service.Answer{Body: raw}
}
