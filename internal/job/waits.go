package job

import (
	"context"
	"time"

	"github.com/millrace/millrace/internal/mongo"
)

// stalledAfter is how long an operation may take before the status names it as a wait.
const stalledAfter = 5 * time.Second

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
	sides := append(j.read(), side{"the target", j.dst})
	if j.shards != nil {
		sides = append(sides, side{"the source's router", j.src})
	}
	for _, s := range sides {
		what, began := s.Waits()
		if !began.IsZero() && time.Since(began) > stalledAfter && (since == nil || began.Before(*since)) {
			reason, since = s.name+" "+what, &began
		}
	}
	return reason, since
}
