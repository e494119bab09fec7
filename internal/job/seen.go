package job

import "github.com/millrace/millrace/internal/progress"

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
	StepFinalize   = progress.StepFinalize
)
