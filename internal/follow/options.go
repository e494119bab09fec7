// Package follow is one run of continuous replication. It takes the batches of a source to a
// sink, from a stored position until the job is finalized or something ends the run. It decides
// when the overlap ends, makes schema changes safe against a crash, notes positions, and finds
// out what the target has already. It knows no phases but its own. The job hands in what it
// needs, and an operator's requests as Finalize and Repairs.
package follow

import (
	"context"
	"log/slog"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/schema"
	mongosink "github.com/millrace/millrace/internal/sink/mongo"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// Options are what a run gets from its job.
type Options struct {
	Mode       state.Mode
	OnExisting state.OnExisting
	Rules      *transform.Set
	Counters   *transform.Counters // of Rules
	Store      state.Store
	Target     *mongo.Cluster
	Schema     Schema            // of Target
	Letters    *deadletter.Store // of Target
	Progress   *progress.Progress
	Log        *slog.Logger

	// Fresh says that this attempt made the copy: nothing was skipped before. Capped
	// that some collections of it are capped.
	Fresh, Capped bool

	// Changes are those of the source from the position on.
	Changes stream.Source
	// Source has the job's names as of the position to go on from; the run keeps
	// them true.
	Source *Source
	// Parts says that the source is of several shards, each of which builds indexes by
	// itself.
	Parts bool
	// MixedSchema is that of the time-series collections that the source makes.
	MixedSchema bool

	Job   Job
	Spool Spool
	// Finalize is the request to finalize, Repairs are documents that operators want
	// repaired.
	Finalize *Finalize
	Repairs  *Repairs
	// IndexWait is for how long finalize waits for index builds of the source (0 is
	// without limit).
	IndexWait time.Duration
}

// Job is what a run has its job do.
type Job interface {
	// OpenSink begins writing at a position; the options are those that the run knows.
	OpenSink(stream.Position, mongosink.Options) Sink
	// CopyAnew copies a collection of the source, not older than a position.
	CopyAnew(ctx context.Context, c schema.Collection, target string, after mongo.OpTime) error
	// CopyWithin copies a collection of the target into another one there, whose documents
	// of the same _ids go.
	CopyWithin(ctx context.Context, c schema.Collection, target string) error
	// SavePhase moves the job on, with fields that belong to the step.
	SavePhase(context.Context, state.Phase, ...bson.E) error
	// Compare finds how the target's catalog differs from the source's.
	Compare(context.Context) ([]schema.Difference, error)
	// Finish ends the job when the target is at its last position.
	Finish(context.Context, Final) error
}

// Spool keeps changes of the source that its oplog may forget.
type Spool interface {
	// Passed is called with the position from which reading would start after a crash now.
	Passed(readFrom mongo.OpTime)
}

// Sink is a sink whose target has a schema, and refuses documents. See mongosink.Engine.
type Sink interface {
	stream.Sink
	Sent() mongo.OpTime
	SetOverlap(end mongo.OpTime)
	Renamed(from, to string, at mongo.OpTime)
	StartCapped(ns string, start mongosink.CappedStart)
	Skipped() (list []stream.Place, version int)
	Untangle(context.Context, mongosink.Clash) error
	Hold(context.Context, deadletter.Letter) (why string, err error)
	Repaired(ns string, id bsonraw.ID) mongosink.Repaired
}

// Schema is the schema of the target. Its parts are those of a schema.Target.
type Schema struct {
	Catalog interface {
		Has(ctx context.Context, ns string) (bool, error)
		HasCapped(ctx context.Context, ns string) (bool, error)
	}
	Changes interface {
		Prepare(context.Context, stream.Change, schema.ApplyOptions) (schema.Before, error)
		Apply(context.Context, stream.Change, schema.ApplyOptions) (schema.Effect, error)
		TakeOver(ctx context.Context, from, to string, p schema.Phase) error
	}
	Collections interface {
		Create(ctx context.Context, c schema.Collection, ns string, rules *transform.Set) error
		CreateOurs(ctx context.Context, c schema.Collection, ns string, rules *transform.Set) error
	}
	Indexes interface {
		BuildDeferred(ctx context.Context, but ...schema.IndexName) error
		BuildSkipping(
			ctx context.Context, ns string, list []stream.Index, p schema.Phase, skips stream.Ops,
		) (left []string, err error)
		Duplicates(ctx context.Context, ns string, index bson.Raw) ([]bson.Raw, error)
	}
	Deferred interface {
		Waits(context.Context) (schema.Waiting, error)
		GiveUp(context.Context, schema.IndexName) error
	}
	Expiries interface{ Restore(context.Context) error }
}

// SchemaOf is the schema of a target.
func SchemaOf(t *schema.Target) Schema {
	return Schema{t, t.Changes, t.Collections, t.Indexes, t.Deferred, t.Expiries}
}

// Final is what is noted with the end of a job.
type Final struct {
	Differences []schema.Difference
	At          mongo.OpTime // of the target: all that the job has written to it is before
	Set         bson.D       // the position of the source, if it has moved
}
