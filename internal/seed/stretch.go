package seed

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

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
