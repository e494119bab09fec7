package job

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/assign"
	"github.com/millrace/millrace/internal/copy"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/ownership"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/retry"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/source/shards"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/internal/wire"
)

// assigner assigns slices of a copy to other workers. The target knows which assistants may write
// (state.Job.Assistants): they ask it over each connection before they write there. Revoke ends the
// connections of an assistant.
type assigner struct {
	*assign.Owner[*copy.Assignment, *copyReport]
	throttle
	terms    copyTerms
	of       engines
	target   *mongo.Cluster
	store    state.Store
	counters *transform.Counters
	progress *progress.Progress
	log      *slog.Logger

	counted map[string][]int64 // by token; with the owner locked
	mu      sync.Mutex
	grants  map[grantOf]chan struct{} // closed when they are granted
}

type copyTerms struct {
	Job     string       `bson:"job"`
	Run     string       `bson:"run"`
	Attempt int64        `bson:"attempt"`
	Shards  []string     `bson:"shards"`            // of the source; of a replica set one of no name
	Routers []string     `bson:"routers,omitempty"` // of a sharded target: those over which may be written
	Others  bool         `bson:"others,omitempty"`  // see copy.Options
	Start   mongo.OpTime `bson:"start"`
}

type copyReport struct {
	// Slices are those that have moved, as the target has acknowledged them in Term.
	Slices []scan.Slice `bson:"slices,omitempty"`
	Term   int64        `bson:"term,omitempty"`
	// Counted is what the rules have done up to now.
	Counted []int64 `bson:"counted,omitempty"`
	Grant   *grant  `bson:"grant,omitempty"` // alone
}

type grant struct {
	Seq   int64 `bson:"seq"`
	Docs  int64 `bson:"docs"`
	Bytes int64 `bson:"bytes"`
}

type grantOf struct {
	token string
	seq   int64
}

func (c *copier) assigns() bool {
	majority := c.spec.WriteConcern == "" || c.spec.WriteConcern == "majority"
	return c.spec.Offer != nil && majority && c.source.cluster.Info.Kind != mongo.KindStandalone && !c.source.routed() &&
		c.dst.Info.Kind != mongo.KindStandalone
}

func (c *copier) assigning(ctx context.Context, of engines, start mongo.OpTime, run func(context.Context) error) error {
	w := &assigner{throttle: c.throttle, of: of, target: c.dst, store: c.store, counters: c.counters, progress: c.progress,
		log: c.log, counted: map[string][]int64{}, grants: map[grantOf]chan struct{}{},
		terms: copyTerms{Job: c.id, Run: c.lease.run, Attempt: c.stored.Fence, Others: c.spec.OnExisting == ExistingMerge,
			Start: start}}
	for _, e := range of {
		w.terms.Shards = append(w.terms.Shards, e.shard)
	}
	common := assign.Common{Source: c.source.cluster, Target: c.dst, Rules: c.rules, Keys: &c.keys}
	w.Owner = assign.NewOwner(*c.spec.Offer, common, w, c.log, c.assistants)
	c.progress.Assigning(w.Status)
	return w.Run(ctx, run)
}

func (w *assigner) Terms() any {
	t := w.terms
	if w.target.Info.Kind == mongo.KindSharded { // an assistant's connections by another router would not be seen
		t.Routers = w.target.Pool.Addresses()
	}
	return t
}

// Revoke ends the connections of one who may not write any more, or of all. See assign.Work.
func (w *assigner) Revoke(ctx context.Context, m *assign.Member[*copy.Assignment]) error {
	w.forgetGrants(m)
	var token string
	waiting := func(left []mongo.Connection) {
		w.progress.Wait(fmt.Sprintf(
			"%d connections of workers that have copied a part, to the target to end, one of them from %s",
			len(left), left[0].Client))
	}
	if m == nil {
		defer w.progress.Wait("")
	} else {
		var once sync.Once // members are looked at side by side, and again and again
		token, waiting = m.Token, func(left []mongo.Connection) {
			once.Do(func() {
				w.log.Warn("a worker that copied a part still has connections to the target; its slices wait for them to end",
					"worker", m.Worker, "connections", len(left), "from", left[0].Client, "hint", "end that process")
			})
		}
	}
	names := mongo.Assistants(w.terms.Job, w.terms.Run, w.terms.Attempt, token)
	_, err := w.target.EndConnections(ctx, names, waiting, bson.D{{Key: "ping", Value: 1}})
	return mongo.Wrap(err, "end the connections of a worker that has copied a part")
}

