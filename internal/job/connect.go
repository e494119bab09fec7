package job

import (
	"context"
	"math"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/origin"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/retry"
	"github.com/millrace/millrace/internal/source/shards"
	"github.com/millrace/millrace/internal/wire"
)

const stalledAfter = 5 * time.Second

func (j *Job) connect(ctx context.Context) error {
	reading := mongo.Options{MostInUse: inUse(j.spec.Loads.Source, sourceLow), Chosen: j.logCompression("source")}
	writing := mongo.Options{AppName: mongo.TargetApp, Warm: 2, MostInUse: inUse(j.spec.Loads.Target, targetLow),
		Chosen: j.logCompression("target")}
	c, err := connect(ctx, &j.spec, reading, writing,
		shards.Options{Waiting: func(reason string) { j.progress.Wait(reason) }})
	j.source.cluster, j.source.shards, j.dst = c.src, c.shards, c.dst
	return err
}

type connected struct {
	src, dst *mongo.Cluster
	shards   *origin.Sharded // of a sharded source; else nil
}

// connect opens both sides at once, or returns an error with none open.
func connect(ctx context.Context, spec *Spec, reading, writing mongo.Options,
	o shards.Options) (c connected, err error) {
	if reading.ReadPreference, err = mongo.ParseReadPreference(spec.ReadPreference, spec.ReadTags); err != nil {
		return c, err
	}
	reading.AppName, reading.ChooseCompression = "millrace-source", spec.Compress != CompressOff
	writing.ChooseCompression = reading.ChooseCompression
	o.URI, o.Shards, o.Left, o.Mongo, o.Connect = spec.Source, spec.SourceShards, true, reading, spec.Connect
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		if c.src, err = spec.open(gctx, "source", spec.Source, reading); err == nil && c.src.Info.Kind == mongo.KindSharded {
			c.shards, err = openShards(gctx, c.src, o)
		}
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
