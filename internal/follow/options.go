// Package follow is one run of continuous replication: it leads the batches of a
// source into a sink, from a stored position until the job is finalized or
// something ends the run. It decides when the overlap ends, makes schema changes
// safe against a crash, notes positions, and finds out what the target has already.
// It knows no phases but its own and no operator: the job hands in what it needs.
package follow

import (
	"context"
	"log/slog"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/scan"
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
	Tally      *transform.Tally // of Rules
	Store      state.Store
	Target     *mongo.Cluster
	Schema     *schema.Target // of Target
	Letters    *deadletter.Store
	Leaves     transform.LeftOut // of Letters
	Progress   *progress.Progress
	Log        *slog.Logger

	// Fresh says that this attempt made the copy: nothing was skipped before. Capped
	// that some collections of it are capped.
	Fresh, Capped bool

	Source stream.Source
	// Parts says that the source is of several shards, each of which builds indexes by
	// itself.
	Parts bool
	// Sink begins writing; the options are those that the run knows.
	Sink func(stream.Position, mongosink.Options) *mongosink.Engine

	// Ask has the job's names as of the position to go on from; the run keeps
	// them true.
	Ask *Ask
	// MixedSchema is that of the time-series collections that the source makes.
	MixedSchema bool
	// CopyAnew copies a collection of the source, not older than a position.
	CopyAnew func(ctx context.Context, c schema.Collection, target string, after mongo.OpTime) error
	// CopyWithin copies a collection of the target into another one there, whose documents
	// of the same _ids go.
	CopyWithin func(ctx context.Context, c schema.Collection, target string) error
	// Slices are what was noted of copies.
	Slices func(context.Context) ([]scan.Slice, error)

	// Repairs are documents that operators want repaired.
	Repairs *Repairs

	// SavePhase moves the job on, with fields that belong to the step.
	SavePhase func(context.Context, state.Phase, ...bson.E) error
	// Passed is told from where reading would start after a crash now.
	Passed func(readFrom mongo.OpTime)
	// Wanted reports that the job is to be finalized, Final the same when that begins: it
	// cannot be taken back any more. Rejected takes it back because of index builds of the
	// source that lasted longer than IndexWait (0 is without limit); its error ends the run.
	Wanted, Final func() bool
	Rejected      func(building []schema.IndexName) error
	IndexWait     time.Duration
	// Compare finds how the target's catalog differs from the source's; Finish ends the
	// job when the target is at its last position.
	Compare func(context.Context) ([]schema.Difference, error)
	Finish  func(context.Context, Final) error
	// Unclear counts the conflicts that could not be judged in all runs.
	Unclear *int
}

// Final is what is noted with the end of a job.
type Final struct {
	Differences []schema.Difference
	At          mongo.OpTime // of the target: all that the job has written to it is before
	Set         bson.D       // the position of the source, if it has moved
}
