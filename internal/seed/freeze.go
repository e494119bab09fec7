package seed

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
)

func (r *round) closing(ctx context.Context) (*Final, error) {
	aside, err := newSpool(r.agent.opts.SpoolDir, r.id)
	if err != nil {
		return nil, err
	}
	run := r.runFreeze
	if r.pin != nil {
		run = r.runExtend
	}
	final, err := run(ctx, aside)
	if err != nil {
		return nil, errors.Join(err, aside.remove())
	}
	return final, nil
}

// runFreeze freezes the member and reads its files. Under the lock it reads only what changed, and puts blocks
// aside: the lock does not wait for the network.
func (r *round) runFreeze(ctx context.Context, aside *spool) (*Final, error) {
	log := r.agent.opts.Log
	var busySince time.Time
	for written, busy := 0, 0; ; {
		final, err := r.freezeOnce(ctx, aside)            // blocks put aside serve the next attempt, too
		_, passes := errors.AsType[*mongo.Retryable](err) // as the guardian of the lock reports
		switch {
		case err == nil || ctx.Err() != nil:
			return final, err
		case errors.Is(err, errWritten):
			if written++; written == freezeAttempts {
				return nil, err
			}
			log.Info("the member's files changed under the lock; locking it again", "error", err)
		case passes:
			if busy++; busy == 1 {
				busySince = time.Now()
			}
			if time.Since(busySince) > lockRetries {
				return nil, err
			}
			log.Warn("cannot lock the member now; retrying", "error", err)
			if pace.Pause(ctx, min(time.Duration(busy)*lockPause, lockWait)) != nil {
				return nil, err
			}
		default:
			return nil, err
		}
	}
}

const (
	// lockRetries bounds the retries for a lock that a busy member does not grant. Each attempt flushes first,
	// which shortens the next one.
	lockRetries = 2 * time.Minute
	// lockPause lengthens each pause between two attempts.
	lockPause = 500 * time.Millisecond
	// freezeAttempts is how often a member is locked until its files stand still. A checkpoint that began before
	// the lock may end after it (seen once with 6.0.5 on a busy disk, in WiredTiger.turtle).
	freezeAttempts = 3
)

