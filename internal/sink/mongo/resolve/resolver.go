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

// Policy says what becomes of what the target does not take.
type Policy struct {
	// Overwrite takes over documents that somebody else wrote on the target
	// (merge mode) instead of failing.
	Overwrite bool
	// OnConflict says what becomes of documents that the target refuses, which
	// Letters keep. Without Letters each refusal is an error.
	OnConflict deadletter.Policy
	Letters    *deadletter.Store
}

// Source answers questions about the source's documents. Nil functions leave
// undecided what they would tell.
type Source struct {
	// Reread reads a document from the source, in a state at or after a position.
	Reread func(ctx context.Context, from Origin, id bsonraw.ID, at mongo.OpTime) (Reread, error)
	// Has reports which documents of a collection, by their _ids, the source has at a
	// position or later.
	Has func(ctx context.Context, from Origin, ids []bson.RawValue, at mongo.OpTime) ([]bool, error)
	// Whole returns an error if the stream turns out to be incomplete: no conflict counts then.
	// It is called before a conflict is acted upon.
	Whole func(ctx context.Context) error
}

func (s Source) whole(ctx context.Context) error {
	if s.Whole == nil {
		return nil
	}
	return s.Whole(ctx)
}

// Options shape a Resolver.
type Options struct {
	Policy
	Source  Source
	Writers *write.Writers
	// Cluster is the target.
	Cluster *mongo.Cluster
	// Target describes a collection of the target.
	Target func(ctx context.Context, ns string) (*fold.Target, error)
	// Skipped are what Resolver.Skipped returned in an earlier run.
	Skipped []stream.Place
	Log     *slog.Logger
}

// Resolver decides for all partitions of one target. What a Parked calls is safe
// for concurrent use; the rest is for one goroutine, at barriers.
type Resolver struct {
	o       Options
	skipped *skipped
	skips   atomic.Int64
	parked  atomic.Int64
	repairs map[string]Repaired // by parkID, of those that nobody has asked about
}

// New makes a resolver.
func New(o Options) *Resolver {
	return &Resolver{o: o, skipped: newSkipped(o.Skipped), repairs: map[string]Repaired{}}
}

// Skips is how many updates were left out, their documents or paths being gone.
func (r *Resolver) Skips() int64 { return r.skips.Load() }

// Resolved is how many parked documents were tried at barriers.
func (r *Resolver) Resolved() int64 { return r.parked.Load() }

// target describes the collection of the target that is one of the source.
func (r *Resolver) target(ctx context.Context, of Origin) (*fold.Target, error) {
	t, err := r.o.Target(ctx, of.Target)
	if err == nil {
		t.Source, t.UUID = of.Source, of.UUID
	}
	return t, err
}

// lenient reports that a refusal does not end the job at once.
func (r *Resolver) lenient() bool {
	return r.o.Letters != nil && (r.o.OnConflict == deadletter.Skip || r.o.OnConflict == deadletter.Overwrite)
}

// Due says that cases wait which can be decided at a barrier, or skipped documents
// to be looked for.
func (r *Resolver) Due(applied mongo.OpTime) bool {
	list, _ := r.skipped.list()
	return len(list) > 0 || r.o.Letters.AnyDue(applied)
}

// Barrier is a moment at which all that was fed is on the target or parked.
type Barrier struct {
	Fed     mongo.OpTime // up to where everything was fed
	Applied mongo.OpTime // up to where nothing is parked either
	Overlap mongo.OpTime // until where the target may be ahead
	// RereadUntil is until where updates that find no document are made good from
	// the source; later ones are conflicts.
	RereadUntil mongo.OpTime
	// Must: no document may stay parked.
	Must bool
}

// over says that the target is ahead of nothing any more.
func (b Barrier) over() bool { return !b.Fed.Before(b.Overlap) }
