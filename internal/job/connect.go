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

// stalledAfter is how long an operation may take before the status names it as a wait.
const stalledAfter = 5 * time.Second

func (j *Job) connect(ctx context.Context) (err error) {
	rp, err := mongo.ParseReadPreference(j.spec.ReadPreference, j.spec.ReadTags)
	if err != nil {
		return err
	}
	reading := mongo.Options{AppName: "millrace-source", ReadPreference: rp, MostInUse: sourceInUse(j.spec.Loads.Source),
		ChooseCompression: j.spec.Compress != CompressOff, Chosen: j.tellCompression("source")}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		if j.source.cluster, err = j.connectSide(gctx, "the source", j.spec.Source, reading); err == nil &&
			j.source.cluster.Info.Kind == mongo.KindSharded {
			j.source.shards, err = openShards(gctx, j.source.cluster,
				shards.Options{URI: j.spec.Source, Shards: j.spec.SourceShards, Left: true, Mongo: reading,
					Waiting: func(reason string) { j.progress.Wait(reason) }, Connect: j.spec.Connect})
		}
		return mongo.Wrap(err, "source")
	})
	g.Go(func() (err error) {
		j.dst, err = j.connectSide(gctx, "the target", j.spec.Target, mongo.Options{AppName: mongo.TargetApp, Warm: 2,
			MostInUse:         targetInUse(j.spec.Loads.Target),
			ChooseCompression: j.spec.Compress != CompressOff, Chosen: j.tellCompression("target")})
		return mongo.Wrap(err, "target")
	})
	if err = g.Wait(); err == nil {
		return nil
	}
	if j.source.shards != nil {
		j.source.shards.Close()
	}
	for _, c := range []*mongo.Cluster{j.source.cluster, j.dst} {
		if c != nil {
			c.Close()
		}
	}
	return err
}

// connectSide is Deps.Connect. A log line names the side if it takes long: no status can yet.
func (j *Job) connectSide(ctx context.Context, side, uri string, o mongo.Options) (*mongo.Cluster, error) {
	slow := time.AfterFunc(stalledAfter, func() {
		j.log.Warn("waiting for "+side+" to accept connections", "address", mongo.Redact(uri),
			"hint", "check that it runs and has free connections (connections.available of serverStatus)")
	})
	defer slow.Stop()
	return j.spec.Connect(ctx, uri, o)
}

// sourceInUse is how many connections of the source, or of a shard, are in use at once: 0 is any
// number. With the one that watches the server there are six.
func sourceInUse(l pace.Load) int {
	if l == pace.Low {
		return 5
	}
	return 0
}

// targetInUse is sourceInUse for the target, where the connections over which a run writes
// are apart from the others: both kinds have as many, and one that watches the server.
func targetInUse(l pace.Load) int {
	if l == pace.Low {
		return 2
	}
	return 0
}

// openShards finds the shards behind a router.
func openShards(ctx context.Context, router *mongo.Cluster, o shards.Options) (*origin.Sharded, error) {
	c, err := shards.Open(ctx, router, o)
	if err != nil {
		return nil, err
	}
	return origin.NewSharded(c), nil
}

// router opens one of the target's routers.
func (j *Job) router(ctx context.Context, host string) (*mongo.Cluster, error) {
	_, all, _ := strings.Cut(j.dst.Address(), "://")
	return j.spec.Connect(ctx, strings.Replace(j.spec.Target, all, host, 1), mongo.Options{AppName: "millrace-precheck",
		ServerSelectionTimeout: 5 * time.Second})
}

// routers is what the routers of the target were sent.
func (j *Job) routers() (list []progress.RouterDone) {
	for _, s := range j.dst.Pool.Sent() {
		list = append(list, progress.RouterDone{Router: s.Router, Commands: s.Messages, Bytes: s.Bytes})
	}
	return list
}

// tellCompression logs what is found for a side.
func (j *Job) tellCompression(side string) func(wire.Compression) {
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

// logWaits logs what the job waits for, until stop: the precheck has no status that a
// command shows.
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

// side is a deployment, or a part of one, that the job works with.
type side struct {
	name string
	*mongo.Cluster
}

// read are the replica sets that the job reads by the read preference.
func (j *Job) read() (sides []side) {
	if j.source.shards == nil {
		return []side{{"the source", j.source.cluster}}
	}
	all := j.source.shards.Cluster()
	for _, s := range all.Shards {
		sides = append(sides, side{"the source's shard " + s.Name, s.Cluster})
	}
	if config := all.Config(); config != nil {
		sides = append(sides, side{"the source's config servers", config})
	}
	return sides
}

// sources are all that the job works with of the source.
func (j *Job) sources() []side {
	if j.source.shards == nil {
		return j.read()
	}
	return append(j.read(), side{"the source's router", j.source.cluster})
}

// readable fails if a replica set of the source has no member for the read preference.
func (j *Job) readable(ctx context.Context) error {
	for _, s := range j.read() {
		if !s.Chooses() {
			continue
		}
		conn, err := s.Checkout(ctx, s.Reader())
		if err != nil {
			return mongo.Wrap(err, "read %s", s.name)
		}
		conn.Release()
	}
	return nil
}

// stalled names what the oldest operation under way waits for, and since when; nothing
// while all of them are young.
func (j *Job) stalled() (reason string, since *time.Time) {
	for _, s := range append(j.sources(), side{"the target", j.dst}) {
		what, began := s.Waits()
		if !began.IsZero() && time.Since(began) > stalledAfter && (since == nil || began.Before(*since)) {
			reason, since = s.name+" "+what, &began
		}
	}
	return reason, since
}
