package follow

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/state"
)

// Refusal refuses a request of an operator. Code is for programs.
type Refusal struct{ Code, Text string }

func (r *Refusal) Error() string { return r.Text }

func Refuse(code, hint, format string, args ...any) error {
	return mongo.WithHint(&Refusal{code, fmt.Sprintf(format, args...)}, hint)
}

// CodeBuilding refuses a request while the source builds indexes.
const CodeBuilding = "building"

// StillBuilding refuses to finalize or to start because of index builds on the source.
func StillBuilding(what string, after time.Duration, building []schema.IndexName) error {
	return Refuse(CodeBuilding, "wait until the builds have ended, or end them with dropIndexes on the source, then "+what+
		" again; --index-wait says for how long the job waits",
		"cannot %s: after %s the source is still building %s", what, after, schema.NameAll(building))
}

// Finalize is the request to finalize a job, from an operator or the job's definition. It is safe for
// concurrent use.
type Finalize struct {
	now       func() time.Time
	mu        sync.Mutex
	wanted    bool          // as soon as possible
	at        time.Time     // not before; zero: no time
	defined   bool          // requested by the job's definition
	logged    bool          // the log contains the request
	begun     bool          // too late to withdraw
	withdrawn chan struct{} // closed and replaced when the request is withdrawn
	rejected  error         // why the job withdrew the request itself
}

// NewFinalize returns the request of a job's definition: finalize as soon as possible (wanted), or
// from a time on. logged reports that the log contains an operator's request already.
func NewFinalize(now func() time.Time, wanted bool, at time.Time, logged bool) *Finalize {
	return &Finalize{now: now, wanted: wanted, at: at, defined: wanted || !at.IsZero(), logged: logged,
		withdrawn: make(chan struct{})}
}

// due reports whether to finalize; with begin, the request can no longer be withdrawn if so.
func (r *Finalize) due(begin bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	due := r.begun || r.wanted || !r.at.IsZero() && !r.now().Before(r.at)
	r.begun = r.begun || begin && due
	return due
}

// reject withdraws an operator's request for a reason. It returns the reason, which ends the job, if
// the definition requested it or an earlier run began to finalize.
func (r *Finalize) reject(reason error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.defined || r.begun {
		return reason
	}
	r.rejected = reason
	r.takeBack()
	return nil
}

// takeBack is called under mu.
func (r *Finalize) takeBack() {
	r.wanted, r.logged, r.at = false, false, time.Time{}
	close(r.withdrawn)
	r.withdrawn = make(chan struct{})
}

// Rejection returns why the job withdrew the request itself, nil if it did not.
func (r *Finalize) Rejection() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rejected
}

// Resume continues a finalize that an earlier run began.
func (r *Finalize) Resume() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begun = true
}

// Request requests to finalize as soon as possible. withdrawn is closed when the request is withdrawn;
// isNew reports that the log does not contain it yet.
func (r *Finalize) Request() (withdrawn <-chan struct{}, isNew bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	isNew = !r.logged
	r.wanted, r.logged, r.rejected = true, true, nil
	return r.withdrawn, isNew
}

// Withdraw withdraws the request unless the job has begun to finalize. was reports that there was one.
func (r *Finalize) Withdraw() (was, begun bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was, begun = r.wanted || !r.at.IsZero(), r.begun
	if was && !begun {
		r.takeBack()
		r.defined = false
	}
	return was, begun
}

// Requested reports whether to finalize as soon as possible.
func (r *Finalize) Requested() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.wanted || r.begun
}

func (f *follower) wantFinal(ctx context.Context) error {
	if !f.finalAt.IsZero() {
		return nil
	}
	if !f.Finalize.due(false) {
		f.endBuilds()
		return nil
	}
	waited := !f.builds.since.IsZero()
	if wait, err := f.awaitBuilds(ctx); wait || err != nil || !f.Finalize.due(true) {
		return err
	}
	until := f.job.Consistent
	g, gctx := errgroup.WithContext(ctx)
	if f.Mode != state.ModeFull || waited {
		g.Go(func() (err error) {
			failpoint.Hit("final.before")
			defer failpoint.Hit("final.after")
			until, err = f.Source.Newest(gctx)
			return err
		})
	}
	g.Go(func() error { return f.enter(gctx, state.PhaseFinalizing) })
	if err := g.Wait(); err != nil {
		return err
	}
	f.finalAt = mongo.MaxOpTime(until, f.overlapEnd)
	f.phase = state.PhaseFinalizing
	f.Log.Info("finalizing", "drainTo", f.finalAt)
	return nil
}

