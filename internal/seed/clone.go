package seed

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
)

// errCannotClone reports directories on no common file system that shares blocks.
var errCannotClone = errors.New("seed: the file system cannot clone files")

// cloner is a Source whose files are on this machine.
type cloner interface {
	// Clone replaces the first pass and Freeze. make opens the copy of a file. It returns errCannotClone,
	// before the member stands still, where files have to be copied.
	Clone(ctx context.Context, round, puller string, make func(path string) (*os.File, error)) (*Final, error)
}

// Clone makes the copy share the files' blocks, so that nothing is read under the lock.
func (a *Agent) Clone(ctx context.Context, id, puller string, create func(string) (*os.File, error)) (*Final, error) {
	r, err := a.round(id)
	if err != nil {
		return nil, err
	}
	done, err := r.enter(puller)
	if err != nil {
		return nil, err
	}
	defer func() { done(ctx.Err()) }()
	if err := a.cloneable(create); err != nil {
		return nil, err
	}
	if r.pin != nil {
		if err := a.cloneAll(ctx, r.list, create); err != nil {
			return nil, err
		}
		return r.freeze(ctx, puller, 0)
	}
	r.mu.Lock()
	if r.state != roundCopying || len(r.pullers) > 1 || a.opts.Pullers > 1 {
		r.mu.Unlock()
		return nil, errCannotClone // other pullers have read blocks
	}
	r.state = roundFreezing
	r.mu.Unlock()
	final, err := r.cloneFrozen(ctx, create)
	r.settle(final, err)
	return final, err
}

func (r *round) cloneFrozen(ctx context.Context, create func(string) (*os.File, error)) (*Final, error) {
	a := r.agent
	// A clone would wait under the lock for dirty pages.
	if err := a.eachOpen(ctx, r.list, (*os.File).Sync); err != nil {
		return nil, fmt.Errorf("seed: cannot flush the files: %w", err)
	}
	thaw, err := a.opts.Freezer.Freeze(ctx)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	final, err := r.cloneStill(ctx, thaw, create)
	if err = errors.Join(err, thaw.Release()); err != nil {
		return nil, err
	}
	if a.opts.Way == WayLock {
		final.LockSeconds = time.Since(began).Seconds()
		a.opts.Log.Info("the source was locked and works again", "seconds", final.LockSeconds)
	}
	return final, nil
}

func (r *round) cloneStill(ctx context.Context, thaw Thaw, create func(string) (*os.File, error)) (*Final, error) {
	ctx, cancel := endingWith(ctx, thaw.Lost(), errThawed)
	defer cancel()
	all, err := r.agent.dir.list()
	if err != nil {
		return nil, err
	}
	final := &Final{}
	for _, f := range all.files {
		final.Files = append(final.Files, FinalFile{File: f, Same: true})
		final.Bytes += f.Size
	}
	if err := r.agent.cloneAll(ctx, all.files, create); err != nil {
		return nil, err
	}
	return final, r.stoodStill(all.stamps)
}

// eachOpen calls do for each file that exists.
func (a *Agent) eachOpen(ctx context.Context, list []File, do func(*os.File) error) error {
	return a.eachFile(ctx, list, func(f File) error {
		file, err := a.dir.Open(f.Path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return errors.Join(do(file), file.Close())
	})
}

func (a *Agent) cloneAll(ctx context.Context, list []File, create func(string) (*os.File, error)) error {
	return a.eachFile(ctx, list, func(f File) error { return a.clone(f.Path, create) })
}

func (a *Agent) eachFile(ctx context.Context, list []File, do func(File) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(a.opts.Workers)
	for _, f := range list {
		g.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return do(f)
		})
	}
	return g.Wait()
}

// cloneable clones one file, and checks that the others are on its file system.
func (a *Agent) cloneable(create func(string) (*os.File, error)) error {
	if err := a.clone(storageFile, create); err != nil {
		return err
	}
	all, err := a.dir.list()
	if err != nil {
		return err
	}
	for _, s := range all.stamps {
		if s.device != all.stamps[storageFile].device {
			return errCannotClone
		}
	}
	return nil
}

func (a *Agent) clone(name string, create func(string) (*os.File, error)) error {
	from, err := a.dir.Open(name)
	if err != nil {
		return fmt.Errorf("seed: cannot open %s: %w", name, err)
	}
	defer from.Close()
	to, err := create(name)
	if err != nil {
		return err
	}
	return errors.Join(cloneFile(to, from), to.Close())
}

// clone replaces the first pass; ok is false where blocks cannot be shared.
func (p *pull) clone(ctx context.Context, m *Manifest) (*Final, bool, error) {
	c, ok := p.src.(cloner)
	if !ok || p.o.NoClone {
		return nil, false, nil
	}
	p.o.Stats.enter(PhaseClone, 0)
	if err := p.forget(); err != nil {
		return nil, false, err
	}
	final, err := c.Clone(ctx, m.Round, m.Puller, p.create)
	if errors.Is(err, errCannotClone) {
		p.o.NoClone = true
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	for _, f := range final.Files {
		if _, err := p.target(f.File); err != nil {
			return nil, false, err
		}
		if f.Same {
			p.report.ClonedBytes += f.Size
		}
	}
	return final, true, nil
}

func (p *pull) create(name string) (*os.File, error) {
	if err := checkPath(name); err != nil {
		return nil, err
	}
	local, err := p.place(name)
	if err != nil {
		return nil, err
	}
	f, err := p.root.OpenFile(local, os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("seed: cannot make %s: %w", local, explain(err))
	}
	return f, nil
}
