package topology

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/millrace/millrace/internal/lab"
)

// logTo shows a controller's log with the test's.
type logTo struct{ t *testing.T }

func (l logTo) Write(p []byte) (int, error) {
	l.t.Logf("%s", p)
	return len(p), nil
}

func testLog(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(logTo{t}, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
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
			_ = pause(ctx, 10*time.Millisecond)
		}
	})
	return func() []error {
		stop()
		wg.Wait()
		_ = client.Disconnect(context.WithoutCancel(ctx))
		return failed
	}
}

// agrees says that the set has the tree that a plan for it would have now.
func agrees(t *testing.T, s *Set) bool {
	if s.Primary() == nil {
		return false
	}
	for _, m := range s.Members {
		if m.State != StatePrimary && m.State != StateSecondary {
			return false
		}
	}
	plan, err := MakePlan(s, PlanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return len(plan.Changes()) == 0
}

// The way of an operator on a real set: apply, show agrees, hold heals drift,
// a restart and an election, release leads back.
func TestControl(t *testing.T) {
	c := labSet(t)
	o := open(t, c)
	start := eventually(t, o, "a source for each secondary", func(s *Set) bool { return s.Primary() != nil && len(s.Tree()) == 4 })
	was := Remember(start)
	refused := writer(t, c)

	ctl := NewController(o, ControlOptions{Interval: 300 * time.Millisecond, Log: testLog(t)})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	plan, err := ctl.Apply(ctx)
	if err != nil {
		t.Fatal(err)
	}
	set, err := o.Observe(ctx)
	if err != nil || !agrees(t, set) {
		t.Fatalf("after apply: %v\n%s", err, picture(set, plan))
	}

	holdCtx, stop := context.WithCancelCause(t.Context())
	held := make(chan error, 1)
	holder := open(t, c)
	hold := NewController(holder, ControlOptions{Interval: 300 * time.Millisecond, Log: testLog(t)})
	go func() { held <- hold.Hold(holdCtx) }()
	stopped := errors.New("enough")
	defer stop(stopped)

	t.Run("drift", func(t *testing.T) {
		seat := plan.Seats[len(plan.Seats)-1] // a chained one goes under the primary
		if err := o.SyncFrom(t.Context(), seat.Host, plan.Primary); err != nil {
			t.Fatal(err)
		}
		eventually(t, o, "the drift", func(s *Set) bool { return s.Member(seat.Host).Source != seat.Source })
		began := time.Now()
		eventually(t, o, "the member back", func(s *Set) bool { return agrees(t, s) })
		t.Logf("healed in %v", time.Since(began))
	})
	t.Run("restart", func(t *testing.T) {
		m := member(c, plan.Seats[0].Host) // an inner node
		if err := m.Stop(); err != nil {
			t.Fatal(err)
		}
		eventually(t, o, "it down", func(s *Set) bool { return !s.Member(m.Host()).Healthy })
		if err := m.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		eventually(t, o, "the planned tree", func(s *Set) bool { return agrees(t, s) })
		t.Logf("healed in %v", time.Since(began))
	})
	t.Run("election", func(t *testing.T) {
		if err := c.StepDown(t.Context()); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		eventually(t, o, "a tree under the new primary", func(s *Set) bool { return agrees(t, s) && s.Primary().Host != plan.Primary })
		t.Logf("healed in %v", time.Since(began))
	})
	stop(stopped)
	if err := <-held; !errors.Is(err, stopped) {
		t.Errorf("hold ended with %v", err)
	}
	if s := hold.Stats(); s.Settled == 0 || s.Plans < 2 {
		t.Errorf("%+v", s)
	}

	if err := ctl.Restore(ctx, was); err != nil {
		t.Error(err)
	}
	for _, err := range refused() {
		t.Errorf("a write was refused: %v", err)
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
