package seed

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
)

// closing finds out what the files hold at one moment.
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

// runFreeze makes the member stand still and finds out what its files hold
// then. Under the lock only files that changed are read, and what the pullers
// do not hold is put aside, so that the lock does not wait for any network.
func (r *round) runFreeze(ctx context.Context, aside *spool) (*Final, error) {
	tries := freezeTries{log: r.agent.opts.Log}
	for {
		// What one attempt has put aside the next one counts on.
		final, err := r.freezeOnce(ctx, aside)
		if err == nil || ctx.Err() != nil || !tries.again(ctx, err) {
			return final, err
		}
	}
}

// freezeTries are attempts to have a member stand still.
type freezeTries struct {
	log           *slog.Logger
	written, busy int
	busySince     time.Time
}

// again reports whether another attempt may succeed where one has failed. It
// waits until that is due.
func (f *freezeTries) again(ctx context.Context, failure error) bool {
	_, passes := errors.AsType[*mongo.Retryable](failure) // as the guardian of the lock says
	switch {
	case errors.Is(failure, errWritten):
		if f.written++; f.written == freezeAttempts {
			return false
		}
		f.log.Info("the member's files changed under the lock; it is locked once more", "error", failure)
		return true
	case passes:
		if f.busy++; f.busy == 1 {
			f.busySince = time.Now()
		}
		if time.Since(f.busySince) > lockPatience {
			return false
		}
		f.log.Warn("the member was not locked; it works on, and is to be locked a little later", "error", failure)
		return pace.Pause(ctx, min(time.Duration(f.busy)*lockPause, lockWait)) == nil
	}
	return false
}

const (
	// lockPatience is how long a member that does not grant the lock in time is
	// asked again: with much to do it may have less in a while. Each time it writes
	// out first what it holds, so that the lock has less to wait for.
	lockPatience = 2 * time.Minute
	// lockPause is added to the time between two attempts with each of them: what
	// had to wait for one goes on.
	lockPause = 500 * time.Millisecond
)

// freezeAttempts is how often a member is locked until its files stand still. A
// checkpoint of the server that began before the lock may end after it (seen
// once with 6.0.5 on a busy disk, as a change of WiredTiger.turtle).
const freezeAttempts = 3

func (r *round) freezeOnce(ctx context.Context, aside *spool) (*Final, error) {
	a := r.agent
	times, err := r.catchUp(ctx, aside)
	if err == nil && r.idle(a.opts.Idle) {
		err = errNoRound // whoever this was for is gone: do not lock for nobody
	}
	if err != nil {
		return nil, err
	}
	aside.hold()
	began := time.Now()
	thaw, err := a.opts.Freezer.Freeze(ctx)
	if err != nil {
		return nil, errors.Join(err, aside.flush()) // another attempt reads what is aside
	}
	times.Take = time.Since(began).Seconds()
	began = time.Now()
	final, files, err := r.frozenState(ctx, aside, thaw)
	releasing := time.Now()
	err = errors.Join(err, thaw.Release())
	locked, release := time.Since(began), time.Since(releasing)
	if err = errors.Join(err, aside.flush()); err != nil {
		return nil, err
	}
	if a.opts.Way == WayLock {
		final.noteLock(times, locked, release, thaw)
		a.opts.Log.Info("the source was locked and works again", "seconds", final.LockSeconds, "changedBytes",
			final.ChangedBytes,
			"comparedBytes", final.Lock.ComparedBytes)
		a.opts.Log.Debug("the time of the lock", "seconds", final.LockSeconds, "phases", final.Lock)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state == roundEnded {
		return nil, errNoRound
	}
	for path, f := range files {
		r.files[path] = f
	}
	r.spool = aside
	return final, nil
}

// noteLock notes how long the member was locked: as its holder says, from the
// server's word that it is locked to its word that it is not; else as seen here.
func (f *Final) noteLock(before LockTimes, locked, release time.Duration, thaw Thaw) {
	f.Lock.Settle, f.Lock.CatchUp, f.Lock.CaughtBytes, f.Lock.Take = before.Settle, before.CatchUp, before.CaughtBytes,
		before.Take
	f.Lock.Release, f.LockSeconds = release.Seconds(), locked.Seconds()
	if told, ok := thaw.(interface{ lockedSeconds() float64 }); ok && told.lockedSeconds() > 0 {
		f.LockSeconds = told.lockedSeconds()
		f.Lock.Release = max(f.LockSeconds-f.Lock.List-f.Lock.Compare-f.Lock.Check, 0)
	}
}

// frozenState reads the state while the member stands still. The error of a
// freeze that was lost meanwhile comes from Release.
func (r *round) frozenState(ctx context.Context, aside *spool, thaw Thaw) (*Final, map[string]*roundFile, error) {
	ctx, cancel := endingWith(ctx, thaw.Lost(), errThawed)
	defer cancel()
	return r.compare(ctx, aside)
}

// errThawed ends work under a lock that no longer holds.
var errThawed = errors.New("seed: the source no longer stands still") //nolint:gochecknoglobals // a sentinel

// errWritten is a file that changed although the source stood still.
var errWritten = errors.New("written to while the member stood still") //nolint:gochecknoglobals // a sentinel

// stoodStill makes sure that nobody wrote while the files were read.
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
				"see that nothing but this member's mongod uses the directory, and try again")
		}
	}
	for path := range before {
		if _, ok := after[path]; !ok && !inJournal(path) {
			return fmt.Errorf("seed: %s is gone: %w", path, errWritten)
		}
	}
	return nil
}

