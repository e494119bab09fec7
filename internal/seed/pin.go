package seed

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/millrace/millrace/internal/mongo"
)

// Pinner makes a member that works on keep what its files hold at one moment.
type Pinner interface {
	Pin(ctx context.Context) (Pin, error)
}

// Pin is a member whose files are pinned. Unlike a frozen one it goes on
// writing, but only to places that the listed state does not use.
type Pin interface {
	// Thaw ends the pin. Release may be called twice; its error says that the
	// files were not pinned all the time.
	Thaw
	// Files are the files to copy; a negative size is not known.
	Files() []File
	// Extend names files of the journal that bring the copy up to the returned
	// position; none where that cannot be done.
	Extend(ctx context.Context) ([]File, mongo.OpTime, error)
	// Behind is how far a position is behind the member's newest one.
	Behind(ctx context.Context, at mongo.OpTime) (time.Duration, error)
}

// pinFiles pins the files for a round and lists them.
func (r *round) pinFiles(ctx context.Context) error {
	pin, err := r.agent.opts.Pinner.Pin(ctx)
	if err != nil {
		return err
	}
	r.pin = pin
	list, err := r.agent.pinned(pin.Files())
	if err != nil {
		return errors.Join(err, pin.Release())
	}
	r.setList(list)
	for _, f := range r.list {
		r.files[f.Path] = &roundFile{bounded: true, bound: f.Size}
	}
	return nil
}

// pinned checks a list of files and completes it: the server leaves out
// storage.bson, and perhaps sizes.
func (a *Agent) pinned(list []File) ([]File, error) {
	if _, err := a.dir.list(); err != nil { // it reports what cannot be followed
		return nil, err
	}
	out := make([]File, 0, len(list)+1)
	seen := make(map[string]bool, len(list)+1)
	for _, f := range append(list[:len(list):len(list)], File{Path: storageFile, Size: -1}) {
		if seen[f.Path] {
			continue
		}
		seen[f.Path] = true
		if err := checkPath(f.Path); err != nil {
			return nil, mongo.WithHint(fmt.Errorf("seed: the backup cursor names a file that millrace does not know: %w", err),
				"use --way fsync-lock")
		}
		info, err := a.dir.Stat(f.Path)
		if err != nil {
			return nil, mongo.WithHint(fmt.Errorf("seed: the backup cursor names a file that cannot be read: %w", err),
				"name the dbPath of this member, and run on its machine (in its container)")
		}
		if f.Size < 0 {
			f.Size = info.Size()
		}
		if info.Size() < f.Size {
			return nil, fmt.Errorf("seed: %s has %d bytes, the backup cursor says %d", f.Path, info.Size(), f.Size)
		}
		out = append(out, f)
	}
	return out, nil
}

// watchPin ends the round when its files are no longer pinned or nobody wants
// them any more, and lets go when the round has ended.
func (r *round) watchPin() {
	tick := time.NewTicker(max(r.agent.opts.Idle/4, time.Millisecond))
	defer tick.Stop()
	lost := r.pin.Lost()
	for {
		select {
		case <-lost:
			lost = nil
			r.agent.opts.Log.Warn("the server closed the backup cursor; what was read since is not used")
			r.agent.ended(r.agent.drop(r))
		case <-tick.C:
			if r.idle(r.agent.opts.Idle) {
				r.agent.ended(r.agent.drop(r))
			}
		case <-r.over:
			if err := r.pin.Release(); err != nil {
				r.agent.opts.Log.Warn("the backup cursor was not closed as it should be", "error", err)
			}
			return
		}
	}
}

// runExtend closes a round of pinned files: it adds the journal that was
// written since, puts it aside, and makes sure that the files were pinned until
// then. An attempt that is cut leaves them pinned for another one.
func (r *round) runExtend(ctx context.Context, aside *spool) (*Final, error) {
	added, err := r.extend(ctx, aside)
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err = errors.Join(err, r.pin.Release()); err != nil {
		return nil, err
	}
	final := &Final{ChangedBytes: aside.size()}
	for _, f := range r.list {
		if added[f.Path] == nil {
			final.Files = append(final.Files, FinalFile{File: f, Same: true})
			final.Bytes += f.Size
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for path, f := range added {
		final.Files = append(final.Files, FinalFile{File: File{Path: path, Size: f.size}, Sums: f.final})
		final.Bytes += f.size
		r.files[path] = f
	}
	r.spool = aside
	return final, nil
}

// extendPatience is how many extensions may bring the copy no nearer.
const extendPatience = 3

// extend adds the journal until the copy is little enough behind.
func (r *round) extend(ctx context.Context, aside *spool) (map[string]*roundFile, error) {
	a := r.agent
	added := map[string]*roundFile{}
	last, stuck := time.Duration(-1), 0
	for {
		list, at, err := r.pin.Extend(ctx)
		if err != nil || len(list) == 0 {
			return added, err
		}
		if err := r.putJournalAside(ctx, list, added, aside); err != nil {
			return nil, err
		}
		behind, err := r.pin.Behind(ctx, at)
		if err != nil {
			return nil, err
		}
		a.opts.Log.Info("the backup cursor was extended", "files", len(list), "behind", behind)
		if behind <= a.opts.MaxBehind {
			return added, nil
		}
		if last >= 0 && behind >= last {
			stuck++
		}
		if last = behind; stuck == extendPatience {
			a.opts.Log.Warn("the copy stays further behind than asked for; the new member has to catch up from the oplog",
				"behind", behind)
			return added, nil
		}
	}
}

// putJournalAside reads files that an extension named. A later extension may
// name them again, longer.
func (r *round) putJournalAside(ctx context.Context, list []File, added map[string]*roundFile, aside *spool) error {
	var read []*comparison
	for _, f := range list {
		if err := checkPath(f.Path); err != nil {
			return err
		}
		known := added[f.Path]
		if known == nil {
			known = &roundFile{}
			if old := r.files[f.Path]; old != nil {
				known.served, known.mixed = old.served, old.mixed // nobody reads any more
			}
			added[f.Path] = known
		}
		info, err := r.agent.dir.Stat(f.Path)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("seed: the server named %s, which is not there: %w", f.Path, err)
		}
		if err != nil {
			return err
		}
		// What the server says is a size of that moment, or none.
		known.size = max(f.Size, info.Size())
		known.final = make([]Sum, r.blocks.size.blocks(known.size))
		read = append(read, &comparison{File: File{Path: f.Path, Size: known.size}, known: known, sums: known.final})
	}
	return r.compareFiles(ctx, read, aside)
}