func (r *round) freezeOnce(ctx context.Context, aside *spool) (*Final, error) {
	a := r.agent
	times, err := r.catchUp(ctx, aside)
	if err == nil && r.idle(a.opts.Idle) {
		err = errNoRound // all pullers are gone
	}
	if err != nil {
		return nil, err
	}
	aside.buffer()
	began := time.Now()
	thaw, err := a.opts.Freezer.Freeze(ctx)
	if err != nil {
		return nil, errors.Join(err, aside.flush()) // the next attempt reads it
	}
	take := lap(&began)
	final, files, err := r.compare(ctx, aside, thaw.Lost(), times)
	releasing := time.Now()
	err = errors.Join(err, thaw.Release())
	locked, release := time.Since(began), time.Since(releasing)
	if err = errors.Join(err, aside.flush()); err != nil {
		return nil, err
	}
	if a.opts.Way == WayLock {
		final.Lock.Take = take
		final.noteLock(locked, release, thaw)
		a.opts.Log.Info("the source was locked and works again", "seconds", final.LockSeconds, "changedBytes",
			final.ChangedBytes, "comparedBytes", final.Lock.ComparedBytes)
		a.opts.Log.Debug("the time of the lock", "seconds", final.LockSeconds, "phases", final.Lock)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state == roundEnded {
		return nil, errNoRound
	}
	maps.Copy(r.files, files)
	r.spool = aside
	return final, nil
}

// noteLock records the time between the server's replies to lock and unlock, as the guardian measured it;
// else the time measured here.
func (f *Final) noteLock(locked, release time.Duration, thaw Thaw) {
	f.Lock.Release, f.LockSeconds = release.Seconds(), locked.Seconds()
	if g, ok := thaw.(interface{ lockedSeconds() float64 }); ok && g.lockedSeconds() > 0 {
		f.LockSeconds = g.lockedSeconds()
		f.Lock.Release = max(f.LockSeconds-f.Lock.List-f.Lock.Compare-f.Lock.Check, 0)
	}
}

var errThawed = errors.New("seed: the source no longer stands still")

var errWritten = errors.New("written to while the member stood still")

func (r *round) stoodStill(before map[string]stamp) error {
	now, err := r.agent.dir.list()
	if err != nil {
		return err
	}
	after := now.stamps
	for _, f := range now.files {
		if inJournal(f.Path) {
			continue
		}
		b, a := before[f.Path], after[f.Path]
		if b.size != a.size || b.mtime != a.mtime || b.inode != a.inode || b.device != a.device {
			return mongo.WithHint(fmt.Errorf("seed: %s was %w", f.Path, errWritten),
				"check that only this member's mongod uses the directory, and run it again")
		}
	}
	for path := range before {
		if _, ok := after[path]; !ok && !inJournal(path) {
			return fmt.Errorf("seed: %s is gone: %w", path, errWritten)
		}
	}
	return nil
}

// inJournal reports files that a locked member may append to (observed). Recovery stops at a record that was
// cut, and the copy needs none after the lock's checkpoint.
func inJournal(path string) bool { return strings.HasPrefix(path, "journal/WiredTigerLog.") }

// poisonText replaces storage.bson until a copy is complete. It is no BSON, so every
// mongod refuses to start on it (observed with 4.2 to 6.0: fatal assertion 28661).
const poisonText = "millrace seed: this copy is not complete; run millrace seed again to complete it\n"

func poisoned(root directory) bool {
	b, err := root.ReadFile(storageFile)
	return err == nil && string(b) == poisonText
}

// settler is a Freezer that can make the member take a checkpoint. Otherwise the lock's own checkpoint writes up
// to a minute of changes, which would be put aside under the lock.
type settler interface {
	Settle(ctx context.Context) error
}

const (
	catchUpPasses = 3        // most passes without a lock
	caughtUp      = 32 << 20 // bytes of a pass below which another one does not shorten the lock
)

// catchUp reads the files before the lock and puts aside what changed, so that few blocks are new under the
// lock. It repeats this while a pass takes much less time than it made up for.
func (r *round) catchUp(ctx context.Context, aside *spool) (times LockTimes, err error) {
	a := r.agent
	if a.opts.Way != WayLock {
		return times, nil
	}
	begun, since := time.Now(), r.began
	for pass := range catchUpPasses {
		began, before := time.Now(), aside.size()
		if s, ok := a.opts.Freezer.(settler); ok {
			if err := s.Settle(ctx); ctx.Err() != nil {
				return times, ctx.Err()
			} else if err != nil {
				a.opts.Log.Warn("the checkpoint before the lock failed; the lock may last longer", "error", err)
			}
		}
		settle := time.Since(began)
		times.Settle += settle.Seconds()
		read, err := r.catchUpOnce(ctx, aside)
		if err != nil {
			return times, err
		}
		added := aside.size() - before
		took, madeUpFor := time.Since(began), began.Sub(since)
		a.opts.Log.Debug("caught up with the member", "pass", pass+1, "settle", settle, "took", took, "readBytes", read,
			"changedBytes", added)
		if added < caughtUp || took > madeUpFor/2 {
			break
		}
		since = began
	}
	times.CatchUp, times.CaughtBytes = time.Since(begun).Seconds(), aside.size()
	return times, nil
}

// catchUpOnce reads the files that changed since the last pass, and returns their size.
func (r *round) catchUpOnce(ctx context.Context, aside *spool) (bytes int64, err error) {
	l, err := r.listing()
	if err != nil {
		return 0, err
	}
	var read []*comparison
	r.mu.Lock()
	for _, f := range l.files {
		known := l.known[f.Path]
		r.files[f.Path] = known // it may be new
		if !r.same(f, l) && !l.stamps[f.Path].unchangedSince(known.caught) {
			read = append(read, &comparison{File: f, known: known, live: true, sums: make([]Sum, r.blocks.size.blocks(f.Size))})
			bytes += f.Size
		}
	}
	r.mu.Unlock()
	if err := r.compareFiles(ctx, read, aside); err != nil {
		return 0, err
	}
	for _, c := range read {
		if c.known.caught, c.known.sums = l.stamps[c.Path], c.sums; c.torn.Load() {
			c.known.caught = stamp{}
		}
	}
	return bytes, nil
}

type listing struct {
	*inventory
	known map[string]*roundFile
}

func (r *round) listing() (*listing, error) {
	all, err := r.agent.dir.list()
	if err != nil {
		return nil, err
	}
	l := &listing{all, make(map[string]*roundFile, len(all.files))}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range l.files {
		if l.known[f.Path] = r.files[f.Path]; l.known[f.Path] == nil {
			l.known[f.Path] = &roundFile{}
		}
	}
	return l, nil
}

// same reports a file that was not written to since the round first read it.
func (r *round) same(f File, l *listing) bool {
	return r.agent.opts.Way != WayLock || l.stamps[f.Path].unchangedSince(l.known[f.Path].first)
}

// compare reads what the files hold while the member stands still, until lost is closed.
func (r *round) compare(ctx context.Context, aside *spool, lost <-chan struct{}, times LockTimes) (*Final,
	map[string]*roundFile, error) {
	ctx, cancel := endingWith(ctx, lost, errThawed)
	defer cancel()
	began := time.Now()
	l, err := r.listing()
	if err != nil {
		return nil, nil, err
	}
	before := aside.size()
	final := &Final{Files: make([]FinalFile, len(l.files)), Lock: times}
	var read []*comparison
	for i, f := range l.files {
		known := l.known[f.Path]
		final.Files[i] = FinalFile{File: f, Same: r.same(f, l)}
		final.Bytes += f.Size
		if final.Files[i].Same {
			continue
		}
		if known.size = f.Size; l.stamps[f.Path].unchangedSince(known.caught) {
			known.final = known.sums
		} else {
			known.final = make([]Sum, r.blocks.size.blocks(f.Size))
			read = append(read, &comparison{File: f, known: known, sums: known.final})
			final.Lock.ComparedBytes += f.Size
		}
		final.Files[i].Sums = known.final
	}
	final.Lock.List = time.Since(began).Seconds()
	began = time.Now()
	if err := r.compareFiles(ctx, read, aside); err != nil {
		if errors.Is(context.Cause(ctx), errThawed) {
			err = errThawed
		}
		return nil, nil, err
	}
	final.Lock.Compare = time.Since(began).Seconds()
	final.ChangedBytes = aside.size() - before
	if r.agent.compared != nil {
		r.agent.compared()
	}
	began = time.Now()
	err = r.stoodStill(l.stamps)
	final.Lock.Check = time.Since(began).Seconds()
	return final, l.known, err
}

type comparison struct {
	File
	known *roundFile
	sums  []Sum // the result
	// live says that the member works: a file may be removed or become shorter, which torn records.
	live bool
	torn atomic.Bool
}

// compareFiles uses all processors: the page cache has most of the files.
func (r *round) compareFiles(ctx context.Context, list []*comparison, aside *spool) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(max(r.agent.opts.Workers, runtime.GOMAXPROCS(0)))
	for _, c := range list {
		for first := 0; first < len(c.sums); first += r.blocks.compared() {
			g.Go(func() error {
				err := r.compareRange(ctx, c, first, aside)
				if c.live && (errors.Is(err, errShorter) || errors.Is(err, fs.ErrNotExist)) {
					c.torn.Store(true)
					return nil
				}
				return err
			})
		}
	}
	return g.Wait()
}

