package seed

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

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
		for first := 0; first < len(c.sums); first += r.blocks.compared() { // one large file must not keep one worker alone busy
			g.Go(func() error {
				err := r.compareRange(ctx, c.File, c.known, c.sums, first, aside)
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
func (r *round) compareRange(ctx context.Context, f File, known *roundFile, sums []Sum, first int, aside *spool) error {
	file, err := r.agent.dir.Open(f.Path)
	if err != nil {
		return fmt.Errorf("seed: open %s: %w", f.Path, err)
	}
	defer file.Close()
	if err := awaitWrites(file); err != nil {
		return err
	}
	buf, free := r.blocks.buffer()
	defer free()
	size := int64(r.blocks.size)
	data, hole := int64(-1), int64(-1) // the next data, and where they end
	last := min(first+r.blocks.compared(), len(sums))
	for i := first; i < last; i += r.blocks.perChunk() {
		chunk := sums[i:min(i+r.blocks.perChunk(), last)]
		at := int64(i) * size
		end := at + int64(len(chunk))*size
		if hole <= at {
			data = nextData(file, at, f.Size)
			hole = nextHole(file, data)
		}
		if data >= end && end <= f.Size {
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
		if int64(n) != min(end, f.Size)-at {
			return fmt.Errorf("seed: %s %w", f.Path, errShorter)
		}
		if err := r.compareChunk(f.Path, known, i, chunk, buf[:n], aside); err != nil {
			return err
		}
	}
	return nil
}

// compareChunk sums up the blocks of what was read, and puts aside what nobody
// holds.
func (r *round) compareChunk(path string, known *roundFile, first int, sums []Sum, data []byte, aside *spool) error {
	for k := range sums {
		b := data[:min(int(r.blocks.size), len(data))]
		data = data[len(b):]
		sums[k] = sumOf(b)
		i := int64(first + k)
		if known.held(i, sums[k]) || aside.holds(path, i, sums[k]) || isZero(b) {
			continue // nobody needs it, it is there already, or its checksum says everything
		}
		if err := aside.add(path, i, sums[k], b); err != nil {
			return err
		}
	}
	return nil
}
