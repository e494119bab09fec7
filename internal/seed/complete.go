package seed

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sync/errgroup"
)

// complete makes everything durable and the directory startable, as its last
// step.
func (p *pull) complete(ctx context.Context, final *Final) error {
	p.stats.enter(PhaseSync, 0)
	keep := map[string]bool{}
	p.report.Files, p.report.Bytes = len(final.Files), final.Bytes
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(p.o.Workers)
	for _, f := range final.Files {
		keep[f.Path] = true
		t := p.files[f.Path]
		g.Go(func() error {
			if gctx.Err() != nil {
				return gctx.Err()
			}
			return t.finish(f.Size)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := p.removeOthers(keep); err != nil {
		return err
	}
	if err := syncTree(p.root); err != nil {
		return err
	}
	if err := p.root.Rename(storageTemp, storageFile); err != nil {
		return fmt.Errorf("seed: complete the copy: %w", err)
	}
	return syncDir(p.root, ".")
}

// removeOthers removes what is not part of the copy: files that the source
// dropped meanwhile, and what is left of an earlier attempt.
func (p *pull) removeOthers(keep map[string]bool) error {
	files, err := listCopy(p.root)
	if err != nil {
		return err
	}
	for _, f := range files {
		if keep[f.Path] {
			continue
		}
		if err := p.root.Remove(f.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("seed: remove what the source does not have any more: %w", err)
		}
	}
	return nil
}
