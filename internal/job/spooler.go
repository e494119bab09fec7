package job

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/retry"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/source/spool"
	"github.com/millrace/millrace/internal/state"
)

// spooler keeps changes on local disk that the source's oplog may forget before
// the target can take them. It begins when the oplog window gets short during a
// copy and ends when the changes are applied as far as the oplog reaches back.
// Its failure is none of the job: without it the oplog has to do.
type spooler struct {
	j      *Job
	wanted chan struct{} // capacity 1: the window got short

	mu      sync.Mutex
	s       *spool.Spool // nil while there is none
	cancel  func()       // ends the filling; nil while nobody fills
	filling chan struct{}
	stuckAt int64 // the spool's size when its disk was found full; less than 0 if it was not
}

func newSpooler(j *Job) *spooler {
	return &spooler{j: j, wanted: make(chan struct{}, 1), stuckAt: -1}
}

func (p *spooler) enabled() bool { return p.j.spec.SpoolDir != "" && p.j.spec.SpoolBytes > 0 }

// covers tells whether a short oplog window does not matter, because changes go
// to disk and there is room for more. With begin set that is made so if it can.
func (p *spooler) covers(begin bool) bool {
	p.mu.Lock()
	s, done, stuckAt := p.s, p.filling, p.stuckAt
	p.mu.Unlock()
	if done == nil {
		return false
	}
	select {
	case <-done:
		return false
	default:
	}
	if s != nil {
		return s.Bytes() != stuckAt && s.Room(oplog.SpoolRoom)
	}
	if begin {
		p.wake()
	}
	return begin
}

func (p *spooler) wake() {
	select {
	case p.wanted <- struct{}{}:
	default:
	}
}

// begin goes on with what an earlier process left, and starts to fill as soon
// as that is wanted. The returned function ends the filling.
func (p *spooler) begin(ctx context.Context, job state.Job) (end func()) {
	if !p.enabled() {
		return func() {}
	}
	if err := p.left(job); err != nil {
		p.j.log.Warn("the spool of an earlier process cannot be used", "error", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	p.mu.Lock()
	p.cancel, p.filling = cancel, done
	p.mu.Unlock()
	go func() {
		defer close(done)
		if err := p.run(ctx, job); err != nil && ctx.Err() == nil {
			p.j.log.Warn("changes are no longer kept on local disk; the copy has to end while the oplog holds them",
				"error", err, "hint", mongo.HintOf(err))
		}
	}()
	return p.stop
}

// stop ends the filling and waits for it.
func (p *spooler) stop() {
	p.mu.Lock()
	cancel, done := p.cancel, p.filling
	p.mu.Unlock()
	if cancel != nil {
		cancel()
		<-done
	}
}

// left opens the spool that an earlier process of this job left and keeps it
// if the job still needs it.
func (p *spooler) left(job state.Job) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.s == nil {
		if err := p.open(job); err != nil {
			return err
		}
	}
	if from, err := oplog.ReadFrom(positionOf(job)); err == nil && oplog.Spooled(p.s, from) {
		p.wake()
		return nil
	}
	return p.remove()
}

// open opens the spool; p.mu is held.
func (p *spooler) open(job state.Job) (err error) {
	p.s, err = spool.Open(filepath.Join(p.j.spec.SpoolDir, p.j.id), spool.Options{
		MaxBytes: p.j.spec.SpoolBytes,
		Owner:    fmt.Sprintf("%s to %s since %d", job.SourceSet.Hex(), job.TargetSet.Hex(), job.CreatedAt.UnixNano()),
	})
	return mongo.WithHint(err, "choose another directory with --spool-dir")
}

// remove deletes the spool; p.mu is held.
func (p *spooler) remove() error {
	if p.s == nil {
		return nil
	}
	err := p.s.Remove()
	p.s = nil
	return err
}

// run waits until a spool is wanted and fills it.
func (p *spooler) run(ctx context.Context, job state.Job) error {
	select {
	case <-p.wanted:
	case <-ctx.Done():
		return nil
	}
	p.mu.Lock()
	if p.s == nil {
		if err := p.open(job); err != nil {
			p.mu.Unlock()
			return err
		}
	}
	s := p.s
	p.mu.Unlock()
	from := p.j.progress.ReadFrom()
	p.j.log.Info("the oplog may not hold the changes until the copy is done; keeping them on local disk",
		"directory", filepath.Join(p.j.spec.SpoolDir, p.j.id), "most", p.j.spec.SpoolBytes, "from", from)
	return p.fill(ctx, from, s)
}

// fill reads the oplog into the spool until ctx ends, again after each failure
// that passes by itself. A full disk is one: room may be made on it.
func (p *spooler) fill(ctx context.Context, from mongo.OpTime, s *spool.Spool) error {
	src := oplog.New(p.j.src, oplog.Options{Log: p.j.log})
	for backoff := (retry.Backoff{}); ; {
		err := src.Fill(ctx, from, s)
		full := errors.Is(err, spool.ErrNoSpace)
		if ctx.Err() != nil || !full && mongo.Classify(err) != mongo.ClassRetry {
			return errors.Join(err, s.Sync())
		}
		if full {
			p.stuck(s.Bytes(), err)
		} else {
			p.j.log.Debug("filling the spool was interrupted", "error", err)
		}
		select {
		case <-time.After(backoff.Next()):
		case <-ctx.Done():
			return s.Sync()
		}
	}
}

// stuck notes that the spool's disk is full, and says so once for each size.
func (p *spooler) stuck(size int64, err error) {
	p.mu.Lock()
	was := p.stuckAt
	p.stuckAt = size
	p.mu.Unlock()
	if was != size {
		p.j.log.Warn("the disk of the spool is full; until there is room, the oplog has to hold the changes",
			"error", err, "hint", "make room in "+p.j.spec.SpoolDir)
	}
}

// source is the spool to read changes from, nil when there is none.
func (p *spooler) source() *spool.Spool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.s
}

// end is the position up to which a reader at a position needs no oplog: the
// spool's end, or that position itself.
func (p *spooler) end(readFrom mongo.OpTime) mongo.OpTime {
	if s := p.source(); oplog.Spooled(s, readFrom) {
		return oplog.SpoolEnd(s)
	}
	return readFrom
}

// bytes is what the spool takes on disk.
func (p *spooler) bytes() int64 {
	if s := p.source(); s != nil {
		return s.Bytes()
	}
	return 0
}

// reaches is the last change that is kept, zero when none is.
func (p *spooler) reaches() mongo.OpTime {
	if s := p.source(); s != nil {
		return oplog.SpoolEnd(s)
	}
	return mongo.OpTime{}
}

// passed gives back what the job, reading from a position on, needs no more.
func (p *spooler) passed(readFrom mongo.OpTime) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.s == nil {
		return nil
	}
	if oplog.SpoolEnd(p.s).Before(readFrom) { // then nobody fills it any more
		return p.remove()
	}
	return oplog.TrimSpool(p.s, readFrom)
}

// close lets the spool go: for good when the job is finished.
func (p *spooler) close(finished bool) error {
	p.stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.s == nil {
		return nil
	}
	if finished {
		return p.remove()
	}
	err := p.s.Close()
	p.s = nil
	return err
}

// handOver gives the spool to a reader of changes, nil when there is none and
// none will come.
func (p *spooler) handOver() *spool.Spool {
	if p.source() == nil {
		p.stop()
	}
	return p.source()
}

// mayHold tells whether an earlier process left records.
func (p *spooler) mayHold() bool {
	return p.enabled() && spool.Exists(filepath.Join(p.j.spec.SpoolDir, p.j.id))
}
