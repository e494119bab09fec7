// Package job runs a job: the state machine of its phases, which survives a kill
// at any moment, and an operator's control of it. What the phases do is done by
// the packages below; here it is put together and begun again from what is stored.
// The phases share a session; what runs beside them is given what it uses.
// Nothing is kept by process: one may run many jobs.
package job

import (
	"context"
	"log/slog"
	"time"

	"github.com/millrace/millrace/internal/assign"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/precheck"
	"github.com/millrace/millrace/internal/procstat"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/transform"
)

// What a job is described, planned and shown with.
type (
	Mode       = state.Mode
	OnExisting = state.OnExisting
	OnConflict = deadletter.Policy
	Phase      = state.Phase

	Plan             = precheck.Plan
	PrecheckError    = precheck.Error
	Status           = progress.Status
	LoadStatus       = progress.Load
	Compressions     = progress.Compressions
	Compression      = progress.Compression
	CopyStatus       = progress.Copy
	CollectionStatus = progress.Collection
	IndexStatus      = progress.Index
	FollowStatus     = progress.Follow
	Holding          = progress.Holding
	Done             = progress.Done
	ShardStatus      = progress.Shard
	RouterStatus     = progress.Router
	ShardDone        = progress.ShardDone
	RouterDone       = progress.RouterDone
	Event            = progress.Event
	StructureStatus  = progress.Structure
	MadeStatus       = progress.Made
	ConflictStatus   = progress.Conflicts
	ProcessStatus    = procstat.Usage
)

// The modes, policies and phases of a job.
const (
	ModeAll         = state.ModeAll
	ModeFull        = state.ModeFull
	ModeIncremental = state.ModeIncremental
	ModeStructure   = state.ModeStructure

	ExistingFail  = state.ExistingFail
	ExistingMerge = state.ExistingMerge
	ExistingDrop  = state.ExistingDrop

	ConflictStop      = deadletter.Stop
	ConflictSkip      = deadletter.Skip
	ConflictOverwrite = deadletter.Overwrite

	PhaseStarting   = state.PhaseStarting
	PhaseCatalog    = state.PhaseCatalog
	PhaseCreating   = state.PhaseCreating
	PhaseCopying    = state.PhaseCopying
	PhaseIndexing   = state.PhaseIndexing
	PhaseOverlap    = state.PhaseOverlap
	PhaseFollowing  = state.PhaseFollowing
	PhaseFinalizing = state.PhaseFinalizing
	PhaseFinalized  = state.PhaseFinalized
	PhaseFailed     = state.PhaseFailed
)

// What is said of shards and routers (see progress).
const (
	OtherParts = progress.Others
	MaxParts   = progress.MaxParts
)

// Step is a kind of what a job does (see Event).
type Step = progress.Step

// The kinds of steps.
const (
	StepPhase      = progress.StepPhase
	StepCollection = progress.StepCollection
	StepSchema     = progress.StepSchema
)

// Compress says when what is exchanged with source and target is compressed, where
// the connection string names no compressor.
type Compress string

// The values of Compress.
const (
	CompressAuto Compress = "auto" // while it is found to move more than without
	CompressOff  Compress = "off"
)

// Deps are what a job has of the process that runs it. What is not set behaves as
// in a process with one job.
type Deps struct {
	Log *slog.Logger // nil discards
	// Connect opens a side; both are opened at once. Connections to the target carry
	// the run's name and are its own.
	Connect func(ctx context.Context, uri string, o mongo.Options) (*mongo.Cluster, error)
	// Memory bounds the bytes of documents that the copy has under way. 0 is 64 MB.
	Memory int64
	// Now is the time of day, with a monotonic reading.
	Now func() time.Time
	// Usage is what the job shows as the use of the process. Where several share
	// a process, at most one of them should show all of it.
	Usage func() procstat.Usage
	// OnEvent is called when steps of the job begin and end. It must return at once, and must
	// not use the job. Nil is allowed.
	OnEvent func(Event)
	// FinalizeLogged says that the job's log already has the request to finalize, from a run of
	// another process.
	FinalizeLogged bool
	// Offer is how others come to copy slices of the job; nil: nobody does.
	Offer *assign.Offer
}

func (d *Deps) setDefaults() {
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.Connect == nil {
		d.Connect = mongo.Connect
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Usage == nil {
		d.Usage = procstat.Read
	}
}

// Spec is everything that defines a job and how it is run. Source and Target
// hold secrets and are never logged.
type Spec struct {
	// Job names the job in the target; empty derives it from source, target
	// and rules, so that the same command resumes the same job.
	Job            string
	Source, Target string
	// SourceShards are connection strings of a sharded source's shards, by name, where
	// the addresses that the cluster knows or the user of Source do not do.
	SourceShards map[string]string
	// TargetShards are those of a sharded target, which finalize and a comparison read.
	TargetShards map[string]string
	// Shard are rules by which keys collections are sharded on a sharded target.
	Shard []string
	// Zones are rules which shards of a sharded target are to be in a zone of the source.
	Zones []string
	Mode  Mode
	// StartAt is where incremental mode begins: an optime ("sec:inc"), a time
	// (RFC 3339), "checkpoint", or "job:NAME" for where a finalized job ended that this one reverses.
	StartAt string
	// AcceptLoss names losses of a job that reverses another one (package reverse).
	AcceptLoss []string
	// Until is "never", "caught-up" or a time (RFC 3339) after which the job
	// finalizes.
	Until      string
	Rules      transform.Config
	OnExisting OnExisting
	// Users copies the users and roles of the chosen databases.
	Users bool
	// OnConflict says what becomes of a document that the target refuses; it
	// may change from one run of a job to the next. Empty is ConflictStop.
	OnConflict OnConflict
	// Restart forgets an earlier checkpoint of the job.
	Restart bool
	// AllowDowngrade permits a target older than the source.
	AllowDowngrade bool
	// AllowMissing permits an include that matches nothing on the source yet.
	AllowMissing bool
	// AllowOverlap permits other jobs with the same names on the target.
	AllowOverlap bool
	// AllowShard permits a side that is one shard of a sharded cluster.
	AllowShard bool

	// WriteConcern that a position must have reached before it is recorded:
	// "majority" (default) or a number.
	WriteConcern   string
	ReadPreference string // primary, secondary, …
	ReadTags       string // "dc:east,rack:1;dc:west"

	// Readers, Writers and Partitions bound concurrency; 0 chooses.
	Readers, Writers, Partitions int
	// Compress is CompressAuto where it is "".
	Compress Compress
	// ApplyBuffer bounds the bytes of changes that were read and are not applied, by
	// all partitions together; 0 is DefaultApplyBuffer. One reply of the source and
	// one document pass however large they are, 16 MB each.
	ApplyBuffer int64
	// Limits throttle copy and apply until SetLimits changes them.
	Limits pace.Rates
	// Loads limit what copy and apply may ask of each side, until SetLoads changes them. Empty
	// is pace.Normal.
	Loads pace.Loads
	// SpoolDir is where changes are kept that the oplog may forget before the
	// copy is done, SpoolBytes how much of them; without either none are.
	SpoolDir   string
	SpoolBytes int64
	// WarnWindow is the remaining oplog window below which warnings begin.
	WarnWindow time.Duration
	// GiveUpAfter ends the job when one failure lasts that long; 0 is never.
	GiveUpAfter time.Duration
	// IndexWait is how long finalize waits for index builds under way on the source
	// before it is rejected; 0 is without limit.
	IndexWait time.Duration

	Deps
}
