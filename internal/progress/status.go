package progress

import (
	"time"

	"github.com/millrace/millrace/internal/assign"
	"github.com/millrace/millrace/internal/format"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/procstat"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/transform"
)

// Status is a snapshot of a job. Durations are in seconds, sizes in bytes, rates 10-second averages per second.
type Status struct {
	Job    string      `json:"job"`
	Phase  state.Phase `json:"phase"`
	Paused bool        `json:"paused"`
	// CanFinalize says that a finalize can begin, CannotFinalize why not. FinalizeWanted: it was requested.
	CanFinalize    bool   `json:"canFinalize"`
	CannotFinalize string `json:"cannotFinalize,omitempty"`
	FinalizeWanted bool   `json:"finalizeWanted"`

	Limits      pace.Rates   `json:"limits"` // 0 is unlimited
	Load        Load         `json:"load"`
	Compression Compressions `json:"compression"`
	Source      string       `json:"source"` // without credentials
	Target      string       `json:"target"`
	// Capture is how the source's changes are read: "change-streams", of a sharded source through its routers, or
	// "oplog". Empty is unknown.
	Capture   state.Capture `json:"capture,omitempty"`
	StartedAt time.Time     `json:"startedAt"` // of this process
	// PhaseSeconds is how long each phase took in this process.
	PhaseSeconds map[state.Phase]float64 `json:"phaseSeconds"`
	// Waiting says what the job waits for, and since when.
	Waiting      string     `json:"waiting,omitempty"`
	WaitingSince *time.Time `json:"waitingSince,omitempty"`
	Error        string     `json:"error,omitempty"`
	Hint         string     `json:"hint,omitempty"`

	Structure *Structure `json:"structure,omitempty"` // nil unless the job copies no documents

	Copy    Copy    `json:"copy"`
	Indexes []Index `json:"indexes,omitempty"`
	Follow  Follow  `json:"follow"`
	// Shards are those of a sharded source, Routers those of a sharded target.
	Shards  []Shard  `json:"shards,omitempty"`
	Routers []Router `json:"routers,omitempty"`
	// What rules did in this process: filters, field mappings, skipped operations, soft deletions.
	Filters     []transform.FilterCount `json:"filters,omitempty"`
	Fields      []transform.FieldsCount `json:"fields,omitempty"`
	Skips       []transform.SkipCount   `json:"skips,omitempty"`
	SoftDeletes []transform.MarkCount   `json:"softDeletes,omitempty"`
	Conflicts   Conflicts               `json:"conflicts"` // about documents that the target refused
	Process     procstat.Usage          `json:"process"`   // the process, which may run other jobs too

	// Errors counts write and read errors by class.
	Errors map[string]int64 `json:"errors"`
	// FinalizedAt is when the job was finalized. TargetPosition is the target's own position
	// then: from there a sync --mode incremental --start-at leads back.
	FinalizedAt    *time.Time `json:"finalizedAt,omitempty"`
	TargetPosition string     `json:"targetPosition,omitempty"`
	// Differences from the source that finalize found; empty when none.
	Differences []string `json:"differences,omitempty"`
	// LeftOut is what the rules choose and no job can bring to the target, by finalize.
	LeftOut []string `json:"leftOut,omitempty"`
}

// Compressions are those of both sides.
type Compressions struct {
	Source Compression `json:"source"`
	Target Compression `json:"target"`
}

// Compression is how messages are compressed. Gain is how many times as much zstd moved when last measured.
type Compression struct {
	On   bool    `json:"on"`
	Gain float64 `json:"gain,omitempty"`
}

// Load is how much the job may use each side, and how many operations at once; 0 is one for each worker.
type Load struct {
	pace.Loads
	SourceAtOnce int `json:"sourceAtOnce"`
	TargetAtOnce int `json:"targetAtOnce"`
}

