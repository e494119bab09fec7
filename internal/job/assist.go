package job

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/millrace/millrace/internal/origin"
	"github.com/millrace/millrace/internal/ownership"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/retry"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/source/shards"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/internal/wire"
)

// Assist copies slices of a job that another process runs, which ask reaches, until that assigns no
// more. spec is the job's; of its Offer the version counts. An error says why it has ended
// before, or has not begun; the owner knows it, too, if it could be reached.
func Assist(ctx context.Context, spec Spec, worker string, ask assign.Ask) error {
	spec.setDefaults()
	j := assign.Joining{Worker: worker, Version: spec.Offer.Version, Ask: ask, Rules: spec.Rules, Log: spec.Log}
	return assign.Assist(ctx, j, func(ctx context.Context, of *assisted) error {
		a := &assistant{assisted: of, spec: spec, counters: transform.NewCounters(of.Made), term: -1}
		defer a.disconnect() // before the owner hears of the end: then nothing can arrive
		return a.work(ctx)
	})
}

type assisted = assign.Assistant[copyTerms, copy.Unit]

// assistant copies for another process.
type assistant struct {
	*assisted
	spec     Spec
	counters *transform.Counters
	src, dst *mongo.Cluster
	shards   *origin.Sharded // nil where the source is none
	seq      atomic.Int64    // of grants

	mu   sync.Mutex
	term int64 // of the target's primary; -1 before the first answer
}

// work connects to both sides, and copies.
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
	o.Replacing = oneEach(a.shards)
	g, ctx := errgroup.WithContext(ctx)
	for _, one := range a.shards.Cluster().Shards {
		if slices.Contains(a.Terms.Shards, one.Name) { // others have joined since the owner's attempt began
			g.Go(func() error { return mongo.Wrap(a.from(ctx, one.Name, one.Cluster, o), "shard %s", one.Name) })
		}
	}
	return g.Wait()
}

// from copies slices of a shard, or of a replica set, until there are no more of any.
func (a *assistant) from(ctx context.Context, shard string, src *mongo.Cluster, o copy.Options) error {
	at := &assistedShard{assistant: a, shard: shard, queue: a.Group(shard), owned: map[string]*ownership.Filter{}}
	first, err := at.queue.First(ctx)
	if err != nil || first == nil {
		return err
	}
	return copy.New(src, a.dst, a, o).Assist(ctx, first.Member, at)
}

// connect opens both sides, and makes sure that they are those of the owner.
func (a *assistant) connect(ctx context.Context) error {
	rp, err := mongo.ParseReadPreference(a.spec.ReadPreference, a.spec.ReadTags)
	if err != nil {
		return err
	}
	compress := a.spec.Compress != CompressOff
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		reading := mongo.Options{AppName: "millrace-source", ReadPreference: rp, ChooseCompression: compress}
		if a.src, err = a.spec.Connect(gctx, a.spec.Source, reading); err == nil && a.src.Info.Kind == mongo.KindSharded {
			a.shards, err = openShards(gctx, a.src, shards.Options{URI: a.spec.Source, Shards: a.spec.SourceShards, Left: true,
				Data:  true,
				Mongo: reading, Connect: a.spec.Connect})
		}
		return mongo.Wrap(err, "source")
	})
	g.Go(func() (err error) {
		writing := mongo.Options{AppName: mongo.AssistantName(a.Terms.Job, a.Terms.Run, a.Terms.Attempt, a.Token),
			ChooseCompression: compress, MaxPoolSize: a.mostConnections()}
		a.dst, err = a.spec.Connect(gctx, a.spec.Target, writing)
		return mongo.Wrap(err, "target")
	})
	if err := g.Wait(); err != nil {
		return err
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

// mostConnections is how many there may be to a server of the target: a writer keeps one
// to each router, and takes another one to see which router is next.
func (a *assistant) mostConnections() uint64 {
	const least, writers = 64, 16 // as copy.Options has it
	return uint64(max(least, 2*len(a.Terms.Shards)*max(writers, a.spec.Writers)))
}

// reaches fails for a router at which the owner does not look for connections.
func (a *assistant) reaches(addr string) error {
	if a.dst.Info.Kind != mongo.KindSharded || slices.Contains(a.Terms.Routers, addr) {
		return nil
	}
	return mongo.WithHint(fmt.Errorf(
		"its connection string of the target leads to the router %s, that of the job's owner to %s",
		addr, strings.Join(a.Terms.Routers, ", ")), "have all workers reach the target by the same addresses")
}

func (a *assistant) disconnect() {
	var wg sync.WaitGroup
	if a.shards != nil {
		wg.Go(a.shards.Close)
	}
	for _, c := range []*mongo.Cluster{a.src, a.dst} {
		if c != nil {
			wg.Go(c.Close)
		}
	}
	wg.Wait()
}

// admit asks the target, over a connection, whether this process may write still. Who
// takes the right away first writes so, with a majority, and then lists the connections:
// one that is admitted was there before, and is waited for.
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

// assistedShard gives slices of one shard, or of a replica set.
type assistedShard struct {
	*assistant
	shard string
	queue *assign.Group[copyTerms, copy.Unit]

	looking sync.Mutex
	owned   map[string]*ownership.Filter // of collections, by UUID
}

// NextSlice implements copy.Assigner: it requests a slice.
func (at *assistedShard) NextSlice(ctx context.Context) (*scan.Slice, copy.Task, error) {
	one, err := at.queue.Next(ctx)
	if one == nil {
		return nil, copy.Task{}, err
	}
	t := copy.Task{Source: one.Source, Route: at.Made.Route(one.Source.NS).To(one.Target), Key: one.Key, Part: one.Part}
	if one.Part != "" {
		t.Owned, err = at.ownedOf(one.Source.UUID)
	}
	return &one.Slice, t, err
}

// ownedOf is what the shard owns of a collection, as the owner of the job has it asked for:
// the version of now, whatever was there when the copy began. The owner has noted the
// versions of then, and reads again what has moved since.
func (at *assistedShard) ownedOf(uuid bson.Binary) (*ownership.Filter, error) {
	if at.shards == nil {
		return nil, fmt.Errorf("%w: a slice is of a shard, but its source is no sharded cluster", assign.ErrUnfit)
	}
	at.looking.Lock()
	defer at.looking.Unlock()
	id := string(uuid.Data)
	if at.owned[id] == nil {
		at.owned[id] = at.shards.Owned(at.shard, uuid)
	}
	return at.owned[id], nil
}

// grant waits until so much may be sent.
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

// LoadSlices gives none: those to copy are asked for. See copy.Store.
func (a *assistant) LoadSlices(context.Context) ([]scan.Slice, error) { return nil, nil }

// SaveSlices reports them to the owner, which keeps them. See copy.Store.
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

// SameTerm fails when the target's primary has changed since this process joined. The
// owner compares the term with its own. Behind routers nobody sees one: what was
// answered is durable. See copy.Store.
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
