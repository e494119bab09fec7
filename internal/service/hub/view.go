package hub

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/service"
)

// View is what the store holds, kept up to date in memory: lists of a thousand jobs
// are answered from it. It is safe for concurrent use.
type View struct {
	hub *Hub

	mu      sync.Mutex
	jobs    map[string]*service.Definition
	reports map[string]*service.Report
	leases  map[string]leased
	workers map[string]worked
	version uint64
	changed chan struct{} // closed and replaced at each change
	loaded  chan struct{} // closed once all was read
}

// leased is a lease with the time at which it was heard of, by this process' clock:
// the store's word that it has ended may be lost.
type leased struct {
	service.Lease
	heard time.Time
}

type worked struct {
	service.Worker
	heard time.Time
}

// NewView makes a view. It is empty until Run.
func (h *Hub) NewView() *View {
	return &View{hub: h, jobs: map[string]*service.Definition{}, reports: map[string]*service.Report{}, leases: map[string]leased{},
		workers: map[string]worked{}, changed: make(chan struct{}), loaded: make(chan struct{})}
}

// Run keeps the view up to date until ctx ends.
func (v *View) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	var loading sync.WaitGroup
	follow := func(kv jetstream.KeyValue, take func(jetstream.KeyValueEntry, bool)) {
		loading.Add(1)
		g.Go(func() error { return v.follow(ctx, kv, loading.Done, take) })
	}
	follow(v.hub.jobs, v.takeJob)
	follow(v.hub.reports, v.takeReport)
	follow(v.hub.leases, v.takeLease)
	follow(v.hub.workers, v.takeWorker)
	g.Go(func() error {
		done := make(chan struct{})
		go func() { loading.Wait(); close(done) }()
		select {
		case <-done:
			close(v.loaded)
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	if err := g.Wait(); ctx.Err() == nil {
		return err
	}
	return context.Cause(ctx)
}

// follow takes each change of a bucket. A watcher goes on by itself after NATS was away.
func (v *View) follow(ctx context.Context, kv jetstream.KeyValue, loaded func(), take func(jetstream.KeyValueEntry, bool)) error {
	w, err := kv.WatchAll(ctx)
	if err != nil {
		return fmt.Errorf("watch bucket %s: %w", kv.Bucket(), err)
	}
	defer func() { _ = w.Stop() }()
	once := sync.OnceFunc(loaded)
	defer once()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, ok := <-w.Updates():
			if !ok {
				return fmt.Errorf("watch bucket %s: it has ended", kv.Bucket())
			}
			if e == nil { // all that was there
				once()
				continue
			}
			take(e, e.Operation() == jetstream.KeyValuePut)
		}
	}
}

// change is a change of the view, told to those who wait for one.
func (v *View) change(do func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	do()
	v.version++
	close(v.changed)
	v.changed = make(chan struct{})
}

func (v *View) takeJob(e jetstream.KeyValueEntry, there bool) {
	d, err := decodeDefinition(e)
	v.change(func() {
		if delete(v.jobs, e.Key()); there && err == nil {
			v.jobs[e.Key()] = d
		}
	})
	if there && err != nil {
		v.hub.log.Warn("a definition cannot be read, and its job is passed over", "error", err)
	}
}

func (v *View) takeReport(e jetstream.KeyValueEntry, there bool) {
	var r service.Report
	ok := there && json.Unmarshal(e.Value(), &r) == nil
	v.change(func() {
		if delete(v.reports, e.Key()); ok {
			v.reports[e.Key()] = &r
		}
	})
}

func (v *View) takeLease(e jetstream.KeyValueEntry, there bool) {
	var l service.Lease
	ok := there && json.Unmarshal(e.Value(), &l) == nil
	v.change(func() {
		if delete(v.leases, e.Key()); ok {
			v.leases[e.Key()] = leased{l, time.Now()}
		}
	})
}

func (v *View) takeWorker(e jetstream.KeyValueEntry, there bool) {
	var w service.Worker
	ok := there && json.Unmarshal(e.Value(), &w) == nil
	v.change(func() {
		if delete(v.workers, e.Key()); ok {
			v.workers[e.Key()] = worked{w, time.Now()}
		}
	})
}

// Loaded is closed once the view holds all that was there when it began.
func (v *View) Loaded() <-chan struct{} { return v.loaded }

// Changed is closed at the next change; version is the present one's number.
func (v *View) Changed() (changed <-chan struct{}, version uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.changed, v.version
}

// Job is one job, nil where there is none. What it points to is not to be changed.
func (v *View) Job(name string) *service.Job {
	v.mu.Lock()
	defer v.mu.Unlock()
	d := v.jobs[name]
	if d == nil {
		return nil
	}
	j := v.job(d)
	return &j
}

func (v *View) job(d *service.Definition) service.Job {
	j := service.Job{Definition: *d, Report: v.reports[d.Name]}
	if l, ok := v.leases[Control(d.Name)]; ok && v.fresh(l.heard) {
		j.Lease = &l.Lease
	}
	return j
}

// fresh reports that what was heard of then is there still.
func (v *View) fresh(heard time.Time) bool { return time.Since(heard) < v.hub.lease+time.Second }

// Jobs are all jobs, by name.
func (v *View) Jobs() []service.Job {
	v.mu.Lock()
	defer v.mu.Unlock()
	list := make([]service.Job, 0, len(v.jobs))
	for _, d := range v.jobs {
		list = append(list, v.job(d))
	}
	slices.SortFunc(list, func(a, b service.Job) int { return strings.Compare(a.Definition.Name, b.Definition.Name) })
	return list
}

// Workers are those that are there, by name.
func (v *View) Workers() []service.Worker {
	v.mu.Lock()
	defer v.mu.Unlock()
	list := []service.Worker{}
	for _, name := range slices.Sorted(maps.Keys(v.workers)) {
		if w := v.workers[name]; v.fresh(w.heard) {
			list = append(list, w.Worker)
		}
	}
	return list
}

// Control is the unit of work that is a job's control and its stream of changes.
func Control(job string) string { return "control." + job }