func (w *assigner) forgetGrants(m *assign.Member[*copy.Assignment]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.grants, func(of grantOf, _ chan struct{}) bool { return m == nil || of.token == m.Token })
}

func (w *assigner) Note(ctx context.Context, tokens []string) error {
	return w.store.Note(ctx, bson.D{{Key: "borrowers", Value: tokens}})
}

var errLow = errors.New("the job's load is low: its owner copies alone")

func (w *assigner) Closed() string {
	switch {
	case w.low():
		return errLow.Error()
	case !slices.ContainsFunc(w.of, engine.Reads):
		return "there is nothing to assign yet"
	}
	return ""
}

func (w *assigner) Waiting() (n int) {
	for _, e := range w.of {
		n += e.Assignable()
	}
	return n
}

// Next takes a waiting slice of a shard. more is true while any shard has one. See assign.Work.
func (w *assigner) Next(shard string) (a *copy.Assignment, more bool) {
	for _, e := range w.of {
		waits := e.Assignable() > 0
		if e.shard == shard {
			a, waits = e.Assign()
		}
		more = more || waits
	}
	return a, more
}

func (w *assigner) Report(ctx context.Context, m *assign.Member[*copy.Assignment],
	r *copyReport) (again bool, err error) {
	switch {
	case r == nil:
		return false, nil
	case r.Grant != nil:
		return w.grant(ctx, m, r.Grant)
	case len(r.Slices) > 0:
		if err := w.store.SameTerm(r.Term); err != nil {
			w.Fail(err)
			return false, errors.New("the target has another primary")
		}
	}
	return false, m.Update(func(parts map[string]*copy.Assignment, f *assign.Figures) error {
		w.counters.AddCopied(w.counted[m.Token], r.Counted)
		w.counted[m.Token] = r.Counted
		for i := range r.Slices {
			st := &r.Slices[i]
			one := parts[copy.SliceID(st)]
			if one == nil {
				continue // reported before: it is done
			}
			docs, bytes, err := one.Advance(*st)
			if err != nil {
				w.log.Warn("a worker reported something that was not assigned to it", "worker", m.Worker, "error", err)
				return err
			}
			f.Docs += docs
			f.Bytes += bytes
			if one.Done() {
				delete(parts, copy.SliceID(st))
			}
		}
		return nil
	})
}

// grantWait bounds the wait for a grant. Then the assistant asks again.
const grantWait = 2 * time.Second

