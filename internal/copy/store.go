package copy

import (
	"context"

	"github.com/millrace/millrace/internal/scan"
)

// Store keeps slice states.
type Store interface {
	// LoadSlices returns what was saved, in any order.
	LoadSlices(ctx context.Context) ([]scan.Slice, error)
	// SaveSlices returns once changed is durable on the target (majority). It
	// fails with an error of class retry when writes since the last call may
	// have been rolled back.
	SaveSlices(ctx context.Context, changed []scan.Slice) error
	// SameTerm is given the election term of each answer to a data write, from
	// several goroutines, and fails when it is not that of the attempt.
	SameTerm(term int64) error
}
