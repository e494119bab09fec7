package hub

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/retry"
	"github.com/millrace/millrace/internal/service"
)

// View has the contents of the store in memory. It is safe for concurrent use.
type View struct {
	hub *Hub

	mu sync.Mutex
	contents
	names   []string // of jobs, sorted; nil after a change
	version uint64
	changed chan struct{} // closed and replaced at each change
	defined chan struct{} // likewise for definitions
	loaded  chan struct{} // closed after the first contents
	once    sync.Once     // closes loaded
}

type contents struct {
	jobs    map[string]*service.Definition
	reports map[string]heard[service.Report]
	leases  map[string]heard[service.Lease]
	workers map[string]heard[service.Worker]
	drains  map[string]heard[service.Drain] // by worker
	alerts  map[string]heard[service.Alert] // also ended ones
	// Requests are by job and key, reports by key.
	requests map[string]map[string]*service.VerifyRequest
	verified map[string]heard[service.VerifyReport]
}

// heard has the local time of a value: a message about the end of a lease may be lost.
type heard[T any] struct {
	of *T
	at time.Time
}

// NewView makes an empty view.
func (h *Hub) NewView() *View {
	return &View{hub: h, changed: make(chan struct{}), defined: make(chan struct{}), loaded: make(chan struct{})}
}

// Run updates the view until ctx ends. It fails if it cannot read the store at first.
func (v *View) Run(ctx context.Context) error {
	for {
		err := v.watch(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		select {
		case <-v.loaded:
		default:
			return err
		}
		if !errors.Is(err, errAnew) {
			v.hub.log.Warn("the store of the service cannot be read; trying again", "error", err)
			if err := pace.Pause(ctx, time.Second); err != nil {
				return err
			}
		} else {
			v.hub.log.Warn("the store of the service was made anew; what was known of it is forgotten",
				"hint", "jobs that are missing have to be defined again; their data and checkpoints are on their targets")
		}
		v.redefine(func() { v.contents = contents{} }) // everything is sent again
	}
}

var errAnew = errors.New("the store was made anew")

// watch returns when the store is recreated.
func (v *View) watch(ctx context.Context) error {
	id, err := v.hub.identity(ctx)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	buckets := map[jetstream.KeyValue]func(jetstream.KeyValueEntry){v.hub.Jobs.definitions: v.takeJob,
		v.hub.Jobs.reports: into(v, &v.reports), v.hub.Leases.kv: into(v, &v.leases),
		v.hub.Workers.present: into(v, &v.workers), v.hub.Workers.drains: into(v, &v.drains),
		v.hub.Alerts.kv: into(v, &v.alerts), v.hub.Verifications.kv: v.takeVerification}
	var loading atomic.Int64
	loading.Store(int64(len(buckets)))
	for kv, take := range buckets {
		g.Go(func() error {
			return v.follow(ctx, kv, take, sync.OnceFunc(func() {
				if loading.Add(-1) == 0 {
					v.once.Do(func() { close(v.loaded) })
				}
			}))
		})
	}
	g.Go(func() error {
		return retry.Every(ctx, v.hub.Leases.ttl/4, func() error {
			if now, err := v.hub.identity(ctx); err == nil && now != id {
				return errAnew
			}
			return nil
		})
	})
	return g.Wait()
}

// follow takes each change of a bucket, and calls loaded after the first contents. Watchers survive outages.
func (v *View) follow(ctx context.Context, kv jetstream.KeyValue, take func(jetstream.KeyValueEntry),
	loaded func()) error {
	w, err := kv.WatchAll(ctx)
	if err != nil {
		return fmt.Errorf("watch bucket %s: %w", kv.Bucket(), err)
	}
	defer func() { _ = w.Stop() }()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, ok := <-w.Updates():
			if !ok {
				return fmt.Errorf("watch bucket %s: it has ended", kv.Bucket())
			}
			if e != nil {
				take(e)
			} else { // the end of the first contents
				loaded()
			}
		}
	}
}

// change wakes those that wait for Changed.
func (v *View) change(do func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	do()
	v.version++
	close(v.changed)
	v.changed = make(chan struct{})
}

// redefine also wakes those that wait for Defined.
func (v *View) redefine(do func()) {
	v.change(func() {
		do()
		v.names = nil
		close(v.defined)
		v.defined = make(chan struct{})
	})
}

