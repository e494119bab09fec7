package seed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/millrace/millrace/internal/mongo"
)

// spool keeps the blocks that changed, on disk. It is safe for concurrent use.
type spool struct {
	file *os.File

	mu    sync.Mutex
	end   int64
	index map[blockKey]extent
	// held is what is not in the file yet, from one offset up to another; what
	// does not fit as a whole is in the file. nil when all is.
	held     []byte
	from, to int64
}

// holdBytes is how much is held in memory under a lock.
const holdBytes = 64 << 20

// hold has the next bytes kept in memory until flush: to write them to a file
// would take longer than to read them. What is more goes to the file.
func (s *spool) hold() {
	b := make([]byte, holdBytes)
	for i := 0; i < len(b); i += os.Getpagesize() {
		b[i] = 1 // the system gives the memory now, not under the lock
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held, s.from, s.to = b, s.end, s.end
}

// flush writes what is held; blocks can be read again after it.
func (s *spool) flush() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	held, from := s.held[:s.to-s.from], s.from
	s.held, s.from, s.to = nil, 0, 0
	if len(held) == 0 {
		return nil
	}
	if _, err := s.file.WriteAt(held, from); err != nil {
		return noRoomAside(err)
	}
	return nil
}

func noRoomAside(err error) error {
	return mongo.WithHint(fmt.Errorf("seed: put changed blocks aside: %w", err), "give a directory with more room as --spool-dir")
}

type blockKey struct {
	path  string
	index int64
}

type extent struct {
	at     int64
	length int32
	sum    Sum
}

func newSpool(dir, id string) (*spool, error) {
	f, err := os.OpenFile(filepath.Join(dir, "seed-"+id+".spool"), os.O_CREATE|os.O_RDWR|os.O_EXCL, 0o600)
	if err != nil {
		return nil, mongo.WithHint(fmt.Errorf("seed: make a file for what changes during the copy: %w", err), "give a directory with room as --spool-dir")
	}
	// Without a name it is gone with the process, however that ends. Where a
	// file in use keeps its name, remove takes it away.
	_ = os.Remove(f.Name())
	return &spool{file: f, index: map[blockKey]extent{}}, nil
}

// add puts a block aside; it takes the place of what was put aside of it before.
func (s *spool) add(path string, index int64, sum Sum, b []byte) error {
	s.mu.Lock()
	at := s.end
	s.end += int64(len(b))
	s.index[blockKey{path, index}] = extent{at, int32(len(b)), sum}
	var held []byte
	if s.end <= s.from+int64(len(s.held)) {
		held, s.to = s.held[at-s.from:], s.end
	}
	s.mu.Unlock()
	if held != nil {
		copy(held, b)
		return nil
	}
	if _, err := s.file.WriteAt(b, at); err != nil {
		return noRoomAside(err)
	}
	return nil
}

// holds reports whether a block was put aside as it is now.
func (s *spool) holds(path string, index int64, sum Sum) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index[blockKey{path, index}].sum == sum
}

// read gives a block of that checksum, if it was put aside.
func (s *spool) read(path string, index int64, sum Sum, buf []byte) (n int, ok bool, err error) {
	s.mu.Lock()
	e, ok := s.index[blockKey{path, index}]
	s.mu.Unlock()
	if !ok || e.sum != sum {
		return 0, false, nil
	}
	n, err = s.file.ReadAt(buf[:e.length], e.at)
	if err != nil {
		return 0, true, fmt.Errorf("seed: read what was put aside: %w", err)
	}
	return n, true, nil
}

func (s *spool) size() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end
}

func (s *spool) remove() error {
	err := s.file.Close()
	if e := os.Remove(s.file.Name()); e != nil && !errors.Is(e, fs.ErrNotExist) {
		err = errors.Join(err, e)
	}
	return err
}
