package seed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"syscall"

	"github.com/millrace/millrace/internal/mongo"
)

// targetFile is a file of the copy. It is safe for concurrent use on different
// ranges.
type targetFile struct {
	root    *os.Root
	name    string
	block   int64      // bytes
	buffers *sync.Pool // of *[]byte of stretchBytes, for direct writes
	// expected is the size that the source named. A range gets blocks up to there: a member
	// may have more small files than its disk has room for at a whole range each.
	expected int64

	mu        sync.Mutex
	file      *os.File
	direct    *os.File       // the same, past the page cache; nil where that is refused
	buffered  bool           // it was refused
	allocated map[int64]bool // ranges that have their blocks
	size      int64
	// found is how much of it was there when it was opened, or given its size:
	// what lies beyond is written by this run, which knows its checksums.
	found int64
	sum   []Sum // by block; 0 is not known yet
}

// open opens the file when it is first needed. f.mu is held.
func (f *targetFile) open() error {
	if f.file != nil {
		return nil
	}
	file, err := f.root.OpenFile(f.name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("seed: make %s: %w", f.name, explain(err))
	}
	info, err := file.Stat()
	if err != nil {
		return errors.Join(err, file.Close())
	}
	f.file, f.size, f.found = file, info.Size(), info.Size()
	return nil
}

// directly gives the file to write so many bytes to past the page cache, nil
// when that cannot be done. f.mu is held.
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

// closeFiles closes what is open. f.mu is held.
func (f *targetFile) closeFiles() error {
	var errs []error
	for _, file := range []*os.File{f.direct, f.file} {
		if file != nil {
			errs = append(errs, file.Close())
		}
	}
	f.file, f.direct = nil, nil
	return errors.Join(errs...)
}

// sums are the checksums of what is there: remembered, or read from the file
// if an earlier run left it. A block that others are about to write is not read.
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
	for int64(len(f.sum)) <= index {
		f.sum = append(f.sum, 0)
	}
	f.sum[index] = s
}

// startWriting has a range written to disk while others are copied.
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

// resize cuts or lengthens the file; the checksum of a block whose length
// changes is forgotten.
func (f *targetFile) resize(size int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.open(); err != nil {
		return err
	}
	if err := f.file.Truncate(size); err != nil {
		return fmt.Errorf("seed: set the size of %s: %w", f.name, explain(err))
	}
	if f.size != size {
		for i := min(f.size, size) / f.block; i < int64(len(f.sum)); i++ {
			f.sum[i] = 0
		}
	}
	f.size, f.found, f.expected = size, size, size
	return nil
}

// finish makes the file durable at its size.
func (f *targetFile) finish(size int64) error {
	if err := f.resize(size); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := errors.Join(f.file.Sync(), f.closeFiles()); err != nil {
		return fmt.Errorf("seed: make %s durable: %w", f.name, explain(err))
	}
	return nil
}

func isZero(b []byte) bool {
	for len(b) >= 8 {
		if b[0]|b[1]|b[2]|b[3]|b[4]|b[5]|b[6]|b[7] != 0 {
			return false
		}
		b = b[8:]
	}
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// explain adds what the operator can do.
func explain(err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return mongo.WithHint(err, "make room and run it again: what is there will be used")
	case errors.Is(err, syscall.EMFILE):
		return mongo.WithHint(err, "allow more open files (ulimit -n)")
	}
	return err
}

func writeRootFile(root *os.Root, name string, b []byte) error {
	f, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}

func syncDir(root *os.Root, name string) error {
	d, err := root.Open(name)
	if err != nil {
		return err
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("seed: make the directory %s durable: %w", name, err)
	}
	return nil
}

// syncTree makes all directories durable.
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

// stretchBytes is how much is written to a file at once, a block at least: a disk
// takes fewer large writes faster than many small ones.
const stretchBytes = rangeBytes / 4

// stretch gathers blocks of a range that follow each other. It belongs to one
// goroutine, which ends it.
type stretch struct {
	f     *targetFile
	room  *[]byte // nil when nothing is gathered
	first int64   // block
	n     int     // bytes
	sums  []Sum
}

// add takes a block, which it copies. Zeros beyond the file's present end stay a
// hole.
func (s *stretch) add(b Block) error {
	at := b.Index * s.f.block
	hole, err := s.f.reach(at, b.Data)
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

// end writes what is gathered.
func (s *stretch) end() error {
	if s.room == nil {
		return nil
	}
	err := s.f.put((*s.room)[:s.n], s.first, s.sums)
	s.f.buffers.Put(s.room)
	s.room = nil
	return err
}

// reach opens the file, and reports zeros beyond its end, which it counts as
// there.
func (f *targetFile) reach(at int64, data []byte) (hole bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.open(); err != nil {
		return false, err
	}
	hole = at >= f.size && isZero(data)
	f.size = max(f.size, at+int64(len(data)))
	return hole, nil
}

// put writes blocks and remembers their checksums.
func (f *targetFile) put(data []byte, first int64, sums []Sum) error {
	at := first * f.block
	f.mu.Lock()
	file, direct := f.file, f.directly(at, len(data))
	f.mu.Unlock()
	if err := f.writeAt(file, direct, data, at); err != nil {
		return fmt.Errorf("seed: write %s: %w", f.name, explain(err))
	}
	for i, sum := range sums {
		f.remember(first+int64(i), sum)
	}
	return nil
}

// writeAt writes past the page cache if it may, and through it where the file
// system then does not take it.
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
