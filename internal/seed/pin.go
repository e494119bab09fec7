package seed

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/millrace/millrace/internal/mongo"
)

func (r *round) pinFiles(ctx context.Context) error {
	pin, err := r.agent.opts.Cursor.open(ctx)
	if err != nil {
		return err
	}
	r.pin = pin
	list, err := r.agent.pinned(pin.files)
	if err != nil {
		return errors.Join(err, pin.release())
	}
	r.setList(list)
	for _, f := range r.list {
		r.files[f.Path] = &roundFile{bounded: true, bound: f.Size}
	}
	return nil
}

// pinned checks a list of files and adds what the server leaves out: storage.bson, and perhaps sizes.
func (a *Agent) pinned(list []File) ([]File, error) {
	if _, err := a.dir.list(); err != nil { // it reports links that cannot be followed
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

// watchPin ends a round whose files are not pinned any more or that has no puller left.
func (r *round) watchPin() {
	tick := time.NewTicker(max(r.agent.opts.Idle/4, time.Millisecond))
	defer tick.Stop()
	lost := r.pin.lost
	for {
		select {
		case <-lost:
			lost = nil
			r.agent.opts.Log.Warn("the server closed the backup cursor; later blocks are not used")
			r.agent.ended(r.agent.drop(r))
		case <-tick.C:
			if r.idle(r.agent.opts.Idle) {
				r.agent.ended(r.agent.drop(r))
			}
		case <-r.over:
			if err := r.pin.release(); err != nil {
				r.agent.opts.Log.Warn("cannot close the backup cursor", "error", err)
			}
			return
		}
	}
}

// runExtend puts aside the journal that was written since, and checks that the files were pinned until now.
func (r *round) runExtend(ctx context.Context, aside *spool) (*Final, error) {
	added, err := r.extend(ctx, aside)
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err = errors.Join(err, r.pin.release()); err != nil {
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

// extend adds the journal until the copy is at most MaxBehind behind.
func (r *round) extend(ctx context.Context, aside *spool) (map[string]*roundFile, error) {
	a := r.agent
	added := map[string]*roundFile{}
	const mostStuck = 3
	last, stuck := time.Duration(-1), 0
	for {
		list, at, err := r.pin.extend(ctx)
		if err != nil || len(list) == 0 {
			return added, err
		}
		if err := r.putJournalAside(ctx, list, added, aside); err != nil {
			return nil, err
		}
		behind, err := r.pin.behind(ctx, at)
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
		if last = behind; stuck == mostStuck {
			a.opts.Log.Warn("the copy stays behind by more than --max-behind; the new member has to catch up from the oplog",
				"behind", behind)
			return added, nil
		}
	}
}

// putJournalAside reads files that an extension named. A later extension may name them again.
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
				known.served, known.mixed = old.served, old.mixed // all reads have ended
			}
			added[f.Path] = known
		}
		info, err := r.agent.dir.Stat(f.Path)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("seed: the server names %s, which does not exist: %w", f.Path, err)
		}
		if err != nil {
			return err
		}
		known.size = max(f.Size, info.Size())
		known.final = make([]Sum, r.blocks.size.blocks(known.size))
		read = append(read, &comparison{File: File{Path: f.Path, Size: known.size}, known: known, sums: known.final})
	}
	return r.compareFiles(ctx, read, aside)
}
