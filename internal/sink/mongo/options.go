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

// Types of package resolve that are part of this package's interface.
type (
	ConflictError = resolve.ConflictError
	Clash         = resolve.Clash
	Policy        = resolve.Policy
	Repaired      = resolve.Repaired
	Reread        = resolve.Reread
	Source        = resolve.Source
)

// Results of Engine.Hold.
const (
	RepairNothing = resolve.RepairNothing
	RepairWritten = resolve.RepairWritten
	RepairDeleted = resolve.RepairDeleted
	RepairSame    = resolve.RepairSame
)

// ErrZeroTimestamp is write.ErrZeroTimestamp.
var ErrZeroTimestamp = write.ErrZeroTimestamp

// Options configure an Engine.
type Options struct {
	Sizes     Sizes
	Targets   Targets
	LeavesOut bool // documents which rules cannot map are left out
	Overlap   Overlap
	// Schema applies a schema change. Everything before it is acknowledged, nothing after it sent until
	// Schema returns. before is the last completely applied position. last reports that no event of the
	// change's position follows, so that the position is applied when Schema returns.
	Schema func(ctx context.Context, ev *stream.Event, before mongo.OpTime, last bool) error
	// Policy decides about documents that the target refuses. Source answers questions about them.
	Policy Policy
	Source Source
	// Write configures the writers. New sets its Target.
	Write write.Options
	Limit *pace.Limiter // throttles the events; nil is none
	Log   *slog.Logger
}

// DefaultPartitions is the default of Sizes.Partitions.
const DefaultPartitions = 8

// Sizes limit an Engine.
type Sizes struct {
	Partitions int   // the number of parallel writers, default DefaultPartitions
	InFlight   int64 // bounds the bytes of events in flight, default 32 MB
	BatchOps   int   // of one batch of a partition, default 4000
	BatchBytes int   // of one batch of a partition, default 4 MB
	// Coalesce bounds the bytes of updates that one partition keeps back during a backlog, default 4 MB;
	// negative keeps none back. Small inserts among them raise it, to at most fold.MostKept times.
	Coalesce int
}

// Targets describes collections. Answers are cached until the next schema change.
type Targets interface {
	// Absent reports a source namespace that the target never got.
	Absent(ns string) bool
	// Traits reads a target collection's traits.
	Traits(ctx context.Context, targetNS string) (Traits, error)
	// Expiry returns how documents that stay on the target expire on the source, and a counter of those,
	// which may be nil.
	Expiry(ctx context.Context, r *stream.Route) (expiry.Settings, func(n int64), error)
}

// Traits are properties of a target collection that restrict how events are applied.
type Traits struct {
	Capped   bool // document order is content
	Collated bool // _ids of different bytes can be equal
	Key      docwrite.Key
}

// Overlap says how far the target may be ahead of the events.
type Overlap struct {
	End mongo.OpTime // the last position at which the target may be ahead of an event
	// RereadUntil: up to this position, the source repairs updates that find no document, as an older
	// target or the copy may differ from the source. Later ones are conflicts.
	RereadUntil mongo.OpTime
	// Refused are documents at which a conflict stopped an earlier run, with the first position that the
	// target does not have.
	Refused []stream.Place
	Skipped []stream.Place // what Engine.Skipped returned in an earlier run
	// Capped says, by target namespace, which events the target has already. None may be applied twice,
	// as the order of a capped collection is content.
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
