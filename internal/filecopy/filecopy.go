// Package filecopy runs a job whose copy is by files. Agents on the target's hosts make a new replica set of the
// source's files, then an ordinary job follows the source from their position. It stores nothing itself: the agents
// have their orders on disk, and the new set has its position.
package filecopy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/copy"
	"github.com/millrace/millrace/internal/follow"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/seed"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// Options name the agents.
type Options struct {
	Source  string   // address of the agent of a member of the source
	Targets []string // addresses of the agents of the new set's members
	// Connect makes a client of an agent.
	Connect func(address string) (*seed.Client, error)
}

// Job makes a set by files, and then runs a job on it. Run is called once. Other methods are safe for concurrent
// use with it, except Plan, which comes before.
type Job struct {
	spec     job.Spec
	o        Options
	rules    *transform.Set
	set      string // name of the new set
	log      *slog.Logger
	source   *mongo.Cluster
	agent    *seed.Client // of the source
	targets  []*target
	progress *progress.Progress
	plan     *job.Plan
	bytes    int64 // of the source's files
	done     chan struct{}

	mu     sync.Mutex
	inner  *job.Job // once the set is there
	opened chan struct{}
	paused bool
	asked  bool // an operator has paused or resumed
}

// target is one member of the new set.
type target struct {
	*seed.Client
	address string
	state   *seed.HostState // nil while it does not answer
	err     error
}

// Open connects the source. It writes nothing.
func Open(ctx context.Context, spec job.Spec, o Options) (_ *Job, err error) {
	spec.SetDefaults()
	j := &Job{spec: spec, o: o, log: spec.Log, opened: make(chan struct{}), done: make(chan struct{})}
	if j.rules, err = transform.New(spec.Rules); err != nil {
		return nil, err
	}
	uri, err := mongo.ParseURI(spec.Target)
	if err != nil {
		return nil, mongo.Wrap(err, "target")
	}
	if uri.ReplicaSet == nil {
		return nil, errors.New("target: the connection string has no replicaSet=")
	}
	j.set = *uri.ReplicaSet
	j.spec.Job = cmp.Or(spec.Job, seed.FollowJob(j.set))
	defer func() {
		if err != nil {
			j.Close()
		}
	}()
	if j.agent, err = o.Connect(o.Source); err != nil {
		return nil, err
	}
	for _, address := range o.Targets {
		c, err := o.Connect(address)
		if err != nil {
			return nil, err
		}
		j.targets = append(j.targets, &target{Client: c, address: address})
	}
	if j.source, err = spec.Connect(ctx, spec.Source, mongo.Options{AppName: "millrace-source"}); err != nil {
		return nil, mongo.Wrap(err, "source")
	}
	j.progress = progress.New(progress.Options{Job: j.spec.Job, Source: j.source.Address(),
		Target: mongo.Redact(spec.Target), Now: spec.Now, Usage: spec.Usage, OnEvent: spec.OnEvent,
		ReadFrom: func(p stream.Position) (mongo.OpTime, error) { return p.At, nil }})
	return j, nil
}

// Close disconnects. Run must have returned.
func (j *Job) Close() {
	if j.inner != nil {
		j.inner.Close()
	}
	if j.source != nil {
		j.source.Close()
	}
	if j.agent != nil {
		j.agent.Close()
	}
	for _, t := range j.targets {
		t.Close()
	}
}

// Run makes the set, then runs the job until it is finalized (nil), ctx ends, or something fails for good.
func (j *Job) Run(ctx context.Context) (err error) {
	defer close(j.done)
	if j.plan == nil {
		if j.plan, err = j.Plan(ctx); err != nil {
			return err
		}
		if j.plan.Checks.Failed() {
			return &job.PrecheckError{Plan: j.plan}
		}
	}
	if j.running() == nil {
		if err = j.transfer(ctx); err == nil {
			err = j.open(ctx)
		}
		if err != nil {
			if ctx.Err() == nil {
				j.progress.Fail(err)
			}
			return err
		}
	}
	if err := j.running().Run(ctx); err != nil {
		return err
	}
	j.Finish(ctx)
	return nil
}

// open opens the job on the new set.
func (j *Job) open(ctx context.Context) error {
	f, err := j.formed(ctx)
	if err != nil {
		return err
	}
	if f.By != nil && !f.By.SameContent(j.content()) {
		return mongo.WithHint(errors.New("the new set was made with other rules or users"),
			"use the same --include, --exclude and --users as at the beginning")
	}
	for _, t := range j.targets {
		if f.By != nil && t.state != nil && t.state.Order != nil && t.state.Order.Formation.ID != f.By.ID {
			return mongo.WithHint(fmt.Errorf("the set at --target is not the one that the agent %s makes: another mongod "+
				"listens at %s", t.address, t.state.Own.Host), "end that mongod; the agent then starts its own")
		}
	}
	at := f.At
	j.mu.Lock()
	was := j.spec
	j.mu.Unlock()
	spec := was
	spec.Mode, spec.StartAt, spec.FilesAt = job.ModeIncremental, at.String(), at
	inner, err := job.Open(ctx, spec)
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.inner = inner
	j.progress.Enter(state.PhaseOverlap) // the job's progress shows it
	if j.asked && j.paused {
		_ = inner.Pause(ctx) // its error is that of ctx
	}
	if j.spec.Limits != was.Limits { // an operator has changed them meanwhile
		_ = inner.SetLimits(ctx, j.spec.Limits)
	}
	close(j.opened)
	return nil
}

