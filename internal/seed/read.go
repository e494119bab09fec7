package seed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/millrace/millrace/internal/mongo"
)

// read reads blocks: out of what was put aside under the lock, else from the
// file itself.
func (r *round) read(ctx context.Context, q ReadRequest, fn func(Block) error) (err error) {
	done, err := r.enter(q.Puller)
	if err != nil {
		return err
	}
	defer func() { done(err) }()
	r.mu.Lock()
	f := r.files[q.Path] // nothing but what the manifest names is ever opened
	frozen, aside := r.state == roundFrozen, r.spool
	r.mu.Unlock()
	if f == nil || q.First < 0 || q.First > r.blocks.size.blocks(maxFileSize) || len(q.Have) == 0 || int64(len(q.Have)) > r.blocks.size.perRange() {
		return fmt.Errorf("seed: no such blocks: %s from %d", q.Path, q.First)
	}
	if frozen && r.agent.opts.Way != WayStopped {
		return r.readFrozen(ctx, f, aside, q, fn)
	}
	return r.readLive(ctx, f, q, fn)
}

// readLive reads from the file, and notes what was given away.
func (r *round) readLive(ctx context.Context, f *roundFile, q ReadRequest, fn func(Block) error) error {
	a := r.agent
	file, err := a.root.Open(q.Path)
	if errors.Is(err, fs.ErrNotExist) && !f.bounded {
		return nil // it is not in the final state either
	}
	if err != nil {
		return fmt.Errorf("seed: open %s: %w", q.Path, err)
	}
	defer file.Close()
	buf, free := r.blocks.buffer()
	defer free()
	for i, have := range q.Have {
		n, err := readBlock(file, q.First+int64(i), buf)
		if err == nil && f.bounded {
			n, err = f.within(q, r.blocks.size, q.First+int64(i), n)
		}
		if err != nil || n == 0 {
			return err
		}
		b := Block{Index: q.First + int64(i), Sum: sumOf(buf[:n]), Data: buf[:n]}
		f.note(b.Index, b.Sum)
		if b.Sum == have {
			b.Same, b.Data = true, nil
		} else if err := a.opts.Limit.Wait(ctx, 1, int64(n)); err != nil {
			return err
		}
		if err := fn(b); err != nil {
			return err
		}
	}
	return nil
}

// within cuts a block to what counts, all of which has to be there: nobody looks
// at the file again.
func (f *roundFile) within(q ReadRequest, size blockSize, index int64, n int) (int, error) {
	want := int(max(min(int64(size), f.bound-index*int64(size)), 0))
	if n < want {
		return 0, fmt.Errorf("seed: %s became shorter while a backup cursor was open", q.Path)
	}
	return want, nil
}

// readBlock reads a block into buf, which has its size; the end of the file may
// cut it short.
func readBlock(f *os.File, index int64, buf []byte) (int, error) {
	n, err := f.ReadAt(buf, index*int64(len(buf)))
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, fmt.Errorf("seed: read %s at %d: %w", f.Name(), index*int64(len(buf)), err)
	}
	return n, nil
}

// note remembers what a puller has got.
func (f *roundFile) note(index int64, s Sum) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for int64(len(f.served)) <= index {
		f.served = append(f.served, 0)
	}
	if old := f.served[index]; old != 0 && old != s {
		for len(f.mixed) < len(f.served) {
			f.mixed = append(f.mixed, false)
		}
		f.mixed[index] = true
	}
	f.served[index] = s
}

// held tells whether every puller holds exactly this.
func (f *roundFile) held(index int64, s Sum) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return index < int64(len(f.served)) && f.served[index] == s &&
		(index >= int64(len(f.mixed)) || !f.mixed[index])
}

// readFrozen reads the state of the frozen moment.
func (r *round) readFrozen(ctx context.Context, f *roundFile, aside *spool, q ReadRequest, fn func(Block) error) error {
	buf, free := r.blocks.buffer()
	defer free()
	for i, have := range q.Have {
		index := q.First + int64(i)
		if index >= int64(len(f.final)) {
			return nil
		}
		b := Block{Index: index, Sum: f.final[index]}
		if b.Sum == have {
			b.Same = true
		} else if n, err := r.frozenBlock(f, aside, q.Path, index, buf); err != nil {
			return err
		} else if b.Data = buf[:n]; sumOf(b.Data) != b.Sum {
			return mongo.WithHint(fmt.Errorf("seed: block %d of %s has changed since the member was locked", index, q.Path), "begin again: what is there will be used")
		} else if err := r.agent.opts.Limit.Wait(ctx, 1, int64(n)); err != nil {
			return err
		}
		if err := fn(b); err != nil {
			return err
		}
	}
	return nil
}

func (r *round) frozenBlock(f *roundFile, aside *spool, path string, index int64, buf []byte) (int, error) {
	size := int64(r.blocks.size)
	if n := min(size, f.size-index*size); f.final[index] == sumOf(r.blocks.zeros[:n]) {
		clear(buf[:n])
		return int(n), nil
	}
	if aside != nil {
		if n, ok, err := aside.read(path, index, f.final[index], buf); ok || err != nil {
			return n, err
		}
	}
	file, err := r.agent.root.Open(path)
	if err != nil {
		return 0, fmt.Errorf("seed: open %s: %w", path, err)
	}
	defer file.Close()
	return readBlock(file, index, buf)
}
