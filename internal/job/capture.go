package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/origin"
	"github.com/millrace/millrace/internal/retry"
	"github.com/millrace/millrace/internal/source/changestream"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/source/shards"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
)

// capture is how the source is read. It is the same in all runs of a job: a position in oplogs is none of a
// change stream.
type capture struct {
	by  state.Capture
	why string // the reason for change streams that nobody chose; else ""
}

// chooseCapture decides how the source is read: as the job began, as the spec says, or by what the user and
// the network allow. It opens the shards of a source that is read directly.
func (j *Job) chooseCapture(ctx context.Context, o shards.Options) (err error) {
	spec := &j.spec
	if spec.Via == ViaRouters {
		spec.Capture = state.CaptureStreams
	}
	by := spec.Capture
	// The precheck refuses a member that is not the primary. An arbiter has nothing to read.
	if by == state.CaptureAuto && !spec.Restart && !notPrimary(ctx, j.dst) {
		if by, err = j.storedCapture(ctx); err != nil {
			return err
		}
	}
	j.capture, err = j.probeCapture(ctx, cmp.Or(by, state.CaptureAuto), o)
	return err
}

func notPrimary(ctx context.Context, c *mongo.Cluster) bool {
	_, is := errors.AsType[*mongo.Incomplete](c.CheckMember(ctx))
	return is
}

// storedCapture is that of a job that has begun, "" if there is none, or it cannot be read: the precheck says
// why.
func (j *Job) storedCapture(ctx context.Context) (by state.Capture, err error) {
	err = j.patiently(ctx, func() error {
		stored, found, err := state.Open(j.dst, state.Options{Job: j.id}).Reload(ctx)
		if found && err == nil {
			by = cmp.Or(stored.Capture, state.CaptureOplog)
		}
		return err
	})
	if err != nil && mongo.Classify(err) != mongo.ClassRetry && ctx.Err() == nil {
		return "", nil //nolint:nilerr // see above
	}
	return by, mongo.Wrap(err, "target")
}

// patiently tries again after temporary failures, for a minute.
func (j *Job) patiently(ctx context.Context, ask func() error) error {
	tries := retry.Backoff{Waiting: func(err error, _ time.Duration) {
		if err != nil {
			j.log.Warn("cannot learn yet how the source is captured; trying again", "error", err)
		}
	}}
	return tries.Try(ctx, time.Minute, ask)
}

// reportsSchema reports servers whose change streams contain schema changes. Of others, millrace does not
// choose change streams by itself.
func reportsSchema(v mongo.Version) bool { return v.AtLeast(6, 0) }

func (j *Job) probeCapture(ctx context.Context, by state.Capture, o shards.Options) (c capture, err error) {
	src := j.source.cluster
	auto := by == state.CaptureAuto && reportsSchema(src.Info.Version)
	c.by = state.CaptureOplog
	switch {
	case by == state.CaptureStreams:
		c.by = by
		return c, nil
	case src.Info.Kind == mongo.KindSharded && auto:
		c.why, err = j.openDirectly(ctx, o)
	case src.Info.Kind == mongo.KindSharded:
		j.source.shards, err = openShards(ctx, src, o)
	case src.Info.Kind == mongo.KindReplicaSet && auto && j.spec.Mode != ModeStructure:
		if !notPrimary(ctx, src) {
			c.why, err = j.insteadOf(ctx, origin.Part{Name: "the source", Cluster: src})
		}
	}
	if c.why != "" {
		c.by = state.CaptureStreams
	}
	return c, mongo.Wrap(err, "source")
}

// openDirectly opens the shards if they and their oplogs can be read, or returns why not.
func (j *Job) openDirectly(ctx context.Context, o shards.Options) (why string, err error) {
	all, reason, err := origin.OpenShards(ctx, j.source.cluster, j.spec.Via, o)
	switch {
	case err != nil:
		return "", err
	case reason != nil:
		return "the shards cannot be read directly: " + mongo.Brief(reason), nil
	}
	if j.spec.Mode != ModeStructure {
		why, err = j.insteadOf(ctx, origin.Parts(j.source.cluster, all)...)
	}
	if why == "" && err == nil {
		j.source.shards = all
	} else {
		all.Close()
	}
	return why, err
}

// insteadOf returns why change streams are read instead of oplogs, "" if all oplogs can be read, or the user may
// read neither: then the precheck names the rights for oplogs.
func (j *Job) insteadOf(ctx context.Context, of ...origin.Part) (why string, err error) {
	for _, one := range of {
		err = j.patiently(ctx, func() (err error) {
			why, err = oplogOf(ctx, one)
			return err
		})
		if why != "" || err != nil {
			break
		}
	}
	if why == "" || err != nil {
		return "", err
	}
	err = j.patiently(ctx, func() error {
		_, err := changestream.Probe(ctx, j.source.cluster)
		return err
	})
	if mongo.IsCode(err, mongo.CodeUnauthorized) {
		return "", nil
	}
	return why, err
}

// oplogOf returns why an oplog cannot be read, "" if it can.
func oplogOf(ctx context.Context, of origin.Part) (why string, err error) {
	reply, err := of.Command(ctx, "local", bson.D{{Key: "find", Value: "oplog.rs"}, {Key: "limit", Value: 1},
		{Key: "singleBatch", Value: true}, {Key: "projection", Value: bson.D{{Key: "ts", Value: 1}}}})
	switch {
	case mongo.IsCode(err, mongo.CodeUnauthorized):
		return "the user may not read the oplog of " + of.Name, nil
	case err != nil && mongo.Reported(err) && mongo.Classify(err) != mongo.ClassRetry:
		return fmt.Sprintf("the oplog of %s cannot be read: %s", of.Name, mongo.Brief(err)), nil
	case err != nil:
		return "", err
	}
	if first := reply.Lookup("cursor", "firstBatch", "0"); first.IsZero() {
		return of.Name + " has no oplog", nil
	}
	return "", nil
}

// checkCapture rejects a stored job that was captured otherwise than this run does.
func (j *Job) checkCapture(job *state.Job) error {
	if was := cmp.Or(job.Capture, state.CaptureOplog); was != j.capture.by {
		return mongo.WithHint(fmt.Errorf("job %s began with --capture %s and cannot continue with %s", job.ID, was,
			j.capture.by), "continue with --capture "+string(was)+", or start again with --restart")
	}
	return nil
}

// insertions finds when a document was inserted, in what the job captures.
func (s *source) insertions() stream.FindInsertion {
	if s.streamed != nil {
		return s.streamed.FindInsertion
	}
	return oplog.FindInsertion
}

// routed reports a sharded source that is read through its routers only.
func (s *source) routed() bool { return s.streamed != nil && s.cluster.Info.Kind == mongo.KindSharded }
