package state

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/stream"
)

// Mode says which parts of a job run.
type Mode string

// The modes of a job.
const (
	ModeAll         Mode = "all"         // copy, then follow
	ModeFull        Mode = "full"        // copy only
	ModeIncremental Mode = "incremental" // follow only
	ModeStructure   Mode = "structure"   // collections, options, indexes and views, no documents
)

// EndsByItself reports a mode whose job nobody has to finalize.
func (m Mode) EndsByItself() bool { return m == ModeFull || m == ModeStructure }

// OnExisting says what to do with target collections that exist already.
type OnExisting string

// The policies for target collections that exist.
const (
	ExistingFail  OnExisting = "fail"  // refuse before anything is written
	ExistingMerge OnExisting = "merge" // keep them; the source's document wins on the same _id
	ExistingDrop  OnExisting = "drop"  // drop them first
)

// Or is the policy with which a job began, unless one is asked for.
func (e OnExisting) Or(began OnExisting) OnExisting {
	if (e == "" || e == ExistingFail) && began != "" {
		return began
	}
	return e
}

// Phase is where a job stands.
type Phase string

// The phases of a job, in order. The first and the last are shown only and
// never stored; PhaseCreating is stored and shown as it is.
const (
	PhaseStarting   Phase = "starting"
	PhaseCatalog    Phase = "catalog"    // taking the snapshot, or the start position
	PhaseCreating   Phase = "creating"   // collections
	PhaseCopying    Phase = "copying"    // documents
	PhaseIndexing   Phase = "indexing"   // indexes after the copy
	PhaseOverlap    Phase = "overlap"    // applying changes made during the copy
	PhaseFollowing  Phase = "following"  // steady state
	PhaseFinalizing Phase = "finalizing" // draining and restoring what was deferred
	PhaseFinalized  Phase = "finalized"  // cut-over may happen
	PhaseFailed     Phase = "failed"
)

// AfterCopy reports phases in which the copy is complete.
func (p Phase) AfterCopy() bool {
	switch p {
	case PhaseIndexing, PhaseOverlap, PhaseFollowing, PhaseFinalizing, PhaseFinalized:
		return true
	}
	return false
}

// PositionFields are the fields of a job's document that say where it stands.
func PositionFields(p stream.Position) bson.D {
	return bson.D{{Key: "applied", Value: p.At}, {Key: "mark", Value: p.Mark}}
}
