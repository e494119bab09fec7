// Package worker takes leases, brings jobs to their desired states, and reports. A worker that hangs or is cut off
// loses its leases. The target's fence (state.Store) makes its later writes harmless.
package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/retry"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
	"github.com/millrace/millrace/internal/service/spans"
	"github.com/millrace/millrace/internal/source/oplog"
)

// Options shape a worker.
type Options struct {
	// Name is unique per process.
	Name, Version string
	Labels        map[string]string
	// MaxJobs 0 is unlimited.
	MaxJobs int
	// SpoolDir keeps changes that oplogs may overwrite; "" is none. SpoolBytes bounds them per job.
	SpoolDir   string
	SpoolBytes int64
	Hub        *hub.Hub
	View       *hub.View
	// Access resolves what settings refer to.
	Access config.Access
	// PointEvery is the interval of points; 0 is service.PointEvery.
	PointEvery time.Duration
	// RangeBytes is the size of a range in verifications; 0 is verify's default.
	RangeBytes int64
	Spans      *spans.Spans
	Deps       job.Deps
	Log        *slog.Logger
}

// Worker runs jobs. Run is called once.
type Worker struct {
	Options
	started time.Time
	group   *errgroup.Group // of Run

	background sync.WaitGroup // work that outlasts an answer
	drafts     chan struct{}  // one per question in progress

	mu    sync.Mutex
	units map[string]*unit // by job
	seen  map[string]time.Time
	// checks are verifications by job; waits has their waiting times.
	checks   map[string]*check
	waits    map[string]time.Time
	verified time.Time       // when lookVerify ran last
	retrying map[string]bool // jobs whose dead letters are retried
	moving   bool            // a job is about to be handed over
	balance  balance         // for take alone
	ended    chan struct{}   // signals the end of a unit
}

func New(o Options) *Worker {
	o.Deps.Oplogs = &oplog.Shared{}
	return &Worker{Options: o, started: time.Now().UTC(), units: map[string]*unit{}, seen: map[string]time.Time{},
		checks: map[string]*check{}, waits: map[string]time.Time{}, retrying: map[string]bool{},
		balance: balance{tried: map[string]int{}},
		ended:   make(chan struct{}, 1), drafts: make(chan struct{}, draftsAtOnce)}
}

func (w *Worker) draining() bool { return w.View.Draining(w.Name, w.started) }

const (
	lookEvery = time.Second
	// lookPause is the least time between looks at all jobs.
	lookPause = 250 * time.Millisecond
)

// Run takes and runs jobs until ctx ends. It returns when all are released.
func (w *Worker) Run(ctx context.Context) error {
	select {
	case <-w.View.Loaded():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	var gctx context.Context
	w.group, gctx = errgroup.WithContext(ctx)
	for _, part := range []func(context.Context) error{w.present, w.take, w.answer, w.assist} {
		w.group.Go(func() error { return part(gctx) })
	}
	err := w.group.Wait()
	if errors.Is(err, errNamesake) {
		return err // the announcement is the other's
	}
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	if leaveErr := w.Hub.Workers.Leave(leaving, w.Name); leaveErr != nil {
		w.Log.Debug("the worker could not sign off", "error", leaveErr)
	}
	return err
}

func (w *Worker) present(ctx context.Context) error {
	host, _ := os.Hostname()
	var other namesake
	announce := func() error {
		if err := other.look(w); err != nil {
			return err
		}
		err := w.Hub.Workers.Present(ctx, &service.Worker{Name: w.Name, Version: w.Version, Host: host, PID: os.Getpid(),
			Labels: w.Labels, Jobs: w.Jobs(),
			MaxJobs: w.MaxJobs, Draining: w.draining(), StartedAt: w.started, At: time.Now().UTC()})
		if err != nil && ctx.Err() == nil {
			w.Log.Warn("the worker cannot be announced", "error", err)
		}
		return nil
	}
	_ = announce() // logs its errors
	return retry.Every(ctx, min(w.Hub.Lease()/5, lookEvery), announce)
}

var errNamesake = errors.New("another worker has this name")

// namesake is an earlier worker with the same name. A drain or a question would reach any of both.
type namesake struct {
	last  time.Time // announcement
	times int       // that it announced itself
}

// look returns an error if the namesake lives. What a dead one announced last counts once, or twice if it arrives late.
func (n *namesake) look(w *Worker) error {
	for _, o := range w.View.Workers() {
		if o.Name != w.Name || !o.StartedAt.Before(w.started) || o.At.Equal(n.last) {
			continue
		}
		if n.last, n.times = o.At, n.times+1; n.times > 2 {
			return mongo.WithHint(fmt.Errorf("%w: %s on host %s, process id %d", errNamesake, o.Name, o.Host, o.PID),
				"give each worker a --name of its own")
		}
	}
	return nil
}

func (w *Worker) take(ctx context.Context) error {
	for {
		changed, _ := w.View.Changed()
		looked := time.Now()
		if w.draining() {
			w.giveBack()
		} else {
			w.look(ctx)
			w.lookVerify(ctx)
			w.rebalance(ctx)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-w.ended:
		case <-changed:
			// Changes come in groups.
			if err := pace.Pause(ctx, max(20*time.Millisecond, lookPause-time.Since(looked))); err != nil {
				return err
			}
		case <-time.After(lookEvery):
		}
	}
}

func (w *Worker) giveBack() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, u := range w.units {
		u.cancel(errDrained)
	}
	for _, c := range w.checks {
		c.cancel(errDrained)
	}
}

// otherTurn is how long a job is reserved for the least loaded worker.
const otherTurn = 3 * time.Second

// look takes jobs meant for this worker, and later those that others did not take.
func (w *Worker) look(ctx context.Context) {
	jobs := w.View.Jobs()
	sharing, seen := w.sharing(jobs), map[string]time.Time{}
	for i := range jobs {
		d := &jobs[i].Definition
		forget := d.Desired.Removed && jobs[i].Lease == nil
		if w.has(d.Name) || !jobs[i].Wanted() && !forget {
			continue
		}
		seen[d.Name] = cmp.Or(w.seen[d.Name], time.Now())
		late := time.Since(seen[d.Name]) > otherTurn && w.room() && (forget || d.Fits(w.Labels))
		if to := sharing.next(d, forget); to == w.Name || late {
			w.start(ctx, *d)
		}
	}
	w.seen = seen
}

func (w *Worker) has(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.units[name] != nil
}

func (w *Worker) room() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.MaxJobs == 0 || len(w.units) < w.MaxJobs
}

func (w *Worker) start(ctx context.Context, d service.Definition) {
	if t := w.begin(ctx, hub.Control(d.Name), w.Log.With("job", d.Name)); t != nil {
		u := &unit{task: t, name: d.Name, uid: d.UID}
		lead(w, w.units, d.Name, u, u.run)
	}
}

// Jobs returns the names of the jobs that the worker runs.
func (w *Worker) Jobs() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.units))
}