func set[T any](m *map[string]T, key string, value T, there bool) {
	if !there {
		delete(*m, key)
		return
	}
	if *m == nil {
		*m = map[string]T{}
	}
	(*m)[key] = value
}

// take stores a value of a bucket in the view, if it can be read.
func take[T any](v *View, m *map[string]heard[T], key string, e jetstream.KeyValueEntry) {
	one, err := read[T](e)
	v.change(func() { set(m, key, heard[T]{one, time.Now()}, err == nil) })
}

func into[T any](v *View, m *map[string]heard[T]) func(jetstream.KeyValueEntry) {
	return func(e jetstream.KeyValueEntry) { take(v, m, e.Key(), e) }
}

func (v *View) takeJob(e jetstream.KeyValueEntry) {
	d, err := read[service.Definition](e)
	if err == nil && d.Name != e.Key() { // two of a name would break what lists jobs, such as the metrics
		err = fmt.Errorf("it is of job %q", d.Name)
	}
	v.redefine(func() { set(&v.jobs, e.Key(), d, err == nil) })
	if err != nil && !errors.Is(err, ErrNotFound) {
		v.hub.log.Warn("a definition cannot be read, and its job is passed over", "job", e.Key(), "error", err)
	}
}

// Loaded is closed once the view has the first contents.
func (v *View) Loaded() <-chan struct{} { return v.loaded }

// Changed is closed at the next change. version counts changes.
func (v *View) Changed() (changed <-chan struct{}, version uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.changed, v.version
}

// Defined is closed at the next change of a definition, which is rarer than others.
func (v *View) Defined() <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.defined
}

// Job returns a job, nil if there is none. Do not change what it points to.
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
	return service.Job{Definition: *d, Report: v.reports[d.Name].of, Lease: v.lease(Control(d.Name))}
}

func (v *View) lease(unit string) *service.Lease {
	if l := v.leases[unit]; v.fresh(l.at) {
		return l.of
	}
	return nil
}

func (v *View) fresh(at time.Time) bool { return time.Since(at) < v.hub.Leases.ttl+time.Second }

// Jobs returns all jobs, by name.
func (v *View) Jobs() []service.Job {
	return v.After("", math.MaxInt, func(*service.Job) bool { return true })
}

// After returns the first n jobs after a name that match, by name. match must not keep a job or call the view.
func (v *View) After(name string, n int, match func(*service.Job) bool) []service.Job {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.names == nil {
		v.names = slices.Sorted(maps.Keys(v.jobs))
	}
	i, found := slices.BinarySearch(v.names, name)
	if found {
		i++
	}
	list := make([]service.Job, 0, min(n, len(v.names)-i))
	for _, name := range v.names[i:] {
		if len(list) == n {
			break
		}
		if j := v.job(v.jobs[name]); match(&j) {
			list = append(list, j)
		}
	}
	return list
}

// Workers returns the present workers by name, with the jobs that they report or have leases of.
func (v *View) Workers() []service.Worker {
	v.mu.Lock()
	defer v.mu.Unlock()
	leased := map[string][]string{}
	for unit, l := range v.leases {
		if job, ok := strings.CutPrefix(unit, Control("")); ok && v.fresh(l.at) {
			leased[l.of.Worker] = append(leased[l.of.Worker], job)
		}
	}
	list := []service.Worker{}
	for _, name := range slices.Sorted(maps.Keys(v.workers)) {
		if w := v.workers[name]; v.fresh(w.at) {
			one := *w.of
			one.Draining = one.Draining || v.draining(name, one.StartedAt)
			if more := leased[name]; len(more) > 0 {
				one.Jobs = append(more, one.Jobs...)
				slices.Sort(one.Jobs)
				one.Jobs = slices.Compact(one.Jobs)
			}
			list = append(list, one)
		}
	}
	return list
}

// Draining reports whether a worker that started at a time should return its jobs.
func (v *View) Draining(worker string, began time.Time) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.draining(worker, began)
}

func (v *View) draining(worker string, began time.Time) bool {
	d := v.drains[worker].of
	return d != nil && d.StartedAt.Equal(began)
}

// Control is the unit of work of a job.
func Control(job string) string { return "control." + job }
