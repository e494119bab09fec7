package seed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
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
	for attempt := 1; ; attempt++ {
		final, err := r.freezeOnce(ctx)
		if !errors.Is(err, errWritten) || attempt == freezeAttempts || ctx.Err() != nil {
			return final, err
		}
		r.agent.opts.Log.Info("the member's files changed under the lock; it is locked once more", "error", err)
	}
}

// freezeAttempts is how often a member is locked until its files stand still. A
// checkpoint of the server that began before the lock may end after it (seen
// once with 6.0.5 on a busy disk, as a change of WiredTiger.turtle).
const freezeAttempts = 3

func (r *round) freezeOnce(ctx context.Context) (*Final, error) {
	a := r.agent
	aside, err := newSpool(a.opts.SpoolDir, r.id)
	if err != nil {
		return nil, err
	}
	thaw, err := a.opts.Freezer.Freeze(ctx)
	if err != nil {
		return nil, errors.Join(err, aside.remove())
	}
	began := time.Now()
	final, files, err := r.frozenState(ctx, aside, thaw)
	if e := thaw.Release(); e != nil {
		err = errors.Join(err, e)
	}
	if err != nil {
		return nil, errors.Join(err, aside.remove())
	}
	if a.opts.Way == WayLock {
		final.LockSeconds = time.Since(began).Seconds()
		a.opts.Log.Info("the source was locked and works again", "seconds", final.LockSeconds, "changedBytes", final.ChangedBytes)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for path, f := range files {
		r.files[path] = f
	}
	r.spool = aside
	return final, nil
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

func (r *round) compare(ctx context.Context, aside *spool) (*Final, map[string]*roundFile, error) {
	a := r.agent
	list, stamps, err := listFiles(a.root)
	if err != nil {
		return nil, nil, err
	}
	final := &Final{Files: make([]FinalFile, len(list))}
	files := make(map[string]*roundFile, len(list))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(a.opts.Workers)
	for i, f := range list {
		known := r.files[f.Path]
		if known == nil {
			known = &roundFile{}
		}
		files[f.Path] = known
		final.Files[i] = FinalFile{File: f}
		final.Bytes += f.Size
		if a.opts.Way != WayLock || stamps[f.Path].unchangedSince(known.first) {
			final.Files[i].Same = true
			continue
		}
		known.final, known.size = make([]Sum, blocksOf(f.Size)), f.Size
		final.Files[i].Sums = known.final
		for first := 0; first < len(known.final); first += compareBlocks { // one large file must not keep one worker alone busy
			g.Go(func() error { return r.compareRange(gctx, f, known, first, aside) })
		}
	}
	if err := g.Wait(); err != nil {
		if errors.Is(context.Cause(ctx), errThawed) {
			err = errThawed
		}
		return nil, nil, err
	}
	final.ChangedBytes = aside.size()
	return final, files, r.stoodStill(stamps)
}

// compareBlocks is how many blocks a worker compares at a time.
const compareBlocks = 128

// compareRange hashes compareBlocks of a file from first on, and puts aside
// what pullers do not hold.
func (r *round) compareRange(ctx context.Context, f File, known *roundFile, first int, aside *spool) error {
	file, err := r.agent.root.Open(f.Path)
	if err != nil {
		return fmt.Errorf("seed: open %s: %w", f.Path, err)
	}
	defer file.Close()
	block, _ := r.agent.blocks.Get().(*[]byte)
	defer r.agent.blocks.Put(block)
	buf := *block
	zero, data := sumOf(r.agent.zeros), int64(-1)
	sums := known.final
	for i := first; i < min(first+compareBlocks, len(sums)); i++ {
		if at := int64(i) * BlockSize; data < at {
			data = nextData(file, at, f.Size)
		}
		if end := int64(i+1) * BlockSize; data >= end && end <= f.Size {
			sums[i] = zero // the journal's preallocated end is 100 MB of this
			continue
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		n, err := readBlock(file, int64(i), buf)
		if err != nil {
			return err
		}
		if want := min(BlockSize, f.Size-int64(i)*BlockSize); int64(n) != want {
			return fmt.Errorf("seed: %s became shorter while it was compared", f.Path)
		}
		sums[i] = sumOf(buf[:n])
		if known.held(int64(i), sums[i]) || isZero(buf[:n]) {
			continue // nobody needs it, or its checksum says everything
		}
		if err := aside.add(f.Path, int64(i), buf[:n]); err != nil {
			return err
		}
	}
	return nil
}

// stoodStill makes sure that nobody wrote while the files were read.
func (r *round) stoodStill(before map[string]stamp) error {
	list, after, err := listFiles(r.agent.root)
	if err != nil {
		return err
	}
	for _, f := range list {
		if inJournal(f.Path) {
			continue
		}
		b, a := before[f.Path], after[f.Path]
		if b.size != a.size || b.mtime != a.mtime || b.inode != a.inode {
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
func inJournal(path string) bool { return strings.HasPrefix(path, "journal/") }

// poisonText stands in place of storage.bson until a copy is complete. It is
// no BSON, so that every mongod refuses to start on it (observed with 4.2 to
// 6.0: fatal assertion 28661), and it marks the directory as ours.
const poisonText = "millrace seed: this copy is not complete; run millrace seed again to complete it\n"

// poisoned tells whether a directory holds an incomplete copy.
func poisoned(root *os.Root) bool {
	b, err := root.ReadFile(storageFile)
	return err == nil && string(b) == poisonText
}
