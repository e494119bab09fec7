// Package follow runs continuous replication. It passes batches of a source to a sink, from a
// stored position until the job is finalized or something ends the run. It decides when the overlap
// ends, makes schema changes safe against a crash, saves positions, and finds out what the target
// already has. Operators request through Finalize and Repairs.
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

// Options configure a run.
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

	Fresh  bool // this attempt made the copy: nothing was skipped before
	Capped bool // some collections of the copy are capped

	Changes stream.Source // from the position on
	Source  *Source       // with the job's names at the position; the run updates them
	Parts   bool          // the source has several shards, each of which builds indexes by itself
	// MixedSchema is the option of the time-series collections that the source creates.
	MixedSchema bool

	Job       Job
	Passed    func(readFrom mongo.OpTime) // gets the position from which reading would start after a crash
	Finalize  *Finalize
	Repairs   *Repairs
	IndexWait time.Duration // how long finalize waits for index builds of the source; 0: no limit
}

// Job does what a run needs of its job.
type Job interface {
	// OpenSink begins to write at a position.
	OpenSink(stream.Position, mongosink.Options) Sink
	// CopyAnew copies a collection of the source as of a position or later.
	CopyAnew(ctx context.Context, c schema.Collection, target string, after mongo.OpTime) error
	// CopyWithin copies a collection of the target into another one there, and replaces documents
	// with the same _ids.
	CopyWithin(ctx context.Context, c schema.Collection, target string) error
	// SavePhase saves a phase and more fields.
	SavePhase(context.Context, state.Phase, ...bson.E) error
	// Compare compares the target's catalog with the source's.
	Compare(context.Context) ([]schema.Difference, error)
	// Finish ends the job when the target is at its last position.
	Finish(context.Context, Final) error
}

// Sink is a sink whose target has a schema and refuses documents, such as mongosink.Engine.
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

// Schema is the part of schema.Target that a run uses.
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

// SchemaOf returns the Schema of a target.
func SchemaOf(t *schema.Target) Schema {
	return Schema{t, t.Changes, t.Collections, t.Indexes, t.Deferred, t.Expiries}
}

// Final is saved with the end of a job.
type Final struct {
	Differences []schema.Difference
	At          mongo.OpTime // of the target, after everything that the job wrote
	Set         bson.D       // the source's position, if it moved
}
