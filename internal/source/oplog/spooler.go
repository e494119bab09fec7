package oplog

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/retry"
	"github.com/millrace/millrace/internal/source/spool"
)

// Spooler keeps entries on local disk that the oplog may discard before the target has them. It starts
// on request and ends once everything was read. Its failures do not fail the job, which then relies on
// the oplog.
type Spooler struct {
	c      *mongo.Cluster
	opt    SpoolOptions
	wanted chan struct{} // capacity 1

	mu      sync.Mutex
	owner   string
	s       *spool.Spool // nil while there is none
	cancel  func()       // ends the filling; nil while nobody fills
	filling chan struct{}
	stuckAt int64 // the spool's size when its disk was found full; less than 0 if it was not
	warned  bool  // something of it could not be removed, and a warning was logged
}

// SpoolOptions configure a Spooler. Without Dir or MaxBytes it does nothing.
type SpoolOptions struct {
	Dir      string
	MaxBytes int64
	Shared   *Shared // as in Options
	Log      *slog.Logger
}

// NewSpooler returns a spooler for c's oplog.
func NewSpooler(c *mongo.Cluster, o SpoolOptions) *Spooler {
	return &Spooler{c: c, opt: o, wanted: make(chan struct{}, 1), stuckAt: -1}
}

func (p *Spooler) enabled() bool { return p.opt.Dir != "" && p.opt.MaxBytes > 0 }

// Check returns the directory, its free bytes and the bytes wanted. enabled is false without a spool.
func (p *Spooler) Check() (dir string, free, want uint64, enabled bool, err error) {
	if !p.enabled() {
		return "", 0, 0, false, nil
	}
	free, err = spool.Check(p.opt.Dir)
	return p.opt.Dir, free, uint64(p.opt.MaxBytes), true, err
}

// Covers reports whether the spool takes the changes and has room, so that the oplog may be short. With
// begin it starts the spool if it can.
func (p *Spooler) Covers(begin bool) bool {
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
		return s.Bytes() != stuckAt && s.Room(spoolRoom)
	}
	if begin {
		signal(p.wanted)
	}
	return begin
}

// Begin takes over the spool that an earlier process of the owner left, and fills it on request. from
// returns the position where the owner reads on. The returned function stops filling.
func (p *Spooler) Begin(ctx context.Context, owner string, from func() mongo.OpTime) (end func()) {
	if !p.enabled() {
		return func() {}
	}
	at := from()
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	p.mu.Lock()
	p.owner = owner
	if err := p.takeUp(at); err != nil {
		p.warn("the spool of an earlier process cannot be used; the oplog has to keep the changes", err)
	}
	p.cancel, p.filling = cancel, done
	p.mu.Unlock()
	go func() {
		defer close(done)
		if err := p.run(ctx, from); err != nil && ctx.Err() == nil {
			p.warn("changes are no longer kept on local disk; the copy has to end while the oplog has them", err)
		}
	}()
	return p.stop
}

// stop ends filling and waits for it.
func (p *Spooler) stop() {
	p.mu.Lock()
	cancel, done := p.cancel, p.filling
	p.mu.Unlock()
	if cancel != nil {
		cancel()
		<-done
	}
}

// takeUp keeps an earlier process's spool if the owner needs it. p.mu must be locked, as for open and
// remove.
func (p *Spooler) takeUp(from mongo.OpTime) error {
	if err := p.open(); err != nil {
		return err
	}
	if spooled(p.s, from) {
		signal(p.wanted)
		return nil
	}
	return p.remove()
}

func (p *Spooler) open() (err error) {
	if p.s == nil {
		p.s, err = spool.Open(p.opt.Dir, spool.Options{MaxBytes: p.opt.MaxBytes, Owner: p.owner})
	}
	return err
}

func (p *Spooler) warn(text string, err error) {
	p.opt.Log.Warn(text, "error", err, "directory", p.opt.Dir, "hint", SpoolHint(p.opt.Dir, err))
}

// SpoolHint says what an operator can do about a failure of the spool in dir.
func SpoolHint(dir string, err error) string {
	const other = "choose another directory with --spool-dir, or keep no changes with --spool-max 0"
	for _, h := range []struct {
		hint   string
		causes []error
	}{
		{"make room in " + dir + ", or " + other, []error{spool.ErrNoSpace}},
		{"end the process that uses " + dir + ", or " + other, []error{spool.ErrLocked}},
		{"remove " + dir + "; if the oplog no longer has what was in it, the job says so, and has to begin anew with " +
			"--restart", []error{spool.ErrDamaged}},
		{"give this user the right to read and write " + dir + ", or " + other, []error{fs.ErrPermission}},
		{"its file system is read-only: mount it for writing, or " + other, []error{syscall.EROFS}},
		{"a file is in the place of a directory: remove it, or " + other, []error{syscall.ENOTDIR, syscall.EEXIST}},
		{"raise the limit of file sizes (ulimit -f), or " + other, []error{syscall.EFBIG}},
		{"raise the limit of open files (ulimit -n)", []error{syscall.EMFILE, syscall.ENFILE}},
	} {
		if slices.ContainsFunc(h.causes, func(c error) bool { return errors.Is(err, c) }) {
			return h.hint
		}
	}
	return "look at the disk of " + dir + ", or " + other
}

