package resolve

import (
	"context"
	"log/slog"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
	"github.com/millrace/millrace/internal/sink/mongo/write"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/stream"
)

// Policy decides about documents that the target refuses.
type Policy struct {
	Overwrite bool // replaces documents that others wrote on the target (merge mode)
	// OnConflict decides about refused documents, which Letters keep. Without Letters each refusal is an
	// error.
	OnConflict deadletter.Policy
	Letters    *deadletter.Store
}

// Source answers questions about the source's documents. Its functions may be nil.
type Source struct {
	// Reread reads a document in a state at or after a position.
	Reread func(ctx context.Context, from stream.Origin, id bsonraw.ID, at mongo.OpTime) (Reread, error)
	// Has reports which documents, by their _ids, the source has at or after a position.
	Has func(ctx context.Context, from stream.Origin, ids []bson.RawValue, at mongo.OpTime) ([]bool, error)
	// Whole returns an error if the stream turns out to be incomplete, so that conflicts do not count.
	Whole func(ctx context.Context) error
}

func (s Source) whole(ctx context.Context) error {
	if s.Whole == nil {
		return nil
	}
	return s.Whole(ctx)
}

// Options configure a Resolver.
type Options struct {
	Policy
	Source  Source
	Writers *write.Writers
	Cluster *mongo.Cluster // the target
	// Target describes a collection of the target.
	Target  func(ctx context.Context, ns string) (*fold.Target, error)
	Skipped []stream.Place // what Resolver.Skipped returned in an earlier run
	Log     *slog.Logger
}

// Resolver decides for all partitions of one target. What Parked calls is safe for concurrent use. The
// rest is for one goroutine, at barriers.
type Resolver struct {
	o       Options
	skipped *skipped
	skips   atomic.Int64
	parked  atomic.Int64
	repairs map[string]Repaired // by parkID, of those that nobody has asked about
}

// New returns a resolver.
func New(o Options) *Resolver {
	return &Resolver{o: o, skipped: newSkipped(o.Skipped), repairs: map[string]Repaired{}}
}

// Skips returns how many updates were skipped, as their documents or paths were gone.
func (r *Resolver) Skips() int64 { return r.skips.Load() }

// Resolved returns how many parked documents were tried at barriers.
func (r *Resolver) Resolved() int64 { return r.parked.Load() }

// target describes the target collection of a source collection.
func (r *Resolver) target(ctx context.Context, of stream.Origin) (*fold.Target, error) {
	t, err := r.o.Target(ctx, of.NS)
	if err == nil {
		t.Origin = of
	}
	return t, err
}

// lenient reports that a refusal does not end the job.
func (r *Resolver) lenient() bool {
	return r.o.Letters != nil && (r.o.OnConflict == deadletter.Skip || r.o.OnConflict == deadletter.Overwrite)
}

// Due reports that dead letters or skipped documents can be decided at a barrier.
func (r *Resolver) Due(applied mongo.OpTime) bool {
	return !r.skipped.empty() || r.o.Letters.AnyDue(applied)
}

// Barrier is a moment at which everything fed is on the target or parked.
type Barrier struct {
	Fed     mongo.OpTime // up to where everything was fed
	Applied mongo.OpTime // up to where nothing is parked either
	Overlap mongo.OpTime // until where the target may be ahead
	// RereadUntil: the source repairs updates that find no document up to here; later ones are
	// conflicts.
	RereadUntil mongo.OpTime
	Must        bool // no document may stay parked
}

// over reports that the target is no longer ahead.
func (b Barrier) over() bool { return !b.Fed.Before(b.Overlap) }
