package job

import (
	"cmp"
	"context"
	"math"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/expiry"
	"github.com/millrace/millrace/internal/follow"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/origin"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/retry"
	"github.com/millrace/millrace/internal/schema"
	mongosink "github.com/millrace/millrace/internal/sink/mongo"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
	"github.com/millrace/millrace/internal/sink/mongo/resolve"
	"github.com/millrace/millrace/internal/source/shards"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/internal/wire"
)

const stalledAfter = 5 * time.Second

func (j *Job) connect(ctx context.Context) error {
	reading := mongo.Options{MostInUse: inUse(j.spec.Loads.Source, sourceLow), Chosen: j.logCompression("source")}
	writing := mongo.Options{AppName: mongo.TargetApp, Warm: 2, MostInUse: inUse(j.spec.Loads.Target, targetLow),
		Chosen: j.logCompression("target")}
	o := shards.Options{Waiting: func(reason string) { j.progress.Wait(reason) }}
	c, err := connect(ctx, &j.spec, reading, writing, &o)
	j.source.cluster, j.dst = c.src, c.dst
	if err != nil {
		return err
	}
	if j.id = j.spec.Job; j.id == "" {
		j.id = jobID(j.source.cluster, j.dst, j.rules, j.spec.Mode)
	}
	if err = j.chooseCapture(ctx, o); err != nil {
		(&connected{j.source.cluster, j.dst, j.source.shards}).close()
	}
	return err
}

type connected struct {
	src, dst *mongo.Cluster
	shards   *origin.Sharded // of a sharded source; else nil
}

// connect opens both sides at once, or returns an error with none open. It completes the options for shards.
func connect(ctx context.Context, spec *Spec, reading, writing mongo.Options,
	o *shards.Options) (c connected, err error) {
	if reading.ReadPreference, err = mongo.ParseReadPreference(spec.ReadPreference, spec.ReadTags); err != nil {
		return c, err
	}
	reading.AppName, reading.ChooseCompression = "millrace-source", spec.Compress != CompressOff
	writing.ChooseCompression = reading.ChooseCompression
	o.URI, o.Shards, o.Left, o.Mongo, o.Connect = spec.Source, spec.SourceShards, true, reading, spec.Connect
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		c.src, err = spec.open(gctx, "source", spec.Source, reading)
		return mongo.Wrap(err, "source")
	})
	g.Go(func() (err error) {
		c.dst, err = spec.open(gctx, "target", spec.Target, writing)
		return mongo.Wrap(err, "target")
	})
	if err = g.Wait(); err != nil {
		c.close()
		c = connected{}
	}
	return c, err
}

func openShards(ctx context.Context, router *mongo.Cluster, o shards.Options) (*origin.Sharded, error) {
	c, err := shards.Open(ctx, router, o)
	if err != nil {
		return nil, err
	}
	return origin.NewSharded(c), nil
}

func (c *connected) close() {
	var wg sync.WaitGroup
	if c.shards != nil {
		wg.Go(c.shards.Close)
	}
	for _, one := range []*mongo.Cluster{c.src, c.dst} {
		if one != nil {
			wg.Go(one.Close)
		}
	}
	wg.Wait()
}

// open is Deps.Connect. It logs the side if it takes long: there is no status yet.
func (s *Spec) open(ctx context.Context, side, uri string, o mongo.Options) (*mongo.Cluster, error) {
	slow := time.AfterFunc(stalledAfter, func() {
		s.Log.Warn("waiting for the "+side+" to accept connections", "address", mongo.Redact(uri),
			"hint", "check host, port, replicaSet= and tls= of the connection string, that it runs, and that it has free "+
				"connections (connections.available of serverStatus)")
	})
	defer slow.Stop()
	return s.Connect(ctx, uri, o)
}

// One more connection watches a source. Those of a target count twice: writes have a pool of their own.
const sourceLow, targetLow = 5, 2

// inUse bounds the connections to a server; 0 is unlimited.
func inUse(l pace.Load, low int) int {
	if l == pace.Low {
		return low
	}
	return 0
}

