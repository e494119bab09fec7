package hub

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/precheck"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/workshop/lab"
)

// open starts a server of its own.
func open(t *testing.T, lease time.Duration) *Hub {
	t.Helper()
	e, err := Embed(t.Context(), EmbedOptions{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return dialed(t, e, lease)
}

func dialed(t *testing.T, e *Embedded, lease time.Duration) *Hub {
	t.Helper()
	h, err := Open(t.Context(), Options{Embedded: e, Lease: lease, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

func definition(name string) *service.Definition {
	return &service.Definition{Name: name, UID: "u1", Settings: "source: env:A\n", CreatedBy: "me",
		CreatedAt: time.Now().UTC()}
}

// TestDefinitions: one name is one job; of changes at the same time none is lost.
func TestDefinitions(t *testing.T) {
	h := open(t, time.Minute)
	ctx := t.Context()
	d := definition("shop.a")
	if err := h.Jobs.Create(ctx, d); err != nil {
		t.Fatal(err)
	}
	if err := h.Jobs.Create(ctx, definition("shop.a")); !errors.Is(err, ErrExists) {
		t.Fatalf("the second of a name: %v", err)
	}
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if _, err := h.Jobs.Change(ctx, "shop.a",
				func(d *service.Definition) error { d.Desired.Try++; return nil }); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	now, err := h.Jobs.Definition(ctx, "shop.a")
	if err != nil || now.Desired.Try != 10 {
		t.Fatalf("after ten changes: %+v, %v", now, err)
	}
	if _, err := h.Jobs.Change(ctx, "another",
		func(*service.Definition) error { return nil }); !errors.Is(err, ErrNotFound) {
		t.Errorf("a change of a job that is not there: %v", err)
	}
	if err := h.Jobs.Forget(ctx, d); !errors.Is(err, ErrChanged) {
		t.Errorf("a removal by an old revision: %v", err)
	}
	if err := h.Jobs.Forget(ctx, now); err != nil {
		t.Error(err)
	}
	if _, err := h.Jobs.Definition(ctx, "shop.a"); !errors.Is(err, ErrNotFound) {
		t.Errorf("after its removal: %v", err)
	}
	if err := h.Jobs.Create(ctx, definition("shop.a")); err != nil {
		t.Errorf("the name again: %v", err)
	}
}

// TestLeases: a unit has one owner; one that says nothing loses it; a late one hears so.
func TestLeases(t *testing.T) {
	const lease = time.Second
	h := open(t, lease)
	ctx := t.Context()
	first, err := h.Leases.Take(ctx, Control("a"), service.Lease{Worker: "w1", Run: "r1"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Leases.Take(ctx, Control("a"), service.Lease{Worker: "w2", Run: "r2"}); !errors.Is(err, ErrHeld) {
		t.Fatalf("a second owner: %v", err)
	}
	for range 8 { // for twice as long as it lasts
		time.Sleep(lease / 4)
		if err := first.Renew(ctx); err != nil {
			t.Fatal(err)
		}
	}
	var second *Held
	for second == nil {
		if second, err = h.Leases.Take(ctx, Control("a"), service.Lease{Worker: "w2", Run: "r2"}); err != nil &&
			!errors.Is(err, ErrHeld) {
			t.Fatal(err)
		}
		if second != nil && time.Now().Before(first.Until()) {
			t.Fatal("taken while the first has it")
		}
	}
	if err := first.Renew(ctx); !errors.Is(err, ErrHeld) {
		t.Errorf("a lost lease is renewed: %v", err)
	}
	if err := first.Release(ctx); err != nil {
		t.Error(err)
	}
	if err := second.Renew(ctx); err != nil {
		t.Errorf("another's release took it: %v", err)
	}
	if err := second.Release(ctx); err != nil {
		t.Error(err)
	}
	if _, err := h.Leases.Take(ctx, Control("a"), service.Lease{Worker: "w3", Run: "r3"}); err != nil {
		t.Errorf("after its release: %v", err)
	}
}

// TestView: what is stored is seen, a lease that has ended is seen no more.
func TestView(t *testing.T) {
	h := open(t, time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	d := definition("early")
	if err := h.Jobs.Create(ctx, d); err != nil {
		t.Fatal(err)
	}
	v := h.NewView()
	done := make(chan error, 1)
	go func() { done <- v.Run(ctx) }()
	defer func() { cancel(); <-done }()
	<-v.Loaded()
	if v.Job("early") == nil {
		t.Error("what was there before is not seen")
	}
	until := func(what string, holds func() bool) {
		t.Helper()
		for {
			changed, _ := v.Changed()
			if holds() {
				return
			}
			select {
			case <-changed:
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
				t.Fatal(what)
			}
		}
	}
	if _, err := h.Leases.Take(ctx, Control("early"), service.Lease{Worker: "w1", Run: "r1"}); err != nil {
		t.Fatal(err)
	}
	until("the lease", func() bool { return v.Job("early").Lease != nil })
	if err := h.Jobs.Report(ctx, "early", &service.Report{UID: "u1", Run: "r1", State: service.Running}); err != nil {
		t.Fatal(err)
	}
	until("the report", func() bool { j := v.Job("early"); return j.State() == service.Running })
	if err := h.Workers.Present(ctx, &service.Worker{Name: "w1"}); err != nil {
		t.Fatal(err)
	}
	until("the worker", func() bool { return len(v.Workers()) == 1 })
	until("the end of the lease", func() bool { return v.Job("early").State() == service.Waiting })
	until("the worker's end", func() bool { return len(v.Workers()) == 0 })
	if err := h.Jobs.Forget(ctx, d); err != nil {
		t.Fatal(err)
	}
	until("the removal", func() bool { return v.Job("early") == nil })
}

// TestLargeReports: a failure is stored however much there is to say about it, else the job would begin again.
func TestLargeReports(t *testing.T) {
	h := open(t, time.Second)
	long := strings.Repeat("x", 100)
	for name, r := range map[string]*service.Report{
		"checks":  {Checks: slices.Repeat([]precheck.Check{{Name: "names", Message: long}}, 20_000)},
		"error":   {Error: strings.Repeat(long, 20_000)},
		"leftOut": {Status: &job.Status{LeftOut: slices.Repeat([]string{long}, 20_000)}},
	} {
		r.State = service.Failed
		if err := h.Jobs.Report(t.Context(), name, r); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestStoreOutlivesItsProcess: what was stored is there when the server starts again,
// and two servers do not share a directory.
func TestStoreOutlivesItsProcess(t *testing.T) {
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	e, err := Embed(t.Context(), EmbedOptions{Dir: dir, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	h := dialed(t, e, time.Minute)
	if err := h.Jobs.Create(t.Context(), definition("a")); err != nil {
		t.Fatal(err)
	}
	if err := h.Audit.Note(t.Context(), &service.Change{Who: "me", What: "create", Job: "a"}); err != nil {
		t.Fatal(err)
	}
	if second, err := Embed(t.Context(), EmbedOptions{Dir: dir, Log: log}); err == nil {
		second.Close()
		t.Fatal("two servers share a directory")
	}
	h.Close()
	e.Close()
	if e, err = Embed(t.Context(), EmbedOptions{Dir: dir, Log: log}); err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	h = dialed(t, e, time.Minute)
	if d, err := h.Jobs.Definition(t.Context(), "a"); err != nil || d.Settings != definition("a").Settings {
		t.Errorf("%+v, %v", d, err)
	}
	if trail, err := h.Audit.Trail(t.Context(), "a", service.Page{Limit: 10}); err != nil || len(trail) != 1 ||
		trail[0].What != "create" {
		t.Errorf("%+v, %v", trail, err)
	}
}

// TestEmptied: a store that lost everything while others were connected is taken as it
// is: nothing of the old one is seen, all of the new one is.
func TestEmptied(t *testing.T) {
	const token = "sesame, open up"
	log := slog.New(slog.DiscardHandler)
	start := func(port int) *Embedded {
		e, err := Embed(t.Context(), EmbedOptions{Dir: t.TempDir(), Host: "127.0.0.1", Port: port, Token: token, Log: log})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		return e
	}
	port := lab.PortForTest(t)
	e := start(port)
	uri := "nats://" + e.Address()
	away, err := Open(t.Context(), Options{URI: uri, Token: token, Lease: 2 * time.Second, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	defer away.Close()
	for _, name := range []string{"a", "b", "c"} {
		if err := away.Jobs.Create(t.Context(), definition(name)); err != nil {
			t.Fatal(err)
		}
	}
	v := away.NewView()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- v.Run(ctx) }()
	defer func() { cancel(); <-done }()
	<-v.Loaded()
	held, err := away.Leases.Take(ctx, Control("a"), service.Lease{Worker: "w1", Run: "r1"})
	if err != nil {
		t.Fatal(err)
	}
	e.Close()
	h := dialed(t, start(port), 2*time.Second)
	if err := h.Jobs.Create(t.Context(), definition("d")); err != nil {
		t.Fatal(err)
	}
	for v.Job("d") == nil || v.Job("a") != nil {
		select {
		case err := <-done:
			t.Fatalf("the view ended: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
	for { // as soon as its connection is there again
		err := held.Renew(t.Context())
		if errors.Is(err, ErrHeld) {
			break
		}
		if err == nil {
			t.Fatal("a lease of the old store is renewed")
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// TestSilentHolder: a lease that the store does not take away, for its clock was set back,
// is taken once nobody has renewed it for its time, and not before.
func TestSilentHolder(t *testing.T) {
	h := open(t, time.Hour) // as the store understands it
	h.Leases.ttl = 500 * time.Millisecond
	ctx := t.Context()
	first, err := h.Leases.Take(ctx, Control("a"), service.Lease{Worker: "w1", Run: "r1"})
	if err != nil {
		t.Fatal(err)
	}
	take := func() (*Held, error) { return h.Leases.Take(ctx, Control("a"), service.Lease{Worker: "w2", Run: "r2"}) }
	for end := time.Now().Add(4 * h.Leases.ttl); time.Now().Before(end); time.Sleep(h.Leases.ttl / 20) {
		if err := first.Renew(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := take(); !errors.Is(err, ErrHeld) {
			t.Fatalf("taken from one that renews it: %v", err)
		}
	}
	var second *Held
	for end := time.Now().Add(time.Minute); second == nil; time.Sleep(h.Leases.ttl / 20) {
		if time.Now().After(end) {
			t.Fatal("the lease of one that says nothing is not taken")
		}
		if second, err = take(); err != nil && !errors.Is(err, ErrHeld) {
			t.Fatal(err)
		}
		if second != nil && time.Now().Before(first.Until()) {
			t.Fatal("taken while the first has it")
		}
	}
	if err := first.Renew(ctx); !errors.Is(err, ErrHeld) {
		t.Errorf("a lost lease is renewed: %v", err)
	}
	if err := second.Renew(ctx); err != nil {
		t.Error(err)
	}
}

// TestTrail: the newest come first, of one job or all, page by page.
func TestTrail(t *testing.T) {
	h := open(t, time.Minute)
	for _, c := range []service.Change{{What: "1", Job: "a"}, {What: "2", Job: "b"}, {What: "3"}, {What: "4", Job: "a"}} {
		if err := h.Audit.Note(t.Context(), &c); err != nil {
			t.Fatal(err)
		}
	}
	list := func(job string, before uint64, limit int) (all string, last uint64) {
		trail, err := h.Audit.Trail(t.Context(), job, service.Page{Before: before, Limit: limit})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range trail {
			all += c.What
			last = c.Seq
		}
		return all, last
	}
	if all, _ := list("a", 0, 10); all != "41" {
		t.Errorf("of a: %s", all)
	}
	all, last := list("", 0, 3)
	rest, _ := list("", last, 3)
	if all != "432" || rest != "1" {
		t.Errorf("pages %s, %s", all, rest)
	}
}