// formed reads how the new set was made.
func (j *Job) formed(ctx context.Context) (f seed.Formed, err error) {
	c, err := j.spec.Connect(ctx, j.spec.Target, mongo.Options{AppName: "millrace-files"})
	if err != nil {
		return f, mongo.Wrap(err, "target")
	}
	defer c.Close()
	err = c.Client.Database(mongo.StateDB).Collection(seed.FormCollection).
		FindOne(ctx, bson.D{{Key: "_id", Value: j.spec.Job}}).Decode(&f)
	if err != nil {
		return f, mongo.WithHint(fmt.Errorf("cannot read the position of the files of job %s on the target: %w",
			j.spec.Job, err), "check that --target names the set that the agents make, and --job is the same as before")
	}
	return f, nil
}

func (j *Job) running() *job.Job {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.inner
}

// Status returns the status of the copy, then that of the job.
func (j *Job) Status() job.Status {
	own := j.progress.Status(func(mongo.OpTime) mongo.OpTime { return mongo.OpTime{} })
	inner := j.running()
	if inner == nil {
		j.mu.Lock()
		defer j.mu.Unlock()
		own.Job, own.Paused, own.Limits = j.spec.Job, j.paused, j.spec.Limits
		own.Load = progress.Load{Loads: j.spec.Loads}
		own.FinalizeWanted = j.spec.Until == job.UntilCaughtUp
		own.CannotFinalize = "the files are being copied"
		return own
	}
	st := inner.Status()
	st.Copy, st.StartedAt = own.Copy, own.StartedAt
	st.PhaseSeconds[state.PhaseCopying] = own.PhaseSeconds[state.PhaseCopying]
	if st.Phase == state.PhaseStarting || st.Phase == state.PhaseCatalog { // which come after the copy here
		st.Phase = state.PhaseOverlap
	}
	return st
}

// Pause stops the copy of all agents, or the job.
func (j *Job) Pause(ctx context.Context) error { return j.ask(ctx, true, (*job.Job).Pause) }

// Resume ends a pause.
func (j *Job) Resume(ctx context.Context) error { return j.ask(ctx, false, (*job.Job).Resume) }

func (j *Job) ask(ctx context.Context, paused bool, inner func(*job.Job, context.Context) error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.inner != nil {
		return inner(j.inner, ctx)
	}
	if j.paused != paused {
		j.log.Info("pause changed by operator", "paused", paused)
	}
	j.asked, j.paused = true, paused
	return ctx.Err()
}

// RetryLetters tries open dead letters again; a copy of files has none.
func (j *Job) RetryLetters(ctx context.Context) error {
	if inner := j.running(); inner != nil {
		return inner.RetryLetters(ctx)
	}
	return ctx.Err()
}

// SetLimits changes at once how fast the source's files are sent, or the job applies.
func (j *Job) SetLimits(ctx context.Context, r pace.Rates) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.inner != nil {
		return j.inner.SetLimits(ctx, r)
	}
	j.spec.Limits = r
	return ctx.Err()
}

// SetLoads changes what the job asks of each side.
func (j *Job) SetLoads(ctx context.Context, l pace.Loads) error {
	if err := l.Check(); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.inner != nil {
		return j.inner.SetLoads(ctx, l)
	}
	j.spec.Loads = l
	return ctx.Err()
}

// Finalize requests the cut-over and waits for it, as job.Job.Finalize does.
func (j *Job) Finalize(ctx context.Context, whenCaughtUp bool) error {
	if j.running() == nil && !whenCaughtUp {
		return follow.Refuse(job.CodeNotFollowing, "wait for phase following, or give --when-caught-up",
			"finalize: the files are being copied")
	}
	select {
	case <-j.opened:
		return j.running().Finalize(ctx, whenCaughtUp)
	case <-j.done:
		return job.ErrEnded
	case <-ctx.Done():
		return ctx.Err()
	}
}

// CancelFinalize withdraws a request to finalize.
func (j *Job) CancelFinalize(ctx context.Context) error {
	if inner := j.running(); inner != nil {
		return inner.CancelFinalize(ctx)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.spec.Until != job.UntilCaughtUp {
		return follow.Refuse(job.CodeNotWanted, "see millrace status", "nobody has asked the job to finalize")
	}
	j.spec.Until = "never"
	return ctx.Err()
}

// meter shows the copy of files as progress shows one of collections: one for each member.
type meter struct {
	mu  sync.Mutex
	all copy.Stats
}

func (m *meter) set(all []copy.CollectionStats) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = copy.Stats{Collections: all}
	for _, c := range all {
		m.all.Bytes += c.Bytes
	}
}

// Stats implements what progress shows.
func (m *meter) Stats() copy.Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.all
}

// Copied implements what progress shows.
func (m *meter) Copied() (docs, bytes int64) { return 0, m.Stats().Bytes }

// Done implements what progress shows.
func (m *meter) Done() (docs, bytes int64) { return m.Copied() }
