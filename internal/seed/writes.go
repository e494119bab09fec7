package seed

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sync/errgroup"
)

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
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(r.agent.opts.Workers)
	for _, f := range r.list {
		g.Go(func() error {
			if gctx.Err() != nil {
				return context.Cause(gctx)
			}
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
	return g.Wait()
}
