package seed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const (
	// scratchPrefix begins the names of our directories among temporary files.
	scratchPrefix = "millrace-seed-"
	// ownerFile in one is locked for as long as its owner lives.
	ownerFile = "owner"
)

// scratch is a private directory among temporary files. Where a process was
// killed its directory stays, until a later process removes it: whose ownerFile
// nobody holds a lock on, is nobody's.
type scratch struct {
	dir   string
	owner *os.File // its lock also lasts for as long as a child has it open
}

func newScratch() (*scratch, error) {
	parent := os.TempDir()
	sweepScratch(parent)
	dir, err := os.MkdirTemp(parent, scratchPrefix)
	if err != nil {
		return nil, fmt.Errorf("seed: make a private directory: %w", err)
	}
	s := &scratch{dir: dir}
	// It gets its name when it is locked: a sweep passes over what has none.
	held := filepath.Join(dir, ownerFile+".new")
	if s.owner, err = os.OpenFile(held, os.O_CREATE|os.O_RDWR|os.O_EXCL, 0o600); err == nil {
		if err = tryLock(s.owner); err == nil {
			err = os.Rename(held, filepath.Join(dir, ownerFile))
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("seed: lock a private directory: %w", err), s.remove())
	}
	return s, nil
}

func (s *scratch) remove() error {
	err := os.RemoveAll(s.dir)
	if s.owner != nil {
		err = errors.Join(err, s.owner.Close())
	}
	return err
}

// sweepScratch removes directories of ours whose owner is dead. What cannot be
// looked into or removed stays: it is another user's, or of no consequence.
func sweepScratch(parent string) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name(), scratchPrefix) { // a link is no directory
			sweepOne(filepath.Join(parent, e.Name()))
		}
	}
}

func sweepOne(dir string) {
	if info, err := os.Lstat(dir); err != nil || !info.IsDir() || !ownedByUs(info) {
		return
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return
	}
	defer root.Close()
	f, err := root.OpenFile(ownerFile, os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer f.Close()
	if tryLock(f) == nil {
		_ = os.RemoveAll(dir)
	}
}
