package seed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

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
	file, err := a.dir.Open(q.Path)
	if errors.Is(err, fs.ErrNotExist) && !f.bounded {
		return nil // it is not in the final state either
	}
	if err != nil {
		return fmt.Errorf("seed: open %s: %w", q.Path, err)
	}
	defer file.Close()
	buf, free := r.blocks.buffer()
	defer free()
	size := int(r.blocks.size)
	index := q.First
	for chunk := range slices.Chunk(q.Have, r.blocks.perChunk()) {
		at := index * int64(size)
		n, err := readAt(file, at, buf[:len(chunk)*size])
		if err == nil && f.bounded {
			n, err = f.within(q, at, len(chunk)*size, n)
		}
		if err != nil {
			return err
		}
		for data, i := buf[:n], 0; len(data) > 0; i++ {
			b := Block{Index: index + int64(i), Data: data[:min(size, len(data))]}
			data = data[len(b.Data):]
			b.Sum = sumOf(b.Data)
			f.note(b.Index, b.Sum)
			if b.Sum == chunk[i] {
				b.Same, b.Data = true, nil
			} else if err := a.opts.Limit.Wait(ctx, 1, int64(len(b.Data))); err != nil {
				return err
			}
			if err := fn(b); err != nil {
				return err
			}
		}
		if n < len(chunk)*size {
			return nil // the file ends here
		}
		index += int64(len(chunk))
	}
	return nil
}

// within cuts what was read of a file to what counts, all of which has to be
// there: nobody looks at the file again.
func (f *roundFile) within(q ReadRequest, at int64, length, n int) (int, error) {
	want := int(max(min(int64(length), f.bound-at), 0))
	if n < want {
		return 0, fmt.Errorf("seed: %s became shorter while a backup cursor was open", q.Path)
	}
	return want, nil
}

// readAt fills buf; the end of the file may cut it short.
func readAt(f *os.File, at int64, buf []byte) (int, error) {
	n, err := f.ReadAt(buf, at)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, fmt.Errorf("seed: read %s at %d: %w", f.Name(), at, err)
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

// held reports whether every puller holds exactly this.
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
	file, err := r.agent.dir.Open(path)
	if err != nil {
		return 0, fmt.Errorf("seed: open %s: %w", path, err)
	}
	defer file.Close()
	return readAt(file, index*size, buf[:size])
}
