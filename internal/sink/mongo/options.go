package mongosink

import (
	"cmp"
	"context"
	"log/slog"

	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/expiry"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/sink/mongo/resolve"
	"github.com/millrace/millrace/internal/sink/mongo/write"
	"github.com/millrace/millrace/internal/stream"
)

// What users of an Engine name, and package resolve uses too.
type (
	ConflictError = resolve.ConflictError
	Clash         = resolve.Clash
	Origin        = resolve.Origin
	Policy        = resolve.Policy
	Repaired      = resolve.Repaired
	Reread        = resolve.Reread
	Source        = resolve.Source
)

// What may come of a document that Engine.Hold was given.
const (
	RepairNothing = resolve.RepairNothing
	RepairWritten = resolve.RepairWritten
	RepairDeleted = resolve.RepairDeleted
	RepairSame    = resolve.RepairSame
)

// ErrZeroTimestamp is write.ErrZeroTimestamp.
var ErrZeroTimestamp = write.ErrZeroTimestamp

// Options shape an Engine.
type Options struct {
	Sizes   Sizes
	Targets Targets
	// LeavesOut says that the target goes without documents that rules cannot map.
	LeavesOut bool
	Overlap   Overlap
	// Schema applies a schema change. Everything before it is acknowledged, and
	// nothing after it is sent before it returns. before is the last position
	// that is applied whole; last says that no event of the same position
	// follows, so that the change's own position is applied when it returns.
	Schema func(ctx context.Context, ev *stream.Event, before mongo.OpTime, last bool) error
	// Policy says what becomes of documents that the target does not take, and
	// Source answers what has to be asked about them.
	Policy Policy
	Source Source
	// Write is how commands are sent; its Target is New's.
	Write write.Options
	// Limit throttles the events; nil is none.
	Limit *pace.Limiter
	Log   *slog.Logger
}

// DefaultPartitions is Sizes.Partitions where it is 0.
const DefaultPartitions = 8

// Sizes bound what an Engine does at once.
type Sizes struct {
	// Partitions is the number of parallel writers, default DefaultPartitions.
	Partitions int
	// InFlight bounds the bytes of the events in flight, default 32 MB.
	InFlight int64
	// BatchOps and BatchBytes bound one partition's batch, default 4000 and 4 MB.
	BatchOps   int
	BatchBytes int
	// Coalesce bounds the bytes of updates that one partition keeps back over
	// batches while a backlog lasts, default 4 MB; negative keeps none back. With
	// small inserts among them it is four times as much, and never more than
	// fold.MostKept times.
	Coalesce int
}

// Targets tell of the collections that events go to. What they say is asked for once per
// name, and again after each schema change.
type Targets interface {
	// Absent reports a source namespace that nothing is applied to yet, for the target never
	// got what has the name.
	Absent(ns string) bool
	// Traits reads a target collection's traits.
	Traits(ctx context.Context, targetNS string) (Traits, error)
	// Expiry tells how the documents of a route expire on the source that stay on the target,
	// and gives what counts those; nil counts nothing.
	Expiry(ctx context.Context, r *stream.Route) (expiry.Settings, func(n int64), error)
}

// Traits are the properties of a target collection that restrict how its
// events may be applied.
type Traits struct {
	Capped   bool // document order is content
	Collated bool // _ids of different bytes can be equal
	Key      docwrite.Key
}

// Overlap says how far the target may be ahead of the events.
type Overlap struct {
	// End is until where the target may be ahead of an event.
	End mongo.OpTime
	// RereadUntil is the position up to which updates that find no document are repaired from
	// the source. Until then, what the target had before the job, or what the copy read, may
	// differ from the source. Later ones are conflicts.
	RereadUntil mongo.OpTime
	// Refused are documents that a conflict stopped an earlier run at: the target
	// is not ahead of their events from those positions on.
	Refused []stream.Place
	// Skipped are what Engine.Skipped returned in an earlier run.
	Skipped []stream.Place
	// Capped tells, by target namespace, what of the events of capped collections
	// the target has already: order is content, so that none of them may be
	// applied twice.
	Capped map[string]CappedStart
}

func (o Options) withDefaults() Options {
	s := &o.Sizes
	s.Partitions = cmp.Or(max(s.Partitions, 0), DefaultPartitions)
	s.InFlight = cmp.Or(max(s.InFlight, 0), 32<<20)
	s.BatchOps = cmp.Or(max(s.BatchOps, 0), 4000)
	s.BatchBytes = cmp.Or(max(s.BatchBytes, 0), 4<<20)
	s.Coalesce = cmp.Or(s.Coalesce, 4<<20)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return o
}
