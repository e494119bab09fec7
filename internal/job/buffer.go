package job

import (
	"cmp"

	mongosink "github.com/millrace/millrace/internal/sink/mongo"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
)

const (
	// DefaultApplyBuffer is Spec.ApplyBuffer where it is 0.
	DefaultApplyBuffer = 256 << 20
	// LeastApplyBuffer is the least that Spec.ApplyBuffer may be: with less, the
	// parts of it are smaller than what one exchange with a server is worth.
	LeastApplyBuffer = 8_000_000
)

// applyBuffer is how the bytes that were read and are not applied are divided:
// each stage has its own part, in which one piece always has room, however large.
// So no stage ever waits for room that a later one does not give back by itself.
type applyBuffer struct {
	readAhead    int64 // replies of the source
	batch        int   // entries on their way from the source to the sink
	transactions int64 // of open transactions
	inFlight     int64 // events that the sink was given
	writes       int   // of those, in one partition's batch of writes
	kept         int   // what one partition keeps back to fold, as Sizes.Coalesce
}

// newApplyBuffer divides so many bytes among so many partitions; 0 are the
// defaults. Most is for what is kept back: what folds grows with its square.
func newApplyBuffer(bytes int64, partitions int) applyBuffer {
	const (
		parts     = 8
		batches   = 8       // under way at once
		mostBatch = 4 << 20 // more at once is no faster
	)
	bytes, partitions = cmp.Or(bytes, DefaultApplyBuffer), cmp.Or(partitions, mongosink.DefaultPartitions)
	part := bytes / parts
	b := applyBuffer{readAhead: part, transactions: part, inFlight: part,
		batch: int(min(part/batches, mostBatch)), writes: int(min(max(part/int64(partitions), 1), mostBatch))}
	kept := bytes - 3*part - int64(b.batch)
	b.kept = int(max(kept/int64(partitions*fold.MostKept), 1))
	return b
}

// applyBuffer is that of the job.
func (s *Spec) applyBuffer() applyBuffer { return newApplyBuffer(s.ApplyBuffer, s.Partitions) }
