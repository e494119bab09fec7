package topology

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/workshop/lab"
)

// logTo shows a controller's log with the test's.
type logTo struct{ t *testing.T }

func (l logTo) Write(p []byte) (int, error) {
	l.t.Logf("%s", p)
	return len(p), nil
}

func testLog(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(logTo{t},
		&slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.String("at", time.Now().Format("05.000"))
			}
			return a
		}}))
}

// writer writes all the while with majority concern, and notes each write that
// a server refused. An election is none of the controller's doing: what the
// driver retries by itself does not count.
func writer(t *testing.T, c *lab.Cluster) (refused func() []error) {
	client, err := driver.Connect(options.Client().ApplyURI(c.URI()).SetWriteConcern(writeconcern.Majority()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var failed []error
	var wg sync.WaitGroup
	wg.Go(func() {
		coll := client.Database("topology").Collection("writes")
		for i := 0; ctx.Err() == nil; i++ {
			if _, err := coll.InsertOne(ctx, bson.D{{Key: "n", Value: i}}); err != nil && ctx.Err() == nil {
				failed = append(failed, err)
			}
			_ = pace.Pause(ctx, 10*time.Millisecond)
		}
	})
	return func() []error {
		stop()
		wg.Wait()
		_ = client.Disconnect(context.WithoutCancel(ctx))
		return failed
	}
}

// agrees says that every member is up and where the plan of ctl wants it.
func agrees(s *Set, ctl *Controller) bool {
	plan := ctl.Plan()
	if p := s.Primary(); p == nil || plan == nil || plan.Primary != p.Host || len(plan.Seats) != len(s.Members)-1 {
		return false
	}
	return maps.Equal(s.Tree(), plan.Tree()) && checkPlan(s, PlanOptions{}, plan) == nil
}

// heals waits until the set has its planned tree: within a minute.
func heals(t *testing.T, o *Observer, what string, ok func(*Set) bool) {
	t.Helper()
	began := time.Now()
	eventuallyWithin(t, o, time.Minute, what, ok)
	t.Logf("healed in %v", time.Since(began).Round(time.Millisecond))
}

// The way of an operator on a real set: apply, show agrees, hold heals drift,
// a restart and an election, release leads back.
func TestControl(t *testing.T) {
	lab.Nightly(t)
	c := labSet(t)
	o := open(t, c)
	start := eventually(t, o, "a source for each secondary",
		func(s *Set) bool { return s.Primary() != nil && len(s.Tree()) == 4 })
	was := Remember(start)
	refused := writer(t, c)

	ctl := NewController(o, ControlOptions{Interval: 300 * time.Millisecond, Log: testLog(t)})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	plan, err := ctl.Apply(ctx)
	if err != nil {
		t.Fatal(err)
	}
	set, err := o.Observe(ctx)
	if err != nil || !agrees(set, ctl) {
		t.Fatalf("after apply: %v\n%s", err, picture(set, plan))
	}

	holdCtx, stop := context.WithCancelCause(t.Context())
	held := make(chan error, 1)
	if err := o.CheckAlone(t.Context(), set); err != nil {
		t.Errorf("nobody holds the set: %v", err)
	}
	holder := open(t, c)
	holder.Announce()
	hold := NewController(holder, ControlOptions{Interval: 300 * time.Millisecond, Log: testLog(t)})
	go func() { held <- hold.Hold(holdCtx) }()
	stopped := errors.New("enough")
	defer stop(stopped)

	t.Run("another hold", func(t *testing.T) {
		eventually(t, o, "the hold to be known",
			func(s *Set) bool { return errors.Is(o.CheckAlone(t.Context(), s), ErrAnotherHold) })
		later := open(t, c)
		later.Announce()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		err := NewController(later, ControlOptions{Log: testLog(t)}).Hold(ctx)
		if !errors.Is(err, ErrAnotherHold) || mongo.HintOf(err) == "" {
			t.Errorf("a second hold ended with %v", err)
		}
	})
	t.Run("drift", func(t *testing.T) {
		heals(t, o, "the planned tree", func(s *Set) bool { return agrees(s, hold) })
		plan, before := hold.Plan(), hold.Stats().Settled
		seat := plan.Seats[len(plan.Seats)-1] // a chained one goes under the primary
		// The hold may be quicker than a look at the set; that it moved the member
		// says that there was a drift. A server may drop a source that it is told: it
		// is told again, but not while the hold moves it back.
		var told time.Time
		eventually(t, o, "the drift", func(*Set) bool {
			if time.Since(told) > 4*settle {
				told = time.Now()
				if err := o.SyncFrom(t.Context(), seat.Host, plan.Primary); err != nil {
					t.Log(err)
				}
			}
			return hold.Stats().Settled > before
		})
		heals(t, o, "the member back", func(s *Set) bool { return agrees(s, hold) })
	})
	t.Run("restart", func(t *testing.T) {
		m := member(c, plan.Seats[0].Host) // an inner node
		if err := m.Stop(); err != nil {
			t.Fatal(err)
		}
		set := eventually(t, o, "it down", func(s *Set) bool { return !s.Member(m.Host()).Healthy })
		if m := set.Member(m.Host()); m == nil || m.Asked || m.Error == "" || m.Inner() || m.AgeSeconds < 0 {
			t.Errorf("the member that is down: %+v", m)
		}
		if err := m.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		heals(t, o, "the planned tree", func(s *Set) bool { return agrees(s, hold) })
	})
	t.Run("elections", func(t *testing.T) {
		for range 3 {
			was := hold.Plan().Primary
			if err := c.StepDown(t.Context()); err != nil {
				t.Fatal(err)
			}
			heals(t, o, "a tree under the new primary", func(s *Set) bool { return agrees(s, hold) && s.Primary().Host != was })
		}
	})
	stop(stopped)
	if err := <-held; !errors.Is(err, stopped) {
		t.Errorf("hold ended with %v", err)
	}
	holder.Close()
	eventually(t, o, "nobody to hold the set", func(s *Set) bool { return o.CheckAlone(t.Context(), s) == nil })
	if s := hold.Stats(); s.Settled == 0 || s.Plans < 2 {
		t.Errorf("%+v", s)
	}

	ctx, cancel = context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if err := ctl.Restore(ctx, was); err != nil {
		t.Error(err)
	}
	for _, err := range refused() {
		t.Errorf("a write was refused: %v", err)
	}
}

// A primary that has stepped down since it was seen takes no notes; the next
// one does.
func TestNotesPass(t *testing.T) {
	o := open(t, labSet(t))
	set := eventually(t, o, "a primary", func(s *Set) bool { return s.Primary() != nil && len(s.Tree()) == 4 })
	h := session{Controller: NewController(o, ControlOptions{Log: testLog(t)})}
	for host := range set.Tree() { // a secondary
		if err := o.Notes(t.Context(), host); err == nil {
			t.Fatal("a secondary takes notes")
		}
		h.notes(t.Context(), host)
		break
	}
	if h.o.NoNotes {
		t.Error("notes are given up")
	}
}

func member(c *lab.Cluster, host string) *lab.Member {
	for _, m := range c.Members() {
		if m.Host() == host {
			return m
		}
	}
	return nil
}

// Chaining is switched by a new configuration that keeps all the rest.
func TestChaining(t *testing.T) {
	c := labSet(t)
	o := open(t, c)
	set := eventually(t, o, "a primary", func(s *Set) bool {
		return s.Primary() != nil && len(s.Tree()) == 4 && s.Chaining
	})
	p := FitPublished()
	for _, f := range CheckChaining(set, false, p) {
		if f.Stops {
			t.Errorf("%+v", f)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := o.SetChaining(ctx, set, false); err != nil {
		t.Fatal(err)
	}
	off := eventually(t, o, "all under the primary", func(s *Set) bool {
		return s.Primary() != nil && children(s.Tree())[s.Primary().Host] == 4
	})
	if off.Chaining || off.ConfigVersion != set.ConfigVersion+1 || len(off.Members) != 5 || off.ID != set.ID {
		t.Errorf("%+v", off)
	}
	if err := o.SetChaining(ctx, &Set{Members: off.Members, ConfigVersion: set.ConfigVersion}, true); err == nil {
		t.Error("an outdated observation is good enough")
	}
	if err := o.SetChaining(ctx, off, true); err != nil {
		t.Error(err)
	}
	bad := *off
	bad.Members = []Member{{Host: "a", Votes: 1, State: StatePrimary, Healthy: true}, {Host: "b", Votes: 1},
		{Host: "c", Healthy: true, State: StateStartup2, InitialSync: true}}
	stops := 0
	for _, f := range CheckChaining(&bad, true, p) {
		if f.Stops {
			stops++
		}
	}
	if stops != 2 {
		t.Errorf("%d findings stop", stops)
	}
}

// A memory survives, the first one counts, and it leads to a tree that can be.
func TestMemory(t *testing.T) {
	dir := t.TempDir()
	set := zoned(5, 0, 0, 0, 0, 0)
	set.Name, set.ID = "a/../b", ""
	for i := 1; i < 5; i++ {
		set.Members[i].Source = set.Members[i-1].Host
	}
	was, err := Remember(set).Save(dir)
	if err != nil {
		t.Fatal(err)
	}
	set.Members[2].Source = set.Members[0].Host
	again, err := Remember(set).Save(dir)
	if err != nil || again.Tree["m2:1"] != "m1:1" || again.Primary != was.Primary {
		t.Errorf("%v %+v", err, again)
	}
	if n := len(again.plan(set).Changes()); n != 1 {
		t.Errorf("%d changes lead back", n)
	}
	// Another primary: who was under the old one comes under it.
	set.Members[0].State, set.Members[1].State = StateSecondary, StatePrimary
	tree := again.plan(set).Tree()
	if err := checkTree(set, tree); err != nil || tree["m2:1"] != "m1:1" || tree["m3:1"] != "m2:1" {
		t.Errorf("%v %v", err, tree)
	}
	if err := again.Forget(dir); err != nil {
		t.Error(err)
	}
	if m, err := LoadMemory(dir, set.Name, set.ID); m != nil || err != nil {
		t.Errorf("%+v %v", m, err)
	}
}

// Plan is the current tree, nil before the first.
func (c *Controller) Plan() *Plan {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.plan
}
