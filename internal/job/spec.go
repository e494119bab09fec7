// Package job runs a job: the state machine of its phases, which survives a kill at any moment, and
// its control by an operator. The packages below do the work of the phases. Phases share a session;
// what runs beside them gets what it uses. Nothing is global: one process may run many jobs.
package job

import (
	"context"
	"log/slog"
	"time"

	"github.com/millrace/millrace/internal/assign"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/origin"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/precheck"
	"github.com/millrace/millrace/internal/procstat"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/transform"
)

// The types by which a job is described, planned and shown.
type (
	Mode       = state.Mode
	OnExisting = state.OnExisting
	OnConflict = deadletter.Policy
	Capture    = state.Capture
	Via        = origin.Via
	Phase      = state.Phase

	Plan          = precheck.Plan
	PrecheckError = precheck.Error
	Status        = progress.Status
	Holding       = progress.Holding
	FollowStatus  = progress.Follow
	Done          = progress.Done
	Event         = progress.Event
)

// The modes, captures, policies and phases of a job.
const (
	ModeAll         = state.ModeAll
	ModeFull        = state.ModeFull
	ModeIncremental = state.ModeIncremental
	ModeStructure   = state.ModeStructure

	ExistingFail  = state.ExistingFail
	ExistingMerge = state.ExistingMerge
	ExistingDrop  = state.ExistingDrop

	CaptureAuto    = state.CaptureAuto
	CaptureOplog   = state.CaptureOplog
	CaptureStreams = state.CaptureStreams

	ViaAuto    = origin.ViaAuto
	ViaShards  = origin.ViaShards
	ViaRouters = origin.ViaRouters

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

// See progress.
const (
	OtherParts = progress.Others
	MaxParts   = progress.MaxParts
)

// Step is a kind of step of a job (see Event).
type Step = progress.Step

// The kinds of steps.
const (
	StepPhase      = progress.StepPhase
	StepCollection = progress.StepCollection
	StepSchema     = progress.StepSchema
)

// Compress says when exchanges are compressed, if the connection string names no compressor.
type Compress string

// The values of Compress.
const (
	CompressAuto Compress = "auto" // while it is found to move more than without
	CompressOff  Compress = "off"
)

// Deps are what a job gets from its process. Zero values suit a process with one job.
type Deps struct {
	Log *slog.Logger // nil discards
	// Connect opens a side; both at once. Connections to the target are the run's own.
	Connect func(ctx context.Context, uri string, o mongo.Options) (*mongo.Cluster, error)
	// Oplogs lets jobs of a process read the same oplog together; nil does not.
	Oplogs *oplog.Shared
	// Memory bounds the bytes of documents that the copy has in flight; 0 is 64 MB.
	Memory int64
	// Now is the time of day, with a monotonic reading.
	Now func() time.Time
	// Usage returns what the job shows as the use of the process. At most one job of a process
	// should show all of it.
	Usage func() procstat.Usage
	// OnEvent is called when steps begin and end. It must return at once and not use the job; nil
	// is allowed.
	OnEvent func(Event)
	// FinalizeLogged says that a run of another process has logged the request to finalize.
	FinalizeLogged bool
	// Offer lets other workers copy slices; nil does not.
	Offer *assign.Offer
}

// UntilCaughtUp is the value of Spec.Until with which a job finalizes as soon as it has caught up.
const UntilCaughtUp = "caught-up"

// SetDefaults fills in what is not given.
func (d *Deps) SetDefaults() {
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

// Spec defines a job and how it runs. Source and Target hold secrets and are never logged.
type Spec struct {
	// Job names the job in the target. Empty derives it from source, target and rules, so that the
	// same command resumes the same job.
	Job            string
	Source, Target string
	// SourceShards are connection strings of the source's shards, by name, if the addresses of the
	// cluster or the user of Source do not work.
	SourceShards map[string]string
	// TargetShards are those of a sharded target, which finalize and a comparison read.
	TargetShards map[string]string
	// Capture says how changes are read, Via how a sharded source is. Empty is auto: as the job began, else
	// as rights and routes allow.
	Capture Capture
	Via     Via
	// Shard are rules for the shard keys of a sharded target.
	Shard []string
	// Zones are rules for the zones of shards of a sharded target.
	Zones []string
	Mode  Mode
	// StartAt is where incremental mode begins: an optime ("sec:inc"), a time (RFC 3339), "checkpoint", or
	// "job:NAME" where that job, which this one reverses, was finalized.
	StartAt string
	// FilesAt says that the target is a copy of the source's files at this position: incremental mode begins there,
	// and the target is at no position after it. Zero is a target that others filled.
	FilesAt mongo.OpTime
	// AcceptLoss names losses of a job that reverses another one (package reverse).
	AcceptLoss []string
	// Until is "never", "caught-up" or a time (RFC 3339) after which the job finalizes.
	Until      string
	Rules      transform.Config
	OnExisting OnExisting
	// Users copies the users and roles of the chosen databases.
	Users bool
	// OnConflict is the policy for documents that the target refuses. It may change with each run.
	// Empty is ConflictStop.
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

	// WriteConcern is what a recorded position must have reached: "majority" (default) or a number.
	WriteConcern   string
	ReadPreference string // primary, secondary, …
	ReadTags       string // "dc:east,rack:1;dc:west"

	// Readers, Writers and Partitions bound concurrency; 0 chooses.
	Readers, Writers, Partitions int
	// Compress is CompressAuto where it is "".
	Compress Compress
	// ApplyBuffer bounds the bytes of changes that were read and not applied; 0 is
	// DefaultApplyBuffer. One reply of the source and one document pass at any size, up to 16 MB
	// each.
	ApplyBuffer int64
	// Limits throttle copy and apply until SetLimits changes them.
	Limits pace.Rates
	// Loads limit what copy and apply ask of each side until SetLoads changes them. Empty is
	// pace.Normal.
	Loads pace.Loads
	// SpoolDir keeps up to SpoolBytes of changes that the oplog may lose during the copy; without
	// either none.
	SpoolDir   string
	SpoolBytes int64
	// WarnWindow is the remaining oplog window below which warnings begin.
	WarnWindow time.Duration
	// GiveUpAfter ends the job when one failure lasts that long; 0 is never.
	GiveUpAfter time.Duration
	// IndexWait bounds the wait of finalize for index builds of the source; 0 does not.
	IndexWait time.Duration
	// Settings is stored as state.Job.Settings.
	Settings []string

	Deps
}
