package job

import (
	"context"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/retry"
)

// stalledAfter is how long an operation may take before the status names it as a wait.
const stalledAfter = 5 * time.Second

// connectSide is Deps.Connect. A log line names the side if it takes long: no status can yet.
func (j *Job) connectSide(ctx context.Context, side, uri string, o mongo.Options) (*mongo.Cluster, error) {
	slow := time.AfterFunc(stalledAfter, func() {
		j.log.Warn("waiting for "+side+" to accept connections", "address", mongo.Redact(uri),
			"hint", "see that it runs, and that it has connections left: serverStatus shows connections.available")
	})
	defer slow.Stop()
	return j.spec.Connect(ctx, uri, o)
}

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
	if j.shards == nil {
		return []side{{"the source", j.src}}
	}
	all := j.shards.Cluster()
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
	if j.shards == nil {
		return j.read()
	}
	return append(j.read(), side{"the source's router", j.src})
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
