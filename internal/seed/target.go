package seed

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"syscall"

	"github.com/millrace/millrace/internal/mongo"
)

// targetFile is a file of the copy. It is safe for concurrent use on different ranges.
type targetFile struct {
	root    *os.Root
	name    string
	block   int64      // bytes
	buffers *sync.Pool // of *[]byte of stretchBytes, for direct writes
	// expected is the source's size, up to which ranges are allocated: a disk may lack room for full ranges.
	expected int64

	mu        sync.Mutex
	file      *os.File
	direct    *os.File       // the same without page cache, nil if refused
	buffered  bool           // it was refused
	allocated map[int64]bool // ranges that have their blocks
	size      int64
	found     int64 // size when it was opened or resized; this run knows the sums of later blocks
	sum       []Sum // by block; 0 is unknown
}

// open is called with f.mu locked.
func (f *targetFile) open() error {
	if f.file != nil {
		return nil
	}
	file, err := f.root.OpenFile(f.name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("seed: cannot make %s: %w", f.name, explain(err))
	}
	info, err := file.Stat()
	if err != nil {
		return errors.Join(err, file.Close())
	}
	f.file, f.size, f.found = file, info.Size(), info.Size()
	return nil
}

// directly returns the file for a write without page cache, nil if not possible. f.mu is locked.
func (f *targetFile) directly(at int64, n int) *os.File {
	if f.buffered || n%directAlign != 0 {
		return nil
	}
	if f.direct == nil {
		var err error
		if f.direct, err = openDirect(f.root, f.name); err != nil {
			f.direct, f.buffered = nil, true
			return nil
		}
		f.allocated = map[int64]bool{}
	}
	if r := at / rangeBytes; !f.allocated[r] {
		length := min(rangeBytes, max(f.expected, at+int64(n))-r*rangeBytes)
		if err := preallocate(f.file, r*rangeBytes, length); err != nil {
			f.buffered = true
			return nil
		}
		f.allocated[r] = true
	}
	return f.direct
}

func (f *targetFile) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closeFiles()
}

// closeFiles is called with f.mu locked.
func (f *targetFile) closeFiles() error {
	var err error
	for _, file := range []*os.File{f.direct, f.file} {
		if file != nil {
			err = errors.Join(err, file.Close())
		}
	}
	f.file, f.direct = nil, nil
	return err
}

// sums returns the checksums of blocks, and reads those of an earlier run. It reads no block that others may write.
func (f *targetFile) sums(first, n int64) ([]Sum, error) {
	f.mu.Lock()
	err := f.open()
	file, found := f.file, f.found
	have := make([]Sum, n)
	for i := range have {
		if at := first + int64(i); at < int64(len(f.sum)) {
			have[i] = f.sum[at]
		}
	}
	f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	var buf []byte
	for i := range have {
		at := first + int64(i)
		if have[i] != 0 || at*f.block >= found {
			continue
		}
		if buf == nil {
			buf = make([]byte, f.block)
		}
		got, err := readAt(file, at*f.block, buf)
		if err != nil {
			return nil, err
		}
		if got > 0 {
			have[i] = sumOf(buf[:got])
			f.remember(at, have[i])
		}
	}
	return have, nil
}

func (f *targetFile) remember(index int64, s Sum) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sum = atLeast(f.sum, index+1)
	f.sum[index] = s
}

func (f *targetFile) startWriting(first, n int64) {
	f.mu.Lock()
	file := f.file
	if f.direct != nil && !f.buffered {
		file = nil // there is nothing in the page cache
	}
	f.mu.Unlock()
	if file != nil {
		startWriting(file, first*f.block, n*f.block)
	}
}

// resize sets the size, and forgets checksums of blocks whose length changes.
func (f *targetFile) resize(size int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.open(); err != nil {
		return err
	}
	if err := f.file.Truncate(size); err != nil {
		return fmt.Errorf("seed: cannot set the size of %s: %w", f.name, explain(err))
	}
	if f.size != size {
		clear(f.sum[min(min(f.size, size)/f.block, int64(len(f.sum))):])
	}
	f.size, f.found, f.expected = size, size, size
	return nil
}