// Copy is the progress of the full copy.
type Copy struct {
	Docs        int64        `json:"docs"`
	DocsTotal   int64        `json:"docsTotal"` // estimate
	Bytes       int64        `json:"bytes"`
	BytesTotal  int64        `json:"bytesTotal"` // estimate
	DocsRate    float64      `json:"docsRate"`
	BytesRate   float64      `json:"bytesRate"`
	ETASeconds  float64      `json:"etaSeconds"` // -1 when unknown
	Collections []Collection `json:"collections"`
	// Lendable is how many slices wait that other workers may copy, Workers those that copied some, or failed.
	Lendable int              `json:"lendable,omitempty"`
	Workers  []assign.Figures `json:"workers,omitempty"`
}

// Share is how much of the copy is done, from 0 to 1, by bytes where they are known.
func (c Copy) Share(done bool) float64 {
	if c.BytesTotal > 0 {
		return format.Share(c.Bytes, c.BytesTotal, done)
	}
	return format.Share(c.Docs, c.DocsTotal, done)
}

// ByFiles reports a copy of files, which counts no documents.
func (c Copy) ByFiles() bool { return c.DocsTotal == 0 && c.Docs == 0 && c.BytesTotal > 0 }

type Collection struct {
	Source     string `json:"source"`
	Target     string `json:"target"`
	Docs       int64  `json:"docs"`
	DocsTotal  int64  `json:"docsTotal"`
	Bytes      int64  `json:"bytes"`
	BytesTotal int64  `json:"bytesTotal"`
	Done       bool   `json:"done"`
}

type Index struct {
	NS    string `json:"ns"`
	Done  int64  `json:"done"`
	Total int64  `json:"total"`
	// Stalled says why the build makes no progress, StalledSince since when.
	Stalled      string     `json:"stalled,omitempty"`
	StalledSince *time.Time `json:"stalledSince,omitempty"`
}

// Follow is the progress of continuous replication.
type Follow struct {
	Operations     int64   `json:"operations"` // applied since the process started
	OperationsRate float64 `json:"operationsRate"`
	BytesRate      float64 `json:"bytesRate"`
	// Applied is the durable position; Source the source's newest one.
	Applied string `json:"applied"`
	Source  string `json:"source"`
	// LagSeconds is 0 when everything the source has is applied; -1 unknown.
	LagSeconds float64 `json:"lagSeconds"`
	// WindowSeconds is the time until the source's oplog overwrites what the job needs, at its write rate; -1 unknown.
	WindowSeconds float64 `json:"windowSeconds"`
	// WindowHeld says that what the oplog may overwrite is kept on local disk.
	WindowHeld bool `json:"windowHeld,omitempty"`
	// SpoolBytes is what local disk has of later changes, SpooledTo how far they reach.
	SpoolBytes       int64  `json:"spoolBytes"`
	SpooledTo        string `json:"spooledTo,omitempty"`
	OpenTransactions int    `json:"openTransactions"`
	SchemaChanges    int64  `json:"schemaChanges"`
	Folded           int64  `json:"folded"` // operations merged into others
	Parked           int64  `json:"parked"` // operations retried in order
	// Located counts documents looked up on all shards of the target, Broadcast updates sent to all.
	Located   int64    `json:"located,omitempty"`
	Broadcast int64    `json:"broadcast,omitempty"`
	Holding   *Holding `json:"holding,omitempty"` // the shard of the source that the others wait for
}

// Holding is a shard whose changes before the others' are not known yet.
type Holding struct {
	Shard   string    `json:"shard"`
	Seconds float64   `json:"seconds"` // without news of it
	Since   time.Time `json:"since"`
	At      string    `json:"at"` // its position
	// Undecided says that it has a prepared transaction without a decision.
	Undecided bool `json:"undecided,omitempty"`
}

// Conflicts counts documents that the target refused or that were removed, in all runs of the job.
type Conflicts struct {
	Policy string `json:"policy"`
	deadletter.Stats
	// Where the documents are kept; empty when there are none.
	Where string `json:"where,omitempty"`
}