func (w *assigner) grant(ctx context.Context, m *assign.Member[*copy.Assignment], g *grant) (again bool, err error) {
	if w.low() {
		return false, errLow
	}
	of := grantOf{m.Token, g.Seq}
	var granted chan struct{}
	// A revoked assistant gets none: nothing would remove it.
	err = m.Update(func(map[string]*copy.Assignment, *assign.Figures) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if granted = w.grants[of]; granted == nil {
			granted = make(chan struct{})
			w.grants[of] = granted
			w.Go(func(ctx context.Context) {
				if w.limit.Wait(ctx, g.Docs, g.Bytes) == nil && w.dstGate.Unheld(ctx) == nil {
					close(granted)
				}
			})
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	late := time.NewTimer(grantWait)
	defer late.Stop()
	select {
	case <-granted:
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.grants, of)
		return false, nil
	case <-late.C:
		return true, nil
	case <-ctx.Done():
		return false, errors.New("the job's owner does not copy any more")
	}
}

// Assist copies slices of a job that another process runs, which ask reaches, until none are left.
// Of spec.Offer the version counts. An error says why Assist ended early; the owner gets it, too,
// if it can be reached.
func Assist(ctx context.Context, spec Spec, worker string, ask assign.Ask) error {
	spec.SetDefaults()
	j := assign.Joining{Worker: worker, Version: spec.Offer.Version, Ask: ask, Rules: spec.Rules, Log: spec.Log}
	return assign.Assist(ctx, j, func(ctx context.Context, of *assisted) error {
		a := &assistant{assisted: of, spec: spec, counters: transform.NewCounters(of.Made), term: -1}
		defer a.close() // before the owner hears of the end: then nothing can arrive
		return a.work(ctx)
	})
}

type assisted = assign.Assistant[copyTerms, copy.Unit]

type assistant struct {
	*assisted
	connected
	spec     Spec
	counters *transform.Counters
	seq      atomic.Int64 // of grants

	mu   sync.Mutex
	term int64 // of the target's primary; -1 before the first answer
}

func (a *assistant) work(ctx context.Context) error {
	if err := a.connect(ctx); err != nil {
		return fmt.Errorf("%w: %w", assign.ErrUnfit, err)
	}
	o := copy.Options{Readers: a.spec.Readers, Writers: a.spec.Writers, MaxBufferedBytes: a.spec.Memory,
		AfterClusterTime: a.Terms.Start, Log: a.Log, Counters: a.counters, SaveEvery: a.Lease / 20,
		SourceGate: pace.NewGate(pace.Normal), TargetGate: pace.NewGate(pace.Normal), Admit: a.admit, Grant: a.grant,
		Others: a.Terms.Others}
	if a.shards == nil {
		return a.from(ctx, "", a.src, o)
	}
	share(&o, len(a.Terms.Shards))
	o.Replacing = oneEach(a.shards, false)
	g, ctx := errgroup.WithContext(ctx)
	for _, one := range a.shards.Cluster().Shards {
		if slices.Contains(a.Terms.Shards, one.Name) { // others have joined since the owner's attempt began
			g.Go(func() error { return mongo.Wrap(a.from(ctx, one.Name, one.Cluster, o), "shard %s", one.Name) })
		}
	}
	return g.Wait()
}

// from copies slices of a shard, or of a replica set. What the shard owns is as of now: the owner of
// the job noted the versions from before the copy, and reads again what has moved since.
func (a *assistant) from(ctx context.Context, shard string, src *mongo.Cluster, o copy.Options) error {
	queue := a.Group(shard)
	first, err := queue.First(ctx)
	if err != nil || first == nil {
		return err
	}
	var mu sync.Mutex
	owned := map[string]*ownership.Filter{} // of collections, by UUID
	return copy.New(src, a.dst, a, o).Assist(ctx, first.Member, func(ctx context.Context) (*scan.Slice, copy.Task, error) {
		one, err := queue.Next(ctx)
		if one == nil {
			return nil, copy.Task{}, err
		}
		t := copy.Task{Source: one.Source, Route: a.Made.Route(one.Source.NS).To(one.Target), Key: one.Key, Part: one.Part}
		switch id := string(one.Source.UUID.Data); {
		case one.Part == "":
		case a.shards == nil:
			err = fmt.Errorf("%w: a slice is of a shard, but its source is not a sharded cluster", assign.ErrUnfit)
		default:
			mu.Lock()
			defer mu.Unlock()
			if owned[id] == nil {
				owned[id] = a.shards.Owned(shard, one.Source.UUID)
			}
			t.Owned = owned[id]
		}
		return &one.Slice, t, err
	})
}

func (a *assistant) connect(ctx context.Context) (err error) {
	writing := mongo.Options{AppName: mongo.AssistantName(a.Terms.Job, a.Terms.Run, a.Terms.Attempt, a.Token),
		MaxPoolSize: a.mostConnections()}
	o := shards.Options{Data: true}
	if a.connected, err = connect(ctx, &a.spec, mongo.Options{}, writing, &o); err != nil {
		return err
	}
	if a.src.Info.Kind == mongo.KindSharded {
		if a.shards, err = openShards(ctx, a.src, o); err != nil {
			return mongo.Wrap(err, "source")
		}
	}
	if err := a.CheckClusters(a.src, a.dst); err != nil {
		return err
	}
	for _, addr := range a.dst.Pool.Addresses() {
		if err := a.reaches(addr); err != nil {
			return err
		}
	}
	a.dst.Pool.SetGuard(a.Lost)
	return nil
}

// mostConnections is for a server of the target: a writer keeps one, and takes another.
func (a *assistant) mostConnections() uint64 {
	const least, writers = 64, 16 // as copy.Options has it
	return uint64(max(least, 2*len(a.Terms.Shards)*max(writers, a.spec.Writers)))
}

// reaches returns an error for a router whose connections the owner does not watch.
func (a *assistant) reaches(addr string) error {
	if a.dst.Info.Kind != mongo.KindSharded || slices.Contains(a.Terms.Routers, addr) {
		return nil
	}
	return mongo.WithHint(fmt.Errorf(
		"this worker's target has the router %s, that of the job's owner %s",
		addr, strings.Join(a.Terms.Routers, ", ")), "have all workers reach the target by the same addresses")
}

// admit asks the target over conn whether this process may still write. A revocation is written
// with a majority before the connections are listed, so an admitted connection is in that list.
func (a *assistant) admit(ctx context.Context, conn *wire.Conn) error {
	const timeout = 10 * time.Second
	if err := a.reaches(conn.Addr()); err != nil {
		return fmt.Errorf("%w: %w", assign.ErrUnfit, err)
	}
	reply, err := conn.Run(ctx, mongo.StateDB, bson.D{
		{Key: "find", Value: "jobs"}, {Key: "limit", Value: 1}, {Key: "singleBatch", Value: true},
		{Key: "projection", Value: bson.D{{Key: "_id", Value: 1}}},
		{Key: "filter", Value: bson.D{{Key: "_id", Value: a.Terms.Job}, {Key: "owner.run", Value: a.Terms.Run},
			{Key: "fence", Value: a.Terms.Attempt}, {Key: "borrowers", Value: a.Token}}},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "linearizable"}}}, {Key: "maxTimeMS",
			Value: timeout.Milliseconds()},
	})
	if err != nil {
		return fmt.Errorf("ask the target whether this worker may write: %w", err)
	}
	if _, err := bson.Raw(reply).LookupErr("cursor", "firstBatch", "0"); err != nil {
		return assign.Refusal("it has gone on without this worker")
	}
	return nil
}

