package seed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
)

// closing finds out what the files hold at one moment.
func (r *round) closing(ctx context.Context) (*Final, error) {
	if r.pin != nil {
		return r.runExtend(ctx)
	}
	return r.runFreeze(ctx)
}

// runFreeze makes the member stand still and finds out what its files hold
// then. Under the lock only files that changed are read, and what the pullers
// do not hold is put aside, so that the lock does not wait for any network.
func (r *round) runFreeze(ctx context.Context) (*Final, error) {
	aside, err := newSpool(r.agent.opts.SpoolDir, r.id)
	if err != nil {
		return nil, err
	}
	tries := freezeTries{log: r.agent.opts.Log}
	for {
		// What one attempt has put aside the next one counts on.
		final, err := r.freezeOnce(ctx, aside)
		if err == nil {
			return final, nil
		}
		if ctx.Err() != nil || !tries.again(ctx, err) {
			return nil, errors.Join(err, aside.remove())
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
	if e := thaw.Release(); e != nil {
		err = errors.Join(err, e)
	}
	locked, release := time.Since(began), time.Since(releasing)
	if err = errors.Join(err, aside.flush()); err != nil {
		return nil, err
	}
	if a.opts.Way == WayLock {
		final.noteLock(times, locked, release, thaw)
		a.opts.Log.Info("the source was locked and works again", "seconds", final.LockSeconds, "changedBytes", final.ChangedBytes,
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
	f.Lock.Settle, f.Lock.CatchUp, f.Lock.CaughtBytes, f.Lock.Take = before.Settle, before.CatchUp, before.CaughtBytes, before.Take
	f.Lock.Release, f.LockSeconds = release.Seconds(), locked.Seconds()
	if told, ok := thaw.(interface{ lockedSeconds() float64 }); ok && told.lockedSeconds() > 0 {
		f.LockSeconds = told.lockedSeconds()
		f.Lock.Release = max(f.LockSeconds-f.Lock.List-f.Lock.Compare-f.Lock.Check, 0)
	}
}

// frozenState reads the state while the member stands still. The error of a
// freeze that was lost meanwhile comes from Release.
func (r *round) frozenState(ctx context.Context, aside *spool, thaw Thaw) (final *Final, files map[string]*roundFile, err error) {
	err = whileFrozen(ctx, thaw, func(ctx context.Context) error {
		final, files, err = r.compare(ctx, aside)
		return err
	})
	return final, files, err
}

// whileFrozen calls work with a context that ends when the member no longer
// stands still.
func whileFrozen(ctx context.Context, thaw Thaw, work func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := make(chan struct{})
	var g errgroup.Group
	g.Go(func() error {
		select {
		case <-thaw.Lost():
			cancel(errThawed)
		case <-watch:
		}
		return nil
	})
	err := work(ctx)
	close(watch)
	_ = g.Wait() // it returns nil
	return err
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
