package job

import (
	"context"
	"errors"

	"github.com/millrace/millrace/internal/follow"
	"github.com/millrace/millrace/internal/mongo"
)

// Repair is a document of the target that is to become as the source has it, and what has
// come of it.
type Repair = follow.Repair

// What may come of a repair.
const (
	RepairWritten = follow.RepairWritten
	RepairDeleted = follow.RepairDeleted
	RepairSame    = follow.RepairSame
	RepairRefused = follow.RepairRefused
)

// ErrEnded says that the job's run has ended before what was asked of it.
var ErrEnded = errors.New("the job's run has ended")

// Repair makes documents of the target as the source has them, and waits until each has
// its outcome; told gets all of them as they stand, each time that one more has one. The
// job does it while it follows, in order with the changes of the source. Those that were
// begun when ctx ends are repaired all the same.
func (j *Job) Repair(ctx context.Context, list []*Repair, told func(now []Repair)) error {
	if j.shards != nil || j.dst.Info.Kind == mongo.KindSharded {
		return mongo.WithHint(errors.New("documents of sharded clusters are not repaired"), "change them on the source, which has them written anew")
	}
	j.repairs.Add(list)
	defer j.repairs.Remove(list)
	for ended := false; ; {
		now, open, changed := j.repairs.Look(list)
		switch told(now); {
		case open == 0:
			return nil
		case ended:
			return ErrEnded
		}
		select {
		case <-changed:
		case <-j.control.done: // the last outcomes may be of the same moment
			ended = true
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
