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
	s.mu.Unlock()
	if _, err := s.file.WriteAt(b, at); err != nil {
		return mongo.WithHint(fmt.Errorf("seed: put changed blocks aside: %w", err), "give a directory with more room as --spool-dir")
	}
	return nil
}

// holds tells whether a block was put aside as it is now.
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
