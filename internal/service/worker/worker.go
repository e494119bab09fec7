package worker

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/retry"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
	"github.com/millrace/millrace/internal/service/spans"
)

// Options are those of a worker.
type Options struct {
	// Name is the worker's, another one for each process.
	Name, Version string
	Labels        map[string]string
	// MaxJobs is how many it runs at once; 0 is any number.
	MaxJobs int
	// SpoolDir is where jobs keep changes that the oplog may forget, "" nowhere, and SpoolBytes bounds them for a job.
	SpoolDir   string
	SpoolBytes int64
	Hub        *hub.Hub
	View       *hub.View
	// Access gives definitions what they refer to.
	Access config.Access
	// PointEvery is how often a point of each job is written; 0 is service.PointEvery.
	PointEvery time.Duration
	// RangeBytes is how much verifications read at a time; 0 is verify's own choice.
	RangeBytes int64
	Spans      *spans.Spans
	Deps       job.Deps
	Log        *slog.Logger
}

// Worker runs jobs. Run is called once.
type Worker struct {
	Options
	started time.Time

	background sync.WaitGroup // what goes on after an answer
	drafts     chan struct{}  // has one for each question about a draft under way

	mu    sync.Mutex
	units map[string]*unit // by job
	seen  map[string]time.Time
	// checks are verifications by job, waits since when they wait for a worker.
	checks   map[string]*check
	waits    map[string]time.Time
	verified time.Time       // when verifications were looked at last
	retrying map[string]bool // jobs whose dead letters are tried again
	ended    chan struct{}   // takes a word when a unit ends
}

// New makes a worker.
func New(o Options) *Worker {
	return &Worker{Options: o, started: time.Now().UTC(), units: map[string]*unit{}, seen: map[string]time.Time{},
		checks: map[string]*check{}, waits: map[string]time.Time{}, retrying: map[string]bool{},
		ended: make(chan struct{}, 1), drafts: make(chan struct{}, draftsAtOnce)}
}

// draining reports that the worker is to take nothing more and give back what it has.
func (w *Worker) draining() bool { return w.View.Draining(w.Name, w.started) }

const (
	// lookEvery is how often the worker looks for jobs without being told of a change.
	lookEvery = time.Second
	// lookPause is the least time between two looks: jobs report often, and a look is at all of them.
	lookPause = 250 * time.Millisecond
)

// Run takes jobs and runs them until ctx ends. It returns when all have let go.
func (w *Worker) Run(ctx context.Context) error {
	select {
	case <-w.View.Loaded():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return w.present(gctx) })
	g.Go(func() error { return w.take(gctx, g) })
	g.Go(func() error { return w.answer(gctx) })
	g.Go(func() error { return w.assist(gctx) })
	err := g.Wait()
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	if leaveErr := w.Hub.Workers.Leave(leaving, w.Name); leaveErr != nil {
		w.Log.Debug("leave not told", "error", leaveErr)
	}
	return err
}

// present says that the worker is there, again and again.
func (w *Worker) present(ctx context.Context) error {
	host, _ := os.Hostname()
	announce := func() error {
		err := w.Hub.Workers.Present(ctx, &service.Worker{Name: w.Name, Version: w.Version, Host: host, PID: os.Getpid(),
			Labels: w.Labels, Jobs: w.Jobs(),
			MaxJobs: w.MaxJobs, Draining: w.draining(), StartedAt: w.started, At: time.Now().UTC()})
		if err != nil && ctx.Err() == nil {
			w.Log.Warn("the worker cannot be announced", "error", err)
		}
		return nil
	}
	_ = announce() // logs its error
	return retry.Every(ctx, min(w.Hub.Lease()/5, lookEvery), announce)
}

// take looks for jobs that nobody runs, whenever something changes.
func (w *Worker) take(ctx context.Context, g *errgroup.Group) error {
	for {
		changed, _ := w.View.Changed()
		looked := time.Now()
		if w.draining() {
			w.giveBack()
		} else {
			w.look(ctx, g)
			w.lookVerify(ctx, g)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-w.ended:
		case <-changed:
			// One change seldom comes alone.
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

// otherTurn is how long a job is left to the worker that is to have it.
const otherTurn = 3 * time.Second

// look takes the jobs meant for this worker, and late those meant for others.
func (w *Worker) look(ctx context.Context, g *errgroup.Group) {
	jobs := w.View.Jobs()
	sharing, seen := w.sharing(jobs), map[string]time.Time{}
	for i := range jobs {
		d := &jobs[i].Definition
		forget := d.Wish.Removed && jobs[i].Lease == nil
		if w.has(d.Name) || !jobs[i].Wanted() && !forget {
			continue
		}
		seen[d.Name] = cmp.Or(w.seen[d.Name], time.Now())
		late := time.Since(seen[d.Name]) > otherTurn && w.room() && (forget || d.Fits(w.Labels))
		if to := sharing.next(d, forget); to == w.Name || late {
			w.start(ctx, g, *d)
		}
	}
	w.seen = seen
}

func (w *Worker) has(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.units[name] != nil
}

// room reports whether the worker may run one more.
func (w *Worker) room() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.MaxJobs == 0 || len(w.units) < w.MaxJobs
}

// sharing gives jobs to workers. Workers that see the same come to the same result.
type sharing struct {
	workers []service.Worker
	loads   map[string]int
}

func (w *Worker) sharing(jobs []service.Job) *sharing {
	s := &sharing{loads: map[string]int{}}
	for _, o := range w.View.Workers() {
		if o.Name != w.Name && !o.Draining {
			s.workers = append(s.workers, o)
		}
	}
	s.workers = append(s.workers, service.Worker{Name: w.Name, Labels: w.Labels, MaxJobs: w.MaxJobs})
	for i := range jobs {
		if l := jobs[i].Lease; l != nil {
			s.loads[l.Worker]++
		}
	}
	s.loads[w.Name] = len(w.Jobs())
	return s
}

// next returns the fitting worker with room and the fewest jobs, "" for none. Any worker can remove a job.
func (s *sharing) next(d *service.Definition, forget bool) string {
	best := ""
	for _, o := range s.workers {
		n := s.loads[o.Name]
		if !forget && !d.Fits(o.Labels) || o.MaxJobs > 0 && n >= o.MaxJobs {
			continue
		}
		if best == "" || n < s.loads[best] || n == s.loads[best] && o.Name < best {
			best = o.Name
		}
	}
	if best != "" {
		s.loads[best]++
	}
	return best
}

// start takes a job, unless somebody else is faster.
func (w *Worker) start(ctx context.Context, g *errgroup.Group, d service.Definition) {
	t := w.begin(ctx, hub.Control(d.Name), w.Log.With("job", d.Name))
	if t == nil {
		return
	}
	u := &unit{task: t, name: d.Name, uid: d.UID}
	w.mu.Lock()
	w.units[d.Name] = u
	w.mu.Unlock()
	w.run(g, u.run, func() { delete(w.units, d.Name) })
}

// lookAgain has the worker look for work without being told of a change.
func (w *Worker) lookAgain() {
	select {
	case w.ended <- struct{}{}:
	default:
	}
}

// Jobs are the names of those that the worker runs.
func (w *Worker) Jobs() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.units))
}