func (f *follower) finalize(ctx context.Context) error {
	failpoint.Hit("finalize.before")
	defer failpoint.Hit("finalize.after")
	f.Letters.RetryAll()
	if err := f.endRetained(ctx); err != nil {
		return err
	}
	var waiting schema.Waiting
	err := f.step(progress.StepFinalize, "drain and build deferred indexes", "", func() (err error) {
		waiting, err = f.settle(ctx, f.compare)
		return err
	})
	if err != nil {
		return err
	}
	if waiting == (schema.Waiting{}) {
		return f.end(ctx)
	}
	if waiting.Expires {
		// From now on the target may expire documents that the source keeps: a restart must
		// not follow their changes.
		err = f.noteWith(ctx, func(set bson.D) error {
			return f.Store.SaveDurably(ctx, append(set, bson.E{Key: "expiring", Value: true}))
		})
		if err != nil {
			return err
		}
	}
	return f.expire(ctx)
}

func (f *follower) expire(ctx context.Context) error {
	failpoint.Hit("expire.before")
	err := f.step(progress.StepFinalize, "restore expiries", "", func() (err error) {
		if err = f.Schema.Expiries.Restore(ctx); err == nil {
			f.proven, err = f.Store.Prove(ctx, true)
		}
		return err
	})
	if err != nil {
		return err
	}
	failpoint.Hit("expire.after")
	err = f.step(progress.StepFinalize, "compare catalogs", "", func() error { return f.compare(ctx) })
	if err != nil {
		return err
	}
	return f.end(ctx)
}

func (f *follower) compare(ctx context.Context) (err error) {
	f.differ, err = f.Job.Compare(ctx)
	return err
}

func (f *follower) end(ctx context.Context) error {
	err := f.step(progress.StepFinalize, "end the job", "", func() error {
		return f.noteWith(ctx, func(set bson.D) error {
			return f.Job.Finish(ctx, Final{Differences: f.differ, At: f.proven, Set: set})
		})
	})
	if err != nil {
		return err
	}
	f.Log.Info("finalized", "position", f.applied().At)
	return ErrFinished
}

// sourceBuilds tracks index builds of the source before finalize: the oplog contains them only when
// they end.
type sourceBuilds struct {
	looked time.Time // last
	since  time.Time // of the first find; zero: none found
}

const looksApart = time.Second

// awaitBuilds reports that finalize must wait for index builds of the source. It rejects the finalize
// if they last longer than IndexWait.
func (f *follower) awaitBuilds(ctx context.Context) (wait bool, err error) {
	b := &f.builds
	if time.Since(b.looked) < looksApart {
		return !b.since.IsZero(), nil
	}
	colls, err := f.Source.Building(ctx, f.Rules)
	if err != nil {
		return true, err
	}
	found, err := schema.BuildingNames(colls, f.Rules)
	if err != nil {
		return true, err
	}
	b.looked = time.Now()
	if len(found) == 0 {
		f.endBuilds()
		return false, nil
	}
	names := schema.NameAll(found)
	if b.since.IsZero() {
		b.since = b.looked
		f.Log.Info("finalize waits for index builds of the source", "indexes", names)
		if f.phase == state.PhaseFollowing {
			if err := f.enter(ctx, state.PhaseFollowing); err != nil {
				return true, err
			}
		}
	}
	if lasted := b.looked.Sub(b.since); f.IndexWait > 0 && lasted >= f.IndexWait {
		f.endBuilds()
		err := StillBuilding("finalize", f.IndexWait, found)
		f.Log.Warn("finalize is rejected", "reason", err)
		return true, f.Finalize.reject(err)
	}
	f.Progress.Wait("index builds of the source to end: " + names)
	return true, nil
}

func (f *follower) endBuilds() {
	if !f.builds.since.IsZero() {
		f.Progress.Wait("")
	}
	f.builds = sourceBuilds{}
}
