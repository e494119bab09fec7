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
	if f == nil || q.First < 0 || q.First > maxFileSize/BlockSize || len(q.Have) == 0 || len(q.Have) > rangeBlocks {
		return fmt.Errorf("seed: no such blocks: %s from %d", q.Path, q.First)
	}
	if frozen && r.agent.opts.Way != WayStopped {
		return f.readFrozen(ctx, r.agent, aside, q, fn)
	}
	return f.readLive(ctx, r.agent, q, fn)
}

// readLive reads from the file, and notes what was given away.
func (f *roundFile) readLive(ctx context.Context, a *Agent, q ReadRequest, fn func(Block) error) error {
	file, err := a.root.Open(q.Path)
	if errors.Is(err, fs.ErrNotExist) && !f.bounded {
		return nil // it is not in the final state either
	}
	if err != nil {
		return fmt.Errorf("seed: open %s: %w", q.Path, err)
	}
	defer file.Close()
	block, _ := a.blocks.Get().(*[]byte)
	defer a.blocks.Put(block)
	buf := *block
	for i, have := range q.Have {
		n, err := readBlock(file, q.First+int64(i), buf)
		if err == nil && f.bounded {
			n, err = f.within(q, q.First+int64(i), n)
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
func (f *roundFile) within(q ReadRequest, index int64, n int) (int, error) {
	want := int(max(min(BlockSize, f.bound-index*BlockSize), 0))
	if n < want {
		return 0, fmt.Errorf("seed: %s became shorter while a backup cursor was open", q.Path)
	}
	return want, nil
}

// readBlock reads a block, which the end of the file may cut short.
func readBlock(f *os.File, index int64, buf []byte) (int, error) {
	n, err := f.ReadAt(buf[:BlockSize], index*BlockSize)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, fmt.Errorf("seed: read %s at %d: %w", f.Name(), index*BlockSize, err)
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
func (f *roundFile) readFrozen(ctx context.Context, a *Agent, aside *spool, q ReadRequest, fn func(Block) error) error {
	block, _ := a.blocks.Get().(*[]byte)
	defer a.blocks.Put(block)
	buf := *block
	for i, have := range q.Have {
		index := q.First + int64(i)
		if index >= int64(len(f.final)) {
			return nil
		}
		b := Block{Index: index, Sum: f.final[index]}
		if b.Sum == have {
			b.Same = true
		} else if n, err := f.frozenBlock(a, aside, q.Path, index, buf); err != nil {
			return err
		} else if b.Data = buf[:n]; sumOf(b.Data) != b.Sum {
			return mongo.WithHint(fmt.Errorf("seed: block %d of %s has changed since the member was locked", index, q.Path), "begin again: what is there will be used")
		} else if err := a.opts.Limit.Wait(ctx, 1, int64(n)); err != nil {
			return err
		}
		if err := fn(b); err != nil {
			return err
		}
	}
	return nil
}

// length is the length of a block of the frozen file.
func (f *roundFile) length(index int64) int64 { return min(BlockSize, f.size-index*BlockSize) }

func (f *roundFile) frozenBlock(a *Agent, aside *spool, path string, index int64, buf []byte) (int, error) {
	if n := f.length(index); f.final[index] == sumOf(a.zeros[:n]) {
		clear(buf[:n])
		return int(n), nil
	}
	if aside != nil {
		if n, ok, err := aside.read(path, index, f.final[index], buf); ok || err != nil {
			return n, err
		}
	}
	file, err := a.root.Open(path)
	if err != nil {
		return 0, fmt.Errorf("seed: open %s: %w", path, err)
	}
	defer file.Close()
	return readBlock(file, index, buf)
}