func (p *Spooler) remove() error {
	if p.s == nil {
		return nil
	}
	err := p.s.Remove()
	p.s = nil
	return err
}

// run waits until a spool is wanted and fills it.
func (p *Spooler) run(ctx context.Context, from func() mongo.OpTime) error {
	select {
	case <-p.wanted:
	case <-ctx.Done():
		return nil
	}
	p.mu.Lock()
	err := p.open()
	s := p.s
	p.mu.Unlock()
	if err != nil {
		return err
	}
	at := from()
	p.opt.Log.Info("the oplog may not keep the changes until the copy is done; keeping them on local disk",
		"directory", p.opt.Dir, "most", p.opt.MaxBytes, "from", at)
	return p.fill(ctx, at, s)
}

// fill reads the oplog into the spool until ctx ends. It retries temporary failures and full disks.
func (p *Spooler) fill(ctx context.Context, from mongo.OpTime, s *spool.Spool) error {
	const least, most = 250 * time.Millisecond, 15 * time.Second
	src := New(p.c, Options{Shared: p.opt.Shared, Log: p.opt.Log})
	err := retry.Again(ctx, least, most, func(err error, _ time.Duration) bool {
		full := errors.Is(err, spool.ErrNoSpace)
		if ctx.Err() != nil || !full && mongo.Classify(err) != mongo.ClassRetry {
			return false
		}
		if full {
			p.stuck(s.Bytes(), err)
		} else {
			p.opt.Log.Debug("filling the spool was interrupted", "error", err)
		}
		return true
	}, func() error { return src.fill(ctx, from, s) })
	return errors.Join(err, s.Sync())
}

// stuck records a full disk, and logs it once for each size.
func (p *Spooler) stuck(size int64, err error) {
	p.mu.Lock()
	was := p.stuckAt
	p.stuckAt = size
	p.mu.Unlock()
	if was != size {
		p.warn("the disk of the spool is full; until there is room, the oplog has to keep the changes", err)
	}
}

// spool returns the current spool, nil for none.
func (p *Spooler) spool() *spool.Spool {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.s
}

// handOver returns the spool to its reader. Without one it ends filling: none will come.
func (p *Spooler) handOver() *spool.Spool {
	if p != nil && p.spool() == nil {
		p.stop()
	}
	return p.spool()
}

// NeedsFrom returns the position from which a reader at a position needs the oplog.
func (p *Spooler) NeedsFrom(at mongo.OpTime) mongo.OpTime {
	if s := p.spool(); spooled(s, at) {
		return spoolEnd(s)
	}
	return at
}

// Usage returns the spool's bytes on disk and its last entry, zero for none.
func (p *Spooler) Usage() (bytes int64, until mongo.OpTime) {
	if s := p.spool(); s != nil {
		return s.Bytes(), spoolEnd(s)
	}
	return 0, until
}

// abandon closes a spool that cannot be read. The next attempt opens it again or reads the oplog, which
// reports what it has lost.
func (p *Spooler) abandon(err error) error {
	p.stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.s != nil {
		_ = p.s.Close() // it has failed already
		p.s = nil
	}
	return mongo.Retry("the spool in "+p.opt.Dir+" cannot be read", err, SpoolHint(p.opt.Dir, err))
}

// Passed removes what a reader that starts at from no longer needs.
func (p *Spooler) Passed(from mongo.OpTime) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.s == nil {
		return
	}
	var err error
	if spoolEnd(p.s).Before(from) { // then it is no longer filled
		err = p.remove()
	} else {
		err = p.s.Trim(spoolKey(from))
	}
	if err != nil && !p.warned {
		p.warned = true
		p.warn("what was read of the spool cannot be removed", err)
	}
}

// Close closes the spool, and removes it if the owner is finished.
func (p *Spooler) Close(finished bool) error {
	p.stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	if finished || p.s == nil {
		return p.remove()
	}
	err := p.s.Close()
	p.s = nil
	return err
}

// HasLeftover reports whether an earlier process left a spool.
func (p *Spooler) HasLeftover() bool { return p.enabled() && spool.Exists(p.opt.Dir) }
