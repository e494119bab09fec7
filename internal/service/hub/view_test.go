package hub

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/service"
)

// TestAfter: pages of jobs have all that match once, in the order of names, also after
// jobs were defined and removed.
func TestAfter(t *testing.T) {
	v := (&Hub{}).NewView()
	define := func(name string, there bool) {
		v.redefine(func() { set(&v.jobs, name, &service.Definition{Name: name}, there) })
	}
	for _, i := range []int{3, 1, 4, 0, 2, 9, 7} {
		define(fmt.Sprint("job", i), true)
	}
	pages := func(n int, match func(*service.Job) bool) (names []string) {
		for after := ""; ; {
			page := v.After(after, n, match)
			if len(page) > n {
				t.Fatalf("%d jobs where %d were asked for", len(page), n)
			}
			for _, j := range page {
				names = append(names, j.Definition.Name)
			}
			if len(page) < n {
				return names
			}
			after = page[n-1].Definition.Name
		}
	}
	all := func(*service.Job) bool { return true }
	odd := func(j *service.Job) bool { return strings.ContainsAny(j.Definition.Name, "13579") }
	want := func(have []string, want ...string) {
		t.Helper()
		if !slices.Equal(have, want) {
			t.Errorf("%v, want %v", have, want)
		}
	}
	want(pages(2, all), "job0", "job1", "job2", "job3", "job4", "job7", "job9")
	want(pages(3, odd), "job1", "job3", "job7", "job9")
	define("job3", false)
	define("job5", true)
	define("job10", true)
	want(pages(2, all), "job0", "job1", "job10", "job2", "job4", "job5", "job7", "job9")
	want(pages(1, odd), "job1", "job10", "job5", "job7", "job9")
	if page := v.After("job9", 5, all); len(page) != 0 {
		t.Errorf("after the last: %v", page)
	}
	if page := v.After("job3", 1, all); len(page) != 1 || page[0].Definition.Name != "job4" {
		t.Errorf("after one that is not there: %v", page)
	}
}

// TestWorkersHaveWhatTheyLease: a job counts as its worker's from its lease on, before the
// worker announces itself again. A drain is waited for by that.
func TestWorkersHaveWhatTheyLease(t *testing.T) {
	v := (&Hub{Leases: Leases{ttl: time.Minute}}).NewView()
	now := time.Now()
	v.change(func() {
		v.leases = map[string]heard[service.Lease]{}
		v.workers = map[string]heard[service.Worker]{"w1": {&service.Worker{Name: "w1", Jobs: []string{"b"}}, now},
			"w2": {&service.Worker{Name: "w2", Jobs: []string{}}, now}}
		for _, job := range []string{"b", "a"} {
			v.leases[Control(job)] = heard[service.Lease]{&service.Lease{Worker: "w1"}, now}
		}
		v.leases["verify.a.v"] = heard[service.Lease]{&service.Lease{Worker: "w2"}, now}
	})
	for i, want := range [][]string{{"a", "b"}, {}} {
		if w := v.Workers()[i]; !slices.Equal(w.Jobs, want) {
			t.Errorf("%s has %v, want %v", w.Name, w.Jobs, want)
		}
	}
}

// TestForeignDefinition: a definition under another job's name is passed over.
func TestForeignDefinition(t *testing.T) {
	h := open(t, time.Second)
	for _, key := range []string{"a", "b"} {
		if err := put(t.Context(), h.Jobs.definitions, key, &service.Definition{Name: "b"}); err != nil {
			t.Fatal(err)
		}
	}
	v := h.NewView()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- v.Run(ctx) }()
	<-v.Loaded()
	if list := v.Jobs(); len(list) != 1 || list[0].Definition.Name != "b" {
		t.Errorf("%+v", list)
	}
	cancel()
	<-ended
}

// TestViewEnds: a view ends with its context, at whatever moment of its start that is.
func TestViewEnds(t *testing.T) {
	h := open(t, time.Second)
	for i := range 60 {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- h.NewView().Run(ctx) }()
		time.AfterFunc(time.Duration(i)*100*time.Microsecond, cancel)
		select {
		case err := <-ended:
			if !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("a view whose context ended after %d00 µs goes on", i)
		}
	}
}
