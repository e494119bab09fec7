// Package job runs a job: it ties catalog, copy, tail, apply and verify
// into one state machine that survives a kill at any moment.
package job

import (
	"log/slog"
	"time"

	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/transform"
)

// Mode says which parts of a job run.
type Mode string

// The modes of a job.
const (
	ModeAll         Mode = "all"         // copy, then follow
	ModeFull        Mode = "full"        // copy only
	ModeIncremental Mode = "incremental" // follow only
)

// OnExisting says what to do with target collections that exist already.
type OnExisting string

// The policies for target collections that exist.
const (
	ExistingFail  OnExisting = "fail"  // refuse before anything is written
	ExistingMerge OnExisting = "merge" // keep them; the source's document wins on the same _id
	ExistingDrop  OnExisting = "drop"  // drop them first
)

// orOf is the policy with which a job began, unless one is asked for.
func (e OnExisting) orOf(job state.Job) OnExisting {
	if (e == "" || e == ExistingFail) && job.OnExisting != "" {
		return OnExisting(job.OnExisting)
	}
	return e
}

// Spec is everything that defines a job and how it is run. Source and Target
// hold secrets and are never logged.
type Spec struct {
	// Job names the job in the target; empty derives it from source, target
	// and rules, so that the same command resumes the same job.
	Job            string
	Source, Target string
	Mode           Mode
	// StartAt is where incremental mode begins: an optime ("sec:inc"), a time
	// (RFC 3339) or "checkpoint".
	StartAt string
	// Until is "never", "caught-up" or a time (RFC 3339) after which the job
	// finalizes.
	Until      string
	Rules      transform.Config
	OnExisting OnExisting
	// OnConflict says what becomes of a document that the target refuses; it
	// may change from one run of a job to the next. Empty is ConflictStop.
	OnConflict OnConflict
	// Restart forgets an earlier checkpoint of the job.
	Restart bool
	// AllowDowngrade permits a target older than the source.
	AllowDowngrade bool

	// WriteConcern that a position must have reached before it is recorded:
	// "majority" (default) or a number.
	WriteConcern   string
	ReadPreference string // primary, secondary, …
	ReadTags       string // "dc:east,rack:1;dc:west"

	// Readers, Writers and Partitions bound concurrency; 0 chooses.
	Readers, Writers, Partitions int
	// Limits hold copy and apply back until SetLimits changes them.
	Limits pace.Rates
	// Loads are what copy and apply may ask of each side until SetLoads changes
	// them; empty is pace.Normal.
	Loads pace.Loads
	// SpoolDir is where changes are kept that the oplog may forget before the
	// copy is done, SpoolBytes how much of them; without either none are.
	SpoolDir   string
	SpoolBytes int64
	// WarnWindow is the remaining oplog window below which warnings begin.
	WarnWindow time.Duration
	// GiveUpAfter ends the job when one failure lasts that long; 0 is never.
	GiveUpAfter time.Duration

	Log *slog.Logger
}