func (f *targetFile) finish(size int64) error {
	if err := f.resize(size); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := errors.Join(f.file.Sync(), f.closeFiles()); err != nil {
		return fmt.Errorf("seed: cannot make %s durable: %w", f.name, explain(err))
	}
	return nil
}

// isZero compares the bytes with those one further, which is fast.
func isZero(b []byte) bool { return len(b) == 0 || b[0] == 0 && bytes.Equal(b[1:], b[:len(b)-1]) }

func explain(err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return mongo.WithHint(err, "make room and run it again: it uses what is there")
	case errors.Is(err, syscall.EMFILE):
		return mongo.WithHint(err, "allow more open files (ulimit -n)")
	}
	return err
}

func syncDir(root *os.Root, name string) error {
	d, err := root.Open(name)
	if err != nil {
		return err
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("seed: cannot make the directory %s durable: %w", name, err)
	}
	return nil
}

func syncTree(root *os.Root) error {
	return fs.WalkDir(root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if p == "lost+found" {
			return fs.SkipDir
		}
		return syncDir(root, p)
	})
}

// stretchBytes is the size of a write, a block at least: large writes are faster.
const stretchBytes = rangeBytes / 4

// stretch gathers consecutive blocks for one write. It belongs to one goroutine.
type stretch struct {
	f     *targetFile
	room  *[]byte // nil when nothing is gathered
	first int64   // block
	n     int     // bytes
	sums  []Sum
}

// add copies a block. Zeros beyond the file's present end stay a hole.
func (s *stretch) add(b Block) error {
	at := b.Index * s.f.block
	hole, err := s.f.extend(at, b.Data)
	if err != nil {
		return err
	}
	if hole {
		s.f.remember(b.Index, b.Sum)
		return nil
	}
	if s.room != nil && (at != s.first*s.f.block+int64(s.n) || s.n+len(b.Data) > len(*s.room)) {
		if err := s.end(); err != nil {
			return err
		}
	}
	if s.room == nil {
		s.room, _ = s.f.buffers.Get().(*[]byte)
		s.first, s.n, s.sums = b.Index, 0, s.sums[:0]
	}
	s.n += copy((*s.room)[s.n:], b.Data)
	s.sums = append(s.sums, b.Sum)
	return nil
}

func (s *stretch) end() error {
	if s.room == nil {
		return nil
	}
	err := s.f.put((*s.room)[:s.n], s.first, s.sums)
	s.f.buffers.Put(s.room)
	s.room = nil
	return err
}

// extend counts data in the file's size, and reports zeros beyond its end.
func (f *targetFile) extend(at int64, data []byte) (hole bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.open(); err != nil {
		return false, err
	}
	hole = at >= f.size && isZero(data)
	f.size = max(f.size, at+int64(len(data)))
	return hole, nil
}

func (f *targetFile) put(data []byte, first int64, sums []Sum) error {
	at := first * f.block
	f.mu.Lock()
	file, direct := f.file, f.directly(at, len(data))
	f.mu.Unlock()
	if err := f.writeAt(file, direct, data, at); err != nil {
		return fmt.Errorf("seed: cannot write %s: %w", f.name, explain(err))
	}
	for i, sum := range sums {
		f.remember(first+int64(i), sum)
	}
	return nil
}

// writeAt writes without page cache if direct is given, unless the file system refuses that.
func (f *targetFile) writeAt(file, direct *os.File, data []byte, at int64) error {
	if direct != nil {
		_, err := direct.WriteAt(data, at)
		if !errors.Is(err, syscall.EINVAL) {
			return err
		}
		f.mu.Lock()
		f.buffered = true
		f.mu.Unlock()
	}
	_, err := file.WriteAt(data, at)
	return err
}