// inJournal tells files that a locked member may still append to (observed):
// the lock made a checkpoint, so that the copy needs nothing of what comes
// after it, and recovery stops at a record that was cut.
func inJournal(path string) bool { return strings.HasPrefix(path, "journal/WiredTigerLog.") }

// poisonText stands in place of storage.bson until a copy is complete. It is
// no BSON, so that every mongod refuses to start on it (observed with 4.2 to
// 6.0: fatal assertion 28661), and it marks the directory as ours.
const poisonText = "millrace seed: this copy is not complete; run millrace seed again to complete it\n"

// poisoned reports whether a directory holds an incomplete copy.
func poisoned(root directory) bool {
	b, err := root.ReadFile(storageFile)
	return err == nil && string(b) == poisonText
}

// settler is a Freezer that can have the member write out what it holds. What a
// member changed since its last checkpoint, up to a minute of writes, is in no
// file yet: the lock's own checkpoint would write it, and all of it would have to
// be put aside under the lock.
type settler interface {
	Settle(ctx context.Context) error
}

const (
	// catchUpPasses bounds the passes without a lock.
	catchUpPasses = 3
	// caughtUp is so little in a pass, in bytes, that another one does not
	// shorten the lock.
	caughtUp = 32 << 20
)

// catchUp goes over the files before the lock, as often as it helps, and puts
// aside what changed since pullers read them: under the lock the same blocks are
// summed up again, but few are new. What changes during a pass is left to the next
// one or to the lock, so that another pass helps where the last one took much less
// time than it made up for.
func (r *round) catchUp(ctx context.Context, aside *spool) (times LockTimes, err error) {
	a := r.agent
	if a.opts.Way != WayLock {
		return times, nil
	}
	begun, since := time.Now(), r.began
	for pass := range catchUpPasses {
		began, before := time.Now(), aside.size()
		if err := r.settled(ctx); err != nil {
			return times, err
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

// settled has the member write out what it holds, if that can be done.
func (r *round) settled(ctx context.Context) error {
	s, ok := r.agent.opts.Freezer.(settler)
	if !ok {
		return nil
	}
	err := s.Settle(ctx)
	if err != nil && ctx.Err() == nil {
		r.agent.opts.Log.Warn("the member took no checkpoint before the lock, which may last longer", "error", err)
	}
	return ctx.Err()
}

// catchUpOnce reads the files that changed, and returns how much that was.
func (r *round) catchUpOnce(ctx context.Context, aside *spool) (int64, error) {
	l, read, err := r.outdated()
	if err != nil {
		return 0, err
	}
	r.mu.Lock()
	for path, known := range l.files { // also those that are new
		if r.files[path] == nil {
			r.files[path] = known
		}
	}
	r.mu.Unlock()
	for _, c := range read {
		c.sums = make([]Sum, r.blocks.size.blocks(c.Size))
	}
	if err := r.compareFiles(ctx, read, aside); err != nil {
		return 0, err
	}
	for _, c := range read {
		if c.known.caught, c.known.sums = l.stamps[c.Path], c.sums; c.torn.Load() {
			c.known.caught = stamp{}
		}
	}
	return bytesOf(read), nil
}

// outdated are the files that were written to since they were caught up with, to
// be compared.
func (r *round) outdated() (*listing, []*comparison, error) {
	l, err := r.listing()
	if err != nil {
		return nil, nil, err
	}
	var read []*comparison
	for _, f := range l.list {
		known := l.files[f.Path]
		if !r.same(f, l) && !l.stamps[f.Path].unchangedSince(known.caught) {
			read = append(read, &comparison{File: f, known: known, live: true})
		}
	}
	return l, read, nil
}

func bytesOf(list []*comparison) (n int64) {
	for _, c := range list {
		n += c.Size
	}
	return n
}

// listing is what is to be compared: the files as they are listed, with the
// round's knowledge of each.
type listing struct {
	list   []File
	stamps map[string]stamp
	files  map[string]*roundFile
}

func (r *round) listing() (*listing, error) {
	all, err := r.agent.dir.list()
	if err != nil {
		return nil, err
	}
	l := &listing{list: all.files, stamps: all.stamps, files: make(map[string]*roundFile, len(all.files))}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range l.list {
		if l.files[f.Path] = r.files[f.Path]; l.files[f.Path] == nil {
			l.files[f.Path] = &roundFile{}
		}
	}
	return l, nil
}

// same reports whether a file was not written to since the round first read it.
func (r *round) same(f File, l *listing) bool {
	return r.agent.opts.Way != WayLock || l.stamps[f.Path].unchangedSince(l.files[f.Path].first)
}

// compare reads what the files hold while the member stands still. A file that
// was not written to since the catching up is as it was summed up then.
func (r *round) compare(ctx context.Context, aside *spool) (*Final, map[string]*roundFile, error) {
	began := time.Now()
	l, err := r.listing()
	if err != nil {
		return nil, nil, err
	}
	before := aside.size()
	final := &Final{Files: make([]FinalFile, len(l.list))}
	var read []*comparison
	for i, f := range l.list {
		known := l.files[f.Path]
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
	return final, l.files, err
}

// comparison is a file that is compared.
type comparison struct {
	File
	known *roundFile
	sums  []Sum // are found
	// live reports that the member works: a file may be gone or become shorter,
	// which is noted in torn and no error.
	live bool
	torn atomic.Bool
}

// compareFiles compares files, with as many workers as there are processors: the
// kernel holds most of what is read here, as it was read or written not long ago.
func (r *round) compareFiles(ctx context.Context, list []*comparison, aside *spool) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(max(r.agent.opts.Workers, runtime.GOMAXPROCS(0)))
	for _, c := range list {
		// One large file must not keep one worker alone busy.
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

// compared is how many blocks a worker compares at a time: 16 MB.
func (b *blocks) compared() int { return int(4 * b.size.perRange()) }

// errShorter is a file that ends before its listed size.
var errShorter = errors.New("became shorter while it was compared") //nolint:gochecknoglobals // a sentinel

// compareRange sums up so many blocks of a file from first on, and puts aside
// what pullers do not hold.
func (r *round) compareRange(ctx context.Context, c *comparison, first int, aside *spool) error {
	file, err := r.agent.dir.Open(c.Path)
	if err != nil {
		return fmt.Errorf("seed: open %s: %w", c.Path, err)
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
				chunk[k] = r.blocks.zero // the journal's preallocated end is 100 MB of this
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

// compareChunk sums up the blocks of what was read, and puts aside what nobody
// holds.
func (r *round) compareChunk(c *comparison, first int, sums []Sum, data []byte, aside *spool) error {
	for k := range sums {
		b := data[:min(int(r.blocks.size), len(data))]
		data = data[len(b):]
		sums[k] = sumOf(b)
		i := int64(first + k)
		if c.known.held(i, sums[k]) || aside.holds(c.Path, i, sums[k]) || isZero(b) {
			continue // nobody needs it, it is there already, or its checksum says everything
		}
		if err := aside.add(c.Path, i, sums[k], b); err != nil {
			return err
		}
	}
	return nil
}

// awaitWrites waits until no write to a file is under way that began before. A write
// sets the file's times first and puts its bytes in place after that; in between it
// may wait for memory or a journal for seconds (seen on ext4 and tmpfs). So what is
// read after a stamp was taken may be older than the stamp says, unless writes are
// waited for in between: they hold the file's lock from before they set the times
// until their last byte is in place. On ext4, btrfs and tmpfs SEEK_DATA takes that
// lock, on XFS a read does; settlesWrites tells these.
func awaitWrites(f *os.File) error {
	nextData(f, 0, 0)
	_, err := readAt(f, 0, make([]byte, 1))
	return err
}

// awaitWrites waits for what was being written when the files' stamps were taken. It
// comes before anything is read of them.
func (r *round) awaitWrites(ctx context.Context) error {
	if r.agent.opts.Way != WayLock {
		return nil
	}
	return r.agent.eachFile(ctx, r.list, func(f File) error {
		file, err := r.agent.dir.Open(f.Path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return errors.Join(awaitWrites(file), file.Close())
	})
}
