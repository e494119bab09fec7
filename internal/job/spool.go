package job

import (
	"fmt"
	"path/filepath"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/state"
)

func (j *Job) newSpooler() *oplog.Spooler {
	o := oplog.SpoolOptions{MaxBytes: j.spec.SpoolBytes, Log: j.log}
	if j.spec.SpoolDir != "" {
		o.Dir = filepath.Join(j.spec.SpoolDir, j.id)
	}
	return oplog.NewSpooler(j.src, o)
}

// spoolOwner names the life of a job whose changes are on local disk.
func spoolOwner(job state.Job) string {
	return fmt.Sprintf("%s to %s since %d", job.SourceSet.Hex(), job.TargetSet.Hex(), job.CreatedAt.UnixNano())
}

// reads is where reading starts from the durable position.
func (s *progress) reads() mongo.OpTime {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.readFrom
}