func (a *assistant) grant(ctx context.Context, docs, bytes int64) error {
	g := &copyReport{Grant: &grant{Seq: a.seq.Add(1), Docs: docs, Bytes: bytes}}
	for {
		again, err := a.Report(ctx, g)
		switch {
		case err == nil && !again:
			return nil
		case err != nil && (ctx.Err() != nil || errors.Is(err, assign.ErrRefused) || a.Lost() != nil):
			return err
		}
	}
}

// LoadSlices returns none. See copy.Store.
func (a *assistant) LoadSlices(context.Context) ([]scan.Slice, error) { return nil, nil }

// SaveSlices reports to the owner, which stores. See copy.Store.
func (a *assistant) SaveSlices(ctx context.Context, changed []scan.Slice) error {
	a.mu.Lock()
	r := &copyReport{Slices: changed, Term: a.term}
	a.mu.Unlock()
	passes := func(err error, _ time.Duration) bool {
		return ctx.Err() == nil && mongo.Classify(err) == mongo.ClassRetry && a.Lost() == nil
	}
	return retry.Again(ctx, assign.NoneNow, assign.NoneNow, passes, func() error {
		r.Counted = a.counters.Copied()
		_, err := a.Report(ctx, r)
		return err
	})
}

// SameTerm fails when the target's primary has changed since this process joined. Routers tell no
// term; what they acknowledged is durable. See copy.Store.
func (a *assistant) SameTerm(term int64) error {
	if a.dst.Info.Kind == mongo.KindSharded {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.term < 0 {
		a.term = term
	}
	if term < 0 || a.term != term {
		return mongo.Retry(fmt.Sprintf("the target's primary changed (term %d, then %d)", a.term, term), nil, "")
	}
	return nil
}
