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

// Status is a snapshot of a job for people and machines. Durations are in
// seconds, sizes in bytes; rates are 10-second averages per second.
type Status struct {
	Job    string      `json:"job"`
	Phase  state.Phase `json:"phase"`
	Paused bool        `json:"paused"`
	// CanFinalize says that a finalize begins as soon as it is asked for;
	// CannotFinalize says why it does not. FinalizeWanted: it was asked for already.
	CanFinalize    bool   `json:"canFinalize"`
	CannotFinalize string `json:"cannotFinalize,omitempty"`
	FinalizeWanted bool   `json:"finalizeWanted"`

	Limits pace.Rates `json:"limits"` // 0 is unlimited
	Load   Load       `json:"load"`
	// Compression is that of what the job exchanges with each side.
	Compression Compressions `json:"compression"`
	Source      string       `json:"source"` // without credentials
	Target      string       `json:"target"`
	StartedAt   time.Time    `json:"startedAt"` // of this process
	// PhaseSeconds is how long each phase took so far in this process.
	PhaseSeconds map[state.Phase]float64 `json:"phaseSeconds"`
	// Waiting says in an operator's words what the job waits for, and since when.
	Waiting      string     `json:"waiting,omitempty"`
	WaitingSince *time.Time `json:"waitingSince,omitempty"`
	Error        string     `json:"error,omitempty"`
	Hint         string     `json:"hint,omitempty"`

	// Structure is what a job makes that copies no documents; nil of others.
	Structure *Structure `json:"structure,omitempty"`

	Copy    Copy    `json:"copy"`
	Indexes []Index `json:"indexes,omitempty"`
	Follow  Follow  `json:"follow"`
	// Shards are those of a sharded source, Routers those of a sharded target.
	Shards  []Shard  `json:"shards,omitempty"`
	Routers []Router `json:"routers,omitempty"`
	// Filters count what each filter did in this process.
	Filters []transform.FilterCount `json:"filters,omitempty"`
	// Fields count what each mapping of fields did in this process.
	Fields []transform.FieldsCount `json:"fields,omitempty"`
	// Skips count what each rule of operations has left out in this process.
	Skips []transform.SkipCount `json:"skips,omitempty"`
	// SoftDeletes count what each rule of soft deletion has marked in this process.
	SoftDeletes []transform.MarkCount `json:"softDeletes,omitempty"`
	// Conflicts are about documents that the target refused.
	Conflicts Conflicts `json:"conflicts"`
	// Process is of the process that the job shows, which may run others too.
	Process procstat.Usage `json:"process"`

	// Errors counts write and read errors so far by class.
	Errors map[string]int64 `json:"errors"`
	// TargetPosition is the target's own position when the job was finalized: from
	// there a sync --mode incremental --start-at leads back.
	TargetPosition string `json:"targetPosition,omitempty"`
	// Differences from the source that finalize found; empty when none.
	Differences []string `json:"differences,omitempty"`
	// LeftOut is what the rules choose and no job can bring to the target, as finalize
	// found it.
	LeftOut []string `json:"leftOut,omitempty"`
}

// Compressions are those of the two sides.
type Compressions struct {
	Source Compression `json:"source"`
	Target Compression `json:"target"`
}

// Compression is how messages are compressed. Gain is how many times as much was
// moved with zstd as without when that was last measured, 0 where it was not.
type Compression struct {
	On   bool    `json:"on"`
	Gain float64 `json:"gain,omitempty"`
}

// Load is how much the job may ask of each side, and how many operations
// that lets be under way there at once, 0 when it is as many as there are workers.
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
	// Lendable is how many slices wait that other workers of a service may copy, Workers
	// those that have, or could not.
	Lendable int              `json:"lendable,omitempty"`
	Workers  []assign.Figures `json:"workers,omitempty"`
}

// Share is how much of the copy is done, within 0 and 1. It goes by bytes, which cost
// the time, where they are known.
func (c Copy) Share(done bool) float64 {
	if c.BytesTotal > 0 {
		return format.Share(c.Bytes, c.BytesTotal, done)
	}
	return format.Share(c.Docs, c.DocsTotal, done)
}

// Collection is the progress of one collection.
type Collection struct {
	Source     string `json:"source"`
	Target     string `json:"target"`
	Docs       int64  `json:"docs"`
	DocsTotal  int64  `json:"docsTotal"`
	Bytes      int64  `json:"bytes"`
	BytesTotal int64  `json:"bytesTotal"`
	Done       bool   `json:"done"`
}

// Index is the progress of an index build on the target.
type Index struct {
	NS    string `json:"ns"`
	Done  int64  `json:"done"`
	Total int64  `json:"total"`
	// Stalled says why the build makes no progress, StalledSince since when; empty while
	// it does.
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
	// WindowSeconds is the time until the source's oplog overwrites what the job needs, at its
	// write rate; -1 unknown.
	WindowSeconds float64 `json:"windowSeconds"`
	// WindowHeld says that what the oplog may overwrite is kept on local disk.
	WindowHeld bool `json:"windowHeld,omitempty"`
	// SpoolBytes is what is kept on local disk of the changes to come.
	SpoolBytes int64 `json:"spoolBytes"`
	// SpooledTo is how far they reach; empty when none are kept.
	SpooledTo        string `json:"spooledTo,omitempty"`
	OpenTransactions int    `json:"openTransactions"`
	SchemaChanges    int64  `json:"schemaChanges"`
	Folded           int64  `json:"folded"` // operations merged into others
	Parked           int64  `json:"parked"` // operations retried in order
	// Located and Broadcast cost all shards of the target something: documents that were
	// looked for there, to know which has them, and updates that were sent to all.
	Located   int64 `json:"located,omitempty"`
	Broadcast int64 `json:"broadcast,omitempty"`
	// Holding is the shard of the source for which the others wait, if there is one.
	Holding *Holding `json:"holding,omitempty"`
}

// Holding is a shard of which is not known yet what it does before the others' changes.
type Holding struct {
	Shard   string    `json:"shard"`
	Seconds float64   `json:"seconds"` // for which it has told of nothing new
	Since   time.Time `json:"since"`
	At      string    `json:"at"` // its position
	// Undecided says that it has a transaction that is prepared and not decided.
	Undecided bool `json:"undecided,omitempty"`
}

// Conflicts counts the documents that the target refused, and those
// removed from it to make room, in all runs of the job.
type Conflicts struct {
	Policy string `json:"policy"`
	deadletter.Stats
	// Where the documents are kept; empty when there are none.
	Where string `json:"where,omitempty"`
}
