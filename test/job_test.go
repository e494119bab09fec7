package test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/job"
	millmongo "github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/dial"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// waitLimit bounds the wait for any one thing that a job has to reach.
const waitLimit = 5 * time.Minute

// running is a job that runs.
type running struct {
	*job.Job
	cancel context.CancelFunc
	done   chan struct{}
	err    error // of Run, once done is closed
	log    *logTail
	// waitLimit bounds the wait for any one thing.
	waitLimit time.Duration
}

// startJob runs a job between the shared clusters, or those that spec names.
// The test waits for its end.
func startJob(t *testing.T, spec job.Spec) (*running, error) {
	if spec.Source == "" {
		spec.Source, spec.Target = shared.source.URI(), shared.target.URI()
	}
	if spec.Mode == "" {
		spec.Mode = job.ModeAll
	}
	if spec.OnExisting == "" {
		spec.OnExisting = job.ExistingFail
	}
	if spec.Capture == "" {
		spec.Capture = job.Capture(kit.Capture())
	}
	spec.AllowMissing = true // histories create what they need
	tail := &logTail{}
	spec.Log = slog.New(slog.NewTextHandler(tail, &slog.HandlerOptions{Level: slog.LevelDebug}))
	ctx, cancel := context.WithCancel(t.Context())
	j, err := job.Open(ctx, spec)
	if err != nil {
		cancel()
		return nil, err
	}
	r := &running{Job: j, cancel: cancel, done: make(chan struct{}), log: tail, waitLimit: waitLimit}
	go func() {
		defer close(r.done)
		r.err = j.Run(ctx)
	}()
	t.Cleanup(r.stop)
	return r, nil
}

// stop ends the job as a kill would, as far as the target can tell, and closes it.
func (r *running) stop() {
	r.cancel()
	<-r.done
	r.Close()
}

// phases in their order.
func phases() []job.Phase {
	return []job.Phase{
		job.PhaseStarting, job.PhaseCatalog, "creating", job.PhaseCopying, job.PhaseIndexing,
		job.PhaseOverlap, job.PhaseFollowing, job.PhaseFinalizing, job.PhaseFinalized,
	}
}

// reach waits until the job is in the phase or beyond it.
func (r *running) reach(p job.Phase) error {
	return r.until("phase "+string(p), func(s job.Status) bool {
		return slices.Index(phases(), s.Phase) >= slices.Index(phases(), p)
	})
}

// until waits for a condition of the job's status.
func (r *running) until(what string, reached func(job.Status) bool) error {
	deadline := time.After(r.waitLimit)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		s := r.Status()
		if reached(s) {
			return nil
		}
		select {
		case <-r.done:
			if s := r.Status(); r.err == nil && reached(s) {
				return nil
			}
			return r.failed(fmt.Errorf("the job ended before %s: %w", what, r.err))
		case <-deadline:
			return r.failed(fmt.Errorf("no %s within %s; the job is in phase %s, waits for %q", what, r.waitLimit, s.Phase,
				s.Waiting))
		case <-tick.C:
		}
	}
}

// caughtUp waits until everything that the source has now is applied.
func (r *running) caughtUp(ctx context.Context, source *millmongo.Cluster) error {
	pos, err := source.Positions(ctx)
	if err != nil {
		return err
	}
	return r.until("position "+pos.Last.String(), func(s job.Status) bool {
		at, err := millmongo.ParseOpTime(s.Follow.Applied)
		return err == nil && !at.Before(pos.Last)
	})
}

// finalize cuts over and waits for the job's end.
func (r *running) finalize(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.waitLimit)
	defer cancel()
	if err := r.Finalize(ctx, true); err != nil {
		return r.failed(fmt.Errorf("finalize: %w", err))
	}
	<-r.done
	return r.ended()
}

// wait waits for a job that ends by itself.
func (r *running) wait() error {
	select {
	case <-r.done:
		return r.ended()
	case <-time.After(2 * r.waitLimit):
		return r.failed(fmt.Errorf("the job did not end; it is in phase %s", r.Status().Phase))
	}
}

// ended judges a job that is over.
func (r *running) ended() error {
	if r.err != nil {
		return r.failed(r.err)
	}
	if s := r.Status(); len(s.Differences) > 0 {
		return fmt.Errorf("finalize says that the target differs: %s", strings.Join(s.Differences, "\n"))
	}
	return nil
}

// failed adds what an operator would see.
func (r *running) failed(err error) error {
	if hint := millmongo.HintOf(err); hint != "" {
		err = fmt.Errorf("%w (hint: %s)", err, hint)
	}
	return fmt.Errorf("%w\nthe job's log ends with:\n%s", err, r.log.String())
}

// logTail keeps the last lines written to it.
type logTail struct {
	mu    sync.Mutex
	lines []string
}

func (l *logTail) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(p))
	if len(l.lines) > 400 {
		l.lines = slices.Clone(l.lines[200:])
	}
	return len(p), nil
}

func (l *logTail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines[max(0, len(l.lines)-25):], "")
}

// names maps source namespaces to those of the target, read from the same
// settings as the job's rules.
type names struct{ dbs, colls map[string]string }

func newNames(renames []string) names {
	n := names{map[string]string{}, map[string]string{}}
	for _, r := range renames {
		from, to, _ := strings.Cut(r, "=")
		if strings.Contains(from, ".") {
			n.colls[from] = to
		} else {
			n.dbs[from] = to
		}
	}
	return n
}

const bucketsPrefix = "system.buckets."

func (n names) target(ns string) string {
	db, coll, _ := strings.Cut(ns, ".")
	name, buckets := strings.CutPrefix(coll, bucketsPrefix)
	to := db + "." + name
	if t, ok := n.colls[to]; ok {
		to = t
	} else if t, ok := n.dbs[db]; ok {
		to = t + "." + name
	}
	if buckets {
		db, coll, _ = strings.Cut(to, ".")
		to = db + "." + bucketsPrefix + coll
	}
	return to
}

// connect opens a cluster for the time of the test.
func connect(t *testing.T, c *lab.Cluster) *millmongo.Cluster {
	t.Helper()
	m := dial.Cluster(t, c.URI(), millmongo.Options{AppName: "test"})
	return m
}

// rulesOf are the rules of a job for all databases with a prefix.
func rulesOf(prefix string) transform.Config {
	return transform.Config{Include: []string{prefix + "*"}}
}

// newJob names a job that no earlier run of a test has begun.
func newJob(name string) string { return name + "-" + bson.NewObjectID().Hex() }
