package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

const (
	tempPrefix = "millrace-lab-"
	ownerLock  = "owner.lock"
)

// TempDir is a temporary directory whose owner holds a lock in it. A process
// that was killed cannot remove its directory, but the kernel frees its lock,
// so that the next one sees which directories are left over.
type TempDir struct {
	path   string
	unlock func()
}

// parent is the directory of the temporary ones: MILLRACE_LAB_DIR, such as one
// in memory, where servers wait for no disk, or else the system's.
func parent() string {
	if dir := os.Getenv("MILLRACE_LAB_DIR"); dir != "" {
		return dir
	}
	return os.TempDir()
}

// NewTempDir makes a temporary directory and removes those left over.
func NewTempDir() (*TempDir, error) {
	removeLeftOvers()
	path, err := os.MkdirTemp(parent(), tempPrefix)
	if err != nil {
		return nil, fmt.Errorf("make a temporary directory: %w", err)
	}
	// The lock is taken under another name first: a lock file that can be seen
	// is always held, unless its owner is dead.
	hidden := filepath.Join(path, ownerLock+".new")
	unlock, err := tryLock(hidden)
	if err == nil {
		err = os.Rename(hidden, filepath.Join(path, ownerLock))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock the temporary directory: %w", err), os.RemoveAll(path))
	}
	return &TempDir{path: path, unlock: unlock}, nil
}

// Path of the directory.
func (d *TempDir) Path() string { return d.path }

// Remove deletes the directory; a second call does nothing.
func (d *TempDir) Remove() error {
	if err := os.RemoveAll(d.path); err != nil {
		return fmt.Errorf("lab: remove the temporary directory: %w", err)
	}
	d.unlock()
	return nil
}

// removeLeftOvers deletes temporary directories whose owner has died. It does
// what it can: another process may be at the same, or another user own them.
func removeLeftOvers() {
	locks, _ := filepath.Glob(filepath.Join(parent(), tempPrefix+"*", ownerLock))
	for _, lock := range locks {
		if unlock, err := tryLock(lock); err == nil && unlock != nil {
			_ = os.RemoveAll(filepath.Dir(lock))
			unlock()
		}
	}
}