func (j *Job) router(ctx context.Context, host string) (*mongo.Cluster, error) {
	_, all, _ := strings.Cut(j.dst.Address(), "://")
	return j.spec.Connect(ctx, strings.Replace(j.spec.Target, all, host, 1), mongo.Options{AppName: "millrace-precheck",
		ServerSelectionTimeout: 5 * time.Second})
}

func (j *Job) routers() (list []progress.RouterDone) {
	for _, s := range j.dst.Pool.Sent() {
		list = append(list, progress.RouterDone{Router: s.Router, Commands: s.Messages, Bytes: s.Bytes})
	}
	return list
}

func (j *Job) logCompression(side string) func(wire.Compression) {
	return func(c wire.Compression) {
		msg := "what is exchanged is compressed no more"
		if c.On {
			msg = "what is exchanged is compressed with zstd"
		}
		j.log.Info(msg, "side", side, "gain", rounded(c.Gain))
	}
}

func compression(c *mongo.Cluster) progress.Compression {
	now := c.Pool.Compression()
	return progress.Compression{On: now.On, Gain: rounded(now.Gain)}
}

func rounded(gain float64) float64 { return math.Round(100*gain) / 100 }

// logWaits logs what the job waits for, until stop. The precheck has no status.
func (j *Job) logWaits(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var logging sync.WaitGroup
	logging.Go(func() {
		said := ""
		_ = retry.Every(ctx, stalledAfter, func() error {
			if reason, since := j.stalled(); reason != said {
				if said = reason; reason != "" {
					j.log.Warn("waiting for "+reason, "since", since.Format(time.RFC3339))
				}
			}
			return nil
		})
	})
	return func() {
		cancel()
		logging.Wait()
	}
}

// read returns the parts of the source that are read, sources also its router.
func (j *Job) read() []origin.Part { return origin.Parts(j.source.cluster, j.source.shards) }

func (j *Job) sources() []origin.Part {
	if j.source.shards == nil {
		return j.read()
	}
	return append(j.read(), origin.Part{Name: "the source's router", Cluster: j.source.cluster})
}

func (j *Job) readable(ctx context.Context) error {
	for _, s := range j.read() {
		if !s.Chooses() {
			continue
		}
		conn, err := s.Checkout(ctx, s.Reader())
		if err != nil {
			return mongo.Wrap(err, "read %s", s.Name)
		}
		conn.Release()
	}
	return nil
}

func (j *Job) stalled() (reason string, since *time.Time) {
	for _, s := range append(j.sources(), origin.Part{Name: "the target", Cluster: j.dst}) {
		what, began := s.Waits()
		if !began.IsZero() && time.Since(began) > stalledAfter && (since == nil || began.Before(*since)) {
			reason, since = s.Name+" "+what, &began
		}
	}
	return reason, since
}

const (
	// DefaultApplyBuffer is Spec.ApplyBuffer where it is 0.
	DefaultApplyBuffer = 256 << 20
	// LeastApplyBuffer is the least Spec.ApplyBuffer: smaller parts are not worth an exchange.
	LeastApplyBuffer = 8_000_000
)

// applyBuffer gives each stage a part of its own, so that none waits for a later one.
type applyBuffer struct {
	readAhead    int64 // replies of the source
	batch        int   // entries on their way from the source to the sink
	transactions int64 // of open transactions
	inFlight     int64 // events that the sink was given
	writes       int   // of those, in one partition's batch of writes
	kept         int   // what one partition keeps back to fold, as Sizes.Coalesce
}

// newApplyBuffer keeps most bytes back: what folds grows with their square.
func newApplyBuffer(bytes int64, partitions int) applyBuffer {
	const (
		parts     = 8
		batches   = 8       // under way at once
		mostBatch = 4 << 20 // more at once is no faster
	)
	bytes, partitions = cmp.Or(bytes, DefaultApplyBuffer), cmp.Or(partitions, mongosink.DefaultPartitions)
	part := bytes / parts
	b := applyBuffer{readAhead: part, transactions: part, inFlight: part,
		batch: int(min(part/batches, mostBatch)), writes: int(min(max(part/int64(partitions), 1), mostBatch))}
	kept := bytes - 3*part - int64(b.batch)
	b.kept = int(max(kept/int64(partitions*fold.MostKept), 1))
	return b
}