// compared is how many blocks a worker compares at a time, 16 MiB: workers share a large file.
func (b *blocks) compared() int { return int(4 * b.size.perRange()) }

var errShorter = errors.New("became shorter while it was compared")

// compareRange compares up to compared() blocks from first on.
func (r *round) compareRange(ctx context.Context, c *comparison, first int, aside *spool) error {
	file, err := r.agent.dir.Open(c.Path)
	if err != nil {
		return fmt.Errorf("seed: cannot open %s: %w", c.Path, err)
	}
	defer file.Close()
	if err := awaitWrites(file); err != nil {
		return err
	}
	buf, free := r.blocks.buffer()
	defer free()
	size := int64(r.blocks.size)
	data, hole := int64(-1), int64(-1) // the next data, and where they end
	last := min(first+r.blocks.compared(), len(c.sums))
	for i := first; i < last; i += r.blocks.perChunk() {
		chunk := c.sums[i:min(i+r.blocks.perChunk(), last)]
		at := int64(i) * size
		end := at + int64(len(chunk))*size
		if hole <= at {
			data = nextData(file, at, c.Size)
			hole = nextHole(file, data)
		}
		if data >= end && end <= c.Size {
			for k := range chunk {
				chunk[k] = r.blocks.zero // as the journal's preallocated end, 100 MB
			}
			continue
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		n, err := readAt(file, at, buf[:end-at])
		if err != nil {
			return err
		}
		if int64(n) != min(end, c.Size)-at {
			return fmt.Errorf("seed: %s %w", c.Path, errShorter)
		}
		if err := r.compareChunk(c, i, chunk, buf[:n], aside); err != nil {
			return err
		}
	}
	return nil
}

// compareChunk hashes blocks, and puts aside those that pullers lack.
func (r *round) compareChunk(c *comparison, first int, sums []Sum, data []byte, aside *spool) error {
	for k := range sums {
		b := data[:min(int(r.blocks.size), len(data))]
		data = data[len(b):]
		sums[k] = sumOf(b)
		i := int64(first + k)
		if c.known.upToDate(i, sums[k]) || aside.has(c.Path, i, sums[k]) || isZero(b) {
			continue // pullers have it, it is aside already, or its checksum is enough
		}
		if err := aside.add(c.Path, i, sums[k], b); err != nil {
			return err
		}
	}
	return nil
}

// awaitWrites waits for earlier writes to a file. A write sets the file's times seconds before it stores its bytes
// (seen on ext4 and tmpfs), so a later read may be older than the stamp. It holds the file's lock meanwhile.
// SEEK_DATA takes that lock on ext4, btrfs and tmpfs, a read takes it on XFS.
func awaitWrites(f *os.File) error {
	nextData(f, 0, 0)
	_, err := readAt(f, 0, make([]byte, 1))
	return err
}

// awaitWrites waits for the writes under way when the stamps were taken. It comes before any read.
func (r *round) awaitWrites(ctx context.Context) error {
	if r.agent.opts.Way != WayLock {
		return nil
	}
	return r.agent.eachOpen(ctx, r.list, awaitWrites)
}