func (s *session) OpenSink(pos stream.Position, o mongosink.Options) follow.Sink {
	return s.sink(pos, o)
}

func (s *session) sink(pos stream.Position, o mongosink.Options) *mongosink.Engine {
	partitions := partitionsFor(s.spec.Partitions, s.dst.Pool.RoundTripTime())
	b := newApplyBuffer(s.spec.ApplyBuffer, partitions)
	o.Sizes = mongosink.Sizes{Partitions: partitions, InFlight: b.inFlight, BatchBytes: b.writes, Coalesce: b.kept}
	o.Targets = targets{s.source.Names, s.dst, s.cat, s.rules, s.counters, s.spec.Mode == ModeIncremental}
	o.LeavesOut = s.source.Leaves != nil
	o.Policy = resolve.Policy{Overwrite: s.spec.OnExisting == ExistingMerge, OnConflict: s.spec.OnConflict,
		Letters: s.letters}
	o.Source = resolve.Source{Reread: s.source.Reread, Has: s.source.OnSource}
	if s.source.shards != nil {
		o.Source.Whole = s.source.shards.Whole
	}
	o.Write.Transactions, o.Write.SameTerm, o.Write.Gate = s.txn, s.store.SameTerm, s.dstGate
	o.Write.Others = s.spec.OnExisting == ExistingMerge
	o.Log, o.Limit = s.log, s.limit
	return mongosink.New(s.dst, pos, o)
}

// partitionsFor grows with the round trip, in which a partition waits.
func partitionsFor(asked int, away time.Duration) int {
	const (
		near, most = 8, 16
		doubling   = 40 * time.Millisecond // the round trip for which there are twice as many
	)
	if asked > 0 {
		return asked
	}
	return min(near+int(min(float64(near)*float64(away)/float64(doubling), most)), most)
}

type targets struct {
	*schema.Names
	dst      *mongo.Cluster
	cat      *schema.Target
	rules    *transform.Set
	counters *transform.Counters
	foreign  bool // expiries that the target had by itself count
}

// Absent is false for the old name of a retained collection. Package transform filters its events.
func (t targets) Absent(ns string) bool { return t.Names.Absent(ns) && len(t.Retentions(ns)) == 0 }

func (t targets) Traits(ctx context.Context, ns string) (mongosink.Traits, error) {
	c, _, err := collection(ctx, t.dst, ns)
	if err != nil {
		return mongosink.Traits{}, err
	}
	keys, err := schema.ShardKeys(ctx, t.dst, []string{ns})
	return mongosink.Traits{Capped: c.Capped(), Collated: c.Collated(), Key: docwrite.KeyOf(keys[ns], c.Collated())}, err
}

// Expiry returns how documents expire that stay on the target, and what counts them, at the applied
// position. In mode incremental the target had the settings before.
func (t targets) Expiry(ctx context.Context, r *stream.Route) (expiry.Settings, func(n int64), error) {
	c, _, err := collection(ctx, t.dst, r.Target)
	if err != nil {
		return nil, nil, err
	}
	s, err := t.cat.Deferred.Expiry(ctx, r.Target, c.Collated(), t.foreign)
	return s, t.counters.Expired(t.rules.Route(r.Source)), err
}

func collection(ctx context.Context, c *mongo.Cluster, ns string) (coll schema.Collection, found bool, err error) {
	db, name := mongo.SplitNS(ns)
	specs, err := c.Client.Database(db).ListCollectionSpecifications(ctx, bson.D{{Key: "name", Value: name}})
	if err != nil || len(specs) == 0 {
		return coll, false, err
	}
	coll = schema.Collection{NS: ns, Options: specs[0].Options}
	if uuid := specs[0].UUID; uuid != nil {
		coll.UUID = *uuid
	}
	return coll, true, nil
}
